--- Checks transforms' images and arguments. Functions of (who, name, value) are kinds of arguments, see options.arg.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local fail = options.fail

local checks = {}

--- Returns x, an image [C, H, W] or [H, W], or images of any dims before them.
function checks.check(who, x)
  if not core.is_tensor(x) or x.ndim < 2 then
    options.expected(who, "an image [C, H, W] or [H, W], or a batch [..., C, H, W]", x)
  end
  if x.requires_grad then
    fail("%s: the image must not require a gradient; pass x:detach()", who)
  end
  return x
end

--- Returns a number that is neither NaN nor infinite, from `low` to `high`, if these are given.
function checks.number(who, name, v, low, high)
  if type(v) ~= "number" or not (v > -1 / 0 and v < 1 / 0) or low and v < low or high and v > high then
    local wanted = ""
    if low then wanted = (high and " from %g to %g" or " of at least %g"):format(low, high) end
    options.must_be(who, name, ("a number%s"):format(wanted), v)
  end
  return v
end

--- Returns an integer from `low` (1) to `high`, by default the largest side of an image.
function checks.whole(who, name, v, low, high)
  low = low or 1
  if type(v) ~= "number" or v ~= math.floor(v) or v < low or v > (high or 2 ^ 24) then
    options.must_be(who, name, ("an integer from %d to %s"):format(low, high or "2^24"), v)
  end
  return v
end

