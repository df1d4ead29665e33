-- How functions and constructors take their arguments, and what their errors say: sweeps over what is public.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return (tostring(problem):gsub("^[^:\n]+:%d+: ", ""))
end

describe("arguments stand by place where PyTorch has them so", function()
  local function params() return nn.Linear(2, 2):parameters() end
  it("in layers, functions, optimizers and schedules", function()
    assert.equal("Conv2d(1, 2, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=1, bias=False)",
      (tostring(nn.Conv2d(1, 2, 3, 2, 1, 1, 1, false)):gsub("bias", "groups=1, bias")))
    assert.matches("stride=(2, 2), padding=(1, 1), output_padding=(1, 1), groups=2",
      tostring(nn.ConvTranspose2d(2, 2, 3, 2, 1, 1, 2)), 1, true)
    assert.equal("Linear(in_features=2, out_features=3, bias=False)", tostring(nn.Linear(2, 3, false)))
    assert.matches("eps=0.001, momentum=0.2, affine=False", tostring(nn.BatchNorm2d(3, 1e-3, 0.2, false)), 1, true)
    assert.matches("eps=0.001, elementwise_affine=False", tostring(nn.LayerNorm({ 3 }, 1e-3, false)), 1, true)
    assert.matches("padding_idx=1", tostring(nn.Embedding(3, 4, 1)), 1, true)
    assert.equal("MaxPool2d(kernel_size=2, stride=1, padding=1, dilation=1, ceil_mode=False)",
      tostring(nn.MaxPool2d(2, 1, 1)))
    assert.is_true(nn.ReLU(true).inplace)
    assert.same({ 0.6, 0.8 }, F.normalize(lm.tensor({ 3, 4 }, { dtype = "float64" }), 2, 1):totable())
    assert.equal(1, F.gumbel_softmax(lm.zeros(5), 1, true):sum():item())
    local group = optim.Adam(params(), 0.1, { 0.8, 0.9 }, { weight_decay = 0.5 }).param_groups[1]
    assert.same({ 0.1, 0.8, 0.5 }, { group.lr, group.betas[1], group.weight_decay })
    assert.equal(0.9, optim.SGD(params(), 0.1, 0.9).param_groups[1].momentum)
    assert.equal(0.5, optim.lr_scheduler.StepLR(optim.SGD(params(), 0.1), 3, 0.5).gamma)
    assert.equal(2, nn.init.constant_(lm.zeros(1), 2):item())
    assert.same({ 2, 3 }, nn.utils.rnn.pad_sequence({ lm.ones(3), lm.ones(2) }, true, 7).shape)
    assert.equal("by place and by name", message(nn.Linear, 2, 3, true, { bias = true }):match "twice, (.*)$")
  end)

  it("and an argument too many names those there are", function()
    for problem, f in pairs {
      ["gumbel_softmax: takes at most 3 options, got 4: tau, hard, dim"] = function()
        F.gumbel_softmax(lm.ones(2), 1, true, 1, 2)
      end,
      ["rot90: takes at most 3 arguments, got 4: x, k, dims"] = function() lm.ones(2, 2):rot90(1, { 1, 2 }, 3) end,
      ["Mish: takes at most 1 argument, got 2: inplace"] = function() nn.Mish(true, 2) end,
      ["glu: takes at most 2 arguments, got 3: x, dim"] = function() F.glu(lm.ones(2), 1, 2) end,
    } do
      assert.equal(problem, message(f))
    end
  end)
end)

describe("a name in a list of sizes, dims or tensors is an error that says it", function()
  local x = lm.ones(2, 3, 4)
  for call, f in pairs {
    tile = function() x:tile { 1, 2, odd = 3 } end, repeat_tensor = function() x:repeat_tensor { 1, 2, 3, odd = 3 } end,
    rot90 = function() x:rot90(1, { 1, 2, odd = 3 }) end, movedim = function() x:movedim({ 1, odd = 3 }, 2) end,
    hstack = function() lm.hstack { x, x, odd = 3 } end, vstack = function() lm.vstack { x, x, odd = 3 } end,
    dstack = function() lm.dstack { x, x, odd = 3 } end, meshgrid = function() lm.meshgrid { x, x, odd = 3 } end,
    ["hstack's options"] = function() lm.hstack({ x, x }, { odd = 3 }) end,
    split = function() x:split({ 1, 2, odd = 3 }, 2) end, unflatten = function() x:unflatten(3, { 2, 2, odd = 3 }) end,
    fftshift = function() lm.fft.fftshift(x, { 1, odd = 3 }) end,
    rfftn = function() lm.fft.rfftn(x, { 2, 3, odd = 3 }) end,
    Conv2d = function() nn.Conv2d(1, 2, { 3, 3, odd = 3 }) end,
    LayerNorm = function() nn.LayerNorm { 3, odd = 3 } end, max_pool1d = function() F.max_pool1d(x, { 2, odd = 1 }) end,
  } do
    it("in " .. call, function() assert.matches("'odd'", message(f), 1, true) end)
  end
end)
