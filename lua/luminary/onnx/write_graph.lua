--- Makes the nodes of an ONNX graph that is written. g.Softmax(x, {axis = 1}) adds a node and returns its result.
---
--- A value is {ref = {name, made = true for a node's result}, dtype, shape = a list of numbers or Varying, tensor =
--- that of an initializer, zero_based}. Arithmetic on values adds nodes too. An input is a value, a number or Varying
--- (of the dtype of the node's first value), a list of these (int64, 1-d) or false (left out). zero_based: the graph
--- has an index that counts from 0 where the module has one that counts from 1.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local tensors = require "luminary.onnx.tensors"
local ops = core.ops

-- ---- integers that depend on dynamic axes

--- A Varying is an integer that depends on the sizes of dynamic axes: a list of its values in each recording. Results
--- of arithmetic are Varying, or a number if that is the same in all recordings.
local Varying = {}

local function size_from(samples)
  for _, v in ipairs(samples) do
    if v ~= samples[1] then return setmetatable(samples, Varying) end
  end
  return samples[1]
end

local function is_varying(v) return getmetatable(v) == Varying end

local Value = {}
Value.__index = Value
local function is_value(v) return getmetatable(v) == Value end

for name, f in pairs {
  __add = function(a, b) return a + b end, __sub = function(a, b) return a - b end,
  __mul = function(a, b) return a * b end, __div = function(a, b) return a / b end,
  __mod = function(a, b) return a % b end,
} do
  Varying[name] = function(a, b)
    if is_value(b) then return Value[name](a, b) end
    local samples = {}
    local function at(v, i) return is_varying(v) and v[i] or v end
    for i = 1, #(is_varying(a) and a or b) do samples[i] = f(at(a, i), at(b, i)) end
    return size_from(samples)
  end
end
function Varying.__unm(a) return 0 - a end

local DENOMINATORS = 4096

-- Returns integers p, q, b, r for which each v[i] is (s[i] * p + r) / q + b, where nodes round towards 0; or nil.
local function line_through(v, s, most)
  if s[1] == s[2] then return nil end
  local slope = (v[2] - v[1]) / (s[2] - s[1])
  for q = 1, most do
    local p = math.floor(slope * q + 0.5)
    if math.abs(p - slope * q) < 1e-9 then
      local function at(i) return (p < 0 and math.ceil or math.floor)(s[i] * p / q) end
      local b = v[1] - at(1)
      for i = 1, #v do
        if at(i) + b ~= v[i] then return nil end
      end
      if b % 1 == 0 then return p, q, b, 0 end
    end
  end
end

-- Returns the same for a part of a size, with p = 1; false if the samples do not determine q or how it is rounded.
local function part_of(v, s)
  if not lists.every(v, function(each) return each % 1 == 0 end) then return nil end
  local count, part = 0, nil
  for q = 2, 64 do
    local low, high = -math.huge, math.huge
    for i = 1, #v do low, high = math.max(low, q * v[i] - s[i]), math.min(high, q * v[i] - s[i] + q - 1) end
    if low <= high then count, part = count + high - low + 1, {1, q, math.floor(low / q), low % q} end
  end
  if count == 1 then return unpack(part) end
  if count > 0 and #v > 3 then return false end -- with three samples, all multiples, it is rounded down
end

-- ---- values

local Graph = {}

-- Attributes that are floats, whatever their value.
local floats = lists.set "alpha beta gamma epsilon lambd bias"

local function attribute_of(name, v)
  local message = {name = name}
  if is_varying(v) then
    error(("%s depends on a dynamic axis"):format(name), 0)
  elseif type(v) == "string" then
    message.type, message.s = 3, v
  elseif type(v) == "number" then
    message.type = floats[name] and 1 or 2
    message[floats[name] and "f" or "i"] = v
  elseif core.is_tensor(v) then
    message.type, message.t = 4, Graph.message_of(v, "")
  elseif type(v[1]) == "string" then
    message.type, message.strings = 8, v
  else
    for _, each in ipairs(v) do
      if type(each) ~= "number" then error("its sizes depend on a dynamic axis", 0) end
    end
    message.type, message.ints = 7, v
  end
  return message
end

--- Returns the message of a tensor of a name.
function Graph.message_of(t, name)
  local number = tensors.number_of[t.dtype] or options.fail("export: dtype %s has no counterpart in ONNX", t.dtype)
  return {dims = {unpack(t.shape)}, data_type = number, name = name, raw_data = t:detach():to("cpu"):contiguous()}
end

local bools = lists.set "Equal Greater GreaterOrEqual Less LessOrEqual And Or Not Xor IsNaN IsInf"

local function dtype_of(op, inputs, attributes, output)
  if bools[op] then return "bool" end
  local is_second = output == 2 and (op == "TopK" or op == "MaxPool")
  if op == "Shape" or op == "ArgMax" or op == "ArgMin" or is_second then return "int64" end
  if op == "Cast" then return tensors.dtypes[attributes.to] end
  if op == "ConstantOfShape" then return attributes.value.dtype end
  return inputs[(op == "Where" and 2) or (op == "OneHot" and 3) or 1].dtype
end

--- Returns a name that no value of the graph has, from a wanted one.
function Graph:unique(name)
  while self.names[name] do name = name .. "_" end
  self.names[name] = true
  return name
end

--- Returns a new value of the graph; shape: a list of numbers or Varying.
function Graph.value(self, name, dtype, shape)
  return setmetatable({graph = self, ref = {name = name}, dtype = dtype, shape = shape}, Value)
end

--- Returns a value of the same name with other fields.
function Value:with(shape, zero_based)
  local value = lists.copy(self)
  value.shape, value.zero_based = shape, zero_based
  return setmetatable(value, Value)
end

--- Adds a tensor as an initializer, under `name` or a new one.
function Graph:initializer(t, name)
  local value = self:value(self:unique(name or "constant_" .. #self.initializers + 1), t.dtype, {unpack(t.shape)})
  value.tensor = t
  table.insert(self.initializers, {value = value, tensor = t})
  return value
end

--- Returns a number, or a list of numbers, as an initializer; the same one each time.
function Graph:constant(v, dtype)
  local is_list = type(v) == "table"
  local key = dtype .. " " .. (is_list and "[" .. table.concat(v, " ") .. "]" or ("%.17g"):format(v))
  if not self.constants[key] then
    local t = is_list and (#v == 0 and ops.empty({0}, {dtype = dtype}) or core.tensor(v, {dtype = dtype}))
      or ops.full({}, v, {dtype = dtype})
    self.constants[key] = self:initializer(t)
  end
  return self.constants[key]
end

--- Returns an int64 value [1] of a size, a number or Varying.
function Graph:size(v)
  if not is_varying(v) then return self:constant({v}, "int64") end
  local key = table.concat(v, " ")
  if not self.sizes[key] then self.sizes[key] = self:compute_size(v) end
  return self.sizes[key]
end

local function size_of_axis(self, symbol)
  symbol.value = symbol.value
    or self.Gather(self.Shape(symbol.input), self:constant({symbol.axis}, "int64"), {axis = 0})
  return symbol.value
end

-- Returns of(list, p, q, b, r) for a Varying that is (the product of a list of symbols * p + r) / q + b, or nil.
function Graph:fit(v, of)
  for set = 1, 2 ^ #self.symbols - 1 do
    local chosen, all = {}, {}
    for i, s in ipairs(self.symbols) do
      local has = math.floor(set / 2 ^ (i - 1)) % 2 == 1
      if has then chosen[#chosen + 1] = s end
      for k = 1, #v do all[k] = (all[k] or 1) * (has and s.samples[k] or 1) end
    end
    local p, q, b, r = line_through(v, all, 1)
    if not p and #chosen == 1 then p, q, b, r = part_of(v, all) end
    if p == nil and #chosen == 1 then p, q, b, r = line_through(v, all, DENOMINATORS) end
    if p then return of(chosen, p, q, b, r) end
  end
end

function Graph:compute_size(v)
  return self:fit(v, function(chosen, p, q, b, r)
    local x = size_of_axis(self, chosen[1])
    for i = 2, #chosen do x = self.Mul(x, size_of_axis(self, chosen[i])) end
    if p ~= 1 then x = self.Mul(x, self:constant({p}, "int64")) end
    if r ~= 0 then x = self.Add(x, self:constant({r}, "int64")) end
    if q ~= 1 then x = self.Div(x, self:constant({q}, "int64")) end
    return b ~= 0 and self.Add(x, self:constant({b}, "int64")) or x
  end) or error(("a size that is %s there does not follow from the dynamic axes by products and sums")
    :format(table.concat(v, ", ")), 0)
end

--- Returns the text of a size in the type of an output: a number, the name of an axis or a formula.
function Graph:size_text(v)
  if not is_varying(v) then return v end
  return self:fit(v, function(chosen, p, q, b, r)
    local text = table.concat(lists.map(chosen, function(s) return s.name end), "*") .. (p ~= 1 and "*" .. p or "")
    text = (r ~= 0 and ("(%s+%d)"):format(text, r) or text) .. (q ~= 1 and "/" .. q or "")
    return text .. (b ~= 0 and ("%+d"):format(b) or "")
  end) or "unknown_" .. table.concat(v, "_")
end

--- Returns an int64 value [n] of sizes, numbers or Varying.
function Graph:ints(list)
  local parts, varies = {}, false
  for i, v in ipairs(list) do
    varies = varies or is_varying(v)
    parts[i] = v
  end
  if not varies then return self:constant(parts, "int64") end
  for i, v in ipairs(parts) do parts[i] = self:size(v) end
  if #parts == 1 then return parts[1] end
  parts[#parts + 1] = {axis = 0}
  return self.Concat(unpack(parts))
end

-- Adds a node; the last argument may be a table of attributes, whose `outputs` is the number of results.
local function add_node(self, op, ...)
  local inputs, attributes = {...}, {}
  for i = 1, select("#", ...) do inputs[i] = inputs[i] or false end
  local last = inputs[#inputs]
  if type(last) == "table" and getmetatable(last) == nil and not last[1] and next(last) then
    attributes = table.remove(inputs)
  end
  local since = self.since[op]
  if since and since > self.opset then error(("%s needs opset %d or newer"):format(op, since), 0) end
  local first
  for _, x in ipairs(inputs) do
    if is_value(x) and (op ~= "Where" or x ~= inputs[1]) then
      first = x
      break
    end
  end
  for i, x in ipairs(inputs) do
    if type(x) == "number" then
      inputs[i] = self:constant(x, first.dtype)
    elseif is_varying(x) then
      inputs[i] = self.Squeeze(self:size(x), {0}):to(first.dtype)
    elseif x and not is_value(x) then
      inputs[i] = self:ints(x)
    end
  end
  while inputs[#inputs] == false do inputs[#inputs] = nil end
  local node, results = {op_type = op, inputs = inputs, outputs = {}, attribute = {}}, {}
  for _, name in ipairs(lists.sorted_keys(attributes)) do
    if name ~= "outputs" then table.insert(node.attribute, attribute_of(name, attributes[name])) end
  end
  table.insert(self.nodes, node)
  node.name = ("%s_%d"):format(op:lower(), #self.nodes)
  for i = 1, attributes.outputs or 1 do
    results[i] = self:value(self:unique(node.name .. (i > 1 and "_" .. i or "")), dtype_of(op, inputs, attributes, i))
    results[i].ref.made = true
  end
  node.outputs = results
  return unpack(results)
end

function Graph.__index(self, key)
  if Graph[key] ~= nil then return Graph[key] end
  return key:find "^%u" and function(...) return add_node(self, key, ...) end or nil
end

for name, op in pairs {__add = "Add", __sub = "Sub", __mul = "Mul", __div = "Div", __pow = "Pow"} do
  Value[name] = function(a, b) return (is_value(a) and a or b).graph[op](a, b) end
end
function Value.__unm(a) return a.graph.Neg(a) end

--- Returns x converted to a dtype.
function Value:to(dtype)
  if self.dtype == dtype then return self end
  return self.graph.Cast(self, {to = tensors.number_of[dtype] or error("dtype " .. dtype .. " has no counterpart", 0)})
end

--- Returns x with its values as in the module: indices count from 1.
function Value:from_one() return self.zero_based and (self + 1):with(self.shape) or self end

--- Returns the indices of x, which count from 0, as int64.
function Value:from_zero()
  if self.zero_based then return self:to "int64" end
  if self.tensor then return self.graph:initializer(self.tensor:to("int64") - 1) end
  return (self - 1):to "int64"
end

--- Removes the nodes and initializers whose results nobody needs.
function Graph:prune(outputs)
  local needed = {}
  for _, value in ipairs(outputs) do needed[value.ref] = true end
  for k = #self.nodes, 1, -1 do
    local node = self.nodes[k]
    if lists.find(node.outputs, function(value) return needed[value.ref] end) then
      for _, value in ipairs(node.inputs) do
        if value then needed[value.ref] = true end
      end
    else
      table.remove(self.nodes, k)
    end
  end
  self.initializers = lists.filter(self.initializers, function(each) return needed[each.value.ref] end)
end

--- Returns an empty graph for an opset. symbols: list of {name, input, axis, samples}.
local function new(opset, symbols)
  return setmetatable({
    opset = opset, symbols = symbols, nodes = {}, initializers = {}, constants = {}, sizes = {}, names = {},
    since = {Trilu = 14, HardSwish = 14, GridSample = 16, LayerNormalization = 17, DFT = 17, STFT = 17},
  }, Graph)
end

return {
  new = new, is_value = is_value, size_from = size_from, is_varying = is_varying, message_of = Graph.message_of,
}
