--- Joins nodes of an ONNX graph, as its file has them, to fewer ones: attention, GELU and normalizations that exporters
--- write as many nodes, and those between DequantizeLinear and QuantizeLinear, which become ops of integers.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local is_tensor = core.is_tensor
local patterns = {}

local Nodes = {} -- {list, makers = nodes by output, uses = numbers by name, values = tensors or false by name, read}
Nodes.__index = Nodes

local function domain_of(node) return (node.domain == nil or node.domain == "ai.onnx") and "" or node.domain end
local function attribute(node, name)
  return lists.find(node.attribute or {}, function(each) return each.name == name end)
end
local function integer(node, name, default)
  local found = attribute(node, name)
  return found and (found.i or found.ints and found.ints[1] or 0) or default
end

-- Adds to uses[name] for each reading of a name by nodes, or by graphs in them.
local function count_uses(g, uses)
  for _, output in ipairs(g.output or {}) do uses[output.name or ""] = (uses[output.name or ""] or 0) + 1 end
  for _, node in ipairs(g.node or {}) do
    for _, name in ipairs(node.input or {}) do uses[name] = (uses[name] or 0) + 1 end
    for _, each in ipairs(node.attribute or {}) do
      for _, inner in ipairs(lists.joined({each.g}, each.graphs or {})) do count_uses(inner, uses) end
    end
  end
end

-- Returns the node that makes a name, if it is an op of that kind; an op of onnxruntime too.
function Nodes:maker(name, op)
  local node = self.makers[name or ""]
  return node and node.op_type == op and (domain_of(node) == "" or domain_of(node) == "com.microsoft") and node or nil
end

-- Returns the tensor of a name that cannot change, or nil.
function Nodes:value(name)
  local value = self.values[name or ""]
  if type(value) == "table" then
    local ok, read = pcall(self.read, value)
    value = ok and is_tensor(read) and read or false
    self.values[name] = value
  end
  return value or nil
end
-- Returns the number in the constant `name`; nil if it is unknown, or of several elements or dims.
function Nodes:number(name)
  local value = self:value(name)
  return value and value.ndim < 2 and value:numel() == 1 and tonumber(value:reshape(-1):select(1, 1):item()) or nil
end

-- Removes one use of a name, and the node that made it if that was the last.
function Nodes:unuse(name)
  if name == "" then return end
  self.uses[name] = self.uses[name] - 1
  local node = self.makers[name]
  if not node or node.removed or self.uses[name] > 0 then return end
  local output = node.output
  while output[node.unread] and (self.uses[output[node.unread]] or 0) <= 0 do node.unread = node.unread + 1 end
  if output[node.unread] then return end
  node.removed = true
  for _, input in ipairs(node.input or {}) do self:unuse(input) end
end

-- Makes `node` another op with its outputs. What its inputs were made by remains only if others use it.
function Nodes:replace(node, domain, op, inputs, attributes)
  local before = node.input
  for _, name in ipairs(inputs) do self.uses[name] = (self.uses[name] or 0) + 1 end
  node.domain, node.op_type, node.input, node.attribute = domain, op, inputs, attributes
  for _, name in ipairs(before) do self:unuse(name) end
end

-- ---- patterns: a name that is bound, a number that a constant must be, or {op, input patterns...}

local commutes = lists.set "Add Mul"

-- Matches the value `name` with a pattern. found: names bound so far, and nodes, found[node] = true; returns them, with
-- more, or nil.
local function match(nodes, name, pattern, found)
  if type(pattern) == "string" then
    if found[pattern] and found[pattern] ~= name then return nil end
    found = lists.copy(found)
    found[pattern] = name
    return found
  elseif type(pattern) == "number" then
    local value, is_exact = nodes:number(name), pattern * 2 % 1 == 0 -- in all dtypes
    return value and math.abs(value - pattern) <= (is_exact and 0 or 2e-4 * pattern) and found or nil
  end
  local node = nodes:maker(name, pattern[1])
  if not node or #node.output ~= 1 then return nil end
  local inputs = node.input or {}
  for order = 1, commutes[pattern[1]] and 2 or 1 do
    local now = lists.copy(found)
    now[node] = true
    for k = 2, #pattern do
      local at = order == 2 and 4 - k or k - 1
      now = now and inputs[at] and match(nodes, inputs[at], pattern[k], now)
    end
    if now then return now end
  end
  return nil
end

