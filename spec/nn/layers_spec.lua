-- Layers, losses, nn.init and nn.utils against PyTorch's values (spec/golden/_nn.safetensors).
local lm = require "luminary"
local signature = require "luminary.base.signature"
local golden = require "spec.support.golden"
local message = require "spec.support.error_of"
local nn, F = lm.nn, lm.nn.functional
local inf = math.huge

local stored
setup(function() stored = golden.load("_nn") end)
teardown(function() stored = nil end)

local function same(what, got, want, tolerance)
  local difference = golden.differs(got, want, tolerance)
  if difference then error(what .. ": " .. difference, 2) end
end

-- Returns all stored tensors below a prefix, by the rest of their names.
local function below(prefix)
  local found = {}
  for name, t in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = t end
  end
  return found
end

describe("AdaptiveLogSoftmaxWithLoss", function()
  it("is the log-probability of a distribution over all classes", function()
    local loss = nn.AdaptiveLogSoftmaxWithLoss(8, 20, { 4, 10 }, { div_value = 2, head_bias = true }):double()
    assert.equal("head.bias head.weight tail.0.0.weight tail.0.1.weight tail.1.0.weight tail.1.1.weight",
      table.concat(require("luminary.base.lists").sorted_keys(loss:state_dict()), " "))
    local x, target = lm.randn(6, 8):double():requires_grad_(), lm.tensor({ 1, 4, 5, 10, 11, 20 }, { dtype = "int64" })
    local all = loss:log_prob(x)
    assert.is_true(all:exp():sum(2):allclose(lm.ones(6):double()))
    local output, mean = loss(x, target)
    assert.is_true(output:allclose(all:gather(2, target:unsqueeze(2)):squeeze(2)))
    assert.is_true(mean:allclose(-output:mean()))
    local of_parts = lm.grad(mean, { x })[1]
    assert.is_true(of_parts:allclose(lm.grad(F.nll_loss(all, target), { x })[1]))
    assert.is_true(loss:predict(x):equal(all:argmax(2)))
    local one, its = loss(x:select(1, 2), target:select(1, 2):view {})
    assert.is_true(one.ndim == 0 and one:allclose(output:select(1, 2)) and its:allclose(-one))
    assert.matches("target must be classes from 1 to 20 (n_classes), got 21", message(loss, x, target + 1), 1, true)
    assert.matches("target must be classes from 1 to 20 (n_classes), got 0", message(loss, x, target - 1), 1, true)
    assert.matches("expected input to have shape [..., 8], got [8, 6]", message(loss, x:t(), target), 1, true)
    assert.matches("expected target to have shape %[6%], got %[5%]", message(loss, x, target:narrow(1, 1, 5)))
    for why, cutoffs in pairs {
      ["cutoffs must have at least one integer, got an empty list"] = {},
      ["cutoffs[2] must be above cutoffs[1] (4), got 4"] = { 4, 4 },
      ["cutoffs[1] must be below n_classes (20), got 20"] = { 20 },
      ["cutoffs[3] must be below n_classes (20), got 25"] = { 2, 3, 25 },
      ["in_features / div_value^2 must be at least 1, got 8 / 4^2 = 0.5"] = { 4, 5 },
    } do
      assert.matches(why, message(nn.AdaptiveLogSoftmaxWithLoss, 8, 20, cutoffs), 1, true)
    end
  end)
end)

describe("CrossMapLRN2d", function()
  it("is LocalResponseNorm over images, and even sizes take one channel less on each side", function()
    local x = lm.randn(2, 6, 3, 3)
    assert.is_true(nn.CrossMapLRN2d(5, { alpha = 0.1 })(x):allclose(nn.LocalResponseNorm(5, { alpha = 0.1 })(x)))
    assert.is_true(nn.CrossMapLRN2d(4, { alpha = 0.4 })(x):allclose(nn.LocalResponseNorm(3, { alpha = 0.3 })(x)))
    assert.matches("expected x to have shape %[N, C, H, W%], got %[2, 6%]", message(nn.CrossMapLRN2d(3), lm.ones(2, 6)))
  end)
end)

