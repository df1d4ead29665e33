--- Implements Torch7's nn.Module, the methods of all layers and containers. Containers call their modules as in Torch7,
--- so that custom classes with updateOutput, updateGradInput and accGradParameters work anywhere.
local lists = require "luminary.base.lists"
local core = require "luminary.core"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local files = require "luminary.torch7.files"
local dense_strides = require("luminary.file_formats.source").dense_strides
local ops = core.ops

local Module = class.new "nn.Module"

function Module:__init()
  self.gradInput, self.output, self.train = tensor.new(tensor.default), tensor.new(tensor.default), true
  self._type = self.output:type()
end

--- Defines the class nn.name, which extends nn.parent. init(self, …) follows the parent's __init, which gets the same
--- arguments. output(self, input) and gradInput(self, input, gradOutput), or more arguments, return the fields of these
--- names. Returns the class and its parent.
function Module.define(name, parent, init, output, gradInput)
  local new, base = class.new("nn." .. name, "nn." .. parent)
  function new:__init(...)
    base.__init(self, ...)
    if init then init(self, ...) end
  end
  for method, row in pairs {updateOutput = {"output", output}, updateGradInput = {"gradInput", gradInput}} do
    local field, f = row[1], row[2]
    new[method] = f and function(self, ...)
      self[field] = f(self, ...)
      return self[field]
    end
  end
  return new, base
end

Module.__names = {"weight", "bias"} -- the fields that are parameters

--- Returns the field of a parameter's gradient.
function Module.grad_name(name) return "grad" .. name:gsub("^%l", string.upper) end

