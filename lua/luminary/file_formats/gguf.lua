--- GGUF, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors; quantized
--- ones become float32.
local core = require "luminary.core"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local gguf = {}
local empty = core.ops.empty

local plain = {
  [0] = "float32", [1] = "float16", [24] = "int8", [25] = "int16", [26] = "int32", [27] = "int64", [28] = "float64",
  [30] = "bfloat16",
}
local names = {
  [9] = "Q8_1", [10] = "Q2_K", [11] = "Q3_K", [15] = "Q8_K",
}

-- ---- blocks (ggml's ggml-quants.c), as views of bytes: expand(part, n) returns [n, elements of a block]; part(dtype,
-- count, at) are that many elements from byte `at` of each block on, [n, count].

local function nibbles(x) return x:bitwise_and(15), x:bitwise_right_shift(4) end

-- The bits of bytes, the lowest first, along a new dim.
local function bits_of(x, dim)
  local list = {}
  for i = 0, 7 do list[i + 1] = x:bitwise_right_shift(i):bitwise_and(1) end
  return core.ops.stack(list, dim)
end

local function cat(list, dim) return core.ops.cat(list, dim) end

-- 6-bit scales and minima of 8 groups in 12 bytes: of the first four the low bits of bytes 1 to 4 and 5 to 8; of the
-- others the halves of 9 to 12, with the two high bits of those.
local function scales_of_k(s)
  local a, b, c = s:narrow(2, 1, 4), s:narrow(2, 5, 4), s:narrow(2, 9, 4)
  local low, high = nibbles(c)
  local function with_high(x, of) return x:bitwise_or(of:bitwise_right_shift(6):bitwise_left_shift(4)) end
  return cat({a:bitwise_and(63), with_high(low, a)}, 2), cat({b:bitwise_and(63), with_high(high, b)}, 2)
end

-- Of 16 bytes the low halves and then the high ones, of whose numbers the fifth bits are in 4 more.
local function fives(high, low, n)
  return cat({nibbles(low)}, 2):bitwise_or(bits_of(high, 3):reshape {n, 32}:bitwise_left_shift(4)):float()
end

-- [n, 8, 32] of 128 bytes, each 32 of which hold two groups.
local function pairs_of_32(bytes, n)
  return cat({nibbles(bytes:reshape {n, 4, 1, 32})}, 3):reshape {n, 8, 32}
end

-- d scale q - dmin min, of a block that begins with d, dmin and scales[12].
local function groups_of_32(part, n, q)
  local scale, least = scales_of_k(part("uint8", 12, 4))
  local d, dmin = part("float16", 1, 0):float(), part("float16", 1, 2):float()
  return ((d * scale:float()):unsqueeze(3) * q:float() - (dmin * least:float()):unsqueeze(3)):reshape {n, 256}
end

