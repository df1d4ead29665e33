--- Expands the blocks of GGUF's quantized tensors (ggml's ggml-quants.c) to float32.
---
--- A kind's expand(part, n) returns the elements of n blocks, [n, elements] or that number in another shape.
--- part(dtype, count, at) returns elements of each block from byte `at` on, [n, count].
local core = require "luminary.core"

local ops = core.ops

-- ---- bits

-- Returns the fields of `width` bits of each byte, the lowest first, along a new dim.
local function fields(x, width, dim)
  local list = {}
  for at = 0, 8 - width, width do
    list[#list + 1] = x:bitwise_right_shift(at):bitwise_and(2 ^ width - 1)
  end
  return ops.stack(list, dim)
end

-- Returns fields of `width` bits of integers, from each of `shifts` on, along a new last dim.
local function bits_at(x, width, ...)
  local list = {}
  for i, at in ipairs {...} do list[i] = x:bitwise_right_shift(at):bitwise_and(2 ^ width - 1) end
  return ops.stack(list, x.ndim + 1)
end

local function join_bits(low, high, at) return low:bitwise_or(high:reshape(low.shape):bitwise_left_shift(at)) end

local function half(part, at) return part("float16", 1, at):float() end
local function bytes(part, count, at) return part("uint8", count, at) end
local function words(part, count, at) return part("uint16", count, at):int() end

-- Returns 32-bit integers, stored as pairs of 16 bits, as int64.
local function long_words(part, count, at)
  local pairs_of = words(part, 2 * count, at):long():reshape {-1, count, 2}
  return join_bits(pairs_of:select(3, 1), pairs_of:select(3, 2), 16)
end

-- ---- values

-- Returns the rows of a table at indices from 0; the shape is that of index followed by that of a row.
local function looked_up(rows, index)
  local shape = index.shape
  for i = 2, rows.ndim do shape[#shape + 1] = rows.shape[i] end
  return rows:index_select(1, index:reshape(-1):long() + 1):reshape(shape)
end

-- Returns scale [n, groups] times the values of each group.
local function scaled(scale, values)
  local n, groups = unpack(scale.shape)
  return scale:unsqueeze(3) * values:reshape(n, groups, -1):float()
end

local constants = {}

-- Returns the list make(name) as float32. The list is made once.
local function constant(make, name)
  local key = name or make
  constants[key] = constants[key] or make(name)
  return core.tensor(constants[key], {dtype = "float32"})
end

local function uneven_values()
  return {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
end

-- Returns twice the values of E2M1: 1 sign bit, 2 exponent bits, 1 mantissa bit.
local function e2m1_values() return {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} end

-- Returns half the values of the exponent E8M0.
local function e8m0_values()
  local list = {}
  for i = 0, 255 do list[i + 1] = 2 ^ (i - 128) end
  return list
end

-- Returns half the values of E4M3 without a sign; NaN is 0.
local function e4m3_values()
  local list = {}
  for i = 0, 255 do
    local exponent, mantissa = math.floor(i / 8) % 16, i % 8
    local value = exponent == 0 and mantissa * 2 ^ -9 or (1 + mantissa / 8) * 2 ^ (exponent - 7)
    list[i + 1] = i == 127 and 0 or value / 2
  end
  return list
end

-- Returns the signs of 8 values with an even number of minuses, for the 7 bits of the first ones.
local function even_sign_rows()
  local rows = {}
  for i = 0, 127 do
    local row, product = {}, 1
    for bit = 0, 6 do
      row[bit + 1] = 1 - 2 * (math.floor(i / 2 ^ bit) % 2)
      product = product * row[bit + 1]
    end
    row[8], rows[i + 1] = product, row
  end
  return rows
end

local function uneven(index) return looked_up(constant(uneven_values), index) end
local function e2m1(index) return looked_up(constant(e2m1_values), index) end
local function even_signs(index) return looked_up(constant(even_sign_rows), index) end
local function sign(bit) return 1 - 2 * bit:float() end

-- Returns the signs of 8 values, from the bits of a byte.
local function signs_of_byte(x) return sign(fields(x, 1, x.ndim + 1)) end

local function grid(name, index)
  return looked_up(constant(require "luminary.file_formats.gguf_grids", name), index)
end

-- ---- kinds

-- Returns the halves of bytes in groups of `width`: a group's low ones, then its high ones; [n, groups, 2, width].
local function halves(x, width) return fields(x:reshape(x.shape[1], -1, width), 4, 3) end
local function quarters(x) return fields(x:reshape(x.shape[1], -1, 32), 2, 3) end

-- Returns 6-bit scales and minima of 8 groups from 12 bytes: the first four are the low bits of bytes 1 to 4 and 5 to
-- 8; the others are the halves of bytes 9 to 12, with the two high bits of bytes 1 to 8.
local function scales_of_k(s)
  local a, b, c = s:narrow(2, 1, 4), s:narrow(2, 5, 4), s:narrow(2, 9, 4)
  local function high(of) return of:bitwise_right_shift(6) end
  return ops.cat({a:bitwise_and(63), join_bits(c:bitwise_and(15), high(a), 4)}, 2),
    ops.cat({b:bitwise_and(63), join_bits(c:bitwise_right_shift(4), high(b), 4)}, 2)
end

-- Returns d scale q - dmin min, for a block that begins with d, dmin and scales[12].
local function groups_of_32(part, q)
  local scale, least = scales_of_k(bytes(part, 12, 4))
  return scaled(half(part, 0) * scale:float(), q) - (half(part, 2) * least:float()):unsqueeze(3)
end

-- Returns 5-bit numbers: the fifth bits of 32 elements are in 4 bytes, the others in 16.
local function fives(part, high, low)
  local q = halves(bytes(part, 16, low), 16):reshape(-1, 32)
  return join_bits(q, fields(bytes(part, 4, high), 1, 3), 4):float()
end

-- Returns base-3 digits: a byte holds `count` of them as a fraction of 3^count in 256ths.
local function ternary(x, count)
  local list = {}
  for i = 1, count do list[i] = (x * 3 ^ (i - 1)):bitwise_and(255) * 3 end
  return ops.stack(list, 2):bitwise_right_shift(8):reshape(x.shape[1], -1)
end

local blocks = {}

local function kind(number, name, size, elements, expand)
  blocks[number] = {name = name, bytes = size, elements = elements, expand = expand}
end

kind(2, "Q4_0", 18, 32, function(part) -- d, q[16]: d (q - 8)
  return scaled(half(part, 0), halves(bytes(part, 16, 2), 16):float() - 8)
end)
kind(3, "Q4_1", 20, 32, function(part) -- d, m, q[16]: d q + m
  return scaled(half(part, 0), halves(bytes(part, 16, 4), 16)) + half(part, 2):unsqueeze(3)
end)
kind(6, "Q5_0", 22, 32, function(part) -- d, fifth bits[4], q[16]: d (q - 16)
  return half(part, 0) * (fives(part, 2, 6) - 16)
end)
kind(7, "Q5_1", 24, 32, function(part) -- d, m, fifth bits[4], q[16]: d q + m
  return half(part, 0) * fives(part, 4, 8) + half(part, 2)
end)
kind(8, "Q8_0", 34, 32, function(part) return half(part, 0) * part("int8", 32, 2):float() end) -- d, q[32]
kind(10, "Q2_K", 84, 256, function(part) -- scales and minima[16], q[64], d, dmin: d scale q - dmin min, groups of 16
  local s = bytes(part, 16, 0)
  local low, high = s:bitwise_and(15):float(), s:bitwise_right_shift(4):float()
  return scaled(half(part, 80) * low, quarters(bytes(part, 64, 16))) - (half(part, 82) * high):unsqueeze(3)
end)
kind(11, "Q3_K", 110, 256, function(part) -- third bits[32], q[64], scales[12], d: d (scale - 32) (q - 4), groups of 16
  local scale = join_bits(fields(bytes(part, 8, 96), 4, 2), fields(bytes(part, 4, 104), 2, 2), 4)
  local q = join_bits(quarters(bytes(part, 64, 32)), fields(bytes(part, 32, 0), 1, 2), 2)
  return scaled(half(part, 108) * (scale:reshape(-1, 16):float() - 32), q:float() - 4)
end)
kind(12, "Q4_K", 144, 256, function(part) -- d, dmin, scales[12], q[128]
  return groups_of_32(part, halves(bytes(part, 128, 16), 32))
end)
kind(13, "Q5_K", 176, 256, function(part) -- d, dmin, scales[12], fifth bits[32], of a group in each bit, q[128]
  return groups_of_32(part, join_bits(halves(bytes(part, 128, 48), 32), fields(bytes(part, 32, 16), 1, 2), 4))
end)
kind(14, "Q6_K", 210, 256, function(part) -- low[128], high[64], scales[16], d: d scale (q - 32), groups of 16
  local q = join_bits(halves(bytes(part, 128, 0), 64), quarters(bytes(part, 64, 128)), 4)
  return scaled(half(part, 208) * part("int8", 16, 192):float(), q:float() - 32)
end)
kind(15, "Q8_K", 292, 256, function(part) return part("float32", 1, 0) * part("int8", 256, 4):float() end) -- d, q, sums
kind(16, "IQ2_XXS", 66, 256, function(part) -- d, 8 groups: 4 points in bytes, 4 times 7 bits of signs, 4 of scale
  local points, s = bytes(part, 64, 2):reshape(-1, 8, 8):narrow(3, 1, 4), long_words(part, 16, 2):reshape(-1, 8, 2)
  s = s:select(3, 2)
  local scale = half(part, 0) * (s:bitwise_right_shift(28):float() + 0.5) * 0.25
  return scaled(scale, grid("iq2_xxs", points) * even_signs(bits_at(s, 7, 0, 7, 14, 21)))
end)
kind(17, "IQ2_XS", 74, 256, function(part) -- d, 32 times 9 bits of point and 7 of signs, scales[8]: groups of 16
  local q = words(part, 32, 2)
  local scale = half(part, 0) * (fields(bytes(part, 8, 66), 4, 3):reshape(-1, 16):float() + 0.5) * 0.25
  return scaled(scale, grid("iq2_xs", q:bitwise_and(511)) * even_signs(q:bitwise_right_shift(9)))
end)
kind(18, "IQ3_XXS", 98, 256, function(part) -- d, points[64], 8 groups: 4 times 7 bits of signs, 4 of scale
  local s = long_words(part, 8, 66)
  local scale = half(part, 0) * (s:bitwise_right_shift(28):float() + 0.5) * 0.5
  local signs = even_signs(bits_at(s, 7, 0, 7, 14, 21))
  return scaled(scale, grid("iq3_xxs", bytes(part, 64, 2)):reshape(signs.shape) * signs)
end)
kind(19, "IQ1_S", 50, 256, function(part) -- d, points[32], 8 groups: 4 times 3 high bits, 3 of scale, 1 of delta
  local s = words(part, 8, 34)
  local scale = half(part, 0) * (bits_at(s, 3, 12):squeeze(3):float() * 2 + 1)
  local points = join_bits(bytes(part, 32, 2):int(), bits_at(s, 3, 0, 3, 6, 9), 8)
  local delta = sign(s:bitwise_right_shift(15)) * 0.125
  return scaled(scale, grid("iq1", points):reshape(-1, 8, 32) + delta:unsqueeze(3))
end)
kind(20, "IQ4_NL", 18, 32, function(part) -- d, indices of values[16]
  return scaled(half(part, 0), uneven(halves(bytes(part, 16, 2), 16)))
end)
kind(21, "IQ3_S", 110, 256, function(part) -- d, points[64], ninth bits[8], signs[32], scales[4]
  local scale = half(part, 0) * (fields(bytes(part, 4, 106), 4, 3):reshape(-1, 8):float() * 2 + 1)
  local points = join_bits(bytes(part, 64, 2):int(), fields(bytes(part, 8, 66), 1, 3):int(), 8)
  local signs = signs_of_byte(bytes(part, 32, 74))
  return scaled(scale, grid("iq3_s", points):reshape(signs.shape) * signs)
end)
kind(22, "IQ2_S", 82, 256, function(part) -- d, points[32], signs[32], high bits[8], scales[8]: groups of 16
  local scale = half(part, 0) * (fields(bytes(part, 8, 74), 4, 3):reshape(-1, 16):float() + 0.5) * 0.25
  local points = join_bits(bytes(part, 32, 2):int(), fields(bytes(part, 8, 66), 2, 3):int(), 8)
  return scaled(scale, grid("iq2_s", points) * signs_of_byte(bytes(part, 32, 34)))
end)
kind(23, "IQ4_XS", 136, 256, function(part) -- d, high bits of scales[4], low ones[4], indices of values[128]
  local scale = join_bits(fields(bytes(part, 4, 4), 4, 3), fields(bytes(part, 2, 2), 2, 3), 4):reshape(-1, 8)
  return scaled(half(part, 0) * (scale:float() - 32), uneven(halves(bytes(part, 128, 8), 16)))
end)
kind(29, "IQ1_M", 56, 256, function(part, n) -- points[32], high bits and deltas[16], scales[8] with d in high bits
  local s, high = words(part, 4, 48), fields(bytes(part, 16, 32), 4, 3):reshape(-1, 32):int()
  local top = fields(bytes(part, 8, 48), 4, 3):select(3, 2):reshape(-1, 4, 2):select(3, 2):reshape(-1, 2, 2)
  local d = join_bits(top:select(3, 1), top:select(3, 2), 4):contiguous()
  local scale = core.view_as(d:reshape(-1), "float16", {n, 1}, {1, 1}, 0):float()
    * (bits_at(s, 3, 0, 3, 6, 9):reshape(-1, 16):float() * 2 + 1)
  local points = join_bits(bytes(part, 32, 0):int(), high:bitwise_and(7), 8)
  local delta = sign(high:bitwise_right_shift(3)) * 0.125
  return scaled(scale, grid("iq1", points) + delta:unsqueeze(3))
end)
kind(34, "TQ1_0", 54, 256, function(part) -- 5 numbers in each of 48 bytes, 4 in each of 4, d: d (q - 1)
  local q = bytes(part, 52, 0):int()
  q = ops.cat({ternary(q:narrow(2, 1, 32), 5), ternary(q:narrow(2, 33, 16), 5), ternary(q:narrow(2, 49, 4), 4)}, 2)
  return half(part, 52) * (q:float() - 1)
end)
kind(35, "TQ2_0", 66, 256, function(part) -- q[64], d: d (q - 1)
  return scaled(half(part, 64), quarters(bytes(part, 64, 0)):float() - 1)
end)
kind(39, "MXFP4", 17, 32, function(part) -- exponent, q[16]
  return scaled(looked_up(constant(e8m0_values), bytes(part, 1, 0)), e2m1(halves(bytes(part, 16, 1), 16)))
end)
kind(40, "NVFP4", 36, 64, function(part) -- scales[4], q[32]: groups of 16
  return scaled(looked_up(constant(e4m3_values), bytes(part, 4, 0)), e2m1(halves(bytes(part, 32, 4), 8)))
end)

return blocks
