--- Defines layers: entries for layers without parameters, and helpers for the others.
---
--- A layer without parameters around a function of tensors is an entry under its signature, in a file of its family:
---
---   local list, activation = layer.entries()
---   activation "LeakyReLU(negative_slope = 0.01, {inplace = false})" {
---     op = "leaky_relu", prints = "negative_slope", help = "x, or negative_slope * x below 0",
---   }
---   return layer.classes(list)
---
--- The arguments are fields of the layer.
--- op         forward returns op(x, argument …, {arguments in braces}); with the option inplace set, the in-place op.
---            call: a function instead of an op; `inputs` is the number of inputs x
--- forward    forward(self, x), instead of op
--- after_init after_init(self) is called after the fields are set
--- prints     the text in parentheses in print: {field} is replaced by the field's value. "a b" is "a={a}, b={b}"
--- help       one sentence; help adds the call before it
local core = require "luminary.core"
local class = require "luminary.base.class"
local entries = require "luminary.base.entry_reader"
local Module = require "luminary.nn.module"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local meta = require "luminary.nn.meta"
local printed = require "luminary.nn.print_values"
local signature = require "luminary.base.signature"

local layer = {}

--- Makes a class of a layer, and a field of `into`, if that is given.
function layer.define(name, base, into)
  local new = class.define(name, base or Module)
  if into then into[name] = new end
  return new
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

--- Returns an empty list of layers, and a function that adds an entry to it.
function layer.entries()
  return entries.of("layer", {
    op = "string?", call = "function?", inputs = "number?", forward = "function?", after_init = "function?",
    prints = "string?", help = "string",
  })
end

-- Returns the layer's fields of these names, from the i-th on.
local function fields(self, names, i)
  if names[i] == nil then return end
  return self[names[i]], fields(self, names, i + 1)
end

-- Returns an entry's forward, which passes the inputs and then the fields `names`; in_place is the in-place op or nil.
local function forward_of(entry, names, in_place)
  local call, first = entry.call or core.ops[entry.op], names[1]
  if in_place and #names == 0 then
    return function(self, x) return (self.inplace and in_place or call)(x) end
  elseif in_place and #names == 1 then
    return function(self, x) return (self.inplace and in_place or call)(x, self[first]) end
  elseif in_place then
    return function(self, x) return (self.inplace and in_place or call)(x, fields(self, names, 1)) end
  elseif entry.inputs == 2 then
    return function(self, x, y) return call(x, y, fields(self, names, 1)) end
  elseif entry.inputs == 3 then
    return function(self, x, y, z) return call(x, y, z, fields(self, names, 1)) end
  elseif #names == 0 then
    return function(_self, x) return call(x) end
  elseif #names == 1 then
    return function(self, x) return call(x, self[first]) end
  end
  return function(self, x) return call(x, fields(self, names, 1)) end
end

-- Returns the text of extra_repr by an entry's `prints`; rows: of the layer's signature. A parameter prints as True.
local function printed_fields(self, prints, rows)
  if not prints:find "{" then prints = prints:gsub("[%w_]+", "%0={%0}"):gsub(" ", ", ") end
  return (prints:gsub("{([%w_]+)}", function(name)
    local value, row = self[name], rows[rows.index[name]] or {}
    if value == nil and self.how then value = self.how[name] end
    if name == "bias" then value = value ~= nil end
    if row.none and value == false then value = nil end
    return printed.value(value, row[2])
  end))
end

--- Sets extra_repr of a class with an init to the text of an entry's `prints`.
function layer.prints(of, prints)
  function of:extra_repr() return printed_fields(self, prints, signature.declared(of).rows) end
end

local function extra_repr_of(entry, rows, in_place)
  return function(self)
    local text = printed_fields(self, entry.prints or "", rows)
    if not in_place or not self.inplace then return text end
    return text .. (text == "" and "" or ", ") .. "inplace=True"
  end
end

-- Fails if a class is called with input tensors in the positions of options that are not tensors.
local function check_no_inputs(name, rows, ...)
  for i = 1, math.min(select("#", ...), 2) do
    if not core.is_tensor((select(i, ...))) then return end
    local kind = rows[i] and rows[i][2]
    if kind ~= "any" and kind ~= "tensor" then
      options.fail("%s: pass tensors to the layer that nn.%s(…) makes: nn.%s()(%s)", name, name, name,
        ("x, y, z"):sub(1, 3 * math.min(select("#", ...), 3) - 2))
    end
  end
end

local function fill_class(new, name, entry)
  local takes = signature.parse(entry.name)
  local names, how, rows = {}, nil, takes.rows
  for i, row in ipairs(rows) do
    if i <= takes.n_required then
      names[i] = row[1]
    elseif row[1] ~= "inplace" and not row.lacks then
      how = how or {}
      how[#how + 1] = row[1]
    end
  end
  if how and not entry.forward then names[#names + 1] = "how" end
  function new.init(self, ...)
    check_no_inputs(name, rows, ...)
    takes:fill(self, name, ...)
    if entry.after_init then entry.after_init(self) end
    if not how or entry.forward then return end
    local values = {}
    for _, key in ipairs(how) do values[key] = self[key] end
    self.how = values
  end
  signature.note(entry.name, new.init)
  local in_place = entry.op and entry.name:find "inplace" and core.ops[entry.op .. "_"]
  new.forward = entry.forward or forward_of(entry, names, in_place)
  new.extra_repr = extra_repr_of(entry, rows, in_place)
  new.__help = signature.help("nn." .. name, entry.help)
end

--- Returns the classes of a list of entries, by name.
function layer.classes(list)
  local classes = {}
  for _, entry in ipairs(list) do
    local name = entry.name:match "^%w+"
    classes[name] = class.define(name, Module, function(new) fill_class(new, name, entry) end)
  end
  return classes
end

return layer
