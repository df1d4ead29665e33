--- Reads ONNX files: their messages as tables (bind/io/onnx.c), and their tensors.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"
local ops = core.ops
local tensors = {}

--- Names of the format's element types by number; tensors.absent: those that Luminary's tensors lack.
tensors.dtypes = lists.parts [[
  float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 complex128 bfloat16
  float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4e2m1 float8_e8m0fnu uint2 int2]]
tensors.absent = lists.set [[
  uint32 uint64 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4e2m1
  float8_e8m0fnu uint2 int2]]
tensors.number_of = {}
for number, name in ipairs(tensors.dtypes) do tensors.number_of[name] = number end

--- Property of a model of lm.onnx.export: the names of tensors that were parameters, one a line.
tensors.TRAINS = "luminary.parameters"

--- Reads the messages of the file at a path; returns a table of the model, as in io/onnx.proto, and the file's size.
function tensors.read(path)
  return Source.with(path, {mmap = true}, function(source)
    if source.size == 0 then source:fail "the file is empty" end
    local ok, model = pcall(core.onnx_read, source:bytes(0, source.size))
    if not ok then source:fail("%s", options.without_position(model)) end
    return model, source.size
  end)
end

-- Returns n elements of a dtype of 2 or 4 bits, from the bits of bytes, as uint8 or int8.
local function small_elements(raw, dtype, n)
  local bits, parts = tonumber(dtype:match "%d"), {}
  for k = 1, 8 / bits do
    parts[k] = ops.bitwise_and(ops.bitwise_right_shift(raw, (k - 1) * bits), 2 ^ bits - 1)
  end
  local x = ops.stack(parts, 2):reshape(-1):narrow(1, 1, n)
  if dtype:find "^u" then return x end
  x = x:to "int8"
  return ops.where(x:ge(2 ^ (bits - 1)), x - 2 ^ bits, x)
end

-- Fields of a message that hold the elements of other dtypes than those of int32_data.
local fields = {
  float32 = "float_data", float64 = "double_data", int64 = "int64_data", uint64 = "uint64_data", uint32 = "uint64_data",
}

-- Returns the tensor of a message; what: its name. Integers below 8 bits, and dtypes in Source.becomes, are widened.
local function read_elements(message, dtype, sizes, numel, what, fail)
  local small, becomes = dtype:match "^u?int([24])$", Source.becomes[dtype]
  local stored = small and "uint8" or becomes and becomes[1] or dtype
  local raw, data = message.raw_data, message.raw_data or message[fields[dtype] or "int32_data"]
  local count = small and math.ceil(numel * small / 8) or numel
  local has, needs = data and data:numel() or 0, raw and count * Source.item_bytes[stored] or count
  if has ~= needs then
    fail("%s of shape [%s] and dtype %s does not match its %.0f %s", what, table.concat(sizes, ", "), dtype, has,
      raw and "bytes" or "elements")
  end
  if numel == 0 then return ops.empty(sizes, {dtype = small and "int8" or becomes and "float32" or dtype}) end
  if not raw and dtype == "uint32" then -- as int64 already
    if data:min():item() < 0 or data:max():item() >= 2 ^ 32 then fail("%s has values that are no uint32", what) end
    return ops.view(data, sizes)
  elseif raw then
    if dtype == "bool" and raw:max():item() > 1 then fail("%s is bool but has the value %d", what, raw:max():item()) end
    data = core.view_as(raw, stored, {count}, {1}, 0)
  elseif stored:find "float16$" then
    data = core.view_as(data:to "uint16", stored, {count}, {1}, 0) -- its bits
  else
    data = data:to(stored)
  end
  if small then data = small_elements(data, dtype, numel) end
  if becomes then data = becomes[2](data) or fail("%s: %s", what, Source.TOO_LARGE) end
  return ops.view(data, sizes)
end

--- Returns read(message, fail), which returns the tensor of a message: of strings a list with a field shape; and
--- close(), for afterwards. Tensors in files beside the model, at `path`, are mapped. fail(format, ...) raises an
--- error.
function tensors.reader(path)
  local opened = {}

  local function external(message, dtype, sizes, numel, what, fail)
    local at, small = {}, dtype:match "^u?int([24])$"
    for _, entry in ipairs(message.external_data or {}) do at[entry.key or ""] = entry.value end
    local name, offset = at.location or "", tonumber(at.offset or 0)
    local file, elsewhere = Source.beside(path, name)
    if not file then fail("%s: external data must be in a file beside the model, got '%s'", what, elsewhere) end
    if not offset or offset < 0 or offset % 1 ~= 0 then fail("%s: its offset must be a count of bytes", what) end
    opened[name] = opened[name] or Source.open(file, {mmap = true})
    if small then
      local count = math.ceil(numel * small / 8)
      local raw = opened[name]:tensor("uint8", {count}, offset, count, what)
      return read_elements({raw_data = raw}, dtype, sizes, numel, what, fail)
    end
    return opened[name]:tensor(dtype, sizes, offset, numel * Source.item_bytes[dtype], what)
  end

  return function(message, fail)
    local dtype, sizes = tensors.dtypes[message.data_type or 0], message.dims or {}
    local what, numel = ("'%s'"):format(printable_name(message.name or "", 100)), lists.product(sizes)
    if #sizes > 8 then fail("%s has %d dims, at most 8 are supported", what, #sizes) end
    for _, size in ipairs(sizes) do
      if size < 0 or size > 2 ^ 53 then fail("%s: shape must be non-negative integers, got %.0f", what, size) end
    end
    if dtype == "string" then
      local list = message.string_data or {}
      if #list ~= numel then fail("%s of %.0f strings has %d", what, numel, #list) end
      list.shape = sizes
      return list
    end
    if not dtype or tensors.lacks(dtype) then
      fail("%s has the unsupported dtype %s", what, dtype or tostring(message.data_type))
    end
    if message.data_location == 1 then return external(message, dtype, sizes, numel, what, fail) end
    return read_elements(message, dtype, sizes, numel, what, fail)
  end, function()
    for _, source in pairs(opened) do source:close() end
  end
