--- Reads ONNX files: their messages as tables (bind/io/onnx.c), and their tensors.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local ops, dense_strides = core.ops, Source.dense_strides
local tensors = {}

--- Names of the format's element types by number. Those that Luminary's tensors lack are in tensors.absent.
tensors.dtypes = {
  "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32",
  "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
  "float8_e5m2fnuz", "uint4", "int4", "float4e2m1", "float8_e8m0fnu", "uint2", "int2",
}
tensors.absent = lists.set {
  "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
  "uint4", "int4", "float4e2m1", "float8_e8m0fnu", "uint2", "int2",
}
tensors.number_of = {}
for number, name in ipairs(tensors.dtypes) do tensors.number_of[name] = number end

--- Reads the messages of the file at a path; returns a table of the model, as in io/onnx.proto.
function tensors.read(path)
  return Source.with(path, {mmap = true}, function(source)
    if source.size == 0 then source:fail "the file is empty" end
    local ok, model = pcall(core.onnx_read, source:bytes(0, source.size))
    if not ok then source:fail("%s", options.without_position(model)) end
    return model
  end)
end

-- Fields of a message that hold elements of other dtypes, and the dtype of the field.
local fields = {
  float32 = "float_data", float64 = "double_data", int64 = "int64_data", int32 = "int32_data", int16 = "int32_data",
  int8 = "int32_data", uint16 = "int32_data", uint8 = "int32_data", bool = "int32_data", float16 = "int32_data",
  bfloat16 = "int32_data",
}

--- Returns a function(message) that returns the tensor of a message: of strings a list with a field shape. Tensors in
--- files beside the model, at `path`, are mapped. fail(format, ...) raises an error; its text begins with a name.
function tensors.reader(path)
  local folder, opened = path:match "^(.*/)" or "", {}

  local function external(message, dtype, sizes, what, fail)
    local at = {}
    for _, entry in ipairs(message.external_data or {}) do at[entry.key or ""] = entry.value end
    local location = at.location
    if not location or location == "" or location:find "^/" or ("/" .. location .. "/"):find("/../", 1, true)
      or location:find "[%z\\]" then
      fail("%s: external data must be in a file beside the model, got '%s'", what, printable_name(location or "", 100))
    end
    opened[location] = opened[location] or Source.open(folder .. location, {mmap = true})
    local source, offset = opened[location], tonumber(at.offset or 0)
    if not offset or offset < 0 or offset % 1 ~= 0 then fail("%s: its offset must be a count of bytes", what) end
    return source:tensor(dtype, sizes, offset, Source.numel(source, sizes, what) * Source.item_bytes[dtype], what)
  end

  -- Returns n elements of less than a byte, from bits of the raw bytes, as int8 or uint8.
  local function small_elements(raw, dtype, n)
    local bits, sign = tonumber(dtype:match "%d"), dtype:find "^int" ~= nil
    local parts = {}
    for k = 1, 8 / bits do
      parts[k] = ops.bitwise_and(ops.bitwise_right_shift(raw, (k - 1) * bits), 2 ^ bits - 1)
    end
    local x = ops.stack(parts, 2):reshape(-1):narrow(1, 1, n)
    if not sign then return x end
    x = x:to "int8"
    return ops.where(x:ge(2 ^ (bits - 1)), x - 2 ^ bits, x)
  end

  return function(message, fail)
    local dtype, sizes = tensors.dtypes[message.data_type or 0], message.dims or {}
    local what = ("'%s'"):format(printable_name(message.name or "", 100))
    local numel = 1
    if #sizes > 8 then fail("%s has %d dims, at most 8 are supported", what, #sizes) end
    for _, size in ipairs(sizes) do
      if size < 0 then fail("%s: shape must be non-negative integers, got %.0f", what, size) end
      numel = numel * size
    end
    if dtype == "string" then
      local list = message.string_data or {}
      if #list ~= numel then fail("%s of %.0f strings has %d", what, numel, #list) end
      list.shape = sizes
      return list
    end
    local small = dtype and dtype:match "^u?int[24]$"
    local stored = small and "uint8" or Source.becomes[dtype] and Source.becomes[dtype][1] or dtype
    if not dtype or tensors.absent[dtype] and not small and not Source.becomes[dtype] then
      fail("%s has the unsupported dtype %s", what, dtype or tostring(message.data_type))
    end
    if message.data_location == 1 then return external(message, dtype, sizes, what, fail) end
    local data = message.raw_data or message[fields[stored] or "int32_data"] or message.uint64_data
      or core.tensor({}, {dtype = "uint8"})
    local count = small and math.ceil(numel / (8 / dtype:match "%d")) or numel
    local bytes = count * Source.item_bytes[stored]
    if message.raw_data and data:numel() ~= bytes or not message.raw_data and data:numel() ~= count then
      fail("%s of shape [%s] and dtype %s does not match its %.0f %s", what, table.concat(sizes, ", "), dtype,
        data:numel(), message.raw_data and "bytes" or "elements")
    end
    if numel == 0 then return ops.empty(sizes, {dtype = small and "int8" or stored}) end
    if not message.raw_data and data.dtype ~= stored then
      if stored:find "float16$" then
        data = core.view_as(data:to "uint16", stored, {numel}, {1}, 0)
      else
        data = data:to(stored)
      end
    elseif message.raw_data then
      if dtype == "bool" and data:max():item() > 1 then fail("%s is bool but has the value %d", what, data:max():item()) end
      data = core.view_as(data, stored, {count}, {1}, 0)
    end
    if small then
      data = small_elements(data, dtype, numel)
    elseif Source.becomes[dtype] then
      data = Source.becomes[dtype][2](data) or fail("%s: %s", what, Source.TOO_LARGE)
    end
    return ops.view(data, sizes)
  end, function()
    for _, source in pairs(opened) do source:close() end
  end
