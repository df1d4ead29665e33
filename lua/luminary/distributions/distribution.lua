--- What distributions share. One is an entry with its formulas:
---
---   define "Exponential" {
---     takes = {rate = "positive"}, order = {"rate"}, support = "nonnegative", help = "…",
---     mean = function(d) return 1 / d.rate end, variance = …,
---     rsample = function(d, shape) return -d:noise("rand", shape):log() / d.rate end,
---     log_prob = function(d, x) return d.rate:log() - d.rate * x end,
---   }
---
--- takes      its parameters and what each must be (a name of constraints.lua), which become tensors of one shape;
---            order: as they stand in a call
--- defaults   of parameters that may be left out; lacks: a parameter of PyTorch's that this library lacks
--- either     of which two just one is given, and properties of those names compute the other
--- event_dims how many of the parameters' last dims are one event's (0)
--- support    what log_prob's argument must be
--- rsample    samples through which gradients pass; or sample, where there are no such; both of [shape…, d's shape…]
--- log_prob, entropy, cdf, icdf and any other method
--- mean, variance, mode, and `properties`: fields that are computed when they are read
local debug = require "debug"
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local constraints = require "luminary.distributions.constraints"

local ops, fail = core.ops, options.fail

local function property(self, key)
  local of = debug.getmetatable(self).class
  while of do
    local own = rawget(of, "properties")
    if own and own[key] then return own[key](self) end
    of = of.super
  end
end

local function blank(of)
  local record = {}
  record.__index = function(self, key)
    local value = record.values[key]
    if value ~= nil then return value end
    return property(self, key)
  end
  return class.object(of, record)
end

local function construct(this, ...)
  local self = blank(this)
  self:init(class.arguments(this, ...))
  return self
end

--- lm.distributions.Distribution: Base class for probability distributions.
local Distribution = class.guard(class.new("Distribution", nil, construct))
Distribution.extend = class.methods.extend
Distribution.init = class.methods.init
Distribution.is = class.is
Distribution.has_rsample = false
Distribution.__inner = {"broadcast", "define", "first_parameter", "noise", "set_shapes", "value"}
Distribution.properties = {
  stddev = function(d) return d.variance:sqrt() end,
}

local function joined(...)
  local all = {}
  for i = 1, select("#", ...) do
    for _, v in ipairs((select(i, ...))) do all[#all + 1] = v end
  end
  return all
end
Distribution._joined = joined

--- The shape that these broadcast to.
function Distribution.broadcast(who, shapes)
  local out, most = {}, 0
  for _, shape in ipairs(shapes) do most = math.max(most, #shape) end
  for i = 1, most do
    out[i] = 1
    for _, shape in ipairs(shapes) do
      local at = i - most + #shape
      local size = at > 0 and shape[at] or 1
      if out[i] ~= 1 and size ~= 1 and size ~= out[i] then
        fail("%s: shapes of the parameters must broadcast, got [%s] and [%s]", who, table.concat(out, ", "),
          table.concat(shape, ", "))
      end
      if size ~= 1 then out[i] = size end
    end
  end
  return out
end

-- Numbers become tensors of the dtype and device that the tensors among the values have.
local function tensors(who, names, values)
  local like, out = nil, {}
  for _, name in ipairs(names) do
    if core.is_tensor(values[name]) then like = like or values[name] end
  end
  local how = {dtype = like and core.is_floating_point(like) and like.dtype or core.get_default_dtype()}
  how.device = like and like.device or nil
  for _, name in ipairs(names) do
    local v = values[name]
    if type(v) == "number" or options.is_plain(v) then
      v = core.tensor(v, how)
    elseif not core.is_tensor(v) then
      options.must_be(who, name, "a number or a tensor", v)
    elseif not core.is_floating_point(v) then
      v = v:to(how.dtype)
    end
    out[name] = v
  end
  return out
end
Distribution._tensors = tensors

--- Sets the shapes: those of a parameter, of which the last event_dims are one event's.
function Distribution:set_shapes(shape, event_dims)
  local batch = #shape - event_dims
  self.batch_shape, self.event_shape = {unpack(shape, 1, batch)}, {unpack(shape, batch + 1)}
end

-- A sample shape as a list.
local function shape_of(who, shape)
  if shape == nil then return {} end
  if type(shape) == "number" then shape = {shape} end
  if not options.is_plain(shape) then options.expected(who, "a list of sizes", shape) end
  for _, size in ipairs(shape) do options.arg(who, "a size", size, "natural") end
  local name = options.named_field(shape)
  if name then fail("%s: expected a list of sizes, got the field '%s'", who, name) end
  return shape
end

--- Random numbers of an op ("rand" from 0 to 1, never 0; "randn") of the shape [shape…, batch…, event…].
function Distribution:noise(op, shape, more)
  local like = self:first_parameter()
  local how = {dtype = like.dtype, device = like.device}
  local x = ops[op](joined(shape, self.batch_shape, more or self.event_shape), how)
  return op == "rand" and x:clamp(1e-38, {max = 1}) or x
end

--- The parameter of which samples have dtype and device.
function Distribution:first_parameter()
  for _, name in ipairs(self.order) do
    local given = rawget(debug.getmetatable(self).values, name)
    if given ~= nil then return given end
  end
end

--- Returns samples of shape [shape…, batch_shape…, event_shape…], without gradient: d:sample(), d:sample(5),
--- d:sample {2, 3}.
function Distribution:sample(shape)
  shape = shape_of(self.__name .. ":sample", shape)
  return core.no_grad(function() return self:_draw(shape):detach() end)
end

--- Returns reparameterized samples, through which gradients pass to the parameters. Not all distributions have it.
function Distribution:rsample(shape)
  if not self.has_rsample then
    fail("%s: rsample is not supported; use d:sample() and d:log_prob(x), which has gradients", self.__name)
  end
  return self:_draw(shape_of(self.__name .. ".rsample", shape))
end

--- A value as a tensor of the parameters' kind, which must be in the support.
function Distribution:value(who, x)
  local like = self:first_parameter()
  if not core.is_tensor(x) then
    if type(x) ~= "number" and not options.is_plain(x) then
      options.expected(self.__name .. "." .. who, "a tensor or a number", x)
    end
    x = core.tensor(x, {dtype = like.dtype, device = like.device})
  end
  if not core.is_floating_point(x) then x = x:to(like.dtype) end
  if self.validate_args and self.support then
    constraints.check(("%s.%s"):format(self.__name, who), "the value", x, self.support, self)
  end
  return x
end

--- Returns the distribution with another batch_shape, to which its own must broadcast.
function Distribution:expand(batch_shape)
  batch_shape = shape_of(self.__name .. ".expand", batch_shape)
  local twin = blank(debug.getmetatable(self).class)
  for name, v in pairs(debug.getmetatable(self).values) do twin[name] = v end
  for _, name in ipairs(self.order) do
    local p = rawget(debug.getmetatable(self).values, name)
    if p then twin[name] = p:expand(joined(batch_shape, self.event_shape)) end
  end
  twin.batch_shape = batch_shape
  return twin
end

--- Returns exp(entropy).
function Distribution:perplexity() return self:entropy():exp() end

function Distribution:repr()
  local parts = {}
  for _, name in ipairs(self.order or {}) do
    local p = rawget(debug.getmetatable(self).values, name)
    if p then
      parts[#parts + 1] = name .. ": " .. (p:numel() == 1 and tostring(p:item())
        or "[" .. table.concat(p.shape, ", ") .. "]")
    end
  end
  return ("%s(%s)"):format(self.__name, table.concat(parts, ", "))
end

-- The formula of that name of the distribution's entry.
local function formula(self, name)
  return self._formula[name] or fail("%s: %s is not supported", self.__name, name)
end

--- Returns the log of the probability (density) of the values x, of shape [shape…, batch_shape…].
function Distribution:log_prob(x) return formula(self, "log_prob")(self, self:value("log_prob", x)) end

--- Returns the entropy, the mean of -log_prob.
function Distribution:entropy() return formula(self, "entropy")(self) end

--- Returns the cumulative distribution function at x.
function Distribution:cdf(x) return formula(self, "cdf")(self, self:value("cdf", x)) end

--- Returns the inverse of the cumulative distribution function at p.
function Distribution:icdf(p)
  local f = formula(self, "icdf")
  p = core.is_tensor(p) and p or core.tensor(p, {dtype = self:first_parameter().dtype})
  if self.validate_args then constraints.check(self.__name .. ".icdf", "the probability", p, "unit_interval") end
  return f(self, p)
end

-- The constructor of an entry.
local function init_of(name, entry)
  local function init(self, ...)
    local values, n, given = {...}, #entry.order, {}
    self.validate_args = values[n + 1].validate_args
    for i, parameter in ipairs(entry.order) do
      if values[i] == nil and entry.defaults then values[i] = entry.defaults[parameter] end
      local stray = core.is_tensor(values[i]) == false and options.is_plain(values[i]) and next(values[i])
      if type(stray) == "string" then options.unknown(name, stray, {"validate_args", unpack(entry.order)}) end
      if values[i] ~= nil then given[#given + 1], values[parameter] = parameter, values[i] end
    end
    if entry.either and #given ~= 1 or not entry.either and #given < n then
      fail("%s: %s, got %d", name, entry.either and "pass exactly one of " .. table.concat(entry.order, " and ")
        or "expected " .. table.concat(entry.order, ", "), #given)
    end
    values = tensors(name, given, values)
    local shapes = {}
    for i, parameter in ipairs(given) do shapes[i] = values[parameter].shape end
    local shape = Distribution.broadcast(name, shapes)
    if #shape < (entry.event_dims or 0) then
      fail("%s: %s must have at least %d dim", name, given[1], entry.event_dims)
    end
    self:set_shapes(shape, entry.event_dims or 0)
    for _, parameter in ipairs(given) do
      local t = values[parameter]:expand(shape)
      if self.validate_args then constraints.check(name, parameter, t, entry.takes[parameter], self) end
      self[parameter] = core.keep(t)
    end
    if entry.made then entry.made(self) end
  end
  return signature.of(("%s(%s, {%svalidate_args = true})"):format(name, table.concat(entry.order, ", "),
    entry.lacks and entry.lacks .. ": lacks, " or ""), init)
end

local reserved = {takes = true, either = true, mean = true, variance = true, mode = true, rsample = true, help = true,
  sample = true, properties = true, log_prob = true, cdf = true, icdf = true, entropy = true, made = true,
  defaults = true, lacks = true}

--- define "Name" {…}: the class of an entry, as the head of this file says.
function Distribution.define(name, super)
  return function(entry)
    local new = class.new(name, super or Distribution)
    new.strict, new.properties = true, {}
    for key, f in pairs(entry.properties or {}) do new.properties[key] = f end
    for _, key in ipairs {"mean", "variance", "mode"} do new.properties[key] = entry[key] end
    for key, v in pairs(entry) do
      if not reserved[key] then new[key] = v end
    end
    new._formula = setmetatable(entry, {__index = super and super._formula})
    new.init = entry.init or init_of(name, entry)
    new._draw, new.has_rsample = entry.rsample or entry.sample, entry.rsample ~= nil
    local one_of = entry.either and ("; exactly one of %s must be given"):format(table.concat(entry.order, " and "))
    new.__help = ("lm.distributions.%s(): %s%s"):format(name, entry.help, one_of or "")
    return new
  end
end

return Distribution
