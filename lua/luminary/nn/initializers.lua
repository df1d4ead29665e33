--- nn.init: filling parameters in place, with PyTorch's formulas. Each gives the tensor back and
--- records no graph.
local core = require "luminary.core"
local options = require "luminary.base.options"

local init = {}

local function fill(who, t, method, ...)
  options.arg(who, "the first argument", t, "tensor")
  return core.no_grad(t[method], t, ...)
end

--- Inputs and outputs of each unit of a weight [out, in, receptive field…].
local function fans(who, t)
  options.arg(who, "the first argument", t, "tensor")
  local shape = t.shape
  if #shape < 2 then
    options.fail("%s: a tensor of at least 2 dims wanted, got %s", who, options.describe(t))
  end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end
init._fans = fans

local function number(who, name, v, default)
  if v == nil then v = default end
  return options.arg(who, name, v, "number")
end

--- Drawn from [a, b); [0, 1) without.
function init.uniform_(t, a, b)
  return fill("uniform_", t, "uniform_", number("uniform_", "a", a, 0), number("uniform_", "b", b, 1))
end
--- Drawn from a normal distribution of that mean (0) and standard deviation (1).
function init.normal_(t, mean, std)
  return fill("normal_", t, "normal_", number("normal_", "mean", mean, 0), number("normal_", "std", std, 1))
end
--- Every element becomes value.
function init.constant_(t, value)
  return fill("constant_", t, "fill_", options.arg("constant_", "value", value, "number"))
end
--- Every element becomes 0.
function init.zeros_(t) return fill("zeros_", t, "fill_", 0) end
--- Every element becomes 1.
function init.ones_(t) return fill("ones_", t, "fill_", 1) end

local gains = {
  linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, sigmoid = 1,
  tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4,
}

--- The factor that keeps variance through a nonlinearity; `param` is leaky_relu's slope.
function init.calculate_gain(nonlinearity, param)
  if nonlinearity == "leaky_relu" then
    return math.sqrt(2 / (1 + (param or 0.01) ^ 2))
  end
  local names = {"leaky_relu"}
  for name in pairs(gains) do names[#names + 1] = name end
  table.sort(names)
  return gains[options.choice("calculate_gain", "nonlinearity", nonlinearity, names)]
end

local function xavier_std(who, t, opts)
  opts = options.check(who, opts, {gain = {"number", 1}}, "gain")
  local fan_in, fan_out = fans(who, t)
  return opts.gain * math.sqrt(2 / (fan_in + fan_out))
end

--- Glorot and Bengio 2010: uniform with variance 2 / (fan_in + fan_out). {gain = 1}
function init.xavier_uniform_(t, opts)
  local a = math.sqrt(3) * xavier_std("xavier_uniform_", t, opts)
  return init.uniform_(t, -a, a)
end

--- The same with a normal distribution.
function init.xavier_normal_(t, opts) return init.normal_(t, 0, xavier_std("xavier_normal_", t, opts)) end

local function kaiming_std(who, t, opts)
  opts = options.check(who, opts, {
    a = {"number", 0}, mode = {{"fan_in", "fan_out"}, "fan_in"}, nonlinearity = {"string", "leaky_relu"},
  }, "a")
  local fan_in, fan_out = fans(who, t)
  local gain = init.calculate_gain(opts.nonlinearity, opts.nonlinearity == "leaky_relu" and opts.a or nil)
  return gain / math.sqrt(opts.mode == "fan_in" and fan_in or fan_out)
end

--- He et al. 2015: uniform with variance gain^2 / fan. {a = 0, mode = "fan_in", nonlinearity = "leaky_relu"}
function init.kaiming_uniform_(t, opts)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, opts)
  return init.uniform_(t, -bound, bound)
end

--- The same with a normal distribution.
function init.kaiming_normal_(t, opts) return init.normal_(t, 0, kaiming_std("kaiming_normal_", t, opts)) end

--- What linear and convolution layers start from: weight and bias uniform within 1 / sqrt(fan_in),
--- which is PyTorch's kaiming_uniform_ with a = sqrt(5).
function init._layer(weight, bias)
  local fan_in = fans("init", weight)
  local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
  init.uniform_(weight, -bound, bound)
  if bias then init.uniform_(bias, -bound, bound) end
end

return options.strict("nn.init", options.exact_all(init, options.named))
