-- Mutated WebPs, GIFs, BMPs and TIFFs.
local bytes = require "scripts.dev.fuzz.bytes"
local lists = require "luminary.base.lists"
local image = require "scripts.dev.fuzz.image"
local replace, little_endian, damage, flip, cut, pick, random =
  bytes.replace, bytes.little_endian, bytes.damage, bytes.flip, bytes.cut, bytes.pick, math.random

-- Numbers that are next to a limit, or small.
local function number(size)
  local all = { 0, 1, 2, random(80), random(80), random(80), 255, 256, 65535, 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32 - 1 }
  return little_endian(pick(all) % 256 ^ size, size)
end

local function overwrite(text, at, size) return replace(text, at, at + size - 1, number(size)) end

-- Changes a file, whose header ends before byte `first`; own(text) changes what only this format has.
local function change(text, first, own)
  local kind = random(12)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  if kind == 3 then return flip(text, 1, first) end
  if kind == 4 then return overwrite(text, random(#text - 4), pick { 2, 4 }) end
  if kind <= 7 then return own(text) end
  if kind == 8 then return text:sub(1, random(first, #text)) end
  if kind == 9 then return text .. text:sub(random(#text)) end
  for _ = 1, random(4) do text = pick { damage, flip }(text, math.min(first + random(0, #text), #text - 1)) end
  return text
end

-- Changes type, count or value of an entry of a TIFF's directory.
local function change_tiff(text)
  local at = text:byte(5) + 256 * text:byte(6) + 65536 * text:byte(7)
  local count = (text:byte(at + 1) or 0) + 256 * (text:byte(at + 2) or 0)
  local entry = at + 3 + 12 * (random(math.max(count, 1)) - 1)
  if entry + 11 > #text then return damage(text) end
  local part = pick { { 2, 2 }, { 4, 4 }, { 8, 4 }, { 8, 4 }, { 8, 4 } }
  return overwrite(text, entry + part[1], part[2])
end

-- Changes a frame's rectangle, its flags, or what is before it.
local function change_gif(text)
  local at = text:find(",", 14, true)
  if not at or at + 12 > #text then return damage(text, 14) end
  if random(3) == 1 then return text:sub(1, at - 1) .. text:sub(at, at + 9) .. text:sub(at) end
  if random(2) == 1 then return replace(text, at + 9, at + 9, string.char(random(0, 255))) end
  return overwrite(text, at + pick { 1, 3, 5, 7 }, 2)
end

local function change_bmp(text)
  local at = pick { 11, 15, 19, 19, 23, 29, 31, 47, 55 }
  if at == 29 then text = replace(text, 31, 31, string.char(pick { 0, 0, 1, 2, 3, 6 })) end
  if at == 29 then return replace(text, 29, 29, string.char(pick { 1, 2, 4, 8, 16, 24, 32 })) end
  return overwrite(text, at, 4)
end

-- Changes a chunk's length, or adds a chunk.
local function change_webp(text)
  if random(3) == 1 then return overwrite(text, 17, 4) end
  local at = pick { 13, #text + 1 }
  local chunk = pick { "EXIF", "ALPH", "ANIM", "ANMF", "VP8X", "ICCP", "abcd" }
  local data = bytes.random_bytes(random(0, 30))
  chunk = chunk .. little_endian(#data, 4) .. data .. (#data % 2 == 1 and "\0" or "")
  return text:sub(1, at - 1) .. chunk .. text:sub(at)
end

local list = {}
for ending, row in lists.sorted_pairs {
  webp = { 40, change_webp }, gif = { 14, change_gif }, bmp = { 54, change_bmp }, tiff = { 140, change_tiff },
} do
  local valid = image.files(ending)
  list[#list + 1] = image.format(ending, function()
    local text = pick(valid)
    return change(text, math.min(row[1], #text - 1), row[2])
  end)
end
return list
