--- protobuf.encoder(schema): Returns encode(name, message), the bytes of a message in Protocol Buffers' wire format
--- (protobuf.dev/programming-guides/encoding). The schema has the fields of each message: NAME = {field = {number,
--- kind}}, where kind is double, float, int, bool, bytes, string or the name of a message; "[]" makes a list of it.
--- Strings are converted to UTF-8, since readers reject others. Fields that are nil are omitted. Integers have at most
--- 53 bits.
local characters = require "luminary.base.characters"
local ffi = require "ffi"

local doubles, floats = ffi.typeof "double[?]", ffi.typeof "float[?]"

local function varint(n)
  if n >= 0 and n < 128 then return string.char(n) end
  local bytes, rest = {}, ffi.cast("uint64_t", ffi.cast("int64_t", n)) -- negative integers take 10 bytes
  repeat
    local low = tonumber(rest % 128)
    rest = rest / 128
    bytes[#bytes + 1] = string.char(rest > 0 and low + 128 or low)
  until rest == 0
  return table.concat(bytes)
end

local function delimited(bytes) return varint(#bytes) .. bytes end

-- Wire types; each kind has one, and the writer of a value.
local VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
local kinds = {
  int = {VARINT, varint},
  bool = {VARINT, function(v) return v and "\1" or "\0" end},
  double = {FIXED64, function(v) return ffi.string(doubles(1, v), 8) end}, -- all supported machines are little-endian
  float = {FIXED32, function(v) return ffi.string(floats(1, v), 4) end},
  bytes = {DELIMITED, delimited},
  string = {DELIMITED, function(v) return delimited(characters.as_utf8(v)) end},
}

-- Writers of lists of numbers, which share one key.
local packed = {
  double = function(list) return ffi.string(doubles(#list, list), 8 * #list) end,
  float = function(list) return ffi.string(floats(#list, list), 4 * #list) end,
}

local protobuf = {}

function protobuf.encoder(schema)
  local sorted, encode = {}, nil -- maps a message to its fields, by number
  for name, fields in pairs(schema) do
    sorted[name] = {}
    for field, row in pairs(fields) do
      local kind, list = row[2]:match "^(%w+)(%[?%]?)$"
      table.insert(sorted[name], {field = field, number = row[1], kind = kind, is_list = list ~= ""})
    end
    table.sort(sorted[name], function(a, b) return a.number < b.number end)
  end

  local function add(out, row, value)
    local kind = kinds[row.kind]
    out[#out + 1] = varint(row.number * 8 + (kind and kind[1] or DELIMITED))
    out[#out + 1] = kind and kind[2](value) or delimited(encode(row.kind, value))
  end

  function encode(name, message)
    local out = {}
    for _, row in ipairs(sorted[name]) do
      local value = message[row.field]
      if value ~= nil and row.is_list and packed[row.kind] then
        out[#out + 1] = varint(row.number * 8 + DELIMITED)
        out[#out + 1] = delimited(packed[row.kind](value))
      elseif value ~= nil then
        for _, each in ipairs(row.is_list and value or {value}) do add(out, row, each) end
      end
    end
    return table.concat(out)
  end
  return encode
end

return protobuf
