--- Small GGUF files.
local ffi = require "ffi"
local block_kinds = require "luminary.block_kinds"

local function little_endian(n, bytes)
  local out = {}
  for i = 1, bytes do
    out[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(out)
end

local function text(s) return little_endian(#s, 8) .. s end

local kinds = { -- number, how one is written
  string = {8, text}, boolean = {7, function(v) return v and "\1" or "\0" end},
  u32 = {4, function(v) return little_endian(v, 4) end},
  f32 = {6, function(v) return ffi.string(ffi.new("float[1]", v), 4) end},
}

--- Returns the bytes of a file with that metadata: strings, booleans, numbers (whole ones of 32 bits) and lists of one
--- kind; lists in `floating`, by name, are of floats. tensors: by name, float32, or {kind, blocks}.
return function(metadata, floating, tensors)
  local parts, count = {}, 0
  for name, value in pairs(metadata) do
    local is_list = type(value) == "table"
    local one = value
    if is_list then one = value[1] end -- a list's first value may be false
    local kind = type(one) == "number" and (floating and floating[name] and kinds.f32 or kinds.u32) or kinds[type(one)]
    local list = {}
    for i, v in ipairs(is_list and value or {value}) do list[i] = kind[2](v) end
    parts[#parts + 1] = text(name) .. (is_list and little_endian(9, 4) .. little_endian(kind[1], 4)
      .. little_endian(#list, 8) or little_endian(kind[1], 4)) .. table.concat(list)
    count = count + 1
  end
  local data, size, ntensors = {}, 0, 0
  for name, t in pairs(tensors or {}) do
    local kind = type(t) == "table" and block_kinds[t.kind]
    local bytes = kind and t.blocks or t
    local shape = bytes.shape
    if kind then shape[#shape] = shape[#shape] / kind.bytes * kind.elements end
    parts[#parts + 1] = text(name) .. little_endian(#shape, 4)
    for d = #shape, 1, -1 do parts[#parts + 1] = little_endian(shape[d], 8) end
    parts[#parts + 1] = little_endian(kind and kind.number or 0, 4) .. little_endian(size, 8)
    bytes = bytes:contiguous()
    local all = bytes:numel() * bytes:element_size()
    data[#data + 1] = ffi.string(ffi.cast("const char *", bytes:data_ptr()), all) .. ("\0"):rep(-all % 32)
    size, ntensors = size + #data[#data], ntensors + 1
  end
  local file = "GGUF" .. little_endian(3, 4) .. little_endian(ntensors, 8) .. little_endian(count, 8)
    .. table.concat(parts)
  return file .. (ntensors > 0 and ("\0"):rep(-#file % 32) or "") .. table.concat(data)
end