-- Returns what a node's pattern binds if no other node uses values between, else nil.
local function find_pattern(nodes, node, pattern)
  local found = match(nodes, node.output[1], pattern, {})
  if not found then return nil end
  local inside = {}
  for each in pairs(found) do
    for _, name in ipairs(type(each) == "table" and each.input or {}) do inside[name] = (inside[name] or 0) + 1 end
  end
  for each in pairs(found) do
    local output = type(each) == "table" and each ~= node and each.output[1]
    if output and nodes.uses[output] ~= inside[output] then return nil end
  end
  return found
end

-- Returns the matched node of an op.
local function matched(found, op)
  for each in pairs(found) do
    if type(each) == "table" and each.op_type == op then return each end
  end
end

-- Returns whether all of the found nodes that reduce do so over the last dim.
local function over_last_dim(nodes, found)
  for each in pairs(found) do
    if type(each) == "table" and each.op_type == "ReduceMean" then
      local axes = attribute(each, "axes")
      local axis = axes and #(axes.ints or {}) == 1 and axes.ints[1] or nodes:number((each.input or {})[2])
      if axis ~= -1 or integer(each, "keepdims", 1) ~= 1 then return false end
    end
  end
  return true
end

local function float(name, value) return {name = name, type = 1, f = value} end
local function is_vector(nodes, name)
  local value = nodes:value(name)
  return value and value.ndim == 1
end

local erf = {"Add", {"Erf", {"Div", "x", math.sqrt(2)}}, 1}
local erf_by_product = {"Add", {"Erf", {"Mul", "x", math.sqrt(0.5)}}, 1}
local gelus = {}
for _, each in ipairs {erf, erf_by_product} do
  lists.append(gelus, {
    {"Mul", {"Mul", "x", each}, 0.5}, {"Mul", {"Mul", "x", 0.5}, each}, {"Mul", "x", {"Mul", each, 0.5}},
  })
end

local cubic = {"Add", "x", {"Mul", {"Pow", "x", 3}, 0.044715}}
local bounded = {"Add", {"Tanh", {"Mul", cubic, math.sqrt(2 / math.pi)}}, 1}
local gelus_by_tanh = {{"Mul", {"Mul", "x", 0.5}, bounded}, {"Mul", "x", {"Mul", bounded, 0.5}}}

local function gelu(nodes, node)
  for op, list in lists.sorted_pairs {Gelu = gelus, FastGelu = gelus_by_tanh} do
    for _, pattern in ipairs(list) do
      local found = find_pattern(nodes, node, pattern)
      if found then return nodes:replace(node, "com.microsoft", op, {found.x}) end
    end
  end
end

local function silu(nodes, node)
  local found = find_pattern(nodes, node, {"Mul", "x", {"Sigmoid", "x"}})
  if found then nodes:replace(node, "", "Swish", {found.x}) end
end

local centered = {"Sub", "x", {"ReduceMean", "x"}}
local layer_norm = {
  "Add", {"Mul", {"Div", centered, {"Sqrt", {"Add", {"ReduceMean", {"Pow", centered, 2}}, "eps"}}}, "w"}, "b",
}
local root = {"Sqrt", {"Add", {"ReduceMean", {"Pow", "x", 2}}, "eps"}}
local rms_norms = {
  {"Mul", {"Mul", "x", {"Div", 1, root}}, "w"}, {"Mul", {"Mul", "x", {"Reciprocal", root}}, "w"},
  {"Mul", {"Div", "x", root}, "w"},
}

local function norm(nodes, node, pattern, op)
  local found = find_pattern(nodes, node, pattern)
  local eps = found and nodes:number(found.eps)
  if not eps or not is_vector(nodes, found.w) or found.b and not is_vector(nodes, found.b) then return end
  if over_last_dim(nodes, found) then
    nodes:replace(node, "", op, {found.x, found.w, found.b}, {float("epsilon", eps)})
  end
end

local products = {"MatMul", "q", "k"}
local scores = {
  {"Add", {"Mul", products, "scale"}, "mask"}, {"Add", {"Div", products, "divisor"}, "mask"},
  {"Add", products, "mask"}, {"Mul", products, "scale"}, {"Div", products, "divisor"}, products,
}

local function attention(nodes, node)
  for _, each in ipairs(scores) do
    local found = find_pattern(nodes, node, {"MatMul", {"Softmax", each}, "v"})
    local scale = found and (found.scale and nodes:number(found.scale)
      or found.divisor and 1 / (nodes:number(found.divisor) or 0) or not found.scale and not found.divisor and 1)
    local axis = scale and integer(matched(found, "Softmax"), "axis", nodes.version < 13 and 1 or -1)
    if scale and math.abs(scale) < math.huge and (axis == -1 or axis == 3) then
      return nodes:replace(node, "com.microsoft", "JoinedAttention", {found.q, found.k, found.v, found.mask},
        {float("scale", scale), {name = "axis", type = 2, i = axis}})
    end
  end