-- The ops themselves are held against PyTorch in spec/op.
describe("an activation is its function with its fields as arguments:", function()
  for name, pair in pairs {
    ELU = { function() return nn.ELU(0.5) end, function(x) return F.elu(x, 0.5) end },
    SELU = { function() return nn.SELU() end, F.selu },
    CELU = { function() return nn.CELU { alpha = 0.5 } end, function(x) return F.celu(x, 0.5) end },
    Mish = { function() return nn.Mish() end, F.mish },
    Hardswish = { function() return nn.Hardswish() end, F.hardswish },
    Hardsigmoid = { function() return nn.Hardsigmoid() end, F.hardsigmoid },
    LogSigmoid = { function() return nn.LogSigmoid() end, F.logsigmoid },
    Softsign = { function() return nn.Softsign() end, F.softsign },
    Tanhshrink = { function() return nn.Tanhshrink() end, F.tanhshrink },
    Hardtanh = { function() return nn.Hardtanh(-0.5, 1.5) end, function(x) return x:clamp(-0.5, 1.5) end },
    Threshold = { function() return nn.Threshold(0.1, 20) end, function(x) return lm.where(x:gt(0.1), x, 20) end },
    Hardshrink = { function() return nn.Hardshrink(0.3) end, function(x) return F.hardshrink(x, 0.3) end },
    Softshrink = { function() return nn.Softshrink(0.3) end, function(x) return F.softshrink(x, 0.3) end },
    Softplus = { function() return nn.Softplus(2, 1) end, function(x) return F.softplus(x, 2, 1) end },
    Softmin = { function() return nn.Softmin(2) end, function(x) return (-x):softmax(2) end },
    GLU = { function() return nn.GLU(2) end, function(x)
      return x[{ {}, { 1, 2 } }] * x[{ {}, { 3, 4 } }]:sigmoid()
    end },
    RReLU = { function() return nn.RReLU(0.1, 0.3):eval() end, function(x) return F.leaky_relu(x, 0.2) end },
    PReLU = { function() return nn.PReLU() end, function(x) return F.leaky_relu(x, 0.25) end },
    PReLU_channels = { function() return nn.PReLU(4, { init = 0.5 }) end, function(x) return F.leaky_relu(x, 0.5) end },
  } do
    it(name, function()
      local x = lm.randn(3, 4, 2)
      local net = pair[1]()
      assert.is_true(net(x):allclose(pair[2](x)))
      if net.inplace == false then
        net.inplace = true
        local y = x:clone()
        assert.equal(y, net(y))
        assert.is_true(y:allclose(pair[2](x)))
      end
    end)
  end

  it("PReLU's weight learns", function()
    local net, x = nn.PReLU(2), lm.tensor { { -1, 3 }, { -2, -4 } }
    net(x):sum():backward()
    assert.same({ -3, -4 }, net.weight.grad:totable())
    assert.same({ "weight" }, (function()
      local names = {}
      for name in net:named_parameters() do names[#names + 1] = name end
      return names
    end)())
    assert.matches("PReLU: num_parameters must be an integer of at least 1, got 0$", message(nn.PReLU, 0))
  end)

  it("RReLU draws a slope for each element in training", function()
    local x = lm.full({ 1000 }, -1)
    for _, y in ipairs { nn.RReLU(0.1, 0.3)(x), F.rrelu(x, 0.1, 0.3, true), F.rrelu_(x:clone(), 0.1, 0.3, true) } do
      assert.is_true(y:max():item() <= -0.1 and y:min():item() >= -0.3)
      assert.is_true(y:std():item() > 0.03)
    end
    assert.matches("rrelu: lower must be at most upper, got 0%.5 and 0%.25$", message(F.rrelu, x, 0.5, 0.25))
    assert.matches("glu: the size of dim 1 %(3%) must be divisible by 2$", message(F.glu, lm.zeros(3), 1))
  end)
end)

describe("a layer gives PyTorch's output, gradients and buffers:", function()
  -- name of the golden case: how it is made; evaluation mode where the name is listed
  local cases = {
    linear = function() return nn.Linear(5, 3) end,
    linear_bare = function() return nn.Linear(5, 3, { bias = false }) end,
    conv = function()
      return nn.Conv2d(4, 6, { 3, 2 }, { stride = { 2, 1 }, padding = { 1, 0 }, dilation = { 1, 2 }, groups = 2 })
    end,
    conv_bare = function() return nn.Conv2d(2, 3, 3, { bias = false }) end,
    conv_same = function() return nn.Conv2d(2, 3, { 2, 3 }, { padding = "same", dilation = { 1, 2 } }) end,
    conv_reflect_valid = function() return nn.Conv2d(2, 3, 3, { padding = "valid", padding_mode = "reflect" }) end,
    avg_pool_divisor = function()
      return nn.AvgPool2d(3, { stride = 2, padding = 1, ceil_mode = true, divisor_override = 4 })
    end,
    embedding = function() return nn.Embedding(7, 3, { padding_idx = 3 }) end,
    bn1d = function() return nn.BatchNorm1d(3) end,
    bn1d_length = function() return nn.BatchNorm1d(3, { eps = 0.01, momentum = 0.3 }) end,
    bn2d = function() return nn.BatchNorm2d(3) end,
    bn2d_eval = function() return nn.BatchNorm2d(3):eval() end,
    bn2d_average = function() return nn.BatchNorm2d(3, { momentum = false }) end,
    bn2d_plain = function() return nn.BatchNorm2d(3, { affine = false }) end,
    bn2d_batch = function() return nn.BatchNorm2d(3, { track_running_stats = false }):eval() end,
    layer_norm = function() return nn.LayerNorm(6) end,
    layer_norm_dims = function() return nn.LayerNorm({ 3, 4 }, { eps = 0.01 }) end,
    layer_norm_plain = function() return nn.LayerNorm(6, { elementwise_affine = false }) end,
    layer_norm_unbiased = function() return nn.LayerNorm(6, { bias = false }) end,
    max_pool = function() return nn.MaxPool2d({ 3, 2 }, { stride = 2, padding = 1, ceil_mode = true }) end,
    avg_pool = function() return nn.AvgPool2d(3, { stride = 2, padding = 1, count_include_pad = false }) end,
    adaptive_pool = function() return nn.AdaptiveAvgPool2d { 3, 2 } end,
    sequential = function()
      return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 3), nn.ReLU()))
    end,
    group_norm = function() return nn.GroupNorm(2, 4) end,
    group_norm_plain = function() return nn.GroupNorm(4, 4, { eps = 0.1, affine = false }) end,
    instance_norm = function() return nn.InstanceNorm2d(3) end,
    instance_norm_running = function()
      return nn.InstanceNorm1d(3, { momentum = 0.3, affine = true, track_running_stats = true })
    end,
    instance_norm_eval = function()
      return nn.InstanceNorm1d(3, { affine = true, track_running_stats = true }):eval()
    end,
    instance_norm_single = function() return nn.InstanceNorm1d(3, { affine = true }) end,
    rms_norm = function() return nn.RMSNorm(6) end,
    rms_norm_dims = function() return nn.RMSNorm({ 3, 4 }, { eps = 0.01 }) end,
    ReLU = function() return nn.ReLU() end,
    LeakyReLU = function() return nn.LeakyReLU(0.2) end,
    GELU = function() return nn.GELU() end,
    GELU_tanh = function() return nn.GELU { approximate = "tanh" } end,
    SiLU = function() return nn.SiLU() end,
    Tanh = function() return nn.Tanh() end,
    Sigmoid = function() return nn.Sigmoid() end,
    Softplus = function() return nn.Softplus() end,
    Softmax = function() return nn.Softmax(2) end,
    LogSoftmax = function() return nn.LogSoftmax(1) end,
    Flatten = function() return nn.Flatten() end,
    Identity = function() return nn.Identity("anything", 3) end,
  }
  for _, mode in ipairs { "reflect", "replicate", "circular" } do
    cases["conv_" .. mode] = function()
      return nn.Conv2d(2, 3, 3, { stride = 2, padding = { 2, 1 }, padding_mode = mode })
    end
    cases["conv_" .. mode .. "_same"] = function()
      return nn.Conv2d(2, 3, { 2, 3 }, { padding = "same", padding_mode = mode })
    end
  end

  it("every stored case is one of them", function()
    for name in pairs(stored) do
      local case = name:match("^([%w_]+)%.state%.") or name:match("^([%w_]+)%.after%.")
      assert(not case or cases[case], case)
    end
  end)

  for name, make in pairs(cases) do
    it(name, function()
      local module = make()
      module:load_state_dict(below(name .. ".state."))
      local y = module(stored[name .. ".x"])
      same("output", y, stored[name .. ".y"])
      for key, want in pairs(below(name .. ".after.")) do same(key, module[key], want) end
      if y.requires_grad then y:square():sum():backward() end
      local params = {}
      for key, p in module:named_parameters() do params[key] = p end
      for key, want in pairs(below(name .. ".grad.")) do
        same("gradient of " .. key, params[key].grad, want, { 1e-5, 1e-5 })
      end
    end)
  end
end)

describe("a layer and its function agree:", function()
  local x4, x2 = nil, nil
  before_each(function() x4, x2 = lm.randn { 2, 3, 6, 5 }, lm.randn { 4, 6 } end)
  after_each(function() x4, x2 = nil, nil end)

  it("those with parameters", function()
    local conv = nn.Conv2d(3, 4, 3, { padding = 1, stride = 2 })
    same("conv2d", conv(x4), F.conv2d(x4, conv.weight, conv.bias, { padding = 1, stride = 2 }))
    local fc = nn.Linear(6, 2)
    same("linear", fc(x2), F.linear(x2, fc.weight, fc.bias))
    local norm = nn.LayerNorm(6)
    same("layer_norm", norm(x2), F.layer_norm(x2, { 6 }, norm.weight, norm.bias))
    local table_ = nn.Embedding(4, 2)
    local index = lm.tensor({ 4, 1 }, { dtype = "int64" })
    same("embedding", table_(index), F.embedding(index, table_.weight))
  end)

  it("those without", function()
    for name, f in pairs { ReLU = F.relu, SiLU = F.silu, Tanh = F.tanh, Sigmoid = F.sigmoid, GELU = F.gelu } do
      same(name, nn[name]()(x2), f(x2))
    end
    same("max", nn.MaxPool2d(2)(x4), F.max_pool2d(x4, 2))
    same("average", nn.AvgPool2d(2, { stride = 1 })(x4), F.avg_pool2d(x4, 2, { stride = 1 }))
    same("adaptive", nn.AdaptiveAvgPool2d(2)(x4), F.adaptive_avg_pool2d(x4, 2))
    same("softmax", nn.Softmax(-1)(x2), F.softmax(x2, -1))
    same("gelu", F.gelu(x2, { approximate = "tanh" }), nn.GELU { approximate = "tanh" }(x2))
    same("logsigmoid", F.logsigmoid(x2), F.sigmoid(x2):log(), { 1e-4, 1e-5 })
  end)

  it("those in place write into their input", function()
    local x = lm.tensor { -1, 2 }
    local y = nn.ReLU { inplace = true }(x)
    assert.is_true(y == x)
    assert.same({ 0, 2 }, x:totable())
    lm.manual_seed(5)
    x = lm.ones { 1000 }
    assert.is_true(nn.Dropout(0.5, { inplace = true })(x) == x)
    local sum = x:sum():item()
    assert(sum > 800 and sum < 1200 and sum ~= 1000, sum)
  end)

  it("BatchNorm3d does to volumes what BatchNorm1d does to their elements in a row", function()
    local volume, row = nn.BatchNorm3d(3), nn.BatchNorm1d(3)
    local x = lm.randn { 2, 3, 4, 2, 5 }
    local y, z = volume(x), row(x:reshape { 2, 3, 40 })
    assert.is_true((y:reshape { 2, 3, 40 } - z):abs():max():item() < 1e-6)
    assert.is_true((volume.running_var - row.running_var):abs():max():item() < 1e-6)
    assert.is_false((pcall(volume, x[1])))
  end)

  it("Dropout only in training, with the right share and scale", function()
    local layer = nn.Dropout(0.25)
    local y = layer(lm.ones { 20000 })
    local kept = y:ne(0):sum():item() / 20000
    assert(math.abs(kept - 0.75) < 0.02, kept)
    assert(math.abs(y:max():item() - 4 / 3) < 1e-6)
    layer:eval()
    local x = lm.rand { 5 }
    same("evaluation", layer(x), x)
    same("p = 0", nn.Dropout(0)(x), x)
    same("p = 1", nn.Dropout(1)(x), lm.zeros { 5 })
  end)

  it("Flatten of other dims", function()
    assert.same({ 2, 3, 30 }, nn.Flatten(3)(x4).shape)
    assert.same({ 6, 6, 5 }, nn.Flatten(1, 2)(x4).shape)
    assert.same({ 2, 18, 5 }, nn.Flatten { start_dim = 2, end_dim = 3 }(x4).shape)
  end)
end)

