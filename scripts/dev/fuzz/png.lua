-- Mutated PNGs.
local bytes = require "scripts.dev.fuzz.bytes"
local image = require "scripts.dev.fuzz.image"
local big_endian, replace, crc32, random_bytes, damage, cut, pick, random =
  bytes.big_endian, bytes.replace, bytes.crc32, bytes.random_bytes, bytes.damage, bytes.cut, bytes.pick, math.random

-- A PNG as its chunks, each {kind, data}, and back, with sums that are right.
local PNG = "\137PNG\r\n\26\n"

local function from_big_endian(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function chunks_of(text)
  local list, at = {}, #PNG + 1
  while at + 11 <= #text do
    local length = from_big_endian(text, at)
    list[#list + 1] = { text:sub(at + 4, at + 7), text:sub(at + 8, at + 7 + length) }
    at = at + 12 + length
  end
  return list
end

local function png_of(chunks)
  local out = { PNG }
  for _, chunk in ipairs(chunks) do
    local body = chunk[1] .. chunk[2]
    out[#out + 1] = big_endian(#chunk[2]) .. body .. big_endian(crc32(body))
  end
  return table.concat(out)
end

local function adler32(text)
  local a, b = 1, 0
  for i = 1, #text do
    a = (a + text:byte(i)) % 65521
    b = (b + a) % 65521
  end
  return b * 65536 + a
end

-- Returns a zlib stream (RFC 1950) with one stored block: at most 65535 bytes.
local function zlib_stored(text)
  return "\120\1\1" .. bytes.little_endian(#text, 2) .. bytes.little_endian(65535 - #text, 2) .. text
    .. big_endian(adler32(text))
end

local function find_chunk(chunks, kind)
  for i, chunk in ipairs(chunks) do
    if chunk[1] == kind then return i end
  end
end

local depths = { 1, 2, 4, 8, 16 }
local other_chunks = {
  { "tRNS", "\0\1" }, { "tRNS", "\0\1\0\2\0\3" }, { "gAMA", "\0\0\177\143" }, { "PLTE", "abcdefghi" },
  { "iCCP", "x\0\0x" },
  { "tEXt", "Title\0x" }, { "zTXt", "Title\0\0x" }, { "eXIf", "MM\0*\0\0\0\8\0\1\1\18\0\3\0\0\0\1\0\6\0\0\0\0\0\0" },
  { "sBIT", "\4\4\4" }, { "bKGD", "\0\1" }, { "hIST", "\0\1\0\2" }, { "sRGB", "\0" }, { "cHRM", ("\0\0\1\1"):rep(8) },
  { "IDAT", "" }, { "IEND", "" }, { "fdAT", "abcd" }, { "abcd", "" },
}

local function change_png(text)
  local kind = random(16)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  local chunks = chunks_of(text)
  local header, data = chunks[1], assert(find_chunk(chunks, "IDAT"))
  if kind == 3 then
    header[2] = damage(header[2])
  elseif kind <= 5 then
    header[2] = replace(header[2], 1, 8, big_endian(random(80)) .. big_endian(random(80)))
  elseif kind <= 7 then -- another kind of pixels
    header[2] = replace(header[2], 9, 10, string.char(pick(depths), pick { 0, 2, 3, 4, 6 }))
    if random(2) == 1 then header[2] = replace(header[2], 13, 13, string.char(random(0, 1))) end
  end
  if kind >= 7 and kind <= 10 then -- pixels of all sorts, or too many or too few of them
    local pixels = random_bytes(random(0, 3000))
    if random(2) == 1 then pixels = pixels:gsub(".", function(c) return string.char(c:byte() % 5) end) end
    chunks[data][2] = zlib_stored(pixels)
  elseif kind <= 12 then
    chunks[data][2] = pick { damage, cut }(chunks[data][2])
  end
  if kind == 13 then -- in pieces
    local whole, at = table.remove(chunks, data)[2], 1
    while at <= #whole do
      local n = random(0, 40)
      table.insert(chunks, data, { "IDAT", whole:sub(at, at + n) })
      data, at = data + 1, at + n + 1
    end
  elseif kind == 14 then
    table.insert(chunks, random(2, #chunks), pick(other_chunks))
    if random(2) == 1 then table.insert(chunks, random(2, #chunks), pick(other_chunks)) end
  elseif kind == 15 then
    local chunk = chunks[random(2, #chunks)]
    chunk[2] = pick { damage, cut }(chunk[2])
  elseif kind == 16 then
    local from, to = random(2, #chunks), random(2, #chunks)
    chunks[from], chunks[to] = chunks[to], chunks[from]
  end
  return png_of(chunks)
end

local valid = image.files "png"
return image.format("png", function() return change_png(pick(valid)) end)