local blocks = {
  -- d, q[32]: d q
  [8] = {name = "Q8_0", bytes = 34, elements = 32, expand = function(part)
    return part("float16", 1, 0):float() * part("int8", 32, 2):float()
  end},
  -- d, q[16]: d (q - 8), low halves before high ones
  [2] = {name = "Q4_0", bytes = 18, elements = 32, expand = function(part)
    local low, high = nibbles(part("uint8", 16, 2))
    return part("float16", 1, 0):float() * (cat({low, high}, 2):float() - 8)
  end},
  -- d, m, q[16]: d q + m
  [3] = {name = "Q4_1", bytes = 20, elements = 32, expand = function(part)
    local q = cat({nibbles(part("uint8", 16, 4))}, 2):float()
    return part("float16", 1, 0):float() * q + part("float16", 1, 2):float()
  end},
  -- d, fifth bits[4], q[16]: d (q - 16)
  [6] = {name = "Q5_0", bytes = 22, elements = 32, expand = function(part, n)
    return part("float16", 1, 0):float() * (fives(part("uint8", 4, 2), part("uint8", 16, 6), n) - 16)
  end},
  -- d, m, fifth bits[4], q[16]: d q + m
  [7] = {name = "Q5_1", bytes = 24, elements = 32, expand = function(part, n)
    local q = fives(part("uint8", 4, 4), part("uint8", 16, 8), n)
    return part("float16", 1, 0):float() * q + part("float16", 1, 2):float()
  end},
  -- d, dmin, scales[12], q[128]
  [12] = {name = "Q4_K", bytes = 144, elements = 256, expand = function(part, n)
    return groups_of_32(part, n, pairs_of_32(part("uint8", 128, 16), n))
  end},
  -- d, dmin, scales[12], fifth bits[32], one of each of 8 groups in a byte, q[128]
  [13] = {name = "Q5_K", bytes = 176, elements = 256, expand = function(part, n)
    local fifths = bits_of(part("uint8", 32, 16), 2):bitwise_left_shift(4)
    return groups_of_32(part, n, pairs_of_32(part("uint8", 128, 48), n):bitwise_or(fifths))
  end},
  -- low[128], high[64], scales[16], d: d scale (q - 32), groups of 16; each half of 128 elements has 64 low bytes,
  -- whose low halves come first, and 32 high bytes with two bits for each of four groups of 32
  [14] = {name = "Q6_K", bytes = 210, elements = 256, expand = function(part, n)
    local low, high = nibbles(part("uint8", 128, 0):reshape {n, 2, 1, 64})
    low = cat({low, high}, 3):reshape {n, 2, 4, 32}
    local bits, tops = part("uint8", 64, 128):reshape {n, 2, 1, 32}, {}
    for i = 0, 3 do tops[i + 1] = bits:bitwise_right_shift(2 * i):bitwise_and(3):bitwise_left_shift(4) end
    local q = low:bitwise_or(cat(tops, 3)):float() - 32
    local scale = part("float16", 1, 208):float() * part("int8", 16, 192):float()
    return (scale:unsqueeze(3) * q:reshape {n, 16, 16}):reshape {n, 256}
  end},
}

local AT_ONCE = 2 ^ 22 -- bytes: what lies between is float32 of some of these

local function expand(source, kind, at, count, what)
  local out = empty({count, kind.elements}, {dtype = "float32", device = "cpu"})
  local step = math.floor(AT_ONCE / kind.bytes)
  for first = 0, count - 1, step do
    local n = math.min(step, count - first)
    local bytes = source:bytes(at + first * kind.bytes, n * kind.bytes)
    local function part(dtype, width, from)
      local item = Source.item_bytes[dtype]
      return source:view(bytes, dtype, {n, width}, {kind.bytes / item, 1}, from, what)
    end
    out:narrow(1, first + 1, n):copy_(kind.expand(part, n))
  end
  return out
end

-- ---- the file

local function read_string(cursor) return cursor:take(cursor:count()) end

local read_value
local DEEPEST, MOST_LISTED = 8, 2 ^ 24

local values = {
  [0] = function(c) return c:unsigned(1) end, [1] = function(c) return c:signed(1) end,
  [2] = function(c) return c:unsigned(2) end, [3] = function(c) return c:signed(2) end,
  [4] = function(c) return c:unsigned(4) end, [5] = function(c) return c:signed(4) end,
  [6] = function(c) return c:float(4) end, [7] = function(c) return c:unsigned(1) ~= 0 end, [8] = read_string,
  [9] = function(c, depth)
    local kind, n, list = c:unsigned(4), c:count(), {}
    if depth > DEEPEST then c.source:malformed("GGUF metadata", "it is nested too deeply") end
    c.listed = (c.listed or 0) + n
    if n > c.source.size - c.at or c.listed > MOST_LISTED then -- each takes a byte or more, and more in memory
      c.source:malformed("GGUF metadata", "list of %.0f entries", n)
    end
    for i = 1, n do list[i] = read_value(c, kind, depth + 1) end
    return list
  end,
  [10] = function(c) return c:unsigned(8) end, [11] = function(c) return c:int64() end,
  [12] = function(c) return c:float(8) end,
}

function read_value(cursor, kind, depth)
  local read = values[kind] or cursor.source:malformed("GGUF metadata", "unknown kind of value %.0f", kind)
  return read(cursor, depth)
end

