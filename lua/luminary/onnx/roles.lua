--- Decides which tensors of an ONNX model train, by what the nodes that read them use them for. docs/howto/onnx.md
--- explains the rule.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local ops = core.ops

-- Positions of the weights and biases among the inputs of a layer's operator.
local layers = {}
for op, positions in ([[
  Conv=23 ConvTranspose=23 FusedConv=23 NhwcConv=23 CausalConvWithState=23 DeformConv=24 MatMul=12 FusedMatMul=12
  Einsum=12 Gemm=123 FusedGemm=123 Gather=1 RNN=234 GRU=234 LSTM=2348 BatchNormalization=23 InstanceNormalization=23
  GroupNormalization=23 LayerNormalization=23 RMSNormalization=2 SimplifiedLayerNormalization=2 PRelu=2 BiasGelu=2
  FastGelu=2 SkipLayerNormalization=345 SkipSimplifiedLayerNormalization=34 EmbedLayerNormalization=34567
  MultiHeadAttention=4 com.microsoft.Attention=23 DynamicQuantizeLSTM=4 DynamicQuantizeMatMul=5 MatMulNBits=6
  MatMulIntegerToFloat=7
]]):gmatch "([%w.]+)=(%d+)" do layers[op] = positions end
local of_two_axes = lists.set "MatMul FusedMatMul Einsum Gather" -- the weights of these
local moving = lists.set "Cast Flatten Identity Reshape Squeeze Transpose Unsqueeze" -- which keep the elements
local choosing = lists.set "Concat Gather GatherElements GatherND Slice Softmax Split TopK" -- before no bias
local DEEPEST, FARTHEST = 100, 30 -- graphs in one another; nodes between a weight and its layer

