--- Reads and writes safetensors files (https://github.com/huggingface/safetensors): tensors by name, and strings by
--- key. Eight bytes, little-endian: the header's length; the header, JSON: {"name": {"dtype", "shape", "data_offsets"},
--- ..., "__metadata__": {string: string}}; then the tensors' bytes without gaps. The string "luminary_crc32c" is a list
--- of checksums: of the other strings, then of each tensor in the order of their bytes.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local safetensors = {}

local dtypes = {
  BOOL = "bool", U8 = "uint8", I8 = "int8", I16 = "int16", U16 = "uint16", I32 = "int32", U32 = "uint32", I64 = "int64",
  U64 = "uint64", F16 = "float16", BF16 = "bfloat16", F32 = "float32", F64 = "float64",
  F8_E4M3 = "float8_e4m3fn", F8_E5M2 = "float8_e5m2", F8_E8M0 = "float8_e8m0fnu", F8_E4M3FNUZ = "float8_e4m3fnuz",
  F8_E5M2FNUZ = "float8_e5m2fnuz",
}
local names_of_dtypes = {}
for name, dtype in pairs(dtypes) do names_of_dtypes[dtype] = name end

-- Limits of a header, as in the reference implementation, and of its JSON, as in core.json_decode.
local MOST_BYTES, MOST_VALUES = 1e8, 2 ^ 22

local CHECKSUMS = "luminary_crc32c"
local MOST_PINNED = 2 ^ 30 -- bytes of pinned memory that a save uses, which stay with the process

local function checksum_of_metadata(metadata)
  local others = lists.copy(metadata)
  others[CHECKSUMS] = nil
  return core.crc32c(json_encode(others), 0)
end

-- Returns the initial checksum of a tensor, before its bytes.
local function checksum_of_entry(name, dtype, shape)
  return core.crc32c(("%s %s [%s]"):format(name, dtype, table.concat(shape, ",")), 0)
end