end

--- Returns whether tensors of an element type cannot be read, even as another dtype.
function tensors.lacks(dtype)
  return tensors.absent[dtype] and not Source.becomes[dtype] and not dtype:find "int[24]$"
end

-- Returns whether a message has a floating tensor that can be read.
local function is_float(message)
  local dtype = tensors.dtypes[message.data_type or 0] or ""
  return dtype:find "float" and not tensors.lacks(dtype)
end
--- Returns the most nodes and initializers, with functions expanded, of a file of `size` bytes.
function tensors.most_nodes(size) return math.floor(math.min(24000, 1000 + size / 20) + size / 1024) end

--- Marks the tensors of a model that train, and names all; returns their list (roles.lua), and true if the caller or
--- the file said which train. size: of the file, in bytes. read: see reader.
function tensors.mark(model, size, read, trainable)
  local written = lists.find(model.metadata_props or {}, function(entry) return entry.key == tensors.TRAINS end)
  local stated = written and lists.set(lists.parts(written.value or "", "[^\n]+"))
  return load_module "luminary.onnx.roles"(model, tensors.most_nodes(size), read, is_float, stated, trainable),
    (trainable == nil and stated) ~= nil
end

--- Describes the type of an input or output of a graph: {name, kind = "tensor", "sequence", "optional" or "map", dtype,
--- dims = list of numbers and names, or nil}.
function tensors.described(value)
  local info, of = {name = value.name or "", kind = "tensor"}, value.type or {}
  while of.optional_type or of.sequence_type do
    info.kind = (of.optional_type or info.kind == "optional") and "optional" or "sequence"
    of = (of.optional_type or of.sequence_type).elem_type or {}
  end
  if not of.tensor_type then
    if info.kind == "tensor" and value.type then info.kind = "map" end
    return info
  end
  info.dtype, info.dims = tensors.dtypes[of.tensor_type.elem_type or 0], of.tensor_type.shape and {}
  for i, dim in ipairs(info.dims and of.tensor_type.shape.dim or {}) do
    info.dims[i] = (dim.dim_value or -1) >= 0 and dim.dim_value or dim.dim_param or "?"
  end
  return info
end

--- Returns "float32 [N, 3, 224, 224]" for a described input or output.
function tensors.type_text(info)
  local dims = info.dims and (" [%s]"):format(table.concat(info.dims, ", ")) or ""
  return (info.kind == "tensor" and "" or info.kind .. " of ") .. (info.dtype or "any dtype") .. dims
end

--- Returns the graph's inputs that are no initializers, described.
function tensors.inputs_of(graph)
  local known = lists.set(lists.map(graph.initializer or {}, function(message) return message.name or "" end))
  local inputs = lists.filter(graph.input or {}, function(input) return not known[input.name or ""] end)
  return lists.map(inputs, tensors.described)
end

--- Returns what a file has for lm.load: its initializers and the weights in its nodes by name, a list of those of
--- unsupported dtypes, with a field trains = set of the names of those that train, and metadata: inputs and outputs
--- with their types, numbers of nodes by op, versions.
function tensors.load(path)
  local model, size = tensors.read(path)
  local read, close = tensors.reader(path)
  local graph, values, lacking, about = model.graph or {}, {}, {trains = {}}, {
    inputs = {}, outputs = {}, nodes = {}, operators = {}, properties = {}, ir_version = model.ir_version,
    producer = model.producer_name and model.producer_name .. " " .. (model.producer_version or ""),
  }
  local ok, problem = pcall(function()
    local trained = lists.filter(tensors.mark(model, size, read), function(each) return each.message.trains end)
    trained = lists.map(trained, function(each) return each.message end)
    for i, message in ipairs(lists.joined(graph.initializer or {}, trained)) do
      local name = message.label or message.name or "#" .. i
      local dtype = tensors.dtypes[message.data_type or 0] or "an unknown dtype"
      if dtype:find "^an? " or dtype == "string" or tensors.lacks(dtype) then
        lacking[#lacking + 1] = ("'%s' (%s)"):format(printable_name(name, 200), dtype)
      elseif not values[name] then
        values[name] = read(message, function(...) options.fail_in_file(path, ...) end)
        lacking.trains[name] = message.trains or nil
      end
    end
  end)
  close()
  if not ok then error(problem, 0) end
  for _, node in ipairs(graph.node or {}) do
    local name = ((node.domain or "") == "" and "" or node.domain .. ".") .. (node.op_type or "?")
    about.nodes[name] = (about.nodes[name] or 0) + 1
  end
  for _, info in ipairs(tensors.inputs_of(graph)) do about.inputs[info.name] = tensors.type_text(info) end
  for _, output in ipairs(graph.output or {}) do
    about.outputs[output.name or ""] = tensors.type_text(tensors.described(output))
  end
  for _, set in ipairs(model.opset_import or {}) do
    about.operators[(set.domain or "") == "" and "ai.onnx" or set.domain] = set.version
  end
  for _, entry in ipairs(model.metadata_props or {}) do about.properties[entry.key or ""] = entry.value end
  return values, lacking, about
end

return tensors