-- Adds to a value ndim, its number of axes, and axes, that of axes longer than 1. It has message, of a constant;
-- op and inputs, of its node; is_fixed: made of constants alone; is_learned: made with a weight.
local function new_value(value, sizes)
  value.axes, value.ndim = 0, math.min(#sizes, 9) -- tensors with more than 8 dims are refused
  for i = 1, value.ndim do value.axes = value.axes + ((sizes[i] > 1 or sizes[i] < 0) and 1 or 0) end
  return value
end

-- Returns whether the columns of a table [n, D] are waves or lines at its end: a table of positions.
local function is_wave(message, read)
  local n, ok, t = ((message or {}).dims or {})[1] or 0, pcall(read, message, error)
  if not ok or n < 4 or t.ndim ~= 2 then return false end
  local rows = ops.narrow(t, 1, n - 3, 4):double()
  local a, b, c, d = rows[1], rows[2], rows[3], rows[4]
  local apart = ((b + d) * b - (a + c) * c):abs():max():item() -- 0 if a + c = s * b and b + d = s * c
  return (b - c):abs():max():item() > 0 and apart <= 1e-4 * rows:square():max():item()
end

-- Marks the tensors from which a fixed value is computed. is_layer: a layer reads it; it may have one element then.
local function mark(value, is_layer, distance)
  local done = is_layer and "is_weight" or "is_part"
  if value[done] or distance > FARTHEST then return end
  value[done] = true
  if value.is_float and value.ndim > 0 and (is_layer or value.axes > 0) then value.message.trains = true end
  for k, input in pairs(value.inputs or {}) do
    -- A constant that is multiplied by a matrix has positions, from which a small network makes a table of biases.
    local from = value.op == "MatMul" and k == 1 and input.ndim > 2 and (moving[input.op] and input.inputs[1] or input)
    local skips = from and from.message or k > 1 and value.op:find "uantizeLinear$"
    if not skips then mark(input, is_layer and moving[value.op], distance + 1) end
  end
end

-- Marks the vector that a node adds to a value, or multiplies one with, if it is a bias or a scale.
local function mark_vector(value)
  for k = 1, 2 do
    local vector, other = value.inputs[k], value.inputs[3 - k]
    for _ = 1, FARTHEST do other = other and moving[other.op] and other.inputs[1] or other end
    if vector and other and vector.is_fixed and other.is_learned and not choosing[other.op] then
      local weight = layers[other.op] and other.inputs[2]
      local dims = weight and weight.message and weight.message.dims or {}
      local is_bias = value.op == "Add" and dims[other.op == "MatMul" and #dims or other.op == "Conv" and 1 or 2] == 1
      if vector.axes == 1 or is_bias and vector.axes == 0 then mark(vector, is_bias, 0) end
    end
  end
end

local Roles = {}
Roles.__index = Roles

function Roles:add_constant(names, name, message, dims)
  local value = new_value({message = message, is_fixed = true, is_float = self.is_float(message)}, dims or {})
  names[name] = value
  if value.is_float then self.found[#self.found + 1] = {name = name, message = message} end
end

-- Walks the nodes of a graph or a function, g, with the values of its inputs by name.
function Roles:walk(g, names, depth)
  for _, node in ipairs(g.node or {}) do
    self.left = self.left - 1
    if self.left < 0 or depth > DEEPEST then return end -- graph.lua refuses such a file
    local op, given, sizes, is_fixed = node.op_type or "", node.output or {}, {}, nil
    local value = {op = op, inputs = {}}
    for k, name in ipairs(node.input or {}) do
      local input = name ~= "" and names[name] or nil
      value.inputs[k] = input
      if input then
        is_fixed = is_fixed ~= false and input.is_fixed or false
        value.is_learned = value.is_learned or input.is_learned
        for i = 1, input.is_fixed and input.ndim or 0 do
          sizes[i] = math.max(sizes[i] or 1, i <= input.axes and 2 or 1)
        end
      end
    end
    local shape = is_fixed and op == "Reshape" and value.inputs[2]
    local ok, stated = false, nil
    if shape and shape.message then ok, stated = pcall(self.read, shape.message, error) end
    ok = ok and core.is_tensor(stated) and stated.dtype == "int64" and stated:numel() <= 8
    new_value(value, ok and stated:reshape(-1):totable() or sizes).is_fixed = is_fixed
    for _, name in ipairs(given) do names[name] = value end
    local called = self.functions[(node.domain or "") .. "\0" .. op]
    if called and self.left > 0 then
      local inner = {}
      for k, name in ipairs(called.input or {}) do inner[name] = value.inputs[k] end
      self:walk(called, inner, depth + 1)
      for k, name in ipairs(called.output or {}) do names[given[k] or ""] = inner[name] or value end
    end
    for _, attribute in ipairs(node.attribute or {}) do
      local sparse = attribute.sparse_tensor or {}
      local t = op == "Constant" and (attribute.t or sparse.values)
      if t then self:add_constant(names, given[1] or "", t, sparse.dims or t.dims) end
      for _, inner in ipairs(lists.joined({attribute.g}, attribute.graphs or {})) do
        self:graph(inner, names, depth + 1)
        value.is_fixed, value.is_learned = false, true -- whatever it reads from around it
      end
    end
    local positions = layers[(node.domain or "") .. "." .. op] or layers[op] or ""
    for k in (value.is_fixed and op ~= "Gather" and "" or positions):gmatch "%d" do
      local weight, indices = value.inputs[tonumber(k)], value.inputs[2]
      local fits = weight and weight.is_fixed and (not of_two_axes[op] or weight.ndim == 2 or weight.axes > 1)
      if fits and op == "Gather" then -- an embedding, whose indices no layer computes
        fits = weight.axes > 1 and not (indices or {}).is_learned and not is_wave(weight.message, self.read)
      end
      if fits then mark(weight, true, 0) end
      value.is_learned = value.is_learned or fits
    end
    if not value.is_fixed and (op == "Add" or op == "Mul") then mark_vector(value) end
  end
end

-- Walks a graph; outer: values by name around it, or nil.
function Roles:graph(g, outer, depth)
  local names = setmetatable({}, {__index = outer})
  for _, input in ipairs(g.input or {}) do names[input.name or ""] = {is_learned = outer ~= nil} end
  for _, each in ipairs(g.initializer or {}) do self:add_constant(names, each.name or "", each, each.dims) end
  for _, each in ipairs(g.sparse_initializer or {}) do
    self:add_constant(names, (each.values or {}).name or "", each.values or {}, each.dims)
  end
  self:walk(g, names, depth)
end

--- Sets two fields of the messages of a model's floating tensors: `trains`, and `label`, a name that no other has.
--- most: nodes that are looked at, with functions expanded. read(message, fail) returns the tensor of one,
--- is_float(message) whether it is one. stated: the set of names that the file says train, or nil. trainable: nil: by
--- that or the rule; a boolean: all or none; a table of booleans by name; or a function(name, trains) that returns
--- whether a tensor trains. Returns a list of {name, message}.
return function(model, most, read, is_float, stated, trainable)
  local kind, names, labels = type(trainable), {}, {}
  if not ("nil boolean table function"):find(kind) then
    options.must_be("onnx.load", "trainable", "a boolean, a table of booleans by name, or a function", trainable)
  end
  local self = setmetatable({functions = {}, found = {}, left = most, read = read, is_float = is_float}, Roles)
  for _, f in ipairs(model.functions or {}) do self.functions[(f.domain or "") .. "\0" .. (f.name or "")] = f end
  self:graph(model.graph or {}, nil, 1)
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
  for name, trains in lists.sorted_pairs(kind == "table" and trainable or {}) do
    if type(trains) ~= "boolean" then options.must_be("onnx.load", "trainable", "booleans by name", trains) end
    if not names[name] then options.unknown("onnx.load: trainable", name, options.sorted_keys(names)) end
  end
  return self.found
end
