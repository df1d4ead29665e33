-- Mutated IDX files, MNIST's format.
local bytes = require "scripts.dev.fuzz.bytes"
local big_endian, random_bytes, damage, cut, pick, random =
  bytes.big_endian, bytes.random_bytes, bytes.damage, bytes.cut, bytes.pick, math.random

local sizes = { 0, 1, 2, 3, 28, 255, 256, 65535, 65536, 2 ^ 24, 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32 - 1 }

local function idx(dims, data, kind)
  local out = { string.char(0, 0, kind or 8, #dims) }
  for _, size in ipairs(dims) do out[#out + 1] = big_endian(size) end
  return table.concat(out) .. data
end

-- Makes a new file: dims, then as many bytes as they say, or not.
local function change_idx()
  local dims, count = {}, 1
  for i = 1, random(4) do
    dims[i] = random(6)
    count = count * dims[i]
  end
  local data = random_bytes(count)
  local kind = random(12)
  if kind == 1 then return damage(idx(dims, data)) end
  if kind == 2 then return cut(idx(dims, data)) end
  if kind == 3 then return idx(dims, data, random(0, 255)) end
  if kind == 4 then dims[random(#dims)] = pick(sizes) end
  if kind == 5 then
    for _ = 1, random(70) do dims[#dims + 1] = pick { 0, 1, 1, 1, 2 } end
  end
  if kind >= 6 and kind <= 9 then data = pick { cut(data), data .. data, data .. "x", damage(data) } end
  return idx(dims, data)
end

return {
  name = "IDX", share = 1, change = change_idx, load = require("luminary.file_formats.idx").load, idx = idx,
  past = function(message) return message:find "bytes follow its %d" or message:find "truncated: [n%d][e%d]+" end,
}
