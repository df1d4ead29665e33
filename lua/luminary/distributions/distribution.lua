--- Defines the base class of distributions, and makes classes of entries, which have a distribution's formulas:
---
---   define "Exponential" {
---     takes = "rate: positive", support = "nonnegative", help = "…",
---     mean = "1 / rate", variance = …, rsample = "-log(uniform) / rate", log_prob = "log(rate) - rate * x",
---   }
---
--- takes      the parameters in order, NAME: CONSTRAINT; they become tensors whose batch dims broadcast
--- limits     {parameter = constraint, or a function(d) that returns it}
--- defaults   {parameter = value if it is left out}
--- either     list of parameters of which exactly one is given; properties of their names compute the others
--- event_dims {parameter = number of last dims of an event}; event_shape is that of the last parameter, or event(d)
--- plain      {parameter = kind} of parameters that are not tensors; loose: {parameter = true} if it does not broadcast
--- support    constraint of log_prob's argument, its name, or a function(d) that returns it
--- after_init function(d, given) that completes a new object; given: the parameters before they are broadcast
--- rsample    samples through which gradients pass, or sample, if gradients cannot; [shape…, batch…, event…]
--- log_prob, entropy, cdf, icdf, values (all values of a finite support, [n, event…]) and other methods
--- mean, variance, mode, and `properties`: fields that are computed when they are read
--- base       function(d) that returns the base distribution and the transforms of a TransformedDistribution
---
--- A formula is a function(d), or (d, x), or a text of formulas.lua.
local debug = require "debug"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local finfo = require("luminary.tensor.dtype_info").finfo
local constraints = require "luminary.distributions.constraints"
local formulas = require "luminary.distributions.formulas"

local ops, fail, joined, undefined = core.ops, options.fail, formulas.known.joined, formulas.undefined
local wide = full_precision.wide

-- Fails for a field that a distribution of the library lacks.
local function no_field(record, key)
  local known, of = {}, record.class
  local function add_known_names(t)
    for name in pairs(t) do known[name] = not name:find "^_" or nil end
  end
  add_known_names(record.values)
  while of do
    add_known_names(of)
    add_known_names(rawget(of, "properties") or {})
    of = rawget(of, "super")
  end
  options.no_name(record.class.__name, key, known)
end

-- Returns the property of that name, or nil. An absent public name is an error, except in a user's class, whose objects
-- have fields of their own.
local function property(self, key)
  local record = debug.getmetatable(self)
  local of = record.class
  while of do
    local own = rawget(of, "properties")
    if own and own[key] then return own[key](self) end
    of = of.super
  end
  if rawget(record.class, "strict") and key:sub(1, 1) ~= "_" then no_field(record, key) end
end

-- Returns the constraint for a value of an entry: a constraint, its name, or a function(d) that returns it.
local function constraint_of(d, c)
  if type(c) == "function" then c = c(d) end
  return type(c) == "string" and constraints[c] or c
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
Distribution.has_rsample, Distribution.has_enumerate_support = false, false
Distribution.batch_shape, Distribution.event_shape = {}, {}
Distribution.__inner = {"broadcast", "define", "drawn", "first_parameter", "noise", "value"}
Distribution.properties = {
  stddev = function(d) return d.variance:sqrt() end,
  support = function(d) return constraint_of(d, d._formula and d._formula.support) end,
  arg_constraints = function(d)
    local all = {}
    for name, c in pairs(d._formula and d._formula.takes or {}) do all[name] = constraint_of(d, c) end
    return all
  end,
  param_shape = function(d) return ((d._given or {}).probs or (d._given or {}).logits or {}).shape end,
}

-- Remedies that errors suggest for methods that a distribution lacks.
local remedies = {
  mean = "estimate it by d:sample({1000}):mean(1)", variance = "estimate it by d:sample({1000}):var(1)",
  entropy = "estimate it by -d:log_prob(d:sample({1000})):mean(1)",
  rsample = "use d:sample() and d:log_prob(x), which has gradients",
}
for _, name in ipairs {"mean", "variance", "mode"} do
  Distribution.properties[name] = function(d)
    undefined(d, name, ("self.%s in init, or %%s.properties = {%s = function(d) … end}"):format(name, name),
      remedies[name])
  end
end

--- Returns the shape that a list of shapes broadcasts to. Fails in the name of `who` if they do not broadcast.
Distribution.broadcast = require("luminary.tensor.shapes").common