end

-- Joins DynamicQuantizeLinear, MatMulInteger and the product with the scales to one node, MatMulIntegerToFloat.
local function integers_to_float(nodes, node)
  local found = find_pattern(nodes, node, {"Mul", {"Cast", {"MatMulInteger", "a", "b"}}, "scales"})
  local scales = found and nodes:maker(found.scales, "Mul")
  if not scales or integer(matched(found, "Cast"), "to") ~= 1 then return end
  local p, q = scales.input[1], scales.input[2]
  if not nodes:maker(p, "DynamicQuantizeLinear") then p, q = q, p end
  local scale = nodes:maker(p, "DynamicQuantizeLinear") and nodes:value(q)
  if not scale or scale.ndim > 1 then return end -- a scale for each row would become one for each column
  local inputs = matched(found, "MatMulInteger").input
  nodes:replace(node, "com.microsoft", "MatMulIntegerToFloat", {inputs[1], inputs[2], p, q, inputs[3] or "", inputs[4]})
end

-- ---- DequantizeLinear, an op, QuantizeLinear

local bytes = {uint8 = 0, int8 = -128} -- the least values

-- Returns the inputs x, scale and zero of the node that dequantizes a name, if they are known, and of 8 bits or, for a
-- bias, 32; with the axis of scales.
local function dequantized(nodes, name, is_bias)
  local node = nodes:maker(name, "DequantizeLinear")
  local x, scale, zero = unpack(node and node.input or {})
  local scales, zeros = nodes:value(scale), nodes:value(zero)
  if not scales or scales.dtype ~= "float32" or attribute(node, "block_size") then return nil end
  if is_bias then return nodes:value(x) and nodes:value(x).dtype == "int32" and {x, scale} or nil end
  if not zeros or not bytes[zeros.dtype] or zeros:numel() ~= scales:numel() then return nil end
  return {x, scale, zero, axis = integer(node, "axis", 1), count = scales:numel()}
end

-- Returns whether a bias has the scale of the product of two others.
local function bias_fits(nodes, bias, x, w)
  local got, expected = nodes:value(bias[2]):reshape(-1), (nodes:value(x[2]) * nodes:value(w[2])):reshape(-1)
  if got:numel() ~= expected:numel() and got:numel() ~= 1 then return false end
  return core.no_grad(function() return core.ops.all(core.ops.isclose(got, expected, 1e-4, 0)):item() end)
end

local unchanged = lists.set "MaxPool Reshape Transpose Flatten Squeeze Unsqueeze"
local sums = {Add = "QLinearAdd", Mul = "QLinearMul"}

local function between_quantized(nodes, node)
  local inputs = node.input or {}
  local zero, y = nodes:value(inputs[3]), nodes.makers[inputs[1]]
  local scale = nodes:value(inputs[2])
  if not (scale and zero and bytes[zero.dtype]) or scale:numel() > 1 or scale.dtype ~= "float32" then return end
  if y and y.op_type == "Relu" and nodes.uses[inputs[1]] == 1 and zero:numel() == 1
    and zero:reshape(-1):select(1, 1):item() == bytes[zero.dtype] then
    y = nodes.makers[y.input[1]]
  end
  if not y or domain_of(y) ~= "" or nodes.uses[y.output[1]] ~= 1 or y.output[2] then return end
  local op, from = y.op_type, y.input or {}
  local a, b = dequantized(nodes, from[1]), from[2] and dequantized(nodes, from[2])
  if not a or a.count > 1 then return end
  local function replace_node(domain, name, ...)
    nodes:replace(node, domain, name, {a[1], a[2], a[3], b[1], b[2], b[3], ...}, y.attribute)
  end
  if unchanged[op] then
    if nodes:number(a[2]) == nodes:number(inputs[2]) and nodes:number(a[3]) == nodes:number(inputs[3])
      and nodes:value(a[3]).dtype == zero.dtype then
      nodes:replace(node, "", op, lists.joined({a[1]}, {unpack(from, 2)}), y.attribute)
    end
    return
  elseif not b then
    return
  end
  local bias = from[3] and from[3] ~= "" and dequantized(nodes, from[3], true)
  if from[3] and from[3] ~= "" and not (bias and bias_fits(nodes, bias, a, b)) then return end
  local weight = nodes:value(b[1])
  if op == "Conv" and (b.count == 1 or b.axis == 0) then
    replace_node("", "QLinearConv", inputs[2], inputs[3], bias and bias[1] or nil)
  elseif op == "MatMul" and (b.count == 1 or weight and weight.ndim == 2 and b.axis % 2 == 1) then
    replace_node("", "QLinearMatMul", inputs[2], inputs[3])
  elseif op == "Gemm" and integer(y, "transA", 0) == 0 and (b.count == 1 or b.axis == 1 - integer(y, "transB", 0)) then
    local beta, alpha = attribute(y, "beta"), attribute(y, "alpha")
    if (beta and beta.f or 1) ~= 1 or (alpha and alpha.f or 1) ~= 1 then return end
    replace_node("com.microsoft", "QGemm", bias and bias[1] or "", inputs[2], inputs[3])
  elseif sums[op] and b.count == 1 then
    replace_node("com.microsoft", sums[op], inputs[2], inputs[3])
  end