end

--- Describes the type of an input or output of the graph: {name, kind = "tensor", "sequence" or "optional", dtype, dims =
--- list of numbers and names, or nil}.
function tensors.described(value)
  local info, of = {name = value.name or "", kind = "tensor"}, value.type or {}
  while of.optional_type or of.sequence_type do
    info.kind = of.optional_type and "optional" or "sequence"
    of = (of.optional_type or of.sequence_type).elem_type or {}
    if info.kind == "optional" then break end
  end
  local tensor = of.tensor_type
  if not tensor then
    if info.kind == "tensor" and value.type then info.kind = "map" end
    return info
  end
  info.dtype = tensors.dtypes[tensor.elem_type or 0]
  if not tensor.shape then return info end
  info.dims = {}
  for i, dim in ipairs(tensor.shape.dim or {}) do info.dims[i] = dim.dim_value or dim.dim_param or "?" end
  return info
end

--- Returns "float32 [N, 3, 224, 224]" for a described input or output.
function tensors.type_text(info)
  local dims = info.dims and (" [%s]"):format(table.concat(info.dims, ", ")) or ""
  return (info.kind == "tensor" and "" or info.kind .. " of ") .. (info.dtype or "any dtype") .. dims
end

--- Returns what a file has for lm.load: its initializers by name, a list of those of unsupported dtypes, and metadata:
--- inputs and outputs with their types, numbers of nodes by op, versions.
function tensors.load(path)
  local model = tensors.read(path)
  local read, close = tensors.reader(path)
  local graph, values, lacking = model.graph or {}, {}, {}
  local known, nodes, sides = {}, {}, {}
  local ok, problem = pcall(function()
    for i, message in ipairs(graph.initializer or {}) do
      local name = message.name or "#" .. i
      known[name] = true
      local dtype = tensors.dtypes[message.data_type or 0]
      if dtype and (dtype == "string" or tensors.absent[dtype] and not Source.becomes[dtype] and not dtype:find "int[24]") then
        lacking[#lacking + 1] = ("'%s' (%s)"):format(printable_name(name, 200), dtype)
      else
        values[name] = read(message, function(...) options.fail_in_file(path, ...) end)
      end
    end
  end)
  close()
  if not ok then error(problem, 0) end
  for _, node in ipairs(graph.node or {}) do
    local domain = node.domain or ""
    local name = (domain == "" and "" or domain .. ".") .. (node.op_type or "?")
    nodes[name] = (nodes[name] or 0) + 1
  end
  for _, side in ipairs {"input", "output"} do
    sides[side] = {}
    for _, value in ipairs(graph[side] or {}) do
      local info = tensors.described(value)
      if not known[info.name] then sides[side][info.name] = tensors.type_text(info) end
    end
  end
  local versions = {}
  for _, set in ipairs(model.opset_import or {}) do
    versions[(set.domain or "") == "" and "ai.onnx" or set.domain] = set.version
  end
  return values, lacking, {
    inputs = sides.input, outputs = sides.output, nodes = nodes, operators = versions, ir_version = model.ir_version,
    producer = model.producer_name and model.producer_name .. " " .. (model.producer_version or ""),
  }
end

return tensors