-- Returns the tensors' order in the file: that of the list of names, but wider elements first, so that each is aligned.
local function order_of(tensors, names, fail_at)
  local by_width, order = {[8] = {}, [4] = {}, [2] = {}, [1] = {}}, {}
  for _, name in ipairs(names) do
    if not core.is_utf8_text(name) then
      fail_at "a tensor's name must be UTF-8 without NUL bytes"
    elseif name == "__metadata__" then
      fail_at "a tensor cannot be named __metadata__"
    end
    local list = by_width[Source.item_bytes[tensors[name].dtype]]
    list[#list + 1] = name
  end
  for _, width in ipairs {8, 4, 2, 1} do lists.append(order, by_width[width]) end
  return order
end

-- Returns the start of a file: the header's length and the header. `who` begins errors.
local function head_of(who, tensors, metadata, order)
  local header, values, at = {}, 0, 0
  if next(metadata) ~= nil then header[1], values = '"__metadata__":' .. json_encode(metadata), 1 end
  for _, name in ipairs(order) do
    local t = tensors[name]
    local shape, stop = t.shape, at + t:numel() * Source.item_bytes[t.dtype]
    header[#header + 1] = ('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%.0f,%.0f]}'):format(json_encode(name),
      names_of_dtypes[t.dtype], table.concat(shape, ","), at, stop)
    at, values = stop, values + 6 + #shape
  end
  local text = "{" .. table.concat(header, ",") .. "}"
  if #text > MOST_BYTES or values >= MOST_VALUES then
    options.fail("%s: the header of %d tensors and other values has %d bytes, more than readers accept; store many "
      .. "numbers in one tensor (lm.tensor, lm.stack)", who, #order, #text)
  end
  text = text .. (" "):rep(-#text % 8)
  return Source.little_endian(#text, 8) .. text
end

--- Writes tensors, by name, and strings by key.
function safetensors.write(path, tensors, metadata, names)
  local order = order_of(tensors, names, function(why) options.fail_in_file(path, why) end)
  for key, value in pairs(metadata) do
    if not core.is_utf8_text(key) or not core.is_utf8_text(value) then
      options.fail_in_file(path, "the metadata must be UTF-8 without NUL bytes")
    end
  end
  local pieces = {head_of("save", tensors, metadata, order)}
  for i, name in ipairs(order) do pieces[i + 1] = tensors[name] end
  core.write_pieces(path, pieces)
end

-- Begins to copy a tensor of a GPU into pinned memory. Returns that, or nil without a GPU or such memory.
local function begin_copy(t)
  if not t.is_cuda then return nil end
  local ok, there = pcall(core.pin_memory, core.ops.empty(t.shape, {dtype = t.dtype}), true)
  return ok and there:copy_(t, {non_blocking = true}) or nil
end

-- Copies tensors to the CPU's memory, by tensor. Those of GPUs are waited for once, together. Tensors on the
-- CPU are copied into one tensor for each dtype, since a large copy bypasses the caches, which the program uses.
local function copies_of(tensors)
  local copies, here, devices, pinned = {}, {}, {}, 0
  for _, t in pairs(tensors) do
    local is_new, bytes = not copies[t], t:numel() * Source.item_bytes[t.dtype]
    local begun = is_new and pinned + bytes <= MOST_PINNED and begin_copy(t)
    if begun then devices[t.device], pinned = true, pinned + bytes end
    copies[t] = copies[t] or begun or t:cpu():contiguous()
    if is_new and copies[t]:data_ptr() == t:data_ptr() then
      here[t.dtype] = here[t.dtype] or {}
      table.insert(here[t.dtype], t)
    end
  end
  for _, list in pairs(here) do
    local flat, at = lists.map(list, function(t) return t:view(-1) end), 1
    local all = core.ops.cat(flat, 1)
    for i, t in ipairs(list) do
      copies[t] = all:narrow(1, at, flat[i]:numel())
      at = at + flat[i]:numel()
    end
  end
  for device in pairs(devices) do core.synchronize(device) end
  return core.keep(copies)
end

--- Writes tensors with checksums, which it adds to metadata. opts: {who, shards = names of shards to keep (files.lua);
--- background, locked, whole, suffix are those of core.background_write}. In the background it writes copies of the
--- tensors; otherwise it copies only tensors on devices and views, one by one. Returns core.background_write's result.
function safetensors.write_checked(path, tensors, metadata, names, opts)
  local order = order_of(tensors, names, function(why) options.fail("%s: %s", opts.who, why) end)
  local written, copies, before = {}, opts.background and copies_of(tensors) or {}, {}
  for i, name in ipairs(order) do
    local t = tensors[name]
    written[i], before[i] = copies[t] or t, checksum_of_entry(name, t.dtype, t.shape)
  end
  local sums = {("%08x"):format(checksum_of_metadata(metadata))}
  for i = 1, #order do sums[i + 1] = "00000000" end
  metadata[CHECKSUMS] = table.concat(sums, " ")
  local head = head_of(opts.who, tensors, metadata, order)
  local _, first = head:find(('"%s":"%s'):format(CHECKSUMS, sums[1]), 1, true)
  return core.background_write(path, head, first + 1, written, before, opts.shards, opts.background, opts.locked,
    opts.who, opts.whole, opts.suffix)
end

local PART = "safetensors header"

-- Reads the header. Returns it, and the offset of the data.
local function read_header(source)
  if source.size < 10 then source:fail("not a safetensors file: it has %d bytes", source.size) end
  local length = Source.unsigned(source:text(0, 8), 1, 8)
  if length > MOST_BYTES or length > source.size - 8 then
    source:fail("not a safetensors file: a header of %.0f bytes in a file of %.0f", length, source.size)
  end
  local text = source:text(8, length)
  if text:sub(1, 1) ~= "{" then source:malformed(PART .. " at byte 8", "it must start with {") end
  if not core.is_utf8_text(text) then source:malformed(PART, "it is not UTF-8 without NUL bytes") end
  return text, 8 + length
end

-- Calls each(name, entry, number of its fields) for the members of the header.
local function walk_header(source, text, each)
  local ok, why = pcall(core.json_decode, text, nil, each)
  if ok then return end
  local byte, reason = why:match "json_decode: malformed JSON at byte (%d+): (.*)"
  if byte then source:malformed(("%s at byte %.0f"):format(PART, byte + 7), "%s", reason) end
  local other = why:match "json_decode: (.*)"
  if other then source:malformed(PART, "%s", other) end
  error(why, 0) -- an error of `each`
end

local function check_metadata(source, metadata)
  if type(metadata) ~= "table" then source:malformed(PART, "__metadata__ must be an object") end
  for key, value in pairs(metadata) do
    if type(key) ~= "string" then source:malformed(PART, "__metadata__ must be an object") end
    if type(value) ~= "string" then
      source:malformed(PART, "__metadata__: '%s' must be a string", printable_name(key, 200))
    end
    if key:find "%z" or value:find "%z" then source:malformed(PART, "a string contains a NUL byte") end
  end
end

local function is_count(v) return type(v) == "number" and v >= 0 and v <= 2 ^ 53 and v % 1 == 0 end

local fields = {dtype = true, shape = true, data_offsets = true}

local function malformed(source, name, format, ...)
  source:malformed(PART, "'%s'" .. format, printable_name(name, 200), ...)
end

-- Checks an entry of the header. Returns its dtype, false if it is unsupported, its shape, and the first and last
-- offset of its bytes in the file. It avoids pairs(), which LuaJIT does not compile.
local function read_entry(source, name, of, members, data)
  if name:find("\0", 1, true) then source:malformed(PART, "a string contains a NUL byte") end
  if type(of) ~= "table" then malformed(source, name, " must be an object") end
  local stored, shape, offsets = of.dtype, of.shape, of.data_offsets
  if type(stored) ~= "string" then malformed(source, name, ": dtype must be a string") end
  if type(shape) ~= "table" or #shape == 0 and next(shape) ~= nil then
    malformed(source, name, ": shape must be a list")
  end
  if #shape > 8 then malformed(source, name, " has more than 8 dims") end
  if type(offsets) ~= "table" or #offsets ~= 2 or not is_count(offsets[1]) or not is_count(offsets[2]) then
    malformed(source, name, ": data_offsets must be two non-negative integers")
  end
  if members ~= 3 then
    for field in pairs(of) do
      if not fields[field] then
        malformed(source, name, " has an unknown field '%s'", printable_name(tostring(field), 60))
      end
    end
  end
  local from, to, dtype, numel = offsets[1], offsets[2], dtypes[stored], 1
  for i = 1, #shape do
    if not is_count(shape[i]) then malformed(source, name, ": shape must be non-negative integers") end
    numel = numel * shape[i]
  end
  if from > to or to > source.size - data then
    malformed(source, name, " is at bytes %.0f to %.0f of %.0f", from, to, source.size - data)
  end
  if dtype and numel * Source.item_bytes[dtype] ~= to - from then
    malformed(source, name, " of shape [%s] and dtype %s does not match its %.0f bytes", table.concat(shape, ", "),
      stored, to - from)
  end
  return dtype or false, shape, data + from, data + to
end

-- Returns the entries' numbers in the order of their bytes, which must fill the file from `at` on exactly.
local function in_order(source, names, first, past, at)
  local order, begins = {}, at
  for i = 1, #names do order[i] = i end
  for i = 2, #names do
    if first[i] < past[i - 1] then -- the header's order differs: sorts
      table.sort(order, function(a, b)
        if first[a] ~= first[b] then return first[a] < first[b] end
        return past[a] < past[b]
      end)
      break
    end
  end
  for _, i in ipairs(order) do
    if first[i] ~= at then
      malformed(source, names[i], " must start at byte %.0f of the data, got %.0f: a gap or an overlap", at - begins,
        first[i] - begins)
    end
    at = past[i]
  end
  if at ~= source.size then
    source:malformed(PART, "the tensors have %.0f bytes, the file has %.0f", at - begins, source.size - begins)
  end
  return order
end

-- Bytes read at once: enough for several threads, and a bound on memory before a move to a device.
local WINDOW = 2 ^ 26

local stored_as = {bool = "uint8"} -- dtypes to check or convert
for dtype, how in pairs(Source.becomes) do stored_as[dtype] = how[1] end

-- Returns the converted tensor of the bytes read, or nil if int64 cannot hold it.
local function finished(source, t, name, dtype, shape)
  local becomes = Source.becomes[dtype]
  if becomes then
    t = becomes[2](t:view {t:numel()})
    if not t then return nil end
    t = t:view(shape)
  end
  if dtype == "bool" then
    source:check_bools(t, ("'%s'"):format(printable_name(name, 200)))
    t = core.view_as(t, "bool", shape, Source.dense_strides(shape), 0)
  end
  return source:placed(t)
end

-- Returns the header's entries, in lists by number; the strings of __metadata__; the offset of the data.
local function read_entries(source)
  local text, data = read_header(source)
  local e = {names = {}, dtype = {}, stored = {}, shape = {}, first = {}, past = {}}
  local numbers, metadata = {}, nil
  walk_header(source, text, function(name, of, members)
    if name == "__metadata__" then
      if metadata then source:malformed(PART, "__metadata__ appears twice") end
      metadata = of
      return check_metadata(source, of)
    end
    if numbers[name] then source:malformed(PART, "two tensors are named '%s'", printable_name(name, 200)) end
    local i = #e.names + 1
    numbers[name], e.names[i] = i, name
    e.dtype[i], e.shape[i], e.first[i], e.past[i] = read_entry(source, name, of, members, data)
    e.stored[i] = of.dtype
  end)
  return e, metadata or {}, data
end

local function damaged(source, what) source:fail("%s does not match its checksum: the file is damaged", what) end

-- Returns the tensors' checksums, by number; nil if the file has none. Compares the checksum of the metadata.
local function read_checksums(source, e, metadata, order)
  local text = metadata[CHECKSUMS]
  if not text then return nil end
  local sums, list, digits = {}, {}, {}
  for sum in text:gmatch "%x%x%x%x%x%x%x%x" do
    list[#list + 1] = tonumber(sum, 16)
    digits[#list] = ("%08x"):format(list[#list])
  end
  if #list ~= #order + 1 then
    source:malformed(PART, "%d checksums for %d tensors and the metadata", #list, #e.names)
  end
  if list[1] ~= checksum_of_metadata(metadata) then damaged(source, "the metadata") end
  if text ~= table.concat(digits, " ") then damaged(source, "the list of checksums") end -- rejects other spaces or case
  for k, i in ipairs(order) do sums[i] = list[k + 1] end
  return sums
end

-- Reads the entries of a window by core.file_read. No closure has the tensors among its upvalues: its compiled code
-- would keep the last file's tensors alive.
local function read_window(source, e, window, tensors, sums, left_out)
  local kinds, shapes, offsets = {}, {}, {}
  for k, i in ipairs(window) do
    kinds[k], shapes[k], offsets[k] = stored_as[e.dtype[i]] or e.dtype[i], e.shape[i], e.first[i]
  end
  for k, t in ipairs(core.file_read(source.file, kinds, shapes, offsets)) do
    local i = window[k]
    local name, dtype, shape = e.names[i], e.dtype[i], e.shape[i]
    if sums and core.crc32c(t, checksum_of_entry(name, dtype, shape)) ~= sums[i] then
      damaged(source, ("'%s'"):format(printable_name(name, 200)))
    end
    tensors[name] = finished(source, t, name, dtype, shape)
    if not tensors[name] then
      left_out[#left_out + 1] = ("'%s' (%s)"):format(printable_name(name, 200), Source.TOO_LARGE)
    end
  end
end

--- Reads a source: returns tensors by name, strings by key, and a list of tensors of unsupported dtypes. Checksums in
--- the file are compared, except those of a mapped file's tensors, which are not read.
function safetensors.read(source)
  local e, metadata, data = read_entries(source)
  local tensors, left_out, window, bytes = {}, {}, {}, 0
  local order = in_order(source, e.names, e.first, e.past, data)
  local sums = read_checksums(source, e, metadata, order)
  if source.opts.mmap then sums = nil end
  for _, i in ipairs(order) do
    local size = e.past[i] - e.first[i]
    if not e.dtype[i] then
      left_out[#left_out + 1] = ("'%s' (%s)"):format(printable_name(e.names[i], 200), printable_name(e.stored[i], 20))
    else
      if window[1] and bytes + size > WINDOW then
        read_window(source, e, window, tensors, sums, left_out)
        window, bytes = {}, 0
      end
      window[#window + 1], bytes = i, bytes + size
    end
  end
  read_window(source, e, window, tensors, sums, left_out)
  return tensors, metadata, left_out
end

--- Returns the metadata of a file, strings by key; its tensors are not read.
function safetensors.metadata(path)
  return Source.with(path, {}, function(source) return (select(2, read_entries(source))) end)
end

return safetensors