end

-- Functions by op that join a node and those before it. Layer norm's nodes contain RMS norm's, which comes later.
local passes = {
  {
    QuantizeLinear = {between_quantized}, Mul = {gelu, silu, integers_to_float}, MatMul = {attention},
    Add = {function(nodes, node) norm(nodes, node, layer_norm, "LayerNormalization") end},
  },
  {Mul = lists.map(rms_norms, function(pattern)
    return function(nodes, node) norm(nodes, node, pattern, "SimplifiedLayerNormalization") end
  end)},
}

-- Ops whose result has the dtype of the first input; and those of them of which all inputs have that dtype.
local keep_dtype = lists.set [[Add Sub Mul Div MatMul Gemm Conv Softmax Relu Tanh Sigmoid Erf Neg Sqrt ReduceMean
    LayerNormalization Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Concat Gather Identity]]
local all_equal = lists.set "Add Sub Mul Div MatMul Gemm Conv"

-- Returns copies of a graph's nodes that read what Identity reads, or a Cast to the dtype that its input has, directly.
local function without_copies(g)
  local dtypes, origin, list = {}, {}, {}
  for _, input in ipairs(g.input or {}) do
    dtypes[input.name or ""] = ((input.type or {}).tensor_type or {}).elem_type
  end
  for _, message in ipairs(g.initializer or {}) do dtypes[message.name or ""] = message.data_type end
  for i, message in ipairs(g.node or {}) do
    local node = lists.copy(message)
    node.input = lists.map(node.input or {}, function(name) return origin[name] or name end)
    node.output, node.unread = node.output or {}, 1 -- the first output that others may read
    list[i] = node
    local op, first, y = domain_of(node) == "" and node.op_type, node.input[1] or "", node.output[1] or ""
    local value = op == "Constant" and attribute(node, "value")
    local dtype = value and (value.t or {}).data_type or op == "Cast" and integer(node, "to")
      or keep_dtype[op] and (dtypes[first] or all_equal[op] and dtypes[node.input[2]])
    if first ~= "" and y ~= "" and (op == "Identity" or op == "Cast" and dtype and dtype == dtypes[first]) then
      origin[y], node.is_copy = first, true
    end
    for _, name in ipairs(dtype and node.output or {}) do dtypes[name] = dtype end
  end
  return list
end

--- Returns the nodes of a graph's message, joined where patterns match. read(message) returns the tensor of an
--- initializer's message; version: of ONNX's operators.
function patterns.joined(g, read, version)
  local self = setmetatable({
    list = without_copies(g), makers = {}, uses = {}, values = {}, read = read, version = version,
  }, Nodes)
  count_uses({output = g.output, node = self.list}, self.uses)
  for _, message in ipairs(g.initializer or {}) do self.values[message.name or ""] = message end
  for _, input in ipairs(g.input or {}) do self.values[input.name or ""] = nil end -- a call may pass another
  for _, node in ipairs(self.list) do
    for _, name in ipairs(node.output) do self.makers[name] = name ~= "" and node or nil end
    local constant = node.op_type == "Constant" and attribute(node, "value")
    if constant and node.output[1] then self.values[node.output[1]] = constant.t end
  end
  for i = #self.list, 1, -1 do
    local node = self.list[i]
    if node.is_copy and not self.uses[node.output[1]] then
      node.removed = true
      self:unuse(node.input[1])
    end
  end
  for _, by_op in ipairs(passes) do
    for _, node in ipairs(self.list) do
      local op = node.op_type
      for _, join in ipairs(not node.removed and domain_of(node) == "" and #node.output == 1 and by_op[op] or {}) do
        if node.op_type == op then join(self, node) end
      end
    end
  end
  return lists.filter(self.list, function(node) return not node.removed end)
end

return patterns
