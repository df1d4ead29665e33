--- Defines layers without parameters: activations, softmax, Dropout, Flatten, Identity.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local functional = require "luminary.nn.functional"
local layer = require "luminary.nn.define_layer"
local init = require "luminary.nn.initializers"

local ops = core.ops
local list, activation = layer.entries()

-- Layers that are one elementwise op: signature, op, help, and the fields that print shows.
for _, row in ipairs {
  {"Tanh()", "tanh", "Computes the hyperbolic tangent of each element."},
  {"Sigmoid()", "sigmoid", "Computes the logistic sigmoid of each element: 1 / (1 + e^-x)."},
  {"ReLU({inplace = false})", "relu", "Applies the rectified linear unit to each element: max(x, 0)."},
  {"ReLU6({inplace = false})", "relu6",
    "Applies the rectified linear unit limited at 6 to each element: min(max(x, 0), 6)."},
  {"SiLU({inplace = false})", "silu", "Applies the sigmoid linear unit to each element: x * sigmoid(x)."},
  {"SELU({inplace = false})", "selu",
    "Applies the scaled exponential linear unit to each element: 1.0507 * elu(x, 1.67326)."},
  {"Mish({inplace = false})", "mish", "Applies the Mish function to each element: x * tanh(softplus(x))."},
  {"Hardswish({inplace = false})", "hardswish", "Applies the hard swish function to each element: x * hardsigmoid(x)."},
  {"Hardsigmoid({inplace = false})", "hardsigmoid",
    "Applies the hard sigmoid function to each element: x / 6 + 0.5, limited to [0, 1]."},
  {"LogSigmoid()", "log_sigmoid", "Computes the logarithm of the sigmoid of each element: log(1 / (1 + e^-x))."},
  {"Softsign()", "softsign", "Applies the softsign function to each element: x / (1 + |x|)."},
  {"Tanhshrink()", "tanhshrink", "Computes x - tanh(x) for each element."},
  {"Softplus(beta = 1, threshold = 20)", "softplus",
    "Applies the softplus function to each element: log(1 + e^(beta * x)) / beta.", "beta threshold"},
  {"ELU(alpha = 1, {inplace = false})", "elu",
    "Applies the exponential linear unit to each element: x, or alpha * (e^x - 1) below 0.", "alpha"},
  {"CELU(alpha = 1, {inplace = false})", "celu", "Applies the continuously differentiable exponential linear unit to "
    .. "each element: x, or alpha * (e^(x / alpha) - 1) below 0.", "alpha"},
  {"Hardtanh(min_val = -1, max_val = 1, {inplace = false})", "hardtanh",
    "Limits each element to the range from min_val to max_val.", "min_val max_val"},
  {"Threshold(threshold: number, value: number, {inplace = false})", "threshold",
    "Replaces each element that is not above threshold by value.", "threshold value"},
  {"Hardshrink(lambd = 0.5)", "hardshrink", "Sets each element from -lambd to lambd to 0.", "{lambd}"},
  {"Softshrink(lambd = 0.5)", "softshrink",
    "Moves each element towards 0 by lambd; elements from -lambd to lambd become 0.", "{lambd}"},
  {"LeakyReLU(negative_slope = 0.01, {inplace = false})", "leaky_relu",
    "Applies the leaky rectified linear unit to each element: x, or negative_slope * x below 0.", "negative_slope"},
} do
  activation(row[1]) {op = row[2], help = row[3], prints = row[4]}
end

activation "GLU(dim: dim = -1)" {
  call = functional.glu, prints = "dim",
  help = "Applies the gated linear unit: the first half of x along dim times the sigmoid of the second half.",
}
activation "RReLU(lower = 1 / 8, upper = 1 / 3, {inplace = false})" {
  forward = function(self, x)
    return (self.inplace and functional.rrelu_ or functional.rrelu)(x, self.lower, self.upper, self.training)
  end,
  prints = "lower upper",
  help = "Applies the randomized leaky rectified linear unit to each element: x, or a random slope times x below 0.",
}

activation [[GELU({approximate = "none" | "tanh"})]] {
  forward = function(self, x) return (self.approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x) end,
  prints = "approximate", help = "Applies the Gaussian error linear unit to each element: x * Phi(x).",
}

-- Adds a softmax layer. Without dim it takes PyTorch's: 1 for inputs of 0, 1 or 3 dims, else 2, with a warning.
local function along_dim(name, op, help)
  activation(name .. "(dim: dim?)") {
    prints = "dim",
    help = help,
    after_init = function(self)
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
along_dim("Softmin", ops.softmin, "Computes the softmax of -x along dim.")
along_dim("Softmax", ops.softmax, "Computes the softmax along dim: e^x divided by the sum of e^x.")
along_dim("LogSoftmax", ops.log_softmax, "Computes the logarithm of the softmax along dim.")

activation "Softmax2d()" {
  help = "Computes the softmax over the channels of [N, C, H, W] or [C, H, W].",
  forward = function(_, x)
    local n = options.arg("Softmax2d", "the input", x, "tensor").ndim
    if n ~= 3 and n ~= 4 then options.must_be("Softmax2d", "x", "[N, C, H, W] or [C, H, W]", n) end
    return ops.softmax(x, -3)
  end,
}

activation "Dropout(p: probability = 0.5, {inplace = false})" {
  forward = function(self, x)
    local y = ops.dropout(x, self.p, self.training)
    return self.inplace and x:copy_(y) or y
  end,
  prints = "p inplace",
  help = "Sets elements to 0 at random in training, each with probability p.",
}

activation "Flatten(start_dim: dim = 2, end_dim: dim = -1)" {
  op = "flatten", prints = "start_dim end_dim", help = "Flattens a range of dims into one dim.",
}

local classes = layer.classes(list)

--- nn.PReLU(…): Applies the parametric rectified linear unit to each element: x, or weight * x below 0.
local PReLU = layer.define("PReLU", nil, classes)
PReLU.init = signature.of("PReLU({num_parameters: count = 1, init = 0.25, device, dtype: string})", function(self, opts)
  self.num_parameters, self.initial = opts.num_parameters, opts.init
  self.weight = layer.parameter({self.num_parameters}, opts)
  self:reset_parameters()
end)

--- Resets the parameters to their initial value.
function PReLU:reset_parameters() init.constant_(self.weight, self.initial) end

function PReLU:forward(x) return ops.prelu(x, self.weight) end

function PReLU:extra_repr() return "num_parameters=" .. self.num_parameters end

--- nn.Identity(...): Returns its input.
local Identity = layer.define("Identity", nil, classes)
function Identity:init(...) end -- luacheck: ignore

function Identity:forward(x) return x end -- luacheck: ignore self

return classes
