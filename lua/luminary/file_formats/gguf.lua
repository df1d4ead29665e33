--- Reads GGUF, versions 2 and 3, and writes version 3
--- (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors; quantized ones become float32
--- when read, or stay blocks.
local ffi = require "ffi"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local read_file = require "luminary.base.read_file"
local block_kinds = require "luminary.block_kinds"
local others = require "luminary.file_formats.gguf_blocks"
local Source = require "luminary.file_formats.source"

local gguf = {}
local empty = core.ops.empty

--- Returns true if path is a GGUF file.
function gguf.is(path) return core.file_kind(path) == "a regular file" and read_file(path, 4) == "GGUF" end

local plain = {
  [0] = "float32", [1] = "float16", [24] = "int8", [25] = "int16", [26] = "int32", [27] = "int64", [28] = "float64",
  [30] = "bfloat16",
}
-- Unsupported kinds: one of intermediate results, two that few programs know, and repacked ones of old files.
local names = {
  [4] = "Q4_2", [5] = "Q4_3", [9] = "Q8_1", [31] = "Q4_0_4_4", [32] = "Q4_0_4_8", [33] = "Q4_0_8_8",
  [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [41] = "Q1_0",
}

local AT_ONCE = 2 ^ 22 -- elements in one step; each takes several floats meanwhile

-- Returns the row of a kind of blocks: of luminary.block_kinds, whose blocks ops know, or with `expand`.
local function kind_of(number) return block_kinds.by_number[number] or others[number] end

-- Returns the elements of `count` blocks of a kind with `expand`, as float32.
local function expand(source, kind, at, count, what)
  local out = empty({count, kind.elements}, {dtype = "float32", device = "cpu"})
  local step = math.floor(AT_ONCE / kind.elements)
  for first = 0, count - 1, step do
    local n = math.min(step, count - first)
    local bytes = source:bytes(at + first * kind.bytes, n * kind.bytes)
    local function part_of_blocks(dtype, width, from)
      local item = Source.item_bytes[dtype]
      return source:view(bytes, dtype, {n, width}, {kind.bytes / item, 1}, from, what)
    end
    out:narrow(1, first + 1, n):copy_(kind.expand(part_of_blocks, n):reshape(n, kind.elements))
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
    if n > c.source.size - c.at or c.listed > MOST_LISTED then -- each entry takes a byte or more, and more in memory
      c.source:malformed("GGUF metadata", "list of %.0f entries", n)
    end
    for i = 1, n do list[i] = read_value(c, kind, depth + 1) end
    return list
  end,
  [10] = function(c)
    local value = c:int64()
    return type(value) == "number" and value >= 0 and value or ffi.cast("uint64_t", ffi.cast("int64_t", value))
  end,
  [11] = function(c) return c:int64() end,
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
  for d = ndim, 1, -1 do entry.shape[d] = cursor:count() end -- the innermost is first in the file
  entry.type, entry.at = cursor:unsigned(4), cursor:count()
  local numel = source:numel(entry.shape, ("'%s'"):format(printable_name(entry.name, 100)))
  local kind = kind_of(entry.type)
  if plain[entry.type] then
    entry.bytes = numel * Source.item_bytes[plain[entry.type]]
  elseif kind then
    if (entry.shape[ndim] or 1) % kind.elements ~= 0 then
      source:malformed("GGUF header", "'%s' of shape [%s] does not consist of rows of %d elements, as %s requires",
        printable_name(entry.name, 100), table.concat(entry.shape, ", "), kind.elements, kind.name:upper())
    end
    entry.count = numel / kind.elements
    entry.bytes = entry.count * kind.bytes
  end
  return entry
end

-- Checks that tensors are in the file and do not overlap.
local function check_ranges(source, entries, data)
  local sorted = lists.filter(entries, function(entry) return entry.bytes and entry.bytes > 0 end)
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

-- Reads the values by key. Returns them, the number of tensors, and the cursor behind them.
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

--- Returns the metadata of the file at a path: values by key.
function gguf.metadata(path)
  return (Source.with(path, {}, read_header))
end

--- Returns {metadata = values by key, tensors = by name}, and a list of the tensors of unsupported kinds; its field
--- `stored` maps an expanded tensor to its form in the file: {kind = "Q8_0", bytes}. With the option keep_blocks
--- matrices of kinds of luminary.block_kinds are {kind = its name, blocks = uint8 [..., rows, bytes of a row]} instead.
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
      local kind = kind_of(entry.type)
      local blocks = not kind.expand and source:bytes(at, entry.bytes)
      if blocks and source.opts.keep_blocks and #entry.shape > 1 then
        local shape = lists.copy(entry.shape)
        shape[#shape] = -1
        tensors[entry.name] = {kind = kind.name, blocks = source:placed(blocks:view(shape))}
      else
        local elements = blocks and core.ops.expand_blocks(blocks, kind.name)
          or expand(source, kind, at, entry.count, what)
        tensors[entry.name] = source:placed(elements:reshape(entry.shape))
        lacking.stored[tensors[entry.name]] = {kind = kind.name:upper(), bytes = entry.bytes}
      end
    else
      lacking[#lacking + 1] = ("%s (%s)"):format(what, names[entry.type] or "kind " .. entry.type)
    end
  end
  return {metadata = metadata, tensors = tensors}, lacking
end

-- ---- writing

local little_endian = Source.little_endian
local numbers = {} -- GGUF's, by dtypes
for number, dtype in pairs(plain) do numbers[dtype] = number end

local function text(s) return little_endian(#s, 8) .. s end

-- Returns true for a key whose numbers are float32, as readers expect also of whole numbers.
local function is_floating(key)
  return key:find "epsilon$" or key:find "freq_base" or key:find "factor$" or key:find "softcapping$"
    or key:find "scores$"
end

-- Returns the number of a value's kind and its bytes. In lists all numbers have the same kind.
local function value_of(path, key, v, in_list)
  if type(v) == "string" then
    return 8, text(v)
  elseif type(v) == "boolean" then
    return 7, v and "\1" or "\0"
  elseif type(v) == "number" and (is_floating(key) or v % 1 ~= 0) then
    return 6, ffi.string(ffi.new("float[1]", v), 4)
  elseif type(v) == "number" and v >= -2 ^ 31 and v < 2 ^ 63 then
    if v >= 2 ^ 32 or in_list and v >= 2 ^ 31 then return 10, little_endian(v, 8) end
    return (in_list or v < 0) and 5 or 4, little_endian(v % 2 ^ 32, 4)
  elseif type(v) == "table" then
    local kind, parts = 8, {}
    for i, each in ipairs(v) do
      local own, bytes = value_of(path, key, each, true)
      if i > 1 and own ~= kind then options.fail_in_file(path, "metadata: the entries of '%s' differ in kind", key) end
      kind, parts[i] = own, bytes
    end
    return 9, little_endian(kind, 4) .. little_endian(#v, 8) .. table.concat(parts)
  end
  options.fail_in_file(path, "metadata: '%s' must be text, a boolean, a number or a list", key)
end

--- Returns the kind of blocks or the dtype of a tensor that `save` takes, its shape, and the tensor that is written, or
--- a function that returns it.
function gguf.described(t)
  if core.is_tensor(t) then return t.dtype, t.shape, t:detach() end
  local shape, row = lists.copy(t.shape or t.blocks.shape), block_kinds[t.kind]
  if not t.shape then shape[#shape] = shape[#shape] / row.bytes * row.elements end
  return t.kind, shape, t.make or t.blocks
end

--- Writes {metadata = values by key, tensors = by name}. A tensor may be {kind, blocks}, as load returns it, or {kind =
--- that of blocks or a dtype, shape, make}: make() returns it, as uint8 for blocks, when it is its turn.
function gguf.save(path, file)
  local metadata, tensors, head, pieces, at = file.metadata, file.tensors, {}, {false}, 0
  local alignment = metadata["general.alignment"] or 32
  local keys, order = lists.sorted_keys(metadata), lists.sorted_keys(tensors)
  for _, key in ipairs(keys) do
    local kind, bytes = value_of(path, key, metadata[key])
    head[#head + 1] = text(key) .. little_endian(kind, 4) .. bytes
  end
  for _, name in ipairs(order) do
    local kind, shape, piece = gguf.described(tensors[name])
    local row = block_kinds[kind]
    local number = row and row.number or numbers[kind]
      or options.fail_in_file(path, "'%s' is %s, which GGUF does not have", name, kind)
    head[#head + 1] = text(name) .. little_endian(#shape, 4)
    for d = #shape, 1, -1 do head[#head + 1] = little_endian(shape[d], 8) end
    head[#head + 1] = little_endian(number, 4) .. little_endian(at, 8)
    local size = lists.product(shape) * (row and row.bytes / row.elements or Source.item_bytes[kind])
    lists.append(pieces, {piece, ("\0"):rep(-size % alignment)})
    at = at + size + -size % alignment
  end
  pieces[1] = "GGUF" .. little_endian(3, 4) .. little_endian(#order, 8) .. little_endian(#keys, 8) .. table.concat(head)
  pieces[1] = pieces[1] .. ("\0"):rep(-#pieces[1] % alignment)
  local ok, why = pcall(core.write_pieces, path, pieces) -- an error in a piece has two positions
  if not ok then options.fail("%s", options.without_position(options.without_position(why))) end
end

return gguf
