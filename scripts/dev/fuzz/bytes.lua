-- Bytes, and random changes of them, for the formats of scripts/dev/fuzz/files. Random numbers are math.random's.
local bit = require "bit"
local random = math.random

local bytes = {}

--- Returns one of a list.
function bytes.pick(list) return list[random(#list)] end
local pick = bytes.pick

function bytes.little_endian(n, size)
  local out = {}
  for i = 1, size do out[i], n = string.char(n % 256), math.floor(n / 256) end
  return table.concat(out)
end

function bytes.big_endian(n) return bytes.little_endian(n, 4):reverse() end

local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = bit.bxor(bit.rshift(c, 1), bit.band(c, 1) == 1 and 0xedb88320 or 0) end
  crc_table[i] = c
end

function bytes.crc32(text)
  local c = -1
  for i = 1, #text do c = bit.bxor(bit.rshift(c, 8), crc_table[bit.band(bit.bxor(c, text:byte(i)), 255)]) end
  return bit.bnot(c) % 2 ^ 32
end

-- Returns a gzip file (RFC 1952) with one stored block: at most 65535 bytes.
function bytes.gzip_stored(text)
  local n = #text
  return "\31\139\8\0\0\0\0\0\0\3\1" .. bytes.little_endian(n, 2) .. bytes.little_endian(65535 - n, 2) .. text
    .. bytes.little_endian(bytes.crc32(text), 4) .. bytes.little_endian(n, 4)
end

function bytes.replace(text, from, to, with) return text:sub(1, from - 1) .. with .. text:sub(to + 1) end

-- Bits flipped, bytes cut, repeated, overwritten between two positions.
function bytes.damage(text, from, to)
  from, to = from or 1, math.min(to or #text, #text)
  if to < from then return text .. string.char(random(0, 255)) end
  for _ = 1, random(3) do
    local at = random(from, to)
    local kind = random(5)
    if kind <= 3 then
      text = bytes.replace(text, at, at, string.char(bit.bxor(text:byte(at) or 0, bit.lshift(1, random(0, 7)))))
    elseif kind == 4 then
      text = bytes.replace(text, at, at, string.char(random(0, 255)))
    else
      text = bytes.replace(text, at, math.min(at + random(0, 8), to), text:sub(from, from + random(0, 8)))
    end
  end
  return text
end

-- Bits flipped and bytes overwritten between two positions: nothing moves.
function bytes.flip(text, from, to)
  to = math.min(to or #text, #text)
  if to < (from or 1) then return text end
  for _ = 1, random(3) do
    local at = random(from or 1, to)
    local c = random(3) == 1 and random(0, 255) or bit.bxor(text:byte(at), bit.lshift(1, random(0, 7)))
    text = bytes.replace(text, at, at, string.char(c))
  end
  return text
end

-- Returns a little-endian NaN of 4 or 8 bytes whose bits LuaJIT, without a check, takes for another value, such as a
-- table at an address.
function bytes.forged(size)
  return bytes.random_bytes(size - 2) .. string.char(random(0xf8, 0xff)) .. "\255"
end

-- Writes such a NaN somewhere between two positions; half of them where one of 4 or 8 bytes may begin.
function bytes.forge(text, from, to)
  from = from or 1
  local size = pick {4, 8}
  local most = math.min(to or #text, #text) - size + 1
  if most < from then return text end
  local at = random(from, most)
  if random(2) == 1 then at = from + math.floor((at - from) / 4) * 4 end
  return bytes.replace(text, at, at + size - 1, bytes.forged(size))
end

function bytes.cut(text) return text:sub(1, random(0, #text)) end

-- Replaces one match of a pattern in a text by a string, or by the result of a function of the match.
function bytes.replace_one(text, pattern, with)
  local matches, at = {}, 1
  while true do
    local from, to = text:find(pattern, at)
    if not from or to < from then break end
    matches[#matches + 1] = { from, to }
    at = to + 1
  end
  if #matches == 0 then return text end
  local from, to = unpack(pick(matches))
  return bytes.replace(text, from, to, type(with) == "function" and with(text:sub(from, to)) or with)
end

function bytes.random_bytes(n)
  local out = {}
  for i = 1, n do out[i] = string.char(random(0, 255)) end
  return table.concat(out)
end

return bytes
