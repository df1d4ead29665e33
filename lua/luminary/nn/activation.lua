--- Layers without parameters: activations, softmax, Dropout, Flatten, Identity.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.layer"

local ops, arg, check = core.ops, options.arg, options.check
local activation = {}

-- Activations of one tensor and no arguments.
local function simple(name, op)
  local class = layer.define(name)
  function class:init(opts) check(name, opts, {}) end -- luacheck: ignore self
  function class:forward(x) return op(x) end -- luacheck: ignore self
  activation[name] = class
end
--- nn.Tanh(): hyperbolic tangent
simple("Tanh", ops.tanh)
--- nn.Sigmoid(): 1 / (1 + e^-x)
simple("Sigmoid", ops.sigmoid)

-- Activations that may overwrite their input: {inplace = true}.
local function maybe_inplace(name, op, op_)
  local class = layer.define(name)
  function class:init(opts) self.inplace = check(name, opts, {inplace = {"boolean", false}}, "inplace").inplace end
  function class:forward(x) return (self.inplace and op_ or op)(x) end
  function class:extra_repr() return self.inplace and "inplace=True" or "" end
  activation[name] = class
end
--- nn.ReLU([{inplace = false}]): max(x, 0)
maybe_inplace("ReLU", ops.relu, ops.relu_)
--- nn.ReLU6([{inplace = false}]): min(max(x, 0), 6)
maybe_inplace("ReLU6", ops.relu6, ops.relu6_)
--- nn.SiLU([{inplace = false}]): x * sigmoid(x)
maybe_inplace("SiLU", ops.silu, ops.silu_)

--- nn.LeakyReLU([negative_slope = 0.01] [, {inplace = false}]): x, or negative_slope * x below 0
local LeakyReLU = layer.define("LeakyReLU")
activation.LeakyReLU = LeakyReLU

function LeakyReLU:init(negative_slope, opts)
  if type(negative_slope) == "table" and opts == nil then negative_slope, opts = nil, negative_slope end
  opts = check("LeakyReLU", opts, {negative_slope = {"number", 0.01}, inplace = {"boolean", false}}, "inplace")
  self.negative_slope = negative_slope and arg("LeakyReLU", "negative_slope", negative_slope, "number")
    or opts.negative_slope
  self.inplace = opts.inplace
end

function LeakyReLU:forward(x) return (self.inplace and ops.leaky_relu_ or ops.leaky_relu)(x, self.negative_slope) end

function LeakyReLU:extra_repr()
  return "negative_slope=" .. layer.float(self.negative_slope) .. (self.inplace and ", inplace=True" or "")
end

--- nn.GELU([{approximate = "none" | "tanh"}]): x * Phi(x), exact or by its tanh approximation
local GELU = layer.define("GELU")
activation.GELU = GELU

function GELU:init(opts)
  self.approximate = check("GELU", opts, {approximate = {"string", "none"}}, "approximate").approximate
  options.choice("GELU", "approximate", self.approximate, {"none", "tanh"})
end

function GELU:forward(x) return (self.approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x) end

function GELU:extra_repr() return ("approximate='%s'"):format(self.approximate) end

--- nn.Softplus(): log(1 + e^x)
local Softplus = layer.define("Softplus")
activation.Softplus = Softplus

function Softplus:init(opts) check("Softplus", opts, {}) end -- luacheck: ignore self
function Softplus:forward(x) return ops.softplus(x) end -- luacheck: ignore self
function Softplus:extra_repr() return "beta=1.0, threshold=20.0" end -- luacheck: ignore self

-- Without dim, as PyTorch: 1 of inputs of 0, 1 or 3 dims, else 2, with a warning.
local function along_dim(name, op)
  local class = layer.define(name)
  function class:init(dim)
    self.dim = dim ~= nil and arg(name, "dim", dim, "integer") or nil
    if dim == 0 then options.fail("%s: dim 0: dims count from 1, or from -1 at the end", name) end
  end
  function class:forward(x)
    local dim = self.dim
    if not dim then
      local n = options.arg(name, "the input", x, "tensor").ndim
      dim = (n <= 1 or n == 3) and 1 or 2
      core.warn(("%s: no dim was given, so it is %d for an input of %d dims; say nn.%s(%d)"):format(name, dim, n, name,
        dim))
    end
    return op(x, dim)
  end
  function class:extra_repr() return "dim=" .. tostring(self.dim) end
  activation[name] = class
end
--- nn.Softmax(dim): e^x divided by its sum along dim. Dims count from 1, or from -1 at the end.
along_dim("Softmax", ops.softmax)
--- nn.LogSoftmax(dim): the logarithm of softmax along dim. Dims count from 1, or from -1 at the end.
along_dim("LogSoftmax", ops.log_softmax)

--- nn.Dropout([p = 0.5] [, {inplace = false}]): in training, zeros with probability p, the rest divided by 1 - p.
local Dropout = layer.define("Dropout")
activation.Dropout = Dropout

function Dropout:init(p, opts)
  if type(p) == "table" and opts == nil then p, opts = nil, p end
  opts = check("Dropout", opts, {p = {"probability", 0.5}, inplace = {"boolean", false}}, "inplace")
  self.p = p and arg("Dropout", "p", p, "probability") or opts.p
  self.inplace = opts.inplace
end

function Dropout:forward(x)
  local y = ops.dropout(x, self.p, self.training)
  return self.inplace and x:copy_(y) or y
end

function Dropout:extra_repr() return ("p=%s, inplace=%s"):format(layer.float(self.p), layer.bool(self.inplace)) end

--- nn.Flatten([start_dim = 2 [, end_dim = -1]]): those dims made one; the batch dim stays.
local Flatten = layer.define("Flatten")
activation.Flatten = Flatten

function Flatten:init(start_dim, end_dim)
  if type(start_dim) == "table" then
    local opts = check("Flatten", start_dim, {start_dim = {"integer"}, end_dim = {"integer"}})
    start_dim, end_dim = opts.start_dim, opts.end_dim
  end
  self.start_dim = arg("Flatten", "start_dim", start_dim or 2, "integer")
  self.end_dim = arg("Flatten", "end_dim", end_dim or -1, "integer")
end

function Flatten:forward(x) return ops.flatten(x, self.start_dim, self.end_dim) end

function Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

--- nn.Identity(...): gives its input; whatever it is constructed with is ignored, as in PyTorch.
local Identity = layer.define("Identity")
function Identity:init(...) end -- luacheck: ignore
activation.Identity = Identity

function Identity:forward(x) return x end -- luacheck: ignore self

return activation
