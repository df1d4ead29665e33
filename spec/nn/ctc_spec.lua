-- F.ctc_loss and nn.CTCLoss against PyTorch's (scripts/dev/golden/gen_golden.py _ctc).
local lm = require "luminary"
local message = require "spec.support.error_of"
local nn, F = lm.nn, lm.nn.functional
local golden = lm.load "spec/golden/_ctc.safetensors"

local function same(name, got)
  local want = golden[name]
  assert.same({ unpack(want.shape) }, { unpack(got.shape) }, name)
  assert.is_true(got:allclose(want, { rtol = 1e-4, atol = 1e-5 }), name)
end

describe("ctc_loss", function()
  local inputs, targets = { 9, 8, 9, 3, 0 }, { 4, 2, 0, 4, 0 } -- the fourth has no alignment

  it("is PyTorch's, of padded and of joined targets", function()
    for _, reduction in ipairs { "none", "mean", "sum" } do
      same(reduction .. ".false", F.ctc_loss(golden.x, golden.padded, inputs, targets, 1, reduction))
      for _, kind in ipairs { "padded", "joined" } do
        local x = golden.x:clone():requires_grad_()
        local y = F.ctc_loss(x, golden[kind], inputs, targets, { reduction = reduction, zero_infinity = true })
        same(reduction .. ".true", y)
        y:sum():backward()
        same(reduction .. ".true.grad", x.grad)
      end
    end
  end)

  it("takes another blank, one sample alone, and lengths as tensors", function()
    same("blank", F.ctc_loss(golden.x, golden.others, lm.full({ 5 }, 9, { dtype = "int64" }), { 2, 2, 2, 2, 2 }, 6))
    same("alone", F.ctc_loss(golden.x:select(2, 1), golden.padded[1], lm.tensor(9):int(), 4, { reduction = "none" }))
  end)

  it("has the right gradient of logits", function()
    local x = lm.randn(5, 2, 4, { dtype = "float64" }):requires_grad_()
    local labels = lm.tensor({ { 2, 3 }, { 4, 4 } }, { dtype = "int64" })
    local function loss(v) return F.ctc_loss(v:log_softmax(3), labels, { 5, 4 }, { 2, 2 }) end
    assert(lm.autograd.gradcheck(loss, { x }))
  end)

  it("gives NaN where there is no alignment, and zeros with zero_infinity", function()
    local x = lm.zeros({ 1, 1, 3 }):requires_grad_()
    F.ctc_loss(x, lm.tensor({ { 2, 2 } }, { dtype = "int64" }), { 1 }, { 2 }):backward()
    assert.is_true(x.grad:isnan():all():item())
  end)

  it("is a layer", function()
    local loss = nn.CTCLoss { zero_infinity = true, reduction = "sum" }
    same("sum.true", loss(golden.x, golden.padded, inputs, targets))
    assert.equal("CTCLoss()", tostring(loss))
  end)

  local function of(change)
    local a = { lm.zeros(3, 2, 4), lm.tensor({ { 2, 3 }, { 2, 2 } }, { dtype = "int64" }), { 3, 3 }, { 2, 2 } }
    for i, v in pairs(change) do a[i] = v end
    return function()
      local loss = F.ctc_loss(unpack(a, 1, 5))
      return loss
    end
  end
  for want, f in pairs {
    ["ctc_loss: expected log_probs to have shape %[T, N, C%] or %[T, C%], got %[3%]"] = of { lm.zeros(3) },
    ["ctc_loss: input_lengths must have 2 entries, one for each sample of log_probs, got 1"] = of { [3] = { 3 } },
    ["ctc_loss: input_lengths%[2%] must be at most 3, the steps of log_probs, got 4"] = of { [3] = { 3, 4 } },
    ["ctc_loss: target_lengths%[1%] must be at most 2, the length of targets, got 3"] = of { [4] = { 3, 2 } },
    ["ctc_loss: target_lengths must be integers of at least 0, as a tensor or a list, got"] = of { [4] = { -1, 2 } },
    ["ctc_loss: target_lengths must add up to the length of targets, got 4 and 3"] = of { [2] = lm.ones(3):long() },
    ["ctc_loss: .*label 5 at target%[1%] is out of range for 4 classes"] = of { [2] = lm.full({ 2, 2 }, 5):long() },
    ["ctc_loss: .*label 0 at target%[1%] is out of range .*labels start at 1"] = of { [2] = lm.zeros(2, 2):long() },
    ["ctc_loss: .*blank must be from 1 to 4, got 5"] = of { [5] = 5 },
    ["ctc_loss: .*x must be float32 or float64, got float16"] = of { lm.zeros({ 3, 2, 4 }, { dtype = "float16" }) },
    ["ctc_loss: targets must be an integer dtype, got float32"] = of { [2] = lm.ones(2, 2) },
  } do
    it("refuses with a reason: " .. want, function() assert.matches(want, message(f)) end)
  end
end)
