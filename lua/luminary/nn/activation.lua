--- Layers without parameters: activations, softmax, Dropout, Flatten, Identity.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local list, activation = layer.entries()

activation "Tanh" {call = ops.tanh, help = "hyperbolic tangent"}
activation "Sigmoid" {call = ops.sigmoid, help = "1 / (1 + e^-x)"}
activation "ReLU" {call = ops.relu, in_place = ops.relu_, help = "max(x, 0)"}
activation "ReLU6" {call = ops.relu6, in_place = ops.relu6_, help = "min(max(x, 0), 6)"}
activation "SiLU" {call = ops.silu, in_place = ops.silu_, help = "x * sigmoid(x)"}
activation "Softplus" {call = ops.softplus, prints = "beta=1.0, threshold=20.0", help = "log(1 + e^x)"}

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
    takes = {{"dim", "integer?"}}, prints = "dim={dim}",
    help = help .. ". Dims count from 1, or from -1 at the end",
    made = function(self)
      if self.dim == 0 then options.fail("%s: dim 0: dims count from 1, or from -1 at the end", name) end
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
along_dim("Softmax", ops.softmax, "e^x divided by its sum along dim")
along_dim("LogSoftmax", ops.log_softmax, "the logarithm of softmax along dim")

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
  takes = {{"start_dim", "integer", 2}, {"end_dim", "integer", -1}}, call = ops.flatten,
  prints = "start_dim={start_dim}, end_dim={end_dim}", help = "those dims made one; the batch dim stays",
}

local classes = layer.classes(list)

--- nn.Identity(...): gives its input; whatever it is constructed with is ignored, as in PyTorch.
local Identity = layer.define("Identity")
function Identity:init(...) end -- luacheck: ignore
classes.Identity = Identity

function Identity:forward(x) return x end -- luacheck: ignore self

return classes