function Module:parameters()
  local params, grads = {}, {}
  for _, name in ipairs(self.__names) do
    if self[name] then params[#params + 1], grads[#grads + 1] = self[name], self[Module.grad_name(name)] end
  end
  return params, grads
end

function Module:updateOutput() return self.output end
function Module:updateGradInput() return self.gradInput end
function Module:accGradParameters() end -- luacheck: ignore self
function Module:forward(input) return self:updateOutput(input) end
function Module:__call__(input, gradOutput)
  self:forward(input)
  if gradOutput == nil then return self.output end
  self:backward(input, gradOutput)
  return self.output, self.gradInput
end

function Module:backward(input, gradOutput, scale)
  self:updateGradInput(input, gradOutput)
  self:accGradParameters(input, gradOutput, scale or 1)
  return self.gradInput
end

--- Writes the fields of a module for torch.save; torch.load reads them.
function Module:write(file) file:writeObject(Module.fields_to_write(self)) end
Module.read = files.read_fields

function Module:children() return self.modules or {} end

--- Initializes parameters again, as for a new module; does nothing in this base class.
function Module:reset() -- luacheck: ignore self
end

function Module:apply(f)
  f(self)
  for _, child in ipairs(self:children()) do child:apply(f) end
  return self
end

for name, on in pairs {training = true, evaluate = false} do
  Module[name] = function(self)
    for _, child in ipairs(self:children()) do child[name](child) end -- its class may have a method of its own
    self.train = on
    return self
  end
end

--- Shares the tensors of these names, "weight", "bias", …, with another module of the same kind, also in the modules
--- inside.
function Module:share(other, ...)
  for _, name in ipairs {...} do
    if tensor.is(rawget(self, name)) then self[name]:set(other[name]) end
  end
  for i, child in ipairs(self:children()) do child:share(other:children()[i], ...) end
  return self
end

function Module:backwardUpdate(input, gradOutput, rate)
  self:updateGradInput(input, gradOutput)
  self:accUpdateGradParameters(input, gradOutput, rate)
  return self.gradInput
end

--- Subtracts rate times this backward's gradients from the parameters; the accumulated gradients stay.
function Module:accUpdateGradParameters(input, gradOutput, rate)
  local kept = {}
  self:apply(function(m)
    for _, name in ipairs(m.__names) do
      local p, grad = rawget(m, name), Module.grad_name(name)
      if tensor.is(p) then
        kept[#kept + 1] = {m, grad, rawget(m, grad)}
        m[grad] = p:clone():zero()
      end
    end
  end)
  self:accGradParameters(input, gradOutput, 1)
  self:updateParameters(rate)
  for _, one in ipairs(kept) do one[1][one[2]] = one[3] end
end
Module.sharedAccUpdateGradParameters = Module.accUpdateGradParameters

--- Replaces each module by f(module), children before their container.
function Module:replace(f)
  for i, child in ipairs(self:children()) do self.modules[i] = child:replace(f) end
  return f(self)
end

function Module:zeroGradParameters()
  local _, grads = self:parameters()
  for _, g in ipairs(grads) do g:zero() end
end

function Module:updateParameters(rate)
  local params, grads = self:parameters()
  for i, p in ipairs(params) do p:add(-rate, grads[i]) end
end

-- Returns the number of elements of memory from a tensor's first to its last.
local function extent(x)
  local n = 1
  for d = 1, x.ndim do n = n + (x:size(d) - 1) * x:stride(d) end
  return n
end

-- Returns a vector with the elements of all tensors, in their order, of which each becomes a view. Memory that several
-- share is there once and stays shared.
local function flattened(list)
  local parts = lists.map(list, function(t, i)
    local first = t:data(true) / t:elementSize() -- in elements
    return {t = t, i = i, first = first, last = first + extent(t:raw())}
  end)
  local sorted, ranges, n = lists.slice(parts), {}, 0
  table.sort(sorted, function(a, b) return a.first < b.first or a.first == b.first and a.i < b.i end)
  for _, part in ipairs(sorted) do
    local range = ranges[#ranges]
    if not range or part.first >= range.last then
      range = {first = part.first, last = part.last, i = part.i}
      ranges[#ranges + 1] = range
    end
    range[#range + 1], range.last, range.i = part, math.max(range.last, part.last), math.min(range.i, part.i)
  end
  table.sort(ranges, function(a, b) return a.i < b.i end)
  for _, range in ipairs(ranges) do
    range.from, range.is_shared = n + 1, #range > 1
    n = n + (range.is_shared and range.last - range.first or range[1].t:nElement())
  end
  local flat = ops.zeros({n}, {dtype = list[1]:raw().dtype, device = list[1]:raw().device})
  for _, range in ipairs(ranges) do
    for _, part in ipairs(range) do
      local x = part.t:raw()
      local place = ops.as_strided(flat, x.shape, range.is_shared and x:stride() or dense_strides(x.shape),
        {storage_offset = range.from - 1 + part.first - range.first})
      tensor.rebind(part.t, place:copy_(x))
    end
  end
  return tensor.wrap(flat)
end

--- x, dx = net:getParameters(): Returns all parameters and all gradients as two vectors, of which they become views.
function Module:getParameters()
  local params, grads = self:parameters()
  return Module.flatten(params), Module.flatten(grads)
end

--- nn.Module.flatten(list): Returns a vector of the elements of a list of tensors, which become views of it.
function Module.flatten(list)
  list = lists.filter(list or {}, function(t) return t:nElement() > 0 end)
  return #list > 0 and flattened(list) or tensor.new(tensor.default)
end

--- Calls f for each module that this one contains directly.
function Module:applyToModules(f)
  for _, child in ipairs(self:children()) do f(child) end
end

function Module:listModules()
  local list = {self}
  for _, child in ipairs(self:children()) do lists.append(list, child:listModules()) end
  return list
end

function Module:findModules(name)
  local found, containers = {}, {}
  for _, m in ipairs(self:listModules()) do
    if class.typename(m) == name then found[#found + 1] = m end
    for _, child in ipairs(m:children()) do
      if class.typename(child) == name then containers[#containers + 1] = m end
    end
  end
  return found, containers
end

function Module:clearState()
  for _, name in ipairs {"output", "gradInput"} do
    if self[name] ~= nil then self[name] = type(self[name]) == "table" and {} or tensor.types[self:type()].new() end
  end
  for _, child in ipairs(self:children()) do child:clearState() end
  return self
end

-- Calls f for each tensor in a module's fields, tables of them and modules in them, once for each tensor.
local function each_tensor(v, f, seen)
  if seen[v] then return end
  if tensor.is(v) then
    seen[v] = true
    f(v)
  elseif type(v) == "table" then
    seen[v] = true
    for _, value in pairs(v) do each_tensor(value, f, seen) end
  end
end

-- Returns a function of a tensor in an object that returns the same part of new memory, which is make(a 1-d tensor of
-- all that the object's tensors use of the old memory), called once for each memory. Those that share it still do.
local function in_new_memory(object, make, cache)
  local bases, ends = {}, {}
  each_tensor(object, function(t)
    local x = t:raw()
    if x:numel() == 0 then return end
    local base = ("%.0f"):format(tensor.base_of(x))
    bases[t], ends[base] = base, math.max(ends[base] or 0, x:storage_offset() + extent(x))
  end, {})
  return function(t)
    local x, base = t:raw(), bases[t]
    if not base then return make(x) end
    if not cache[base] or cache[base].size < ends[base] then
      local all = ops.as_strided(x, {ends[base]}, {1}, {storage_offset = 0})
      cache[base] = {size = ends[base], flat = make(all), old = x}
    end
    return ops.as_strided(cache[base].flat, lists.slice(x.shape), x:stride(), {storage_offset = x:storage_offset()})
  end
end

local function copy_of(v, made, part)
  if made[v] then return made[v] end
  if tensor.is(v) then
    made[v] = tensor.wrap(part(v))
  elseif class.typename(v) and v.write and v.write ~= Module.write then
    made[v] = files.deserialize(files.serialize(v))
  elseif type(v) == "table" and (getmetatable(v) == nil or class.typename(v)) then
    local new = setmetatable({}, getmetatable(v))
    made[v] = new
    for key, each in pairs(v) do new[copy_of(key, made, part)] = copy_of(each, made, part) end
  else
    return v
  end
  return made[v]
end

--- Returns a copy of an object with its own tensors, which share memory where the object's do.
function Module.copy_of(object) return copy_of(object, {}, in_new_memory(object, ops.clone, {})) end

--- Returns a copy with its own parameters, except those named, "weight", "gradWeight", …, which both share.
function Module:clone(...) return Module.copy_of(self):share(self, ...) end

-- Converts the tensors in the fields of an object; modules and criterions in them by their own method `type`.
local function convert_fields(object, name, cache)
  for _, v in pairs(object) do
    if type(v) == "table" and not cache.seen[v] then
      cache.seen[v] = true
      if class.isTypeOf(v, "nn.Module") or class.isTypeOf(v, "nn.Criterion") then
        v:type(name, cache)
      else
        convert_fields(v, name, cache)
      end
    elseif tensor.is(v) and not v:type():find "Long" and v:type() ~= name then
      v:set(tensor.wrap(cache.part(v)))
    end
  end
end
--- Converts all tensors of an object, a module or a table, except LongTensors; those that share memory still do.
--- `cache` is a table for several calls whose objects share memory.
function Module.convert(object, name, cache)
  cache = cache or {}
  local is_inside = cache.seen
  if not is_inside then
    local function converted(x) return tensor.wrap(x):type(name):raw() end
    cache.part, cache.seen = in_new_memory(object, converted, cache), {[object] = true}
  end
  convert_fields(object, name, cache)
  if not is_inside then cache.seen = nil end
  return object
end

function Module:type(name, cache)
  if name == nil then return self._type or self.output and tensor.is(self.output) and self.output:type() end
  self._type = name
  return Module.convert(self, name, cache)
end
for name, kind in pairs {float = "FloatTensor", double = "DoubleTensor", cuda = "CudaTensor"} do
  Module[name] = function(self, ...) return self:type("torch." .. kind, ...) end
end

return Module
