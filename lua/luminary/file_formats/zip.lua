--- Reads and writes zip archives (PKWARE's APPNOTE 6.3): entries stored or deflated, zip64. Nothing is unpacked to
--- disk; names are not paths. Entries must not overlap, so that an archive unfolds to at most 1032 times the file.
local core = require "luminary.core"
local printable_name = require "luminary.base.printable_name"
local options = require "luminary.base.options"
local Source = require "luminary.file_formats.source"
local unsigned, little_endian = Source.unsigned, Source.little_endian

local zip = {}
local Zip = {}
Zip.__index = Zip

local HALF, WORD = 0xffff, 0xffffffff -- all ones: the value is in the zip64 field

-- Returns the position and size of the central directory, and the number of entries.
local function find_directory(source)
  local n = math.min(source.size, 22 + HALF)
  local tail, from = source:text(source.size - n, n), source.size - n
  for i = #tail - 21, 1, -1 do
    if tail:sub(i, i + 3) == "PK\5\6" and unsigned(tail, i + 20, 2) == #tail - i - 21 then
      local place = from + i - 1
      local count, size, at = unsigned(tail, i + 10, 2), unsigned(tail, i + 12, 4), unsigned(tail, i + 16, 4)
      local disks = unsigned(tail, i + 4, 2) + unsigned(tail, i + 6, 2)
      if count == HALF or size == WORD or at == WORD then
        local locator = place >= 20 and source:text(place - 20, 20) or ""
        if locator:sub(1, 4) == "PK\6\7" then
          local cursor = source:cursor(unsigned(locator, 9, 8))
          if cursor:take(4) ~= "PK\6\6" then
            source:malformed("zip archive", "no zip64 directory at its locator")
          end
          cursor:take(28)
          count, size, at = cursor:count(), cursor:count(), cursor:count()
        end
      elseif disks ~= 0 then
        source:fail "archives of several disks are not supported"
      end
      if at + size > place then source:malformed("zip archive", "the directory reaches beyond its end") end
      return at, size, count
    end
  end
  source:malformed("zip archive", "it has no directory at its end; is it truncated?")
end

-- Reads the sizes and positions in the zip64 field, for fields that are all ones.
local function read_zip64(source, extra, entry)
  local i = 1
  while i + 3 <= #extra do
    local kind, n = unsigned(extra, i, 2), unsigned(extra, i + 2, 2)
    if kind == 1 then
      local field, at = extra:sub(i + 4, i + 3 + n), 1
      for _, name in ipairs {"size", "packed", "at"} do
        if entry[name] == WORD then
          if at + 7 > #field then source:malformed("zip archive", "the zip64 field of an entry is too short") end
          entry[name], at = unsigned(field, at, 8), at + 8
        end
      end
      return
    end
    i = i + 4 + n
  end
end

local function read_entry(source, cursor)
  local head = cursor:take(46)
  if head:sub(1, 4) ~= "PK\1\2" then source:malformed("zip archive", "a directory entry does not start with PK") end
  local entry = {
    flags = unsigned(head, 9, 2), method = unsigned(head, 11, 2), crc = unsigned(head, 17, 4),
    packed = unsigned(head, 21, 4), size = unsigned(head, 25, 4), at = unsigned(head, 43, 4),
  }
  entry.name = cursor:take(unsigned(head, 29, 2))
  read_zip64(source, cursor:take(unsigned(head, 31, 2)), entry)
  cursor:take(unsigned(head, 33, 2))
  return entry
end

-- Fails unless each entry ends before the next begins.
local function check_apart(source, entries, directory)
  local sorted = {}
  for i, entry in ipairs(entries) do sorted[i] = entry end
  table.sort(sorted, function(a, b) return a.at < b.at end)
  for i, entry in ipairs(sorted) do
    entry.limit = sorted[i + 1] and sorted[i + 1].at or directory
    if entry.at + 30 + #entry.name + entry.packed > entry.limit then
      source:malformed("zip archive", "entry '%s' overlaps what follows", printable_name(entry.name, 100))
    end
  end
end

--- Opens the archive in a source: {entries = list of {name, size, packed}, by = by name}.
function zip.open(source)
  local at, size, count = find_directory(source)
  if count * 46 > size then
    source:malformed("zip archive", "a directory of %.0f bytes cannot have %.0f entries", size, count)
  end
  local archive = setmetatable({source = source, entries = {}, by = {}}, Zip)
  local cursor = source:part(at, size, source.path):cursor(0)
  for i = 1, count do
    local entry = read_entry(source, cursor)
    if archive.by[entry.name] then
      source:malformed("zip archive", "two entries are named '%s'", printable_name(entry.name, 100))
    end
    archive.entries[i], archive.by[entry.name] = entry, entry
  end
  check_apart(source, archive.entries, at)
  return archive
end

-- Returns the position of an entry's bytes.
local function find_data(source, entry)
  local name = printable_name(entry.name, 100)
  local head = source:text(entry.at, 30)
  if head:sub(1, 4) ~= "PK\3\4" then
    source:malformed("zip archive", "entry '%s' is not where the directory says", name)
  end
  local length, extra = unsigned(head, 27, 2), unsigned(head, 29, 2)
  local begins = entry.at + 30 + length + extra
  if source:text(entry.at + 30, length) ~= entry.name or unsigned(head, 9, 2) ~= entry.method then
    source:malformed("zip archive", "entry '%s' has another name in the directory", name)
  end
  if entry.flags % 2 == 1 then source:fail("entry '%s' is encrypted, which is not supported", name) end
  if begins + entry.packed > entry.limit then
    source:malformed("zip archive", "entry '%s' overlaps what follows", name)
  end
  if entry.method ~= 0 and entry.method ~= 8 then
    source:fail("entry '%s' uses compression method %d; supported are 0 (stored) and 8 (deflate)", name, entry.method)
  end
  if entry.method == 0 and entry.packed ~= entry.size then
    source:malformed("zip archive", "entry '%s' is stored in %.0f bytes but has %.0f", name, entry.packed, entry.size)
  end
  return begins
end

--- Returns an entry's bytes, uint8 [n]. Compares its checksum, except for a stored entry of a mapped file.
function Zip:bytes(entry)
  local source, at = self.source, find_data(self.source, entry)
  if entry.method == 0 and source.opts.mmap then return source:bytes(at, entry.size) end
  local bytes = entry.method == 0 and source:bytes(at, entry.size)
    or core.file_inflate(source.file, at, entry.packed, entry.size, false)
  if core.crc32(bytes, 0) ~= entry.crc then
    source:malformed("zip archive", "entry '%s' has a wrong checksum", printable_name(entry.name, 100))
  end
  return bytes
end

--- Returns the first n bytes of an entry, or all if it has fewer, as a source; nothing is checked.
function Zip:start(entry, n)
  local source, at = self.source, find_data(self.source, entry)
  n = math.min(n, entry.size)
  local bytes = entry.method == 0 and source:bytes(at, n) or core.file_inflate(source.file, at, entry.packed, n, true)
  return Source.over(bytes, ("%s: %s"):format(source.path, printable_name(entry.name, 100)), source.opts)
end

--- Returns an entry as a source.
function Zip:read(entry)
  return Source.over(self:bytes(entry), ("%s: %s"):format(self.source.path, printable_name(entry.name, 100)),
    self.source.opts)
end

-- ---- writing

local NO_DATE = "\0\0\33\0" -- January 1, 1980, so that equal values yield equal files

-- Returns a field: WORD if the value is too large, which is then appended to `wide`, the zip64 field.
local function word_field(value, wide)
  if value < WORD then return little_endian(value, 4) end
  wide[#wide + 1] = little_endian(value, 8)
  return little_endian(WORD, 4)
end

local function zip64_field(wide)
  local text = table.concat(wide)
  return text == "" and "" or "\1\0" .. little_endian(#text, 2) .. text
end

-- Returns the total size and checksum of a sequence of strings and tensors.
local function sum_up(pieces)
  local bytes, sum = 0, 0
  for _, piece in ipairs(pieces) do
    if type(piece) == "string" then piece = core.bytes_tensor(piece) end
    bytes, sum = bytes + piece:numel() * Source.item_bytes[piece.dtype], core.crc32(piece, sum)
  end
  return bytes, little_endian(sum, 4)
end

--- Writes {name, list of strings and of contiguous tensors on the CPU} one after another, stored, each beginning at a
--- multiple of `align` bytes if that is given.
function zip.write(path, entries, align)
  local pieces, directory, at = {}, {}, 0
  for _, entry in ipairs(entries) do
    local name = entry[1]
    if #name > HALF then
      options.fail("save: the name '%s' is too long for a zip archive", printable_name(name, 100))
    end
    local bytes, sum = sum_up(entry[2])
    local wide = {}
    local sizes = word_field(bytes, wide) .. word_field(bytes, wide)
    if #wide == 1 then wide[2] = wide[1] end
    local extra = zip64_field(wide)
    local gap = align and (-(at + 30 + #name + #extra + 4)) % align
    if gap then extra = extra .. "FB" .. little_endian(gap, 2) .. ("Z"):rep(gap) end
    local version = #wide > 0 and "\45\0" or "\20\0"
    local head = version .. "\0\8\0\0" .. NO_DATE .. sum .. sizes .. little_endian(#name, 2)
    local place = word_field(at, wide)
    local field = zip64_field(wide)
    pieces[#pieces + 1] = "PK\3\4" .. head .. little_endian(#extra, 2) .. name .. extra
    directory[#directory + 1] = "PK\1\2" .. "\45\0" .. head .. little_endian(#field, 2) .. ("\0"):rep(10) .. place
      .. name .. field
    at = at + #pieces[#pieces] + bytes
    for _, piece in ipairs(entry[2]) do pieces[#pieces + 1] = piece end
  end
  local list, n = table.concat(directory), #entries
  local wide = at >= WORD or #list >= WORD or n >= HALF
  pieces[#pieces + 1] = list
  if wide then
    pieces[#pieces + 1] = "PK\6\6" .. little_endian(44, 8) .. "\45\0\45\0" .. ("\0"):rep(8)
      .. little_endian(n, 8):rep(2) .. little_endian(#list, 8) .. little_endian(at, 8)
      .. "PK\6\7\0\0\0\0" .. little_endian(at + #list, 8) .. "\1\0\0\0"
  end
  pieces[#pieces + 1] = "PK\5\6\0\0\0\0" .. little_endian(math.min(n, HALF), 2):rep(2)
    .. little_endian(wide and WORD or #list, 4) .. little_endian(wide and WORD or at, 4) .. "\0\0"
  core.write_pieces(path, pieces)
end

return zip