describe("a convolution", function()
  -- Compares a convolution with float64's, whose sums another path makes.
  local function check(x_shape, cout, stride, size, how)
    size, how = size or 1, how or {}
    local x, w = lm.randn(x_shape), lm.randn {cout, x_shape[2], size, size} / size ^ 2
    how.stride = stride
    local function passes(dtype)
      local a, b = x:to(dtype):detach():requires_grad_(), w:to(dtype):detach():requires_grad_()
      local y = F.conv2d(a, b, nil, how)
      ;(y * y):mean():backward()
      return {y:detach():double(), a.grad:double() * y:numel(), b.grad:double()}
    end
    local got, expected = passes "float32", passes "float64"
    for k, what in ipairs {"result", "gradient of x", "gradient of the weight"} do
      assert(lm.allclose(got[k], expected[k], {rtol = 1e-4, atol = 2e-4}),
        ("%s with %d channels in and %d out"):format(what, x_shape[2], cout))
    end
  end

  it("of single pixels that skips some is right for any number of channels", function()
    for _, cin in ipairs {1, 2, 3, 4, 7, 8, 9, 12, 16} do
      for _, cout in ipairs {1, 3, 8, 9, 16} do check({3, cin, 6, 8}, cout, 2) end
    end
  end)

  it("of single pixels is right as a matrix product, for few pixels and many, all of them or some", function()
    for _, stride in ipairs {1, {2, 1}, {1, 2}, {3, 2}} do
      check({2, 40, 8, 9}, 33, stride)
      check({2, 33, 8, 9}, 40, stride)
      check({5, 32, 50, 54}, 48, stride)
      check({5, 48, 50, 54}, 32, stride)
    end
  end)

  it("is right as a matrix product also where there are several under the kernel, and some skipped", function()
    check({3, 40, 20, 21}, 33, 2, 3, {padding = 1})
    check({3, 33, 20, 21}, 40, {2, 1}, 3, {padding = {2, 0}, dilation = {1, 2}})
    check({5, 48, 50, 54}, 32, {1, 2}, 2)
  end)
end)

describe("a linear layer", function()
  it("may have no features on either side, as PyTorch's", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
      local x = lm.randn(3, 2):t():to(dtype):requires_grad_()
      local net = nn.Sequential(nn.Linear(3, 0), nn.ReLU(), nn.Linear(0, 2)):to(dtype)
      local y = net(x)
      assert.same({ { 0, 0 }, { 0, 0 } }, y:float():tolist()) -- the bias of no features is 0
      y:sum():backward()
      assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x.grad:float():tolist())
      assert.same({ 0, 3 }, { unpack(net[1].weight.grad.shape) })
      assert.same({ 2, 2 }, net[3].bias.grad:float():tolist())
      assert.same({ 2, 0 }, { unpack(nn.LazyLinear(0):to(dtype)(x).shape) })
    end
    assert.matches("Linear: out_features must be an integer of at least 0, got %-1$", message(nn.Linear, 3, -1))
  end)
end)

