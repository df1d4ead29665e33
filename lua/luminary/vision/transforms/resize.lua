--- Resizes images, and computes their new size.
local options = require "luminary.base.options"
local native = require "luminary.vision.transforms.native"
local fail = options.fail
local run = native.run

local sizing = {}

local modes = {nearest = 0, ["nearest-exact"] = 1, bilinear = 2, bicubic = 3}

--- Returns the argument `mode` of sizing.resize for these options.
function sizing.resize_mode(o) return {modes[o.interpolation], o.antialias and 1 or 0} end

--- Resizes the part {top, left, height, width} of x, by default all of it, to height x width.
function sizing.resize(x, height, width, mode, part, out)
  local h, w = native.size(x)
  if not part then
    if h == height and w == width then return x end
    part = {0, 0, h, w}
  end
  return run("resize", x, {height, width, mode[1], mode[2], part[1], part[2], part[3], part[4]}, out)
end

--- Returns height and width of an image of h x w after a resize of its smaller side to `size`, or to {height, width};
--- max_size bounds the larger side. If `size` is nil, the larger side becomes max_size.
function sizing.resized(who, h, w, size, max_size)
  if size and size[2] then return size[1], size[2] end
  local short, long = math.min(h, w), math.max(h, w)
  local new_short, new_long
  if not size then
    new_short, new_long = math.floor(max_size * short / long), max_size
  else
    new_short, new_long = size[1], math.floor(size[1] * long / short)
    if max_size and new_long > max_size then
      new_short, new_long = math.floor(max_size * new_short / new_long), max_size
    end
  end
  if not (new_short >= 1 and new_long <= 2 ^ 24) then
    fail("%s: cannot resize an image of %d x %d to %.0f x %.0f", who, h, w, w <= h and new_long or new_short,
      w <= h and new_short or new_long)
  end
  if w <= h then return new_long, new_short end
  return new_short, new_long
end

return sizing