--- Returns a list of `count` numbers (or of one of several counts), each checked by checks.number.
function checks.list(who, name, v, counts, low, high)
  if not options.is_plain(v) or not lists.index_of(counts, #options.list(who, name, v)) then
    options.must_be(who, name, ("a list of %s numbers"):format(table.concat(counts, " or ")), v)
  end
  local list = {}
  for i = 1, #v do list[i] = checks.number(who, ("%s[%d]"):format(name, i), v[i], low, high) end
  return list
end

--- Returns a range, {least, largest}.
function checks.range(who, name, v, low, high)
  v = checks.list(who, name, v, {2}, low, high)
  if v[1] > v[2] then fail("%s: %s must be ascending, got {%g, %g}", who, name, v[1], v[2]) end
  return v
end

-- Returns a list of integers, or of one, that has one of several lengths. bound: its text in the error.
local function wholes(who, name, v, counts, bound, low)
  if type(v) == "number" then v = {v} end
  if not options.is_plain(v) or not lists.index_of(counts, #v) then options.must_be(who, name, bound, v) end
  for i = 1, #v do checks.whole(who, name, v[i], low) end
  return v
end

--- Returns {height, width} from a number or a list of both.
function checks.sides(who, name, v)
  v = wholes(who, name, v, {1, 2}, "an integer or {height, width}")
  return {v[1], v[2] or v[1]}
end

--- Returns numbers for all channels: a number, or a list of one for each. nil stays nil.
function checks.channels(who, name, v)
  if v == nil or v == false then return nil end
  if type(v) == "number" then return {checks.number(who, name, v)} end
  if not options.is_plain(v) or #v == 0 then
    options.must_be(who, name, "a number, or a list of one for each channel", v)
  end
  return checks.list(who, name, v, {#v})
end

--- Returns {from, to} in degrees from a number, for both directions, or a list with one of several counts of numbers.
function checks.angles(who, name, v, counts)
  if type(v) == "number" then return {-checks.number(who, name, v, 0), v} end
  v = checks.list(who, name, v, counts or {2})
  for i = 1, #v, 2 do
    if v[i] > v[i + 1] then fail("%s: %s must be ascending, got {%g, %g}", who, name, v[i], v[i + 1]) end
  end
  return v
end

--- Returns {smaller side} or {height, width}, and max_size.
function checks.resize_size(who, size, max_size)
  local checked
  if max_size ~= nil then checks.whole(who, "max_size", max_size) end
  if size == nil then
    if max_size == nil then fail("%s: pass either size or max_size", who) end
  elseif type(size) == "number" or options.is_plain(size) and #size == 1 then
    checked = {checks.whole(who, "size", type(size) == "number" and size or size[1])}
    if max_size and max_size <= checked[1] then
      options.must_be(who, "max_size", ("greater than size, %d"):format(checked[1]), max_size)
    end
  else
    checked = checks.sides(who, "size", size)
    if max_size then fail("%s: max_size requires a size of one number, for the shorter side", who) end
  end
  return checked, max_size
end

--- Returns left, top, right and bottom from a number, {left and right, top and bottom} or all four.
function checks.padding(who, name, v)
  v = wholes(who, name, v, {1, 2, 4}, "an integer, {left and right, top and bottom} or {left, top, right, bottom}",
    -2 ^ 24)
  local left, top = v[1], v[2] or v[1]
  return {left, top, v[3] or left, v[4] or top}
end

--- Fails if these options contradict each other.
function checks.check_border(who, o)
  if o.padding_mode ~= "constant" and o.fill and #o.fill > 1 then
    fail("%s: fill must be one number with padding_mode '%s', got %d", who, o.padding_mode, #o.fill)
  end
end

--- Returns {along x, along y} from an odd number or two of them.
function checks.kernel_size(who, name, v)
  if type(v) == "number" then v = {v, v} end
  v = wholes(who, name, v, {2}, "an odd integer or two, {along x, along y}")
  local wrong = lists.find(v, function(each) return each % 2 == 0 or each > 4095 end)
  if wrong then options.must_be(who, name, "odd and at most 4095", wrong) end
  return {v[1], v[2]}
end

--- Checks mean and std, each a number or a list for the channels; returns {0, means…, stds…} for image.normalize.
function checks.statistics(who, mean, std)
  local function list(name, v)
    if type(v) ~= "number" and not options.is_plain(v) then
      options.must_be(who, name, "a list of one number for each channel", v)
    end
    return checks.channels(who, name, v)
  end
  mean, std = list("mean", mean), list("std", std)
  for i, v in ipairs(std) do
    if v == 0 then fail("%s: std[%d] must not be 0", who, i) end
  end
  local n = math.max(#mean, #std)
  for _, v in ipairs {mean, std} do
    if #v ~= n and #v ~= 1 then fail("%s: mean and std must have the same length, got %d and %d", who, #mean, #std) end
    for i = #v + 1, n do v[i] = v[1] end
  end
  return lists.append(lists.append({0}, mean), std)
end

-- ---- kinds of arguments

options.kind("image", "image", function(who, _, v) return checks.check(who, v) end)
options.kind("sides", "integer or {height, width}", checks.sides)
options.kind("channels", "number or list of one for each channel", checks.channels)
options.kind("border", "integer or list of 2 or 4", checks.padding)
options.kind("odd_sizes", "odd integer or list of 2", checks.kernel_size)
options.kind("dtype", "dtype", function(who, name, v) return core.dtype(options.arg(who, name, v, "string")) end)

-- The kind of a point in pixels from the upper left corner.
options.kind("point", "list of 2 numbers, {x, y}", function(who, name, v)
  return checks.list(who, name, options.arg(who, name, v, "table"), {2})
end)

-- The kind of a number from `low` to `high`; either may be nil.
options.kinds("finite", function(low, high)
  local text = low and high and ("number from %g to %g"):format(low, high) or low and ("number ≥ %g"):format(low)
  return text or "number", function(who, name, v) return checks.number(who, name, v, low, high) end
end)

-- The kind of an integer from `low` (1) to `high`, if it is given.
options.kinds("whole", function(low, high)
  return high and ("integer from %d to %d"):format(low, high) or "integer", function(who, name, v)
    return checks.whole(who, name, v, low, high)
  end
end)

-- The kind of a range {least, largest} from low to high.
options.kinds("range", function(low, high)
  return "list of 2 numbers, {least, largest}", function(who, name, v)
    return checks.range(who, name, options.arg(who, name, v, "table"), low, high)
  end
end)

-- The kind of a list of `count` numbers from low to high.
options.kinds("numbers", function(count, low, high)
  return ("list of %d numbers"):format(count), function(who, name, v)
    return checks.list(who, name, v, {count}, low, high)
  end
end)

-- The kind of angles, see checks.angles, one range or several.
options.kinds("angles", function(...)
  local counts = {...}
  return "number or list of " .. table.concat(counts, " or "), function(who, name, v)
    return checks.angles(who, name, v, counts)
  end
end)

-- ---- options that several transforms have

--- Options of transforms that map pixels to other positions.
checks.mapping = [[interpolation = "nearest" | "bilinear", fill: channels]]

--- Options of transforms that pad.
checks.bordering = [[fill: channels = 0, padding_mode = "constant" | "edge" | "reflect" | "symmetric"]]

--- Option for the interpolation of a resized image's pixels.
checks.interpolation = [[interpolation: "nearest" | "nearest-exact" | "bilinear" | "bicubic" = "bilinear"]]

return checks