local function read_entry(cursor)
  local source = cursor.source
  local entry = {name = read_string(cursor), shape = {}}
  local ndim = cursor:unsigned(4)
  if ndim > 8 then
    source:malformed("GGUF header", "'%s' has %.0f dims, at most 8 are allowed", printable_name(entry.name, 100), ndim)
  end
  for d = ndim, 1, -1 do entry.shape[d] = cursor:count() end -- the innermost comes first there
  entry.type, entry.at = cursor:unsigned(4), cursor:count()
  local numel = source:numel(entry.shape, ("'%s'"):format(printable_name(entry.name, 100)))
  local kind = blocks[entry.type]
  if plain[entry.type] then
    entry.bytes = numel * Source.item_bytes[plain[entry.type]]
  elseif kind then
    if (entry.shape[ndim] or 1) % kind.elements ~= 0 then
      source:malformed("GGUF header", "'%s' of shape [%s] does not consist of rows of %d elements, as %s requires",
        printable_name(entry.name, 100), table.concat(entry.shape, ", "), kind.elements, kind.name)
    end
    entry.count = numel / kind.elements
    entry.bytes = entry.count * kind.bytes
  end
  return entry
end

-- Tensors lie apart, in the file.
local function check_ranges(source, entries, data)
  local sorted = {}
  for _, entry in ipairs(entries) do
    if entry.bytes and entry.bytes > 0 then sorted[#sorted + 1] = entry end
  end
  table.sort(sorted, function(a, b) return a.at < b.at end)
  local past = 0
  for _, entry in ipairs(sorted) do
    if entry.at < past or data + entry.at + entry.bytes > source.size then
      source:malformed("GGUF header", "'%s' is at bytes %.0f to %.0f of %.0f, %s", printable_name(entry.name, 100),
        entry.at, entry.at + entry.bytes, math.max(source.size - data, 0),
        entry.at < past and "over another tensor" or "beyond the end of the file")
    end
    past = entry.at + entry.bytes
  end
end

-- The values by key, how many tensors there are, and the cursor behind them.
local function read_header(source)
  local cursor = source:cursor(4)
  local version = cursor:unsigned(4)
  if version ~= 2 and version ~= 3 then
    source:fail("unsupported GGUF version %.0f; supported are little-endian files of versions 2 and 3", version)
  end
  local ntensors, nvalues = cursor:count(), cursor:count()
  if ntensors + nvalues > source.size then source:malformed("GGUF header", "%.0f entries", ntensors + nvalues) end
  local metadata = {}
  for _ = 1, nvalues do
    local key = read_string(cursor)
    if metadata[key] ~= nil then source:malformed("GGUF metadata", "'%s' appears twice", printable_name(key, 100)) end
    metadata[key] = read_value(cursor, cursor:unsigned(4), 1)
  end
  return metadata, ntensors, cursor
end

--- The metadata of the file of that path: values by key.
function gguf.metadata(path)
  return (Source.with(path, {}, read_header))
end

--- {metadata = values by key, tensors = by name}, and a list of those that are of kinds that are not read, whose field
--- `stored` says of tensors that were expanded what they are in the file: {kind = "Q8_0", bytes}.
function gguf.load(source)
  local metadata, ntensors, cursor = read_header(source)
  local entries, taken = {}, {}
  for i = 1, ntensors do
    entries[i] = read_entry(cursor)
    if taken[entries[i].name] then
      source:malformed("GGUF header", "two tensors are named '%s'", printable_name(entries[i].name, 100))
    end
    taken[entries[i].name] = true
  end
  local alignment = metadata["general.alignment"] or 32
  if type(alignment) ~= "number" or alignment < 1 or alignment % 1 ~= 0 or alignment > 2 ^ 32 then
    source:malformed("GGUF metadata", "general.alignment must be an integer of at least 1")
  end
  local data = math.ceil(cursor.at / alignment) * alignment
  check_ranges(source, entries, data)
  local tensors, lacking = {}, {stored = {}}
  for _, entry in ipairs(entries) do
    local what, at = ("'%s'"):format(printable_name(entry.name, 100)), data + entry.at
    if plain[entry.type] then
      if entry.bytes == 0 then at = 0 end
      tensors[entry.name] = source:tensor(plain[entry.type], entry.shape, at, entry.bytes, what)
    elseif entry.count then
      local expanded = expand(source, blocks[entry.type], at, entry.count, what):reshape(entry.shape)
      tensors[entry.name] = source:placed(expanded)
      lacking.stored[tensors[entry.name]] = {kind = blocks[entry.type].name, bytes = entry.bytes}
    else
      lacking[#lacking + 1] = ("%s (%s)"):format(what, names[entry.type] or "kind " .. entry.type)
    end
  end
  return {metadata = metadata, tensors = tensors}, lacking
end

return gguf
