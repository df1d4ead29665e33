--- Invertible functions of each element, for TransformedDistribution: t(x), t:inv(y), and
--- t:log_abs_det_jacobian(x, y), the logarithm of |dy/dx|.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local ops = core.ops

local transforms = {}

local function construct(this, ...)
  local self = class.object(this, {__call = function(t, x)
    return t:forward(options.arg(this.__name, "x", x, "tensor"))
  end})
  self:init(class.arguments(this, ...))
  return self
end

--- lm.distributions.Transform: Base class for invertible transforms of each element.
local Transform = class.guard(class.new("DistributionTransform", nil, construct))
transforms.Transform = Transform
Transform.extend, Transform.init, Transform.is = class.methods.extend, class.methods.init, class.is
Transform.repr = class.methods.repr

--- The transform of x; t(x) is the same.
function Transform:forward(x) return self._forward(x, self) end
--- Returns x for y, the inverse of the transform.
function Transform:inv(y) return self._inv(y, self) end
--- Returns log |dy/dx| of each element, where y is the transform of x.
function Transform:log_abs_det_jacobian(x, y) return self._log_det(x, y or self:forward(x), self) end
--- Returns 1 where y increases with x, -1 where it decreases.
function Transform:sign() return 1 end -- luacheck: ignore self

local function define(name, forward, inv, log_det)
  local new = class.define(name, Transform)
  transforms[name] = new
  new._forward, new._inv, new._log_det = forward, inv, log_det
  return new
end

local function softplus(x) return x:clamp(0) + (-x:abs()):exp():log1p() end

--- lm.distributions.ExpTransform(): Transforms by the mapping y = exp(x).
define("ExpTransform", function(x) return x:exp() end, function(y) return y:log() end, function(x) return x end)
--- lm.distributions.SigmoidTransform(): Transforms by the mapping y = 1 / (1 + exp(-x)).
define("SigmoidTransform", function(x) return x:sigmoid() end, function(y) return y:log() - (-y):log1p() end,
  function(x) return -softplus(-x) - softplus(x) end)
--- lm.distributions.TanhTransform(): Transforms by the mapping y = tanh(x).
define("TanhTransform", function(x) return x:tanh() end,
  function(y) return 0.5 * (y:log1p() - (-y):log1p()) end,
  function(x) return 2 * (math.log(2) - x - softplus(-2 * x)) end)
--- lm.distributions.SoftplusTransform(): Transforms by the mapping y = log(1 + exp(x)).
define("SoftplusTransform", softplus, function(y) return (-(-y):expm1()):log() + y end,
  function(x) return -softplus(-x) end)

--- lm.distributions.AffineTransform(loc, scale): Transforms by the mapping y = loc + scale * x.
local Affine = define("AffineTransform", function(x, t) return t.loc + t.scale * x end,
  function(y, t) return (y - t.loc) / t.scale end,
  function(x, _, t)
    if type(t.scale) == "number" then return ops.full_like(x, math.log(math.abs(t.scale))) end
    return ops.zeros_like(x) + t.scale:abs():log()
  end)
Affine.init = signature.of([[AffineTransform(loc, scale, {event_dim: lacks = 0,
  cache_size: lacks = 0})]], function(self, loc, scale)
  for name, v in pairs {loc = loc or false, scale = scale or false} do
    if type(v) ~= "number" and not core.is_tensor(v) then
      options.must_be("AffineTransform", name, "a number or a tensor", v or nil)
    end
    self[name] = v
  end
end)
function Affine:sign()
  if type(self.scale) == "number" then return self.scale < 0 and -1 or 1 end
  return self.scale:sign()
end

--- lm.distributions.PowerTransform(exponent): Transforms by the mapping y = x ^ exponent, for x above 0.
local Power = define("PowerTransform", function(x, t) return x ^ t.exponent end,
  function(y, t) return y ^ (1 / t.exponent) end,
  function(x, y, t) return (t.exponent * y / x):abs():log() end)
Power.init = signature.of("PowerTransform(exponent: number, {cache_size: lacks = 0})", function(self, exponent)
  self.exponent = exponent
  if exponent == 0 then options.fail("PowerTransform: exponent must not be 0") end
end)
function Power:sign() return self.exponent < 0 and -1 or 1 end

--- lm.distributions.ComposeTransform {a, b, …}: Composes several transforms: y = b(a(x)).
local Compose = define("ComposeTransform",
  function(x, t)
    for _, part in ipairs(t.parts) do x = part(x) end
    return x
  end,
  function(y, t)
    for i = #t.parts, 1, -1 do y = t.parts[i]:inv(y) end
    return y
  end,
  function(x, _, t)
    local sum = ops.zeros_like(x)
    for _, part in ipairs(t.parts) do
      local y = part(x)
      sum, x = sum + part:log_abs_det_jacobian(x, y), y
    end
    return sum
  end)
Compose.init = signature.of("ComposeTransform(parts: list, {cache_size: lacks = 0})", function(self, parts)
  for i, part in ipairs(options.list("ComposeTransform", "parts", parts)) do
    if not class.is(part, Transform) then
      options.must_be("ComposeTransform", ("entry %d"):format(i), "a transform", part)
    end
  end
  self.parts = parts
end)
function Compose:sign()
  local sign = 1
  for _, part in ipairs(self.parts) do sign = sign * part:sign() end
  return sign
end

return transforms
