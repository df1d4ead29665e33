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

-- Returns twice the values of E2M1: 1 sign bit, 2 exponent bits, 1 mantissa bit.
local function e2m1_values() return {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} end

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
kind(40, "NVFP4", 36, 64, function(part) -- scales[4], q[32]: groups of 16
  return scaled(looked_up(constant(e4m3_values), bytes(part, 4, 0)), e2m1(halves(bytes(part, 32, 4), 8)))
end)

return blocks