describe("batch norm", function()
  it("counts batches and averages all of them with momentum = false", function()
    local norm, sum = nn.BatchNorm1d(2, { momentum = false }), lm.zeros { 2 }
    for k = 1, 3 do
      local x = lm.randn { 8, 2 }
      norm(x)
      sum = sum + x:mean(1)
      same("running_mean", norm.running_mean, sum / k, { 1e-4, 1e-5 })
      assert.equal(k, norm.num_batches_tracked:item())
    end
  end)

  it("says which inputs it takes", function()
    assert.matches("expected x to have shape [N, C, H, W],", message(nn.BatchNorm2d(3), lm.ones { 2, 3 }), 1, true)
    assert.matches("expected x to have shape [N, C] or", message(nn.BatchNorm1d(3), lm.ones { 2, 3, 4, 5 }), 1, true)
    assert.matches("batch_norm", message(nn.BatchNorm1d(3), lm.ones { 2, 4 }))
  end)

  it("takes relu's gradient by the sum, also where only one of norm and addend asks for one", function()
    local function grads(of, x_asks, addend_asks)
      local x = lm.linspace(-2, 2, 24):view(4, 3, 2):clone()
      local addend = lm.linspace(1, -1, 24):view(4, 3, 2):clone()
      if x_asks then x:requires_grad_() end
      if addend_asks then addend:requires_grad_() end
      of(x, addend):pow(2):sum():backward()
      return x.grad or addend.grad
    end
    for _, asks in ipairs { { true, false }, { false, true } } do
      for _, training in ipairs { true, false } do
        local mean, var, how = lm.full({ 3 }, 0.1), lm.full({ 3 }, 0.7), { training = training }
        local function fused(x, addend) return F.batch_norm_relu(x, mean, var, nil, nil, addend, how) end
        local function apart(x, addend) return F.relu(F.batch_norm(x, mean, var, nil, nil, how) + addend) end
        same("gradient", grads(fused, unpack(asks)), grads(apart, unpack(asks)), { 1e-5, 1e-5 })
      end
    end
  end)

  -- Each channel's shift makes some results 0 up to rounding; max is others' up to rounding. The gradient of the bias
  -- counts those between.
  it("takes relu's gradient where its result is above 0 and below max, to the last bit", function()
    local shapes = { { 48, 40 }, { 6, 40, 3, 5 }, { 4, 40, 8, 8 }, { 4, 40, 8, 8, last = true } }
    for _, device in ipairs { "cpu", lm.cuda.is_available() and "cuda" or nil } do
      for _, dtype in ipairs { "float32", "float64", "bfloat16", device == "cuda" and "float16" or nil } do
        for _, shape in ipairs(shapes) do
          for _, training in ipairs { true, false } do
            local dims, how = #shape == 2 and { 1 } or { 1, 3, 4 }, { training = training }
            local x = (lm.randint(0, 5, { unpack(shape) }) * 3.7 + 1000):to(dtype):to(device)
            if shape.last then x = x:contiguous { memory_format = "channels_last" } end
            local stat = dtype == "float64" and dtype or "float32"
            local mean = lm.full({ 40 }, 1003.3, { dtype = stat, device = device })
            local var = lm.full({ 40 }, 7.7, { dtype = stat, device = device })
            local function of(bias, addend)
              return F.batch_norm_relu(x, mean:clone(), var:clone(), nil, bias, addend, how)
            end
            local wide = x:to(stat)
            local y = F.batch_norm(wide, mean:clone(), var:clone(), nil, nil, how)
            local bias = -y:narrow(1, 1, 1):reshape(40, -1):select(2, 1)
            bias = bias:clone():requires_grad_()
            for _, max in ipairs { math.huge, 3.7 / math.sqrt(7.7) } do
              how.max = max
              for _, addend in ipairs { false, x - x } do
                bias.grad = nil
                local result = of(bias, addend or nil)
                result:backward(lm.ones_like(result))
                local what = "%s %s, %d dims, training %s, max %g"
                what = what:format(device, dtype, #shape, tostring(training), max)
                local most = lm.full({ 1 }, max, { dtype = dtype, device = device })
                assert.is_true(bias.grad:equal((result:gt(0) * result:lt(most)):to(stat):sum(dims)), what)
              end
            end
          end
        end
      end
    end
  end)

  it("and a ReLU6 after it in a Sequential are one op with relu6's results and gradients", function()
    local lonely = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU6())
    assert.matches(": batch_norm_relu: x must have", message(lonely, lm.ones { 1, 3, 1, 1 }))
    for _, format in ipairs { "contiguous", "channels_last" } do
      for _, training in ipairs { true, false } do
        local function run(looks)
          local norm = nn.BatchNorm2d(3)
          norm.weight.data:fill_(5)
          norm.bias.data:fill_(2)
          local net = nn.Sequential(norm, nn.ReLU6())
          net:train(training)
          if looks then norm:register_forward_hook(function() end) end
          local x = lm.linspace(-2, 3, 96):view(4, 3, 2, 4):contiguous { memory_format = format }:requires_grad_()
          local y = net(x)
          y:pow(3):sum():backward()
          return y, { x.grad, norm.weight.grad, norm.bias.grad }
        end
        local y, grads = run(false)
        local want, wanted = run(true)
        assert.equal(6, y:max():item())
        assert.equal(0, y:min():item())
        same("result", y, want, { 1e-5, 1e-5 })
        for k, g in ipairs(wanted) do same("gradient " .. k, grads[k], g, { 1e-4, 1e-4 }) end
      end
    end
  end)

  it("and a ReLU6 pass a gradient on where x is no number, as ReLU6 alone does", function()
    local x = lm.tensor({ 0 / 0, -1, 0, 3, 6, 7 }, { requires_grad = true })
    F.relu6(x):sum():backward()
    assert.same({ 1, 0, 0, 1, 0, 0 }, x.grad:totable())
    x.grad = nil
    F.hardtanh(x, 0, 6):sum():backward()
    assert.same({ 1, 0, 0, 1, 0, 0 }, x.grad:totable())
    local norm = nn.BatchNorm2d(1):eval()
    nn.Sequential(norm, nn.ReLU6())(x:detach():view(1, 1, 2, 3)):sum():backward()
    assert.equal(3, norm.bias.grad:item()) -- NaN, 3 and just below 6 pass it
  end)

  it("and a ReLU after it in a Sequential are one op, unless somebody looks between them", function()
    local net = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU { inplace = true }, nn.BatchNorm2d(3))
    local lonely = lm.ones { 1, 3, 1, 1 }
    assert.matches(": batch_norm_relu: x must have more than one value per channel in training",
      message(net:clone(), lonely))

    local function run(of)
      local x = lm.linspace(-1, 2, 96):view(4, 3, 2, 4):clone():requires_grad_()
      local y = of(x)
      y:pow(3):sum():backward()
      local grads = { x.grad }
      for _, p in ipairs(of:parameters()) do table.insert(grads, p.grad) end
      for _, b in ipairs(of:buffers()) do table.insert(grads, b) end
      return y, grads
    end
    local twin, seen = net:clone(), nil
    twin[1]:register_forward_hook(function(_, _, y) seen = y:min():item() end)
    assert.matches(": batch_norm: x must have more than one value per channel", message(twin:clone(), lonely))
    local y, grads = run(net)
    local want, wanted = run(twin)
    assert.is_true(seen < 0)
    same("result", y, want, { 1e-5, 1e-5 })
    for k, g in ipairs(wanted) do same("tensor " .. k, grads[k], g, { 1e-4, 1e-4 }) end

    local Own = nn.BatchNorm2d:extend("Own")
    function Own:forward(x) return Own.super.forward(self, x) + 1 end
    assert.matches(": batch_norm: x must have more than one value per channel",
      message(nn.Sequential(Own(3), nn.ReLU()), lonely))
    local hooked = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    hooked[2]:register_forward_pre_hook(function() end)
    assert.matches(": batch_norm: x must have more than one value per channel", message(hooked, lonely))
  end)
end)

