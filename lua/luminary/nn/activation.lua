--- Layers without parameters: activations, softmax, Dropout, Flatten, Identity.
local core = require "luminary.core"
local options = require "luminary.base.options"
local functional = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local list, activation = layer.entries()

activation "Tanh" {call = ops.tanh, help = "hyperbolic tangent"}
activation "Sigmoid" {call = ops.sigmoid, help = "1 / (1 + e^-x)"}
activation "ReLU" {call = ops.relu, in_place = ops.relu_, help = "max(x, 0)"}
activation "ReLU6" {call = ops.relu6, in_place = ops.relu6_, help = "min(max(x, 0), 6)"}
activation "SiLU" {call = ops.silu, in_place = ops.silu_, help = "x * sigmoid(x)"}
activation "SELU" {call = ops.selu, in_place = ops.selu_, help = "elu of fixed scales that keeps mean 0 and variance 1"}
activation "Mish" {call = ops.mish, in_place = ops.mish_, help = "x * tanh(softplus(x))"}
activation "Hardswish" {call = ops.hardswish, in_place = ops.hardswish_, help = "x * hardsigmoid(x)"}
activation "Hardsigmoid" {
  call = ops.hardsigmoid, in_place = ops.hardsigmoid_, help = "x / 6 + 0.5 limited to [0, 1]",
}
activation "LogSigmoid" {call = ops.log_sigmoid, help = "log(sigmoid(x))"}
activation "Softsign" {call = ops.softsign, help = "x / (1 + |x|)"}
activation "Tanhshrink" {call = ops.tanhshrink, help = "x - tanh(x)"}

activation "Softplus" {
  takes = {{"beta", "number", 1}, {"threshold", "number", 20}}, call = ops.softplus,
  prints = "beta={beta}, threshold={threshold}",
  help = "log(1 + e^(beta x)) / beta; x itself where beta x is larger than threshold",
}

for _, name in ipairs {"ELU", "CELU"} do
  activation(name) {
    takes = {{"alpha", "number", 1}}, call = ops[name:lower()], in_place = ops[name:lower() .. "_"],
    prints = "alpha={alpha}",
    help = "x, or below 0 alpha * (e^" .. (name == "ELU" and "x" or "(x / alpha)") .. " - 1)",
  }
end

activation "Hardtanh" {
  takes = {{"min_val", "number", -1}, {"max_val", "number", 1}}, call = ops.hardtanh, in_place = ops.hardtanh_,
  prints = "min_val={min_val}, max_val={max_val}", help = "x limited to [min_val, max_val]",
}
activation "Threshold" {
  takes = {{"threshold", "number"}, {"value", "number"}}, call = ops.threshold, in_place = ops.threshold_,
  prints = "threshold={threshold}, value={value}", help = "x where it is larger than threshold, else value",
}
activation "Hardshrink" {
  takes = {{"lambd", "number", 0.5}}, call = ops.hardshrink, prints = "{lambd}", help = "x, or 0 within lambd of 0",
}
activation "Softshrink" {
  takes = {{"lambd", "number", 0.5}}, call = ops.softshrink, prints = "{lambd}",
  help = "x moved towards 0 by lambd, not beyond",
}
activation "GLU" {
  takes = {{"dim", "dim", -1}}, call = functional.glu, prints = "dim={dim}",
  help = "the first half along dim times the sigmoid of the second",
}
activation "RReLU" {
  takes = {{"lower", "number", 1 / 8}, {"upper", "number", 1 / 3}}, options = {{"inplace", "boolean", false}},
  forward = function(self, x)
    return (self.inplace and functional.rrelu_ or functional.rrelu)(x, self.lower, self.upper, self.training)
  end,
  prints = "lower={lower}, upper={upper}",
  help = "x, or below 0 x times a random slope of [lower, upper) in training, else times their mean",
}

activation "LeakyReLU" {
  takes = {{"negative_slope", "number", 0.01}}, call = ops.leaky_relu, in_place = ops.leaky_relu_,
  prints = "negative_slope={negative_slope}", help = "x, or negative_slope * x below 0",
}

activation "GELU" {
  options = {{"approximate", {"none", "tanh"}, "none"}},
  forward = function(self, x) return (self.approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x) end,
  prints = "approximate={approximate}", help = 'x * Phi(x), exact, or by its approximation with approximate = "tanh"',
}

-- Without dim, as PyTorch: 1 of inputs of 0, 1 or 3 dims, else 2, with a warning.
local function along_dim(name, op, help)
  activation(name) {
    takes = {{"dim", "dim?"}}, prints = "dim={dim}",
    help = help .. ". Dims count from 1, or from -1 at the end",
    made = function(self)
      if self.dim == 0 then options.must_be(name, "dim", "from 1, or from -1 at the end", self.dim) end
    end,
    forward = function(self, x)
      local dim = self.dim
      if not dim then
        local n = options.arg(name, "the input", x, "tensor").ndim
        dim = (n <= 1 or n == 3) and 1 or 2
        core.warn(("%s: no dim was given, so it is %d for an input of %d dims; say nn.%s(%d)"):format(name, dim, n,
          name, dim))
      end
      return op(x, dim)
    end,
  }
end
along_dim("Softmin", ops.softmin, "softmax of -x along dim")
along_dim("Softmax", ops.softmax, "e^x divided by its sum along dim")
along_dim("LogSoftmax", ops.log_softmax, "the logarithm of softmax along dim")

activation "Softmax2d" {
  help = "softmax over the channels of [N, C, H, W] or [C, H, W], at each place",
  forward = function(_, x)
    local n = options.arg("Softmax2d", "the input", x, "tensor").ndim
    if n ~= 3 and n ~= 4 then options.must_be("Softmax2d", "x", "[N, C, H, W] or [C, H, W]", n) end
    return ops.softmax(x, -3)
  end,
}

activation "Dropout" {
  takes = {{"p", "probability", 0.5}}, options = {{"inplace", "boolean", false}},
  forward = function(self, x)
    local y = ops.dropout(x, self.p, self.training)
    return self.inplace and x:copy_(y) or y
  end,
  prints = "p={p}, inplace={inplace}",
  help = "in training, zeros with probability p, the rest divided by 1 - p",
}

activation "Flatten" {
  takes = {{"start_dim", "dim", 2}, {"end_dim", "dim", -1}}, call = ops.flatten,
  prints = "start_dim={start_dim}, end_dim={end_dim}", help = "those dims made one; the batch dim stays",
}

local classes = layer.classes(list)

--- nn.PReLU([num_parameters = 1] [, {init = 0.25, device, dtype}]): x, or below 0 x times `weight`, a parameter: one
--- number, or one for each channel.
local PReLU = layer.define("PReLU")
PReLU.init = layer.takes("PReLU", {{"num_parameters", "count", 1}, {"init", "number", 0.25}}, function(self, opts)
  self.num_parameters = opts.num_parameters
  self.weight = layer.parameter({self.num_parameters}, opts)
  core.no_grad(function() self.weight:fill_(opts.init) end)
end)
classes.PReLU = PReLU

function PReLU:forward(x) return ops.prelu(x, self.weight) end

function PReLU:extra_repr() return "num_parameters=" .. self.num_parameters end

--- nn.Identity(...): gives its input; whatever it is constructed with is ignored, as in PyTorch.
local Identity = layer.define("Identity")
function Identity:init(...) end -- luacheck: ignore
classes.Identity = Identity

function Identity:forward(x) return x end -- luacheck: ignore self

return classes