-- Returns the values of these names as tensors; numbers take the dtype and device of the first floating-point tensor.
local function tensors(who, names, values)
  local like, out = nil, {}
  for _, name in ipairs(names) do
    local v = values[name]
    if core.is_tensor(v) and core.is_floating_point(v) then like = like or v end
  end
  local how = {dtype = like and like.dtype or core.get_default_dtype(), device = like and like.device}
  for _, name in ipairs(names) do
    local v = values[name]
    if type(v) == "number" or options.is_plain(v) then v = core.tensor(v, how) end
    if not core.is_tensor(v) then options.must_be(who, name, "a number or a tensor", v) end
    out[name] = core.is_floating_point(v) and v or v:to(how.dtype)
  end
  return out
end

-- Returns a sample shape (nil, an integer or a list) as a list.
local function shape_of(who, shape)
  if shape == nil then return {} end
  if type(shape) == "number" then shape = {shape} end
  if not options.is_plain(shape) then options.expected(who, "a list of sizes", shape) end
  for _, size in ipairs(shape) do options.arg(who, "a size", size, "natural") end
  local name = options.named_field(shape)
  if name then fail("%s: expected a list of sizes, got the field '%s'", who, name) end
  return shape
end

--- Returns random numbers [shape…, batch…, event…] of the op "rand" (between 0 and 1, both excluded) or "randn".
function Distribution:noise(op, shape)
  local like = self:first_parameter()
  local x = ops[op](joined(shape, self.batch_shape, self.event_shape), {dtype = like.dtype, device = like.device})
  local info = op == "rand" and finfo(like.dtype)
  return info and x:clamp(info.tiny, {max = 1 - info.eps}) or x
end

--- Returns the parameter whose dtype and device samples have; of a user's class any tensor among the fields.
function Distribution:first_parameter()
  local values = debug.getmetatable(self).values
  for i = #(self._formula and self.order or {}), 1, -1 do
    local given = rawget(values, self.order[i])
    if core.is_tensor(given) then return given end
  end
  for _, v in lists.sorted_pairs(values) do
    if core.is_tensor(v) and core.is_floating_point(v) then return v end
  end
  return core.tensor(0)
end

-- Returns samples of shape [shape…, batch_shape…, event_shape…]. Classes of the library define it, users' the method
-- sample or rsample.
function Distribution:_draw(shape)
  for _, name in ipairs {"rsample", "sample"} do
    if self[name] ~= Distribution[name] then return self[name](self, shape) end
  end
  undefined(self, "sample", "function %s:sample(shape), or function %s:rsample(shape) if gradients pass through it")
end

--- Returns samples of shape [shape…, batch_shape…, event_shape…], without gradient: d:sample(), d:sample(5),
--- d:sample {2, 3}.
function Distribution:sample(shape)
  shape = shape_of(self.__name .. ":sample", shape)
  return core.no_grad(function()
    local x = self:_draw(shape)
    return x.requires_grad and x:detach() or x -- the tensor that a transform's cache has
  end)
end

--- Returns n samples, as d:sample(n) does.
function Distribution:sample_n(n) return self:sample(options.arg("sample_n", "n", n, "natural")) end

--- Returns reparameterized samples, through which gradients pass to the parameters. Fails if has_rsample is false.
function Distribution:rsample(shape)
  if not self.has_rsample then undefined(self, "rsample", "function %s:rsample(shape)", remedies.rsample) end
  return self:_draw(shape_of(self.__name .. ".rsample", shape))
end