describe("a loss gives PyTorch's value and gradient:", function()
  local weighted = function(class, opts)
    return function()
      opts.weight = stored.class_weight
      return class(opts)
    end
  end
  local cases = {
    ce_weight = weighted(nn.CrossEntropyLoss, { label_smoothing = 0.1 }),
    ce_ignore = function() return nn.CrossEntropyLoss { ignore_index = 4 } end,
    ce_probabilities = function() return nn.CrossEntropyLoss() end,
    multilabel_margin_mean = function() return nn.MultiLabelMarginLoss() end,
    multilabel_margin_none = function() return nn.MultiLabelMarginLoss { reduction = "none" } end,
    kl_mean = function() return nn.KLDivLoss { log_target = true } end,
    kl_none = function() return nn.KLDivLoss { log_target = true, reduction = "none" } end,
  }
  for _, reduction in ipairs { "mean", "sum", "none" } do
    cases["ce_" .. reduction] = function() return nn.CrossEntropyLoss { reduction = reduction } end
    cases["nll_" .. reduction] = weighted(nn.NLLLoss, { reduction = reduction, ignore_index = 4 })
    cases["mse_" .. reduction] = function() return nn.MSELoss { reduction = reduction } end
    cases["bce_" .. reduction] = function()
      return nn.BCEWithLogitsLoss { reduction = reduction, pos_weight = stored.class_weight }
    end
  end
  for name, make in pairs(cases) do
    it(name, function()
      local x = stored[name .. ".x"]:detach():requires_grad_()
      local y = make()(x, stored[name .. ".target"])
      same("loss", y, stored[name .. ".y"])
      y:sum():backward()
      same("gradient", x.grad, stored[name .. ".grad"])
    end)
  end

  it("by module and by function", function()
    local a, b, c = lm.randn { 3, 4 }, lm.randn { 3, 4 }, lm.rand { 3, 4 } + 0.1
    local signs, one_each = lm.tensor { 1, -1, 1 }, lm.tensor({ 4, 1, 2 }, { dtype = "int64" })
    local both = lm.tensor { { 1, -1, 1, 1 }, { -1, -1, 1, -1 }, { 1, 1, 1, -1 } }
    same("l1", nn.L1Loss()(a, b), F.l1_loss(a, b))
    same("smooth", nn.SmoothL1Loss { beta = 0.5 }(a, b), F.smooth_l1_loss(a, b, { beta = 0.5 }))
    same("huber", nn.HuberLoss { delta = 0.5 }(a, b), F.huber_loss(a, b, { delta = 0.5 }))
    same("kl", nn.KLDivLoss { reduction = "batchmean" }(a, c), F.kl_div(a, c, { reduction = "sum" }) / 3)
    same("poisson", nn.PoissonNLLLoss { full = true }(a, c), F.poisson_nll_loss(a, c, { full = true }))
    same("gaussian", nn.GaussianNLLLoss { full = true }(a, b, c), F.gaussian_nll_loss(a, b, c, { full = true }))
    if c.device == "cpu" then -- elsewhere somebody would have to wait for the values
      assert.error_matches(function() F.gaussian_nll_loss(a, b, -c) end,
        "gaussian_nll_loss: var must be at least 0, got %-")
    end
    same("soft", nn.SoftMarginLoss()(a, both), F.soft_margin_loss(a, both))
    same("hinge", nn.HingeEmbeddingLoss(2)(a, both), F.hinge_embedding_loss(a, both, { margin = 2 }))
    same("rank", nn.MarginRankingLoss(0.5)(a, b, both), F.margin_ranking_loss(a, b, both, { margin = 0.5 }))
    local tied = lm.zeros({ 3 }, { device = a.device, requires_grad = true }) -- just at the margin
    F.margin_ranking_loss(tied, tied:detach(), lm.ones({ 3 }, { device = a.device })):backward()
    assert.equal(0, tied.grad:abs():max():item())
    same("cosine", nn.CosineEmbeddingLoss(0.5)(a, b, signs), F.cosine_embedding_loss(a, b, signs, { margin = 0.5 }))
    local triplet = F.triplet_margin_loss(a, b, c, { margin = 2, p = 1, swap = true })
    same("triplet", nn.TripletMarginLoss(2, 1, { swap = true })(a, b, c), triplet)
    local how = { margin = 2, swap = true, distance_function = function(x, y) return (x - y + 1e-6):norm(1, -1) end }
    same("distance", nn.TripletMarginWithDistanceLoss(how)(a, b, c), triplet)
    local squared = F.multi_margin_loss(a, one_each, { p = 2, margin = 0.5 })
    for _, shape in ipairs { {}, { 1 } } do -- shapes of a target and of its losses, as PyTorch's
      local target = lm.ones(shape, { dtype = "int64" })
      assert.same(shape, F.multi_margin_loss(lm.ones(3), target, { reduction = "none" }).shape)
      assert.same(shape, F.multi_margin_loss(lm.ones(1, 3), target, { reduction = "none" }).shape)
      assert.same({}, F.multi_margin_loss(lm.ones(3), target).shape)
    end
    same("classes", nn.MultiMarginLoss(2, 0.5, lm.ones(4))(a, one_each), squared)
    same("labels", nn.MultiLabelSoftMarginLoss()(a, c), F.multilabel_soft_margin_loss(a, c))
    same("cosine", nn.CosineSimilarity(1)(a, b), F.cosine_similarity(a, b, { dim = 1 }))
    same("distance", nn.PairwiseDistance(1)(a, b), F.pairwise_distance(a, b, { p = 1 }))
  end)

  it("small variances count as eps, but have a gradient", function()
    local var = lm.zeros(2):requires_grad_()
    local y = F.gaussian_nll_loss(lm.ones(2), lm.zeros(2), var, { eps = 0.5, reduction = "sum" })
    y:backward()
    same("loss", y, lm.tensor(math.log(0.5) + 2))
    same("gradient", var.grad, lm.tensor { -1, -1 })
  end)

  it("a weight moves with the module", function()
    local loss = nn.CrossEntropyLoss { weight = lm.ones { 3 } }
    loss:to("cpu:1", "float64")
    assert.equal("cpu:1 float64", loss.weight.device .. " " .. loss.weight.dtype)
  end)

  it("RMSNorm's eps is by default what halves are computed in has", function()
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local x = lm.full({ 1, 4 }, 0.01, { dtype = dtype })
      assert.near(0.9995, nn.RMSNorm(4):to(dtype)(x)[{ 1, 1 }]:item(), 5e-3)
    end
  end)

  it("labels count from 1", function()
    local x = lm.zeros { 1, 4 }
    assert.matches("label", message(nn.CrossEntropyLoss(), x, lm.tensor({ 0 }, { dtype = "int64" })))
    assert.matches("5", message(nn.CrossEntropyLoss(), x, lm.tensor({ 5 }, { dtype = "int64" })))
  end)
end)

describe("layers name wrong arguments:", function()
  local cases = {
    { "num_channels (4) must be divisible by num_groups (3)", nn.GroupNorm, 3, 4 },
    { "RMSNorm: normalized_shape must be a size or a list of sizes, got string 'x'", nn.RMSNorm, "x" },
    { "expected x to have shape [N, C, L] or [C, L], got", function() nn.InstanceNorm1d(3)(lm.ones(2, 3, 4, 5)) end },
    { "InstanceNorm1d: x must be a tensor of 3 channels, got a tensor [2, 4, 5]",
      function() nn.InstanceNorm1d(3)(lm.ones(2, 4, 5)) end },
    { "batchmean", nn.KLDivLoss, { reduction = "batch" } },
    { "multilabel_margin_loss: x and target must both be [N, C] or [C], got a tensor [2, 3] and a tensor [2, 4]",
      F.multilabel_margin_loss, lm.ones(2, 3), lm.ones(2, 4):long() },
    { "margin must be a number, got string 'much'", nn.MarginRankingLoss, "much" },
    { "in_features", nn.Linear },
    { "out_features must be an integer of at least 0, got 1.5", nn.Linear, 3, 1.5 },
    { "Linear: bias must be true or false, got 1", nn.Linear, 3, 4, 1 },
    { "did you mean 'bias'", nn.Linear, 3, 4, { bais = false } },
    { "did you mean 'padding'", nn.Conv2d, 3, 4, 3, { pading = 1 } },
    { "stride must be an integer of at least 1 or a list of 2, got a table", nn.Conv2d, 3, 4, 3, { padding = 1 }, 1 },
    { "Conv2d: stride is passed twice, by position and by", nn.Conv2d, 3, 4, 3, 2, { stride = 1 } },
    { "kernel_size", nn.Conv2d, 3, 4 },
    { "groups (2) must divide in_channels (3) and out_channels", nn.Conv2d, 3, 4, 3, { groups = 2 } },
    { "padding_mode must be one of 'zeros', 'reflect', 'replicate', 'circular', got string 'reflct'; did you mean",
      nn.Conv2d, 3, 4, 3, { padding_mode = "reflct" } },
    { "padding must be an integer of at least 0 or a list of 2, or 'valid' or 'same', got string 'sam'",
      nn.Conv2d, 3, 4, 3, { padding = "sam" } },
    { "padding = 'same' requires a stride of 1, got (2, 2)", nn.Conv2d, 3, 4, 3, { padding = "same", stride = 2 } },
    { "divisor_override must be non-zero",
      function() nn.AvgPool2d(2, { divisor_override = 0 })(lm.ones { 1, 4, 4 }) end },
    { "pad: padding must be at most 1 a side for mode \"reflect\" in dim 4 of [1, 3, 2, 2], got 2",
      function() nn.Conv2d(3, 4, 5, { padding = 2, padding_mode = "reflect" })(lm.ones { 1, 3, 2, 2 }) end },
    { "stride must be an integer of at least 1 or a list of 2, got a table",
      nn.Conv2d, 3, 4, 3, { stride = { 1, 2, 3 } } },
    { "num_features", nn.BatchNorm2d, "8" },
    { "normalized_shape", nn.LayerNorm, {} },
    { "p must be a number from 0 to 1, got 2", nn.Dropout, 2 },
    { "inplace must be true or false, got 1", nn.ReLU, 1 },
    { "dim must be an integer, got string '2'", nn.Softmax, "2" },
    { "Softmax: the input must be a tensor, got 2", function() nn.Softmax()(2) end },
    { "dim must be from 1, or from -1 at the end, got 0", nn.Softmax, 0 },
    { "approximate", nn.GELU, { approximate = "tan" } },
    { "padding_idx must be from 1 to 3, got 0", nn.Embedding, 3, 2, { padding_idx = 0 } },
    { "reduction must be one of 'none', 'mean', 'sum', got string", nn.MSELoss, { reduction = "avg" } },
    { "reduction must be one of 'none', 'mean', 'sum', got string", nn.MSELoss, nil, nil, "avg" },
    { "MSELoss: unknown option 'size_average'", nn.MSELoss, "sum" },
    { "float33", nn.Linear, 2, 2, { dtype = "float33" } },
    { "unknown option 'inplace'", nn.Tanh, { inplace = true } },
    { "linear", function() nn.Linear(3, 2)(lm.ones { 2, 4 }) end },
    { "conv2d", function() nn.Conv2d(3, 2, 3)(lm.ones { 1, 4, 5, 5 }) end },
  }
  for k, case in ipairs(cases) do
    it(("%d: %s"):format(k, case[1]), function()
      assert.matches(case[1], message(unpack(case, 2, table.maxn(case))), 1, true)
    end)
  end
end)

