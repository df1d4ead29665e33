-- Mutated JPEGs.
local bytes = require "scripts.dev.fuzz.bytes"
local image = require "scripts.dev.fuzz.image"
local replace, damage, cut, pick, random = bytes.replace, bytes.damage, bytes.cut, bytes.pick, math.random

-- Returns the segments of a JPEG up to its first scan, each its bytes, and the rest.
local function segments_of(text)
  local list, at = {}, 3
  while true do
    local marker, length = text:byte(at + 1), text:byte(at + 2) * 256 + text:byte(at + 3)
    if marker == 0xda then return list, text:sub(at) end
    list[#list + 1] = text:sub(at, at + 1 + length)
    at = at + 2 + length
  end
end

local function is_frame(segment) return segment:byte(2) >= 0xc0 and segment:byte(2) <= 0xc2 end

local function big_endian_16(n) return string.char(math.floor(n / 256), n % 256) end

local other_segments = {
  "\255\221\0\4\0\1", "\255\221\0\4\0\0", "\255\254\0\5abc", "\255\238\0\14Adobe\0\100\0\0\0\0\0",
  "\255\238\0\14Adobe\0\100\0\0\0\0\2",
  "\255\224\0\16JFIF\0\1\1\0\0\1\0\1\0\0", "\255\220\0\4\0\16", "\255\204\0\4\0\16",
  "\255\225\0\8Exif\0\0", "\255\255", "\0\0\0",
  "\255\225\0\34Exif\0\0MM\0*\0\0\0\8\0\1\1\18\0\3\0\0\0\1\0\8\0\0\0\0\0\0",
}
local markers = {
  "\255\208", "\255\211", "\255\215", "\255\217", "\255\0", "\255\255", "\255\218", "\255\196", "\255\216",
}

local function change_jpeg(text)
  local kind = random(16)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  local segments, scan = segments_of(text)
  if kind <= 7 then -- the pixels' data, of one scan or more
    local from = random(2) == 1 and 12 or math.max(12, math.floor(#scan * math.random()))
    scan = damage(scan, from)
    if kind == 7 then scan = cut(scan) end
  elseif kind <= 9 then
    local at = random(11, #scan)
    scan = scan:sub(1, at) .. pick(markers) .. scan:sub(at + 1)
  elseif kind == 10 then
    scan = damage(scan, 1, 12)
  elseif kind <= 12 then -- sizes, or how chroma is sampled
    for i, segment in ipairs(segments) do
      if is_frame(segment) and kind == 11 then
        segments[i] = replace(segment, 6, 9, big_endian_16(random(80)) .. big_endian_16(random(80)))
      elseif is_frame(segment) then
        local at = 12 + 3 * (random(segment:byte(10)) - 1)
        segments[i] = replace(segment, at, at, string.char(random(4) * 16 + random(4)))
      end
    end
  elseif kind == 13 then
    table.insert(segments, random(#segments), pick(other_segments))
  elseif kind == 14 then
    local i = random(#segments)
    segments[i] = damage(segments[i], 5)
  elseif kind == 15 then
    table.insert(segments, random(#segments), pick(segments))
    if random(3) == 1 then table.remove(segments, random(#segments)) end
  else
    local from, to = random(#segments), random(#segments)
    segments[from], segments[to] = segments[to], segments[from]
  end
  return "\255\216" .. table.concat(segments) .. scan
end

local valid = image.files "jpg"
return image.format("jpeg", function() return change_jpeg(pick(valid)) end)
