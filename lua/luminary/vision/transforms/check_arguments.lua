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
  if x.requires_grad then fail("%s: the image must not require a gradient; pass x:detach()", who) end
  return x
end

--- Returns a list of numbers of a kind, by default "finite", whose length is one of `counts`. With `bound`, the text
--- for messages, v may be a number, too.
function checks.list(who, name, v, counts, kind, bound)
  if bound and type(v) == "number" then return {options.arg(who, name, v, kind or "finite")} end
  if not options.is_plain(v) or not lists.index_of(counts, #options.list(who, name, v)) then
    options.must_be(who, name, bound or ("a list of %s numbers"):format(table.concat(counts, " or ")), v)
  end
  return lists.copy(options.entries(who, name, v, kind or "finite"))
end

local function numbers(who, name, v, count, low, high)
  return checks.list(who, name, v, {count}, ("finite(%s, %s)"):format(low, high))
end

--- Returns a range, {least, largest}.
function checks.range(who, name, v, low, high)
  v = numbers(who, name, v, 2, low, high)
  if v[1] > v[2] then fail("%s: %s must be ascending, got {%g, %g}", who, name, v[1], v[2]) end
  return v
end

--- Returns {height, width} from a number or a list of both.
function checks.sides(who, name, v)
  v = checks.list(who, name, v, {1, 2}, "side", "an integer or {height, width}")
  return {v[1], v[2] or v[1]}
end

--- Returns numbers for all channels: a number, or a list of one for each. nil stays nil.
function checks.per_channel(who, name, v)
  if v == nil or v == false then return nil end
  local counts = {type(v) == "table" and #v > 0 and #v or nil}
  return checks.list(who, name, v, counts, nil, "a number, or a list of one for each channel")
end

--- Returns {from, to} in degrees from a number, for both directions, or a list with one of several counts of numbers.
function checks.angles(who, name, v, ...)
  if type(v) == "number" then return {-options.arg(who, name, v, "finite(0)"), v} end
  v = checks.list(who, name, v, {...})
  for i = 1, #v, 2 do
    if v[i] > v[i + 1] then fail("%s: %s must be ascending, got {%g, %g}", who, name, v[i], v[i + 1]) end
  end
  return v
end

--- Returns {smaller side} or {height, width}; nil if there is only max_size.
function checks.resize_size(who, size, max_size)
  if size ~= nil then
    size = checks.list(who, "size", size, {1, 2}, "side", "an integer or {height, width}")
    if max_size and size[2] then fail("%s: max_size requires a size of one number, for the shorter side", who) end
    if max_size and max_size <= size[1] then
      options.must_be(who, "max_size", ("greater than size, %d"):format(size[1]), max_size)
    end
  elseif max_size == nil then
    fail("%s: pass either size or max_size", who)
  end
  return size
end

--- Returns left, top, right and bottom from a number, {left and right, top and bottom} or all four.
function checks.padding(who, name, v)
  v = checks.list(who, name, v, {1, 2, 4}, "integer(-2^24, 2^24)",
    "an integer, {left and right, top and bottom} or {left, top, right, bottom}")
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
  v = checks.list(who, name, v, {2}, "side", "an odd integer or two, {along x, along y}")
  local wrong = lists.find(v, function(each) return each % 2 == 0 or each > 4095 end)
  if wrong then options.must_be(who, name, "odd and at most 4095", wrong) end
  return {v[1], v[2] or v[1]}
end

--- Checks mean and std, each a number or a list for the channels; returns {0, means…, stds…} for image.normalize.
function checks.statistics(who, mean, std)
  local function list(name, v)
    if type(v) ~= "number" and not options.is_plain(v) then
      options.must_be(who, name, "a list of one number for each channel", v)
    end
    return checks.per_channel(who, name, v)
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
options.kind("side", "integer from 1 to 2^24", function(who, name, v)
  return options.arg(who, name, v, "integer(1, 2^24)")
end)
options.kind("sides", "integer or {height, width}", checks.sides)
options.kind("channels", "number or list of one for each channel", checks.per_channel)
options.kind("border", "integer or list of 2 or 4", checks.padding)
options.kind("odd_sizes", "odd integer or list of 2", checks.kernel_size)
options.kind("dtype", "dtype", function(who, name, v) return core.dtype(options.arg(who, name, v, "string")) end)

options.kind("range", "list of 2 numbers, {least, largest}", checks.range) -- from and to the kind's parameters
options.kind("numbers", function(count) return ("list of %d numbers"):format(count) end, numbers)
options.kind("angles", function(...) return "number or list of " .. table.concat({...}, " or ") end, checks.angles)

-- The kind of a point in pixels from the upper left corner.
options.kind("point", "list of 2 numbers, {x, y}", function(who, name, v) return numbers(who, name, v, 2) end)

-- ---- options that several transforms have

--- Options of transforms that map pixels to other positions.
checks.mapping = [[interpolation = "nearest" | "bilinear", fill: channels]]

--- Options of transforms that pad.
checks.bordering = [[fill: channels = 0, padding_mode = "constant" | "edge" | "reflect" | "symmetric"]]

--- Option for the interpolation of a resized image's pixels.
checks.interpolation = [[interpolation: "nearest" | "nearest-exact" | "bilinear" | "bicubic" = "bilinear"]]

return checks