describe("a layer that is an entry", function()
  local layer = require "luminary.nn.define_layer"
  local list, entry = layer.entries()
  entry [[Scaled(by: number, shift = 1, {mode = "up" | "down"})]] {
    call = function(x, by, shift, how) return how.mode == "up" and x * by + shift or x / by - shift end,
    prints = "by shift mode", help = [[x times by,
      and more]],
  }
  local Scaled = layer.classes(list).Scaled

  it("has its arguments by place and by name, with their defaults", function()
    local x = lm.ones { 1 }
    assert.equal(4, Scaled(3)(x):item())
    assert.equal(5, Scaled(3, 2)(x):item())
    assert.equal(5, Scaled(3, { shift = 2 })(x):item())
    assert.equal(-1.5, Scaled(2, 2, { mode = "down" })(x):item())
    assert.equal(-0.5, Scaled(2, { mode = "down" })(x):item())
    assert.equal(1.5, Scaled { by = 0.5 }(x):item())
  end)

  it("is extended, and its init called, with arguments by name too", function()
    local Mine, Other = Scaled:extend("Mine"), Scaled:extend("Other")
    function Mine:init(by) Scaled.init(self, { by = by, mode = "down" }) end
    assert.equal(1, Mine(0.5)(lm.ones { 1 }):item())
    assert.equal(4, Other({ by = 3 })(lm.ones { 1 }):item())
  end)

  it("prints as its entry says, and is explained by it", function()
    assert.equal("Scaled(by=3.0, shift=0.5, mode='down')", tostring(Scaled(3, 0.5, { mode = "down" })))
    assert.equal("nn.Scaled(): x times by, and more", Scaled.__help)
    assert.equal('by [, shift = 1] [, {mode = "up"}]', signature.declared(Scaled):call())
  end)

  it("names what is wrong", function()
    assert.matches("Scaled: by is missing or nil; expected a number$", message(Scaled))
    assert.matches("Scaled: shift must be a number, got string 'a'$", message(Scaled, 1, "a"))
    assert.matches("Scaled: mode must be one of 'up', 'down', got string 'dwn'; did you mean 'down'?",
      message(Scaled, 1, { mode = "dwn" }), 1, true)
    assert.matches("Scaled: takes at most 3 arguments, got 4: by, shift, mode", message(Scaled, 1, 2, "up", 4), 1, true)
    assert.matches("Scaled: takes at most 3 arguments, got 4: by, shift, mode$", message(Scaled, 1, 2, {}, 4))
    assert.matches("unknown option 'mod'; did you mean 'mode'?", message(Scaled, 1, { mod = "up" }), 1, true)
    assert.matches("Scaled: forward takes 1 argument, got 2$", message(Scaled(1), lm.ones(1), 2))
  end)
end)

describe("layers take device and dtype", function()
  it("for parameters and buffers", function()
    local opts = { device = "cpu:1", dtype = "float64" }
    for _, module in ipairs { nn.Linear(2, 2, opts), nn.Conv2d(1, 2, 3, opts), nn.BatchNorm2d(2, opts),
      nn.LayerNorm(2, opts), nn.Embedding(3, 2, opts) } do
      for name, t in pairs(module:state_dict()) do
        assert.equal("cpu:1", t.device)
        assert.equal(name == "num_batches_tracked" and "int64" or "float64", t.dtype)
      end
    end
  end)
end)

describe("nn.init", function()
  local function moments(t)
    return t:mean():item(), t:std():item(), t:min():item(), t:max():item()
  end
  -- Expects a distribution of that mean and deviation, within what 60000 draws allow; bounded if uniform.
  local function drawn(t, mean, std, bound)
    local m, s, low, high = moments(t)
    assert(math.abs(m - mean) < 0.03 * std, ("mean %g, not %g"):format(m, mean))
    assert(math.abs(s / std - 1) < 0.03, ("standard deviation %g, not %g"):format(s, std))
    if bound then
      assert(high - mean <= bound and mean - low <= bound, ("from %g to %g, bound %g"):format(low, high, bound))
      assert(high - mean > 0.98 * bound and mean - low > 0.98 * bound, ("from %g to %g"):format(low, high))
    else
      assert(high - mean > 3 * std, "not normal")
    end
  end
  local function uniform(t, bound) drawn(t, 0, bound / math.sqrt(3), bound) end

  local w, k -- w: fans 300 in, 200 out; k: a convolution's, 20 * 9 in, 40 * 9 out
  before_each(function()
    lm.manual_seed(7)
    w, k = nn.Parameter(lm.empty { 200, 300 }), nn.Parameter(lm.empty { 400, 20, 3, 3 })
  end)
  after_each(function() w, k = nil, nil end)

  it("fills with constants and simple distributions", function()
    assert.is_true(nn.init.zeros_(w) == w)
    assert.equal(0, w:abs():sum():item())
    nn.init.ones_(w)
    assert.equal(60000, w:sum():item())
    nn.init.constant_(w, 0.25)
    assert.equal(15000, w:sum():item())
    nn.init.uniform_(w, -1, 3)
    drawn(w, 1, 4 / math.sqrt(12), 2)
    nn.init.uniform_(w)
    drawn(w, 0.5, 1 / math.sqrt(12), 0.5)
    nn.init.normal_(w)
    drawn(w, 0, 1)
    nn.init.normal_(w, 3, 0.5)
    drawn(w, 3, 0.5)
    assert.is_true(w.is_leaf and w.requires_grad) -- fills record no graph
  end)

  it("takes options by name as well", function()
    nn.init.normal_(w, { mean = 3, std = 0.5 })
    drawn(w, 3, 0.5)
    nn.init.uniform_(w, { a = -1, b = 3 })
    drawn(w, 1, 4 / math.sqrt(12), 2)
  end)

  it("xavier", function()
    nn.init.xavier_uniform_(w)
    uniform(w, math.sqrt(6 / 500))
    nn.init.xavier_uniform_(w, { gain = 2 })
    uniform(w, 2 * math.sqrt(6 / 500))
    nn.init.xavier_normal_(w)
    drawn(w, 0, math.sqrt(2 / 500))
    nn.init.xavier_normal_(k)
    drawn(k, 0, math.sqrt(2 / (20 * 9 + 400 * 9)))
  end)

  it("kaiming", function()
    nn.init.kaiming_uniform_(w)
    uniform(w, math.sqrt(6 / 300))
    nn.init.kaiming_uniform_(w, { a = math.sqrt(5) })
    uniform(w, 1 / math.sqrt(300))
    nn.init.kaiming_normal_(w, { mode = "fan_out", nonlinearity = "relu" })
    drawn(w, 0, math.sqrt(2 / 200))
    nn.init.kaiming_normal_(k, { nonlinearity = "tanh" })
    drawn(k, 0, 5 / 3 / math.sqrt(20 * 9))
  end)

  it("gains", function()
    assert.equal(1, nn.init.calculate_gain("linear"))
    assert.equal(5 / 3, nn.init.calculate_gain("tanh"))
    assert.equal(math.sqrt(2), nn.init.calculate_gain("relu"))
    assert.equal(math.sqrt(2 / (1 + 0.04)), nn.init.calculate_gain("leaky_relu", 0.2))
    assert.equal(0.75, nn.init.calculate_gain("selu"))
    assert.matches("relu", message(nn.init.calculate_gain, "rleu"))
  end)

  it("names wrong arguments", function()
    assert.matches("xavier_normal_: t must be a tensor of at least 2 dims, got a tensor %[3%]$",
      message(nn.init.xavier_normal_, lm.ones { 3 }))
    assert.matches("normal_: the first argument must be a tensor, got 3$", message(nn.init.normal_, 3))
    assert.matches("kaiming_normal_: mode must be one of 'fan_in', 'fan_out', got string 'fan'$",
      message(nn.init.kaiming_normal_, w, { mode = "fan" }))
    assert.matches("gain", message(nn.init.xavier_uniform_, w, { gian = 2 }))
    assert.matches("gain must be a number, got string '2'", message(nn.init.xavier_uniform_, w, "2"), 1, true)
    assert.matches("constant_: value is missing or nil; expected a number$", message(nn.init.constant_, w))
  end)

  it("defaults of layers are PyTorch's", function()
    local fc = nn.Linear(300, 200)
    uniform(fc.weight, 1 / math.sqrt(300))
    assert(fc.bias:abs():max():item() <= 1 / math.sqrt(300))
    assert(fc.bias:abs():max():item() > 0.9 / math.sqrt(300))
    local conv = nn.Conv2d(40, 200, 3, { groups = 2 })
    uniform(conv.weight, 1 / math.sqrt(20 * 9))
    drawn(nn.Embedding(200, 300).weight, 0, 1)
    assert.equal(0, nn.Embedding(5, 3, { padding_idx = -1 }).weight[5]:abs():sum():item())
    local bn = nn.BatchNorm2d(3)
    assert.same({ 1, 1, 1 }, bn.weight:totable())
    assert.same({ 0, 0, 0 }, bn.bias:totable())
    assert.same({ 1, 1, 1 }, bn.running_var:totable())
    assert.same({ 0, 0, 0 }, bn.running_mean:totable())
    assert.equal(0, bn.num_batches_tracked:item())
  end)

  it("the seed decides", function()
    lm.manual_seed(3)
    local a = nn.Linear(4, 4).weight
    lm.manual_seed(3)
    assert.is_true(a:detach():equal(nn.Linear(4, 4).weight:detach()))
  end)
end)

