--- Cropping and padding.
local native = require "luminary.vision.transforms.native"
local run = native.run

local cropping = {}

--- To the nearest integer, halves to the even one, as Python's round.
function cropping.round(v)
  local down = math.floor(v)
  local part = v - down
  if part > 0.5 or part == 0.5 and down % 2 == 1 then down = down + 1 end
  return down
end

local borders = {constant = 0, edge = 1, reflect = 2, symmetric = 3}

function cropping.pad(x, by, mode, fill, out)
  if by[1] + by[2] + by[3] + by[4] == 0 then return x end
  local numbers = {by[1], by[2], by[3], by[4], borders[mode]}
  for _, v in ipairs(fill or {0}) do numbers[#numbers + 1] = v end
  return run("pad", x, numbers, out)
end

--- A view of x within its borders; beyond them what fills, or zeros, and then it is a tensor of its own.
function cropping.crop(x, top, left, height, width, fill, out)
  local h, w = native.size(x)
  local low, high = math.max(top, 0), math.min(top + height, h)
  local first, last = math.max(left, 0), math.min(left + width, w)
  if low >= high or first >= last then -- nothing of x: a pixel of it, padded and cut off again
    local beside = cropping.pad(x:narrow(-2, 1, 1):narrow(-1, 1, 1), {width, height, 0, 0}, "constant", fill)
    return beside:narrow(-2, 1, height):narrow(-1, 1, width)
  end
  local inner = x:narrow(-2, low + 1, high - low):narrow(-1, first + 1, last - first)
  return cropping.pad(inner, {first - left, low - top, left + width - last, top + height - high}, "constant", fill, out)
end

--- Top and left of a crop of height x width in the middle of h x w, which may be smaller.
function cropping.center(h, w, height, width)
  local function first(size, wanted)
    if wanted > size then return -math.floor((wanted - size) / 2) end
    return cropping.round((size - wanted) / 2)
  end
  return first(h, height), first(w, width)
end

return cropping
