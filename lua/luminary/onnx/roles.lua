--- Decides which tensors of an ONNX model train, by what the nodes that read them use them for. docs/howto/onnx.md
--- explains the rule.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local ops = core.ops

-- Positions of weights and biases among the inputs of a layer's operator.
local layers = {}
for line in ([[
  1 2 3 Gemm FusedGemm
  1 2 MatMul FusedMatMul Einsum
  1 Gather
  2 3 Conv ConvTranspose FusedConv NhwcConv CausalConvWithState BatchNormalization InstanceNormalization GroupNormalization
  2 3 LayerNormalization com.microsoft.Attention com.microsoft.GroupNorm
  2 4 DeformConv
  2 RMSNormalization SimplifiedLayerNormalization PRelu BiasGelu FastGelu
  2 3 4 RNN GRU
  2 3 4 8 LSTM
  3 4 SkipSimplifiedLayerNormalization
  3 4 5 SkipLayerNormalization
  3 4 5 6 7 EmbedLayerNormalization
  4 MultiHeadAttention
  5 DynamicQuantizeMatMul
  6 MatMulNBits
  7 MatMulIntegerToFloat]]):gmatch "[^\n]+" do
  local positions = {}
  for word in line:gmatch "%S+" do
    if tonumber(word) then positions[#positions + 1] = tonumber(word) else layers[word] = positions end
  end
end
local products = {MatMul = 0, FusedMatMul = 0, Conv = 1, ConvTranspose = 2, DeformConv = 1} -- axis of the results
local tables = lists.set "MatMul FusedMatMul Einsum Gather" -- whose weights have two axes, one-sized ones too

-- Positions of inputs that are no weights where a weight is computed from constants.
local settings = {Clip = {[2] = true, [3] = true}, Pow = {[2] = true}}
settings.QuantizeLinear, settings.DequantizeLinear = settings.Clip, settings.Clip

-- Operators that keep elements, and those after which a vector that is added or multiplied is a bias or a scale.
local moving = lists.set "Cast Dropout Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze"
local computing = lists.set [[Add BatchNormalization Conv ConvTranspose Div Einsum FusedMatMul Gemm MatMul Mul Reciprocal
    Relu Sqrt Sub]]

local MOST, DEEPEST = 2 ^ 17, 100 -- nodes that are looked at, with functions expanded; graphs in one another

-- A value is {message, name, axes = number of axes longer than 1 and ndim of a constant, is_fixed = computed from
-- constants alone, is_learned = computed with a weight, op, domain, inputs = of the node that makes it}.

-- Returns whether the columns of a table [n, D], which read(message, fail) returns, go on as waves or lines do: a table
-- of positions.
local function is_wave(message, read)
  local dims = message.dims or {}
  local n = #dims == 2 and dims[1] or 0
  local ok, t = pcall(read, message, error)
  if n < 4 or not ok then return false end
  local rows = ops.narrow(t, 1, n - 3, 4):double()
  local a, b, c, d = rows[1], rows[2], rows[3], rows[4]
  local apart = ((b + d) * b - (a + c) * c):abs():max():item() -- 0 if a + c = s * b and b + d = s * c
  return (b - c):abs():max():item() > 0 and apart <= 1e-4 * rows:square():max():item()
end

-- Sets a value's axes and ndim; sizes: its shape, in which -1 is a size above 1.
local function measure(value, sizes)
  value.axes, value.ndim = 0, #sizes
  for _, size in ipairs(sizes) do value.axes = value.axes + ((size > 1 or size < 0) and 1 or 0) end
  return value
end

local Roles = {}
Roles.__index = Roles

-- Marks the tensors that a value is computed from as weights. is_layer: it is an input of a layer, and may have one
-- element.
local function mark(value, is_layer)
  if not value.is_fixed then return end
  if value.message then
    local trains = value.is_float and value.ndim > 0 and (is_layer or value.axes > 0)
    value.message.trains = value.message.trains or trains
    return
  end
  local apart = settings[value.op] or {}
  for k, input in pairs(value.inputs) do
    if not apart[k] then mark(input, is_layer and moving[value.op]) end
  end
end

local function source_of(value)
  while moving[value.op] and value.inputs[1] and not value.is_fixed do value = value.inputs[1] end
  return value
end

-- Marks the vector that a node adds to a value, or multiplies one with, if it is a bias or a scale.
local function mark_vector(value)
  for k = 1, 2 do
    local vector, other = value.inputs[k], value.inputs[3 - k]
    if vector and other and vector.is_fixed and vector.ndim > 0 and not other.is_fixed then
      local from = source_of(other)
      local axis, weight = products[from.op], from.inputs and from.inputs[2]
      local dims = axis and weight and weight.message and weight.message.dims
      local one = dims and value.op == "Add" and vector.axes == 0 and dims[axis > 0 and axis or #dims] == 1
      if one or vector.axes == 1 and other.is_learned and computing[from.op] then mark(vector, one) end
    end
  end
end

-- Adds a constant tensor of a graph.
function Roles:add_constant(names, name, message, dims)
  local value = measure({message = message, is_fixed = true}, dims or {})
  names[name] = value
  value.is_float = self.is_float(message)
  if value.is_float then self.found[#self.found + 1] = {name = name, message = message} end
end

-- Walks nodes; names: values by name.
function Roles:walk(nodes, names, depth)
  for _, node in ipairs(nodes or {}) do
    self.left = self.left - 1
    if self.left < 0 or depth > DEEPEST then return end -- graph.lua refuses such a file
    local domain, op = node.domain, node.op_type or ""
    if domain == "com.microsoft" and layers[domain .. "." .. op] then op = domain .. "." .. op end
    local value, given, is_fixed = {op = op, inputs = {}, axes = 0, ndim = 0}, node.output or {}, nil
    for k, name in ipairs(node.input or {}) do
      local input = name ~= "" and names[name] or nil
      if input then
        value.inputs[k], value.is_learned = input, value.is_learned or input.is_learned
        is_fixed = is_fixed ~= false and input.is_fixed or false
        if input.is_fixed then
          value.axes, value.ndim = math.max(value.axes, input.axes), math.max(value.ndim, input.ndim)
        end
      end
    end
    value.is_fixed = is_fixed
    local shape = is_fixed and op == "Reshape" and value.inputs[2] and value.inputs[2].message
    local ok, sizes = pcall(self.read, shape or {}, error)
    if shape and ok then measure(value, sizes:reshape(-1):totable()) end
    for k, name in ipairs(given) do names[name] = value end
    local called = self.functions[(domain or "") .. "\0" .. op]
    if called then
      local inner = {}
      for k, name in ipairs(called.input or {}) do inner[name] = value.inputs[k] end
      self:walk(called.node, inner, depth + 1)
      for k, name in ipairs(called.output or {}) do names[given[k] or ""] = inner[name] or value end
    end
    for _, attribute in ipairs(node.attribute or {}) do
      local t = op == "Constant" and (attribute.t or (attribute.sparse_tensor or {}).values)
      if t then self:add_constant(names, given[1] or "", t, (attribute.sparse_tensor or t).dims) end
      for _, g in ipairs(lists.joined({attribute.g}, attribute.graphs or {})) do
        self:graph(g, names, depth + 1)
        value.is_fixed, value.is_learned = false, true -- whatever it reads from around it
      end
    end
    for _, k in ipairs(not value.is_fixed and layers[op] or {}) do
      local weight = value.inputs[k]
      local fits = weight and weight.is_fixed and (not tables[op] or weight.ndim == 2 or weight.axes > 1)
      if fits and op == "Gather" then -- an embedding, whose indices no layer computes
        local indices = value.inputs[2]
        fits = weight.axes > 1 and not (indices and indices.is_learned)
          and not (weight.message and is_wave(weight.message, self.read))
      end
      if fits then
        mark(weight, true)
        value.is_learned = true
      end
    end
    if not value.is_fixed and (op == "Add" or op == "Mul") then mark_vector(value) end
  end
end

-- Walks a graph; outer: values by name around it, or nil.
function Roles:graph(g, outer, depth)
  local names = setmetatable({}, {__index = outer})
  for _, input in ipairs(g.input or {}) do names[input.name or ""] = {is_learned = outer and true, ndim = 0, axes = 0} end
  for _, message in ipairs(g.initializer or {}) do
    self:add_constant(names, message.name or "", message, message.dims)
  end
  for _, sparse in ipairs(g.sparse_initializer or {}) do
    self:add_constant(names, (sparse.values or {}).name or "", sparse.values or {}, sparse.dims)
  end
  self:walk(g.node, names, depth)
end

--- Sets two fields of the messages of a model's floating tensors: `trains`, and `label`, a name that no other has.
--- read(message, fail) returns the tensor of one, is_float(message) whether it is one. stated: the set of names that
--- the file says train, or nil. trainable: nil: by that or the rule; a boolean: all or none; a table of booleans by name;
--- or a function(name, trains) that returns whether a tensor trains.
return function(model, read, is_float, stated, trainable)
  local self = setmetatable({functions = {}, found = {}, left = MOST, read = read, is_float = is_float}, Roles)
  for _, f in ipairs(model.functions or {}) do self.functions[(f.domain or "") .. "\0" .. (f.name or "")] = f end
  self:graph(model.graph or {}, nil, 1)
  local kind, names, labels = type(trainable), {}, {}
  for _, each in ipairs(self.found) do
    local name, message, label = each.name, each.message, each.name
    if stated then message.trains = stated[name] end
    if kind == "boolean" then message.trains = trainable end
    if kind == "function" then message.trains = trainable(name, message.trains == true) end
    if kind == "table" and trainable[name] ~= nil then message.trains = trainable[name] end
    while labels[label] and not message.label do label = label .. "_" end
    message.label = message.label or label
    names[name], labels[message.label] = true, true
  end
  for name, trains in pairs(kind == "table" and trainable or {}) do
    if type(trains) ~= "boolean" then options.must_be("onnx.load", "trainable", "booleans by name", trains) end
    if not names[name] then
      local near = core.nearest(tostring(name), options.sorted_keys(names))
      options.fail("onnx.load: trainable names '%s', which is no floating tensor of the file%s",
        printable_name(tostring(name), 100), near and ("; did you mean '%s'?"):format(printable_name(near, 100)) or "")
    end
  end
end