describe("clip_grad_norm_", function()
  for key, p in pairs { ["1"] = 1, ["2"] = 2, ["0.5"] = 0.5, inf = inf } do
    it("scales to the norm of order " .. key, function()
      local params = {}
      for n = 1, 2 do
        local grad = stored["clip.grad." .. n]
        params[n] = lm.zeros(grad.shape):requires_grad_()
        params[n].grad = grad:clone()
      end
      params[3] = lm.zeros({ 2 }):requires_grad_() -- has no gradient
      local total = nn.utils.clip_grad_norm_(params, 1.5, { norm_type = p }):item()
      local want = stored["clip." .. key .. ".total"]:item()
      assert(math.abs(total - want) < 1e-5 * want, ("norm %g, not %g"):format(total, want))
      local grads = lm.cat { params[1].grad:flatten(), params[2].grad:flatten() }
      same("gradients", grads, stored["clip." .. key .. ".grads"])
      assert.is_nil(params[3].grad)
    end)
  end

  it("leaves what is small alone, takes one tensor, and an empty list", function()
    local p = lm.zeros({ 2 }):requires_grad_()
    p.grad = lm.tensor { 0.3, 0.4 }
    assert(math.abs(nn.utils.clip_grad_norm_(p, 1):item() - 0.5) < 1e-6)
    same("gradient", p.grad, lm.tensor { 0.3, 0.4 })
    assert.equal(0, nn.utils.clip_grad_norm_({}, 1):item())
  end)

  it("names wrong arguments", function()
    assert.matches("net:parameters()", message(nn.utils.clip_grad_norm_, nn.Linear(1, 1), 1), 1, true)
    assert.matches("clip_grad_norm_: max_norm is missing or nil; expected a number of at least 0$",
      message(nn.utils.clip_grad_norm_, {}))
    assert.matches("norm_type must be a number of at least 0,", message(nn.utils.clip_grad_norm_, {}, 1, -1), 1, true)
  end)
end)

