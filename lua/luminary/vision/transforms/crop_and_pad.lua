--- Crops and pads images.
local core = require "luminary.core"
local options = require "luminary.base.options"
local native = require "luminary.vision.transforms.native"
local run = native.run

local cropping = {}

--- Rounds to the nearest integer, halves to the even one, as Python's round.
function cropping.round(v)
  local down = math.floor(v)
  local part = v - down
  if part > 0.5 or part == 0.5 and down % 2 == 1 then down = down + 1 end
  return down
end

local borders = {constant = 0, edge = 1, reflect = 2, symmetric = 3}

-- Returns an image of x's dtype and channels that is all fill or zeros.
local function filled(x, height, width, fill)
  local shape = {unpack(x.shape)}
  shape[#shape - 1], shape[#shape] = 1, 1
  local pixel = core.ops.zeros(shape, {dtype = x.dtype, device = x.device})
  local beside = run("pad", pixel, {width, height, 0, 0, 0, unpack(fill or {0})})
  return beside:narrow(-2, 1, height):narrow(-1, 1, width)
end

--- Adds by = {left, top, right, bottom} pixels to x; negative numbers crop.
function cropping.pad(x, by, mode, fill, out)
  if by[1] == 0 and by[2] == 0 and by[3] == 0 and by[4] == 0 then return x end
  local h, w = native.size(x)
  if math.min(unpack(by)) < 0 then
    local rest = {math.max(by[1], 0), math.max(by[2], 0), math.max(by[3], 0), math.max(by[4], 0)}
    local rows, columns = math.min(by[2], 0) + math.min(by[4], 0), math.min(by[1], 0) + math.min(by[3], 0)
    if h + rows < 1 or w + columns < 1 then
      options.fail("pad: negative padding must leave a pixel of an image of %d x %d, got {%d, %d, %d, %d}", h, w,
        unpack(by))
    end
    local function cut(image)
      local height, width = native.size(image)
      return image:narrow(-2, math.max(1 - by[2], 1), height + rows):narrow(-1, math.max(1 - by[1], 1), width + columns)
    end
    -- Let "reflect", but not "symmetric", mirror the pixels that are cut off, as in torchvision.
    if mode == "reflect" then return cut(cropping.pad(x, rest, mode, fill)) end
    return cropping.pad(cut(x), rest, mode, fill, out)
  end
  if mode == "constant" and h * w == 0 then return filled(x, h + by[2] + by[4], w + by[1] + by[3], fill) end
  return run("pad", x, {by[1], by[2], by[3], by[4], borders[mode], unpack(fill or {0})}, out)
end

--- Returns a view of x within its borders; beyond them, a new tensor with `fill` or zeros.
function cropping.crop(x, top, left, height, width, fill, out)
  local h, w = native.size(x)
  local low, high = math.max(top, 0), math.min(top + height, h)
  local first, last = math.max(left, 0), math.min(left + width, w)
  if low >= high or first >= last then return filled(x, height, width, fill) end
  local inner = x:narrow(-2, low + 1, high - low):narrow(-1, first + 1, last - first)
  return cropping.pad(inner, {first - left, low - top, left + width - last, top + height - high}, "constant", fill, out)
end

--- Returns the four corners and the center of x as a list of crops of height x width; with `flip`, "horizontally" or
--- "vertically", followed by the crops of x flipped.
function cropping.corners(who, x, height, width, flip)
  local h, w = native.size(x)
  if height > h or width > w then
    options.fail("%s: size must be at most that of the image, %d x %d, got %d x %d", who, h, w, height, width)
  end
  local list = {}
  for _, image in ipairs {x, flip and run("flip", x, flip == "vertically" and {0, 1} or {1, 0}) or nil} do
    for _, at in ipairs {{0, 0}, {0, w - width}, {h - height, 0}, {h - height, w - width},
      {cropping.center(h, w, height, width)}} do
      list[#list + 1] = cropping.crop(image, at[1], at[2], height, width)
    end
  end
  return list
end

--- Returns top and left of a crop of height x width at the center of h x w, which may be smaller.
function cropping.center(h, w, height, width)
  local function first(size, wanted)
    if wanted > size then return -math.floor((wanted - size) / 2) end
    return cropping.round((size - wanted) / 2)
  end
  return first(h, height), first(w, width)
end

return cropping
