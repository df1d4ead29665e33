-- Writes small ONNX files from tables.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local core = lm.core
local files = {}

--- Numbers of element types by dtype.
files.numbers = {
  float32 = 1, float64 = 11, float16 = 10, bfloat16 = 16, int64 = 7, int32 = 6, bool = 9, int8 = 3, uint8 = 2,
}

--- Returns the message of an input or output of a dtype's number, 1: float32.
function files.info(name, dtype) return {name = name, type = {tensor_type = {elem_type = dtype or 1}}} end

--- Returns the message of a tensor; a table of sizes becomes random numbers.
function files.tensor(name, value)
  local x = lm.is_tensor(value) and value or lm.randn(value)
  local raw = core.view_as(x:contiguous(), "uint8", {x.nbytes}, {1}, 0)
  return {name = name, data_type = files.numbers[x.dtype], dims = {unpack(x.shape)}, raw_data = raw}
end

--- Returns the message of a node {op, inputs, outputs, attributes: integers, texts, lists, graphs or tensors}.
function files.node(text)
  local message = {
    op_type = text[1]:match "[^.]+$", domain = text[1]:match "^(.*)%.", input = {}, output = {}, attribute = {},
  }
  for name in text[2]:gmatch "%S+" do table.insert(message.input, name == "-" and "" or name) end
  for name in text[3]:gmatch "%S+" do table.insert(message.output, name) end
  for _, name in ipairs(lists.sorted_keys(text[4] or {})) do
    local v = text[4][name]
    local fields = type(v) == "number" and {type = 2, i = v} or type(v) == "string" and {type = 3, s = v}
      or v.data_type and {type = 4, t = v} or v.node and {type = 5, g = v} or {type = 7, ints = v}
    fields.name = name
    table.insert(message.attribute, fields)
  end
  return message
end

--- Returns the messages of a list of nodes.
function files.nodes(list)
  local out = {}
  for i, each in ipairs(list) do out[i] = files.node(each) end
  return out
end

--- Writes a model of nodes from x to y; tensors: values by name; more: {input, output = lists of messages, functions,
--- version = of operators, sparse}. Returns its path.
function files.write(folder, nodes, tensors, more)
  more = more or {}
  local graph = {name = "g", node = files.nodes(nodes), sparse_initializer = more.sparse}
  graph.input, graph.output = more.input or {files.info "x"}, more.output or {files.info "y"}
  graph.initializer = {}
  for _, name in ipairs(lists.sorted_keys(tensors or {})) do
    table.insert(graph.initializer, files.tensor(name, tensors[name]))
  end
  local path = folder .. "/made.onnx"
  core.onnx_write(path, {
    ir_version = 8, graph = graph, functions = more.functions,
    opset_import = {{domain = "", version = more.version or 17}, {domain = "com.microsoft", version = 1},
      {domain = "d", version = 1}},
  })
  return path
end

return files
