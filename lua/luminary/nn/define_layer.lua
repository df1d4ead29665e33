--- Definitions of layers: entries for layers without parameters, and helpers for the others.
---
--- A layer without parameters around a function of tensors is an entry in a file of its family:
---
---   local list, activation = layer.entries()
---   activation "LeakyReLU" {
---     takes = {{"negative_slope", "number", 0.01}}, call = ops.leaky_relu, in_place = ops.leaky_relu_,
---     prints = "negative_slope={negative_slope}", help = "x, or negative_slope * x below 0",
---   }
---   return layer.classes(list)
---
--- takes      required arguments; `options`: the others. Both are rows of base/arguments.lua, and fields of the layer
--- call       forward returns call(x, argument …, options); `inputs` is the number of inputs x. With in_place the layer
---            has the option inplace, for which forward calls in_place instead
--- forward    forward(self, x), instead of call
--- made       made(self) is called after the fields are set
--- prints     the text between the parentheses in print: {field} is replaced by the field's value
--- help       one sentence; help adds the call before it
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local class = require "luminary.base.class"
local entries = require "luminary.base.entry_reader"
local Module = require "luminary.nn.module"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local meta = require "luminary.nn.meta"
local printed = require "luminary.nn.print_values"

local layer = {}

--- Makes a class of a layer.
function layer.define(name, base) return class.define(name, base or Module) end

--- arguments.takes for the constructor of a layer with parameters: appends the rows device and dtype, and then `last`,
--- which may be nil.
function layer.takes(who, rows, init, last)
  local all = {unpack(rows)}
  all[#all + 1], all[#all + 2] = {"device", "any"}, {"dtype", "string"}
  all[#all + 1] = last
  return arguments.takes(who, all, init)
end

--- Returns an uninitialized parameter of that size, on the device and in the dtype of the layer's options.
function layer.parameter(size, opts)
  return parameter.new(meta.empty(size, {device = opts.device, dtype = opts.dtype}))
end

--- Returns a buffer filled with a value.
function layer.filled(size, value, opts, dtype)
  local how = {device = opts.device, dtype = dtype or opts.dtype or core.get_default_dtype()}
  return meta.filled(size, value, how)
end

-- ---- entries

--- Returns an empty list, and a function that adds an entry to it.
function layer.entries()
  return entries.of("layer", {
    takes = "table?", options = "table?", call = "function?", in_place = "function?", inputs = "number?",
    forward = "function?", made = "function?", prints = "string?", help = "string",
  })
end

-- Returns the layer's fields of these names, from the i-th on.
local function fields(self, names, i)
  if names[i] == nil then return end
  return self[names[i]], fields(self, names, i + 1)
end

-- Returns forward for an entry's call with `names` of fields after the inputs.
local function forward_of(entry, names)
  local call, in_place, first = entry.call, entry.in_place, names[1]
  if in_place and #names == 0 then
    return function(self, x) return (self.inplace and in_place or call)(x) end
  elseif in_place and #names == 1 then
    return function(self, x) return (self.inplace and in_place or call)(x, self[first]) end
  elseif in_place then
    return function(self, x) return (self.inplace and in_place or call)(x, fields(self, names, 1)) end
  elseif entry.inputs == 2 then
    return function(self, x, y) return call(x, y, fields(self, names, 1)) end
  elseif #names == 0 then
    return function(_self, x) return call(x) end
  elseif #names == 1 then
    return function(self, x) return call(x, self[first]) end
  end
  return function(self, x) return call(x, fields(self, names, 1)) end
end

local function extra_repr_of(entry, takes)
  local kinds = {}
  for _, row in ipairs(takes.rows) do kinds[row[1]] = type(row[2]) == "string" and row[2]:match "^[^?]*" end
  return function(self)
    local function value(name) return printed.value(self[name], kinds[name]) end
    local text = (entry.prints or ""):gsub("{([%w_]+)}", value)
    if not entry.in_place or not self.inplace then return text end
    return text .. (text == "" and "" or ", ") .. "inplace=True"
  end
end

-- Fails if a class was called with inputs, in the positions of options that are not tensors.
local function check_no_inputs(name, rows, ...)
  for i = 1, math.min(select("#", ...), 2) do
    if not core.is_tensor((select(i, ...))) then return end
    local kind = rows[i] and rows[i][2]
    local word = type(kind) == "string" and kind ~= "any" and not kind:find "^tensor"
    if word or type(kind) == "table" or kind == nil then
      options.fail("%s: pass tensors to the layer that nn.%s(…) makes: nn.%s()(%s)", name, name, name,
        ("x, y, z"):sub(1, 3 * math.min(select("#", ...), 3) - 2))
    end
  end
end

local function fill(new, entry)
  local named, names = {}, {}
  for i, row in ipairs(entry.options or {}) do named[i] = row end
  if entry.in_place then table.insert(named, {"inplace", "boolean", false}) end
  local takes = arguments.of(entry.takes, named)
  for i, row in ipairs(takes.required) do names[i] = row[1] end
  if entry.options then table.insert(names, "how") end
  local init = takes:constructor(entry.name, function(self)
    if entry.made then entry.made(self) end
    if not entry.options or entry.forward then return end
    local how = {}
    for _, row in ipairs(entry.options) do how[row[1]] = self[row[1]] end
    self.how = how
  end)
  function new.init(self, ...)
    check_no_inputs(entry.name, takes.rows, ...)
    return init(self, ...)
  end
  options.set_parameters(new.init, options.parameters(init))
  new.forward = entry.forward or forward_of(entry, names)
  new.extra_repr = extra_repr_of(entry, takes)
  new.__help = takes:help("nn." .. entry.name, entry.help)
end

--- Returns the classes of a list of entries, by name.
function layer.classes(list)
  local classes = {}
  for _, entry in ipairs(list) do
    classes[entry.name] = class.define(entry.name, Module, function(new) fill(new, entry) end)
  end
  return classes
end

return layer