--- Returns a value as a tensor of the parameters' dtype; fails for method `who` where it is checked and not in support.
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
    local name, own = ("%s.%s"):format(self.__name, who), joined(self.batch_shape, self.event_shape)
    local n = #self.event_shape
    for i = 0, math.max(n, math.min(#own, x.ndim)) - 1 do
      local size, want = x.shape[x.ndim - i], own[#own - i]
      if size ~= want and (i < n or size ~= 1 and want ~= 1) then options.wrong_shape(name, "the value", x, own) end
    end
    constraints._require(name, "the value", x, self.support)
  end
  return x
end

--- Returns the distribution with another batch_shape, to which its own must broadcast.
function Distribution:expand(batch_shape)
  batch_shape = shape_of(self.__name .. ".expand", batch_shape)
  if not self._given then undefined(self, "expand", "function %s:expand(batch_shape)") end
  local twin = blank(debug.getmetatable(self).class)
  for name, v in pairs(debug.getmetatable(self).values) do twin[name] = v end
  twin:_set_parameters(batch_shape)
  if twin._formula.after_init then twin._formula.after_init(twin, twin._given) end
  return twin
end

-- Returns the distribution with parameters in float32.
local function widened(self)
  local twin, given = blank(debug.getmetatable(self).class), {}
  for name, v in pairs(debug.getmetatable(self).values) do
    twin[name] = class.is(v, Distribution) and widened(v) or wide(v)
  end
  for name, v in pairs(self._given or {}) do
    given[name] = wide(v)
    if core.is_tensor(v) then twin[name] = given[name]:expand(self[name].shape) end
  end
  twin.validate_args, twin._given = false, self._given and core.keep(given)
  if self._given and self._formula.after_init then self._formula.after_init(twin, given) end
  return twin
end

-- Returns samples in a dtype of half precision, without the bounds of the support, to which they may be rounded.
local function rounded_inside(y, support, dtype)
  local info, low, high = finfo(dtype), support.lower_bound, support.upper_bound
  if low then y = y:clamp(low + info.tiny) end
  if high then
    high = core.is_tensor(high) and high or y:new_full({}, high)
    y = y:clamp(nil, high - (high:abs() * (info.eps / 2)):clamp(info.tiny, 1e30))
  end
  return y:to(dtype)
end

-- Returns a formula that computes in float32 for parameters of half precision, and rounds its result once.
local function rounds_once(f, draws)
  return type(f) == "function" and function(d, x)
    local dtype = d:first_parameter().dtype
    local twin = finfo(dtype).bits == 16 and widened(d)
    if not twin then return f(d, x) end
    local y = full_precision.call(f, twin, x)
    if not core.is_tensor(y) or y.dtype ~= "float32" or core.is_tensor(x) and x.dtype ~= dtype then return y end
    return draws and rounded_inside(y, twin.support, dtype) or y:to(dtype)
  end or f
end

-- Sets batch_shape, event_shape, and the parameters broadcast to them.
function Distribution:_set_parameters(batch_shape)
  local entry = self._formula
  local event_dims, loose = entry.event_dims or {}, entry.loose or {}
  self.batch_shape, self.event_shape = batch_shape, {}
  for _, name in ipairs(entry.order) do
    local t = self._given[name]
    if core.is_tensor(t) then
      local event = {unpack(t.shape, t.ndim + 1 - (event_dims[name] or 0))}
      if event_dims[name] then self.event_shape = event end
      if not loose[name] then t = t:expand(joined(batch_shape, event)) end
      self[name] = core.keep(t)
    elseif t ~= nil then
      self[name] = t
    end
  end
  if entry.event then self.event_shape = entry.event(self) end
end

--- Returns exp(entropy).
function Distribution:perplexity() return self:entropy():exp() end
--- Returns all values of a finite support, [n, batch_shape…, event_shape…]; d:enumerate_support(false): the batch dims
--- are 1.
function Distribution:enumerate_support(expand)
  if not self.has_enumerate_support then
    undefined(self, "enumerate_support", "function %s:enumerate_support(expand)")
  end
  local values, ones = self._formula.values(self), {}
  local n = {values.shape[1]}
  for i = 1, #self.batch_shape do ones[i] = 1 end
  values = values:reshape(joined(n, ones, self.event_shape))
  return expand == false and values or values:expand(joined(n, self.batch_shape, self.event_shape))
end

function Distribution:repr()
  local parts = {}
  for _, name in ipairs(self.order or {}) do
    local p = rawget(debug.getmetatable(self).values, name)
    if core.is_tensor(p) then p = p:numel() == 1 and p:item() or "[" .. table.concat(p.shape, ", ") .. "]" end
    if p and type(p) ~= "table" then parts[#parts + 1] = name .. ": " .. tostring(p) end
  end
  return ("%s(%s)"):format(self.__name, table.concat(parts, ", "))
end

-- Returns the formula of that name of the distribution's entry.
local function formula(self, name)
  return self._formula and self._formula[name]
    or undefined(self, name, ("function %%s:%s(%s)"):format(name, name == "entropy" and "" or "x"), remedies[name])
end

--- Returns the log of the probability (density) of the values x, of shape [shape…, batch_shape…].
function Distribution:log_prob(x) return formula(self, "log_prob")(self, self:value("log_prob", x)) end
--- Returns the entropy, the mean of -log_prob.
function Distribution:entropy() return formula(self, "entropy")(self) end
--- Returns the cumulative distribution function at x.
function Distribution:cdf(x) return formula(self, "cdf")(self, self:value("cdf", x)) end
--- Returns the inverse of the cumulative distribution function at p.
function Distribution:icdf(p)
  local f, name = formula(self, "icdf"), self.__name .. ".icdf"
  p = core.is_tensor(p) and p or core.tensor(p, {dtype = self:first_parameter().dtype})
  if self.validate_args then constraints._require(name, "the probability", p, constraints.unit_interval) end
  return f(self, p)
end

--- Returns the value at x of the entry's formula of a name; x is not checked.
function Distribution:_formula_of(name, x) return formula(self, name)(self, x) end
--- Returns a parameter expanded to the shape of samples.
function Distribution:drawn(p, shape) return p:expand(joined(shape, self.batch_shape, self.event_shape)) end

-- True if new distributions without validate_args check their arguments.
local validates = true

--- Sets whether distributions check parameters and values, where they are made without validate_args.
function Distribution.set_default_validate_args(value)
  validates = options.arg("set_default_validate_args", "value", value, "boolean")
end

--- Sets validate_args, or its default.
function Distribution:_set_validate(value) self.validate_args = validates and value ~= false or value == true end
local function listed(names) return (table.concat(names, ", "):gsub(", ([%w_]+)$", " and %1")) end

-- Returns the `init` of an entry's class.
local function init_of(name, entry)
  local order, defaults, plain = entry.order, entry.defaults or {}, entry.plain or {}
  local among, rows = {}, {}
  for _, parameter in ipairs(entry.either or {}) do among[parameter] = true end
  local one_of = listed(entry.either or {})
  local function init(self, ...)
    local values, given, n_either = {...}, {}, 0
    self:_set_validate(values[#order + 1].validate_args)
    for i, parameter in ipairs(order) do
      local v = values[i]
      if v == nil then v = defaults[parameter] end
      local stray = options.is_plain(v) and not plain[parameter] and next(v)
      if type(stray) == "string" then options.unknown(name, stray, {"validate_args", unpack(order)}) end
      values[parameter] = v
      if v ~= nil and not plain[parameter] then given[#given + 1] = parameter end
      if v ~= nil and among[parameter] then n_either = n_either + 1 end
      if v == nil and not among[parameter] and defaults[parameter] == nil then
        fail("%s: expected %s, got %d", name, table.concat(order, ", "), i - 1)
      end
    end
    if entry.either and n_either ~= 1 then fail("%s: pass exactly one of %s, got %d", name, one_of, n_either) end
    local all, shapes = tensors(name, given, values), {}
    for _, parameter in ipairs(given) do
      local shape, dims = all[parameter].shape, (entry.event_dims or {})[parameter] or 0
      if #shape < dims then options.wrong_shape(name, parameter, all[parameter], "[..." .. (", n"):rep(dims) .. "]") end
      if not (entry.loose and entry.loose[parameter]) then
        shapes[#shapes + 1] = {unpack(shape, 1, #shape - dims)}
      end
    end
    for parameter in pairs(plain) do all[parameter] = values[parameter] end
    self._given = core.keep(all)
    self:_set_parameters(Distribution.broadcast(name, shapes))
    for _, parameter in ipairs(self.validate_args and given or {}) do
      local c = constraint_of(self, entry.takes[parameter])
      if c then constraints._require(name, parameter, self[parameter], c) end
    end
    if entry.after_init then entry.after_init(self, all) end
  end
  for i, parameter in ipairs(order) do
    rows[i] = parameter .. (plain[parameter] and ": " .. plain[parameter] or "")
  end
  return signature.of(("%s(%s, {validate_args: boolean = (true)})"):format(name, table.concat(rows, ", ")), init)
end

-- Sets of an entry's fields: formulas, and fields that do not become fields of the class.
local computed, reserved = {}, {}
for word in ([[mean variance mode rsample sample log_prob entropy cdf icdf survival inside moment mahalanobis
  trace]]):gmatch "%S+" do computed[word], reserved[word] = true, true end
for word in ([[takes either help properties after_init defaults support values event plain loose base first event_dims
  limits]]):gmatch "%S+" do reserved[word] = true end

--- Makes a class of an entry, as the head of this file says: define "Name" {…}. super: Distribution by default.
function Distribution.define(name, super)
  return function(entry)
    local new = class.new(name, super or Distribution)
    new.strict, new.properties = true, {}
    for key in pairs(computed) do entry[key] = rounds_once(formulas.compile(entry[key]), key == "rsample") end
    for key, f in pairs(entry.properties or {}) do new.properties[key] = rounds_once(formulas.compile(f)) end
    for _, key in ipairs {"mean", "variance", "mode"} do new.properties[key] = entry[key] end
    for key, v in pairs(entry) do
      if not reserved[key] then new[key] = v end
    end
    if type(entry.takes) == "string" then
      local limits = entry.limits or {}
      entry.order = {}
      for parameter, c in entry.takes:gmatch "([%w_]+):? ?([%w_]*)" do
        entry.order[#entry.order + 1], limits[parameter] = parameter, limits[parameter] or rawget(constraints, c)
      end
      entry.takes, new.order = limits, entry.order
    end
    new._formula = setmetatable(entry, {__index = super and super._formula})
    new.init = rawget(entry, "init") or init_of(name, entry)
    if entry.rsample or entry.sample then
      new._draw, new.has_rsample = entry.rsample or entry.sample, entry.rsample ~= nil
    end
    if entry.values then new.has_enumerate_support = true end
    local one_of = entry.either and ("; exactly one of %s must be given"):format(listed(entry.either))
    new.__help = ("lm.distributions.%s(): %s%s"):format(name, entry.help, one_of or "")
    return new
  end
end

return Distribution