describe("gradients of a list of parameters", function()
  local utils = nn.utils
  -- Parameters with gradients of several dtypes and layouts, one without, one empty.
  local function parameters()
    local grads = { lm.tensor { 3, -4 }, lm.tensor({ { 12 } }, { dtype = "float64" }), lm.zeros { 0 },
      lm.tensor({ { 1, 2 }, { -3, 4 } }, { dtype = "bfloat16" }):t() }
    local list = {}
    for i, grad in ipairs(grads) do
      list[i] = lm.zeros_like(grad):requires_grad_()
      list[i].grad = grad
    end
    list[5] = lm.zeros({ 2 }):requires_grad_()
    return list
  end
  local function values(list)
    local found = {}
    for i = 1, 4 do found[i] = list[i].grad:double():flatten() end
    return lm.cat(found)
  end

  it("have a norm: get_total_norm", function()
    local list = parameters()
    local grads = {}
    for i = 1, 4 do grads[i] = list[i].grad end
    for p, want in pairs { [1] = 29, [2] = math.sqrt(199), [inf] = 12, [3] = 1919 ^ (1 / 3) } do
      local total = utils.get_total_norm(grads, { norm_type = p })
      assert.same({ "float64", {} }, { total.dtype, total.shape })
      assert.near(want, total:item(), 1e-12 * want)
    end
    same("gradients", values(list), values(parameters()))
    assert.equal(5, utils.get_total_norm(lm.tensor { 3, 4 }):item())
    assert.equal(2, utils.get_total_norm(lm.ones({ 1 }):expand(4)):item()) -- the tensor's elements share memory
    assert.equal(0, utils.get_total_norm({}):item())
  end)

  it("are scaled by a norm known already, as clip_grad_norm_ does", function()
    for _, most in ipairs { 100, 5, 0 } do
      local a, b, c = parameters(), parameters(), parameters()
      local total = utils.clip_grad_norm_(a, most)
      utils.clip_grads_with_norm_(b, most, total)
      utils.clip_grads_with_norm_(c, { max_norm = most, total_norm = total:item() })
      assert.is_true(values(a):equal(values(b)))
      assert.is_true(values(a):equal(values(c)))
      same("gradient", a[1].grad, lm.tensor { 3, -4 } * math.min(1, most / (total:item() + 1e-6)))
    end
    local list = parameters()
    utils.clip_grads_with_norm_(list, 1, lm.tensor { 2 }) -- float32, of one dim
    same("gradient", list[2].grad:float(), lm.tensor { { 6 } })
    utils.clip_grads_with_norm_({}, 1, 3)
  end)

  it("are limited one by one: clip_grad_value_", function()
    local list = parameters()
    local before = list[1].grad
    utils.clip_grad_value_(list, 2.5)
    same("gradients", values(list), lm.tensor({ 2.5, -2.5, 2.5, 1, -2.5, 2, 2.5 }, { dtype = "float64" }))
    assert.is_true(list[1].grad == before)
    list[1].grad = lm.tensor { 0 / 0, -inf }
    utils.clip_grad_value_(list[1], { clip_value = 1 })
    local one, two = unpack(list[1].grad:totable())
    assert.is_true(one ~= one and two == -1)
    assert.is_nil(list[5].grad)
  end)

  it("may be refused when they are not finite, before anything changes", function()
    for _, bad in ipairs { inf, -inf, 0 / 0 } do
      local p = lm.zeros({ 2 }):requires_grad_()
      p.grad = lm.tensor { 4, bad }
      for _, f in ipairs { function() utils.clip_grad_norm_(p, 1, { error_if_nonfinite = true }) end,
        function() utils.get_total_norm(p.grad, { error_if_nonfinite = true }) end } do
        local text = message(f)
        assert.matches("layers_spec.lua:%d+: [%a_]+: the norm of order 2 is %-?[in]", text)
      end
      assert.equal(4, p.grad[1])
      utils.clip_grad_norm_(p, 1)
    end
  end)

  it("whose backward is recorded notice that they changed", function()
    local p = lm.ones({ 2 }):requires_grad_()
    p.grad = lm.ones({ 2 })
    local x = lm.ones({ 2 }):requires_grad_()
    local y = (x * p.grad):sum()
    utils.clip_grad_value_(p, 0.5)
    assert.matches("clamp_ changed it in place", message(y.backward, y))
  end)

  it("and wrong arguments are named", function()
    local grad = lm.ones { 1 }
    local share = lm.zeros({ 2 }):requires_grad_()
    share.grad = lm.ones({ 1 }):expand(2)
    for problem, try in pairs {
      ["clip_grad_value_: expected a list of parameters, got a module, Linear"] = function()
        utils.clip_grad_value_(nn.Linear(1, 1), 1)
      end,
      ["clip_grad_value_: clip_value is missing or nil; expected a number of at least 0"] = function()
        utils.clip_grad_value_({})
      end,
      ["clip_grad_value_: parameter 1 must be a tensor"] = function() utils.clip_grad_value_({ 3 }, 1) end,
      ["clip_grad_value_: cannot write in place to gradient 1"] = function() utils.clip_grad_value_(share, 1) end,
      ["clip_grad_norm_: cannot write in place to gradient 1"] = function() utils.clip_grad_norm_(share, 1) end,
      ["get_total_norm: expected a list of tensors, got 3"] = function() utils.get_total_norm(3) end,
      ["get_total_norm: tensor 2 must be floating point, got int64"] = function()
        utils.get_total_norm { grad, lm.ones({ 1 }, { dtype = "int64" }) }
      end,
      ["get_total_norm: norm_type must be above 0, or math.huge, got 0"] =
        function() utils.get_total_norm({ grad }, { norm_type = 0 }) end,
      ["clip_grads_with_norm_: total_norm must be one number, got a tensor [2]"] = function()
        utils.clip_grads_with_norm_({}, 1, lm.ones { 2 })
      end,
      ["clip_grads_with_norm_: total_norm is missing or nil; expected a tensor"] = function()
        utils.clip_grads_with_norm_({}, 1)
      end,
      ["clip_grads_with_norm_: total_norm must be a 0-d floating tensor"] = function()
        utils.clip_grads_with_norm_({}, 1, lm.ones({}, { dtype = "int64" }))
      end,
    } do
      local text = message(try)
      assert.matches("layers_spec.lua:%d+: ", text, 1, false, problem)
      assert.matches(problem, text, 1, true)
    end
  end)
end)

describe("binary_cross_entropy", function()
  it("wants probabilities, which logits are not", function()
    for _, wrong in ipairs { -0.5, 1.5 } do
      assert.error_matches(function() F.binary_cross_entropy(lm.tensor { 0.5, wrong }, lm.ones(2)) end,
        "binary_cross_entropy: x must be from 0 to 1, got .*; use bce_with_logits for logits")
    end
    assert.near(math.log(2), F.binary_cross_entropy(lm.tensor { 0.5 }, lm.ones(1)):item(), 1e-6)
    assert.equal(0, F.binary_cross_entropy(lm.ones(0), lm.ones(0), { reduction = "sum" }):item())
  end)
end)

describe("layers that ask the first input", function()
  it("have the same parameters before and after it, which train", function()
    local net = nn.Sequential(nn.LazyConv2d(4, 3, { groups = 2, padding = 1 }), nn.LazyBatchNorm2d(), nn.Flatten(),
      nn.LazyLinear(5, false))
    assert.equal("LazyLinear(as the first input says)", tostring(net[4]))
    local names, opt = {}, lm.optim.SGD(net:parameters(), 0.1)
    for name in pairs(net:state_dict()) do names[name] = true end
    net(lm.rand(2, 6, 4, 4)):sum():backward()
    local before = net[4].weight:clone()
    opt:step()
    assert.is_false(before:equal(net[4].weight))
    for name in pairs(net:state_dict()) do assert.is_true(names[name]) end
    assert.same({ 4, 3, 3, 3 }, net[1].weight.shape)
    assert.same({ 5, 64 }, net[4].weight.shape)
    assert.equal("LazyLinear(in_features=64, out_features=5, bias=False)", tostring(net[4]))
    assert.same({ 5 }, net:eval()(lm.rand(1, 6, 4, 4))[1].shape)
  end)

  it("are moved and cloned before it, too, and name what is wrong", function()
    assert.equal("float64", nn.LazyLinear(3):to("float64"):clone()(lm.ones({ 2, 7 }, { dtype = "float64" })).dtype)
    assert.same({ 2, 2, 6 }, nn.LazyConvTranspose1d(2, 3)(lm.ones(2, 3, 4)).shape)
    assert.same({ 3 }, (function()
      local norm = nn.LazyInstanceNorm1d()
      norm(lm.ones(2, 3, 4))
      return norm.weight.shape
    end)())
    assert.matches("Linear: out_features is missing or nil; expected an integer of at least 0$", message(nn.LazyLinear))
    for _, apply in ipairs { nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.orthogonal,
      function(m) return nn.utils.parametrize.register_parametrization(m, "weight", nn.Identity()) end } do
      local fc = nn.LazyLinear(2)
      assert.matches("register_parametrization: this LazyLinear has no weight before its first forward pass; call",
        message(apply, fc))
      fc(lm.ones(1, 2))
      assert.same({ 2, 2 }, { unpack(apply(fc).weight.shape) })
    end
    assert.matches("DataParallel: .*this LazyLinear has no weight before its first forward pass; call the net once",
      message(nn.DataParallel(nn.Sequential(nn.LazyLinear(2)), { device_ids = { "cpu:0", "cpu:1" } }), lm.ones(4, 2)))
    for expected, case in pairs {
      ["LazyConv2d: x must be a tensor of 3 or 4 dims, got a tensor %[3%]$"] = {nn.LazyConv2d(4, 3), {3}, {2, 3, 5, 5}},
      ["LazyConv1d: x must be a tensor of 2 or 3 dims, got a tensor %[2, 2, 2, 2%]$"] = {nn.LazyConv1d(4, 3),
        {2, 2, 2, 2}, {2, 3, 5}},
      ["LazyBatchNorm1d: x must be a tensor of 2 or 3 dims, got a tensor %[3%]$"] = {nn.LazyBatchNorm1d(), {3}, {2, 3}},
      ["LazyBatchNorm2d: x must be a tensor of 4 dims, got a tensor %[7, 7%]$"] = {nn.LazyBatchNorm2d(), {7, 7},
        {2, 3, 4, 4}},
      ["LazyLinear: x must be a tensor of at least 1 dim, got a tensor %[%]$"] = {nn.LazyLinear(2), {}, {3}},
    } do
      local layer, wrong, right = unpack(case)
      assert.matches(expected, message(layer, lm.ones(wrong)))
      assert.is_true(lm.is_tensor(layer(lm.ones(right)))) -- the failed call has fixed no size
    end
  end)
end)
