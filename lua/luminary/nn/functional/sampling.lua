--- Sampling by grids, and windows of images as columns and back.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local sizes = require "luminary.nn.functional.sizes"
local window_places = require "luminary.nn.functional.window_places"

local ops, fail, describe = core.ops, options.fail, options.describe
local F = {}

-- ---- grid_sample

-- v from `low` to `high`, mirrored there.
local function reflected(v, low, high)
  local span = high - low
  if span == 0 then return v * 0 end
  v = ops.abs(v - low)
  local flips = ops.floor(v:detach() / span)
  local rest = v - flips * span
  return ops.where(ops.eq(ops.fmod(flips, 2), 0), rest + low, high - rest)
end

-- Coordinates in pixels brought into the image.
local function padded(at, size, o)
  if o.padding_mode == "zeros" then return at end
  if o.padding_mode == "reflection" then
    at = o.align_corners and reflected(at, 0, size - 1) or reflected(at, -0.5, size - 0.5)
  end
  return at:clamp(0, size - 1)
end

local function cubic_weight(distance)
  local a, x = -0.75, distance
  return ops.where(ops.le(x, 1), ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a)
end

-- Along one dim: places from 0 [N, taps, P] (times step, and far below 0 outside) and weights, nil for one of 1.
-- at: [N, P], from -1 to 1.
local function taps(at, size, step, o)
  at = o.align_corners and (at + 1) * ((size - 1) / 2) or (at + 1) * (size / 2) - 0.5
  if o.mode ~= "bicubic" then at = padded(at, size, o) end
  at = at:unsqueeze(2)
  local fixed, first = at:detach(), ops.zeros({1}, {device = at.device, dtype = at.dtype})
  if o.mode == "nearest" then return ops.grid_place(ops.round(fixed), first, size, step) end
  local wide = o.mode == "bicubic"
  local near = ops.arange(wide and -1 or 0, wide and 3 or 2, {device = at.device, dtype = at.dtype}):view(1, -1, 1)
  if not wide then return ops.grid_place(fixed, near, size, step), ops.grid_weight(at, near) end
  local places = ops.floor(fixed) + near
  return ops.grid_place(padded(places, size, o), first, size, step), cubic_weight(ops.abs(at - places))
end

local grid_takes = arguments.of {
  {"x", "tensor"}, {"grid", "tensor"}, {"mode", {"bilinear", "nearest", "bicubic"}, "bilinear"},
  {"padding_mode", {"zeros", "border", "reflection"}, "zeros"}, {"align_corners", "boolean", false},
}

local function check_grid(who, x, grid)
  local n = x.ndim - 2
  if n ~= 2 and n ~= 3 then fail("%s: x has to be [N, C, H, W] or [N, C, D, H, W], is %s", who, describe(x)) end
  if grid.ndim ~= x.ndim or grid.shape[1] ~= x.shape[1] or grid.shape[grid.ndim] ~= n then
    fail("%s: for x %s the grid has to be [%d, %s, %d], is %s", who, describe(x), x.shape[1],
      n == 2 and "H, W" or "D, H, W", n, describe(grid))
  end
  if grid.dtype ~= x.dtype then fail("%s: x is %s and grid is %s: convert one with :to()", who, x.dtype, grid.dtype) end
  for d = 2, x.ndim do
    if x.shape[d] < 1 then fail("%s: x is %s; nothing to sample", who, describe(x)) end
  end
  return n
end

--- F.grid_sample(x, grid [, mode = "bilinear" [, padding_mode = "zeros" [, align_corners = false]]]): x [N, C, H, W] at
--- the points of grid [N, H', W', 2] (x [N, C, D, H, W]: [N, D', H', W', 3]), [N, C, H', W']. A point is (column, row),
--- from -1 to 1 over x's width and height; align_corners: -1 and 1 are the middles of the outermost pixels, not their
--- edges. mode: "bilinear", "nearest" or "bicubic"; padding_mode, beyond x: "zeros", its "border", or its "reflection".
F.grid_sample = grid_takes:caller("grid_sample", function(a)
  if core.is_autocast_enabled() then
    return full_precision(F.grid_sample, a.x, a.grid, a.mode, a.padding_mode, a.align_corners)
  end
  local x, grid = a.x, a.grid
  local n = check_grid("grid_sample", x, grid)
  local shape, batch, channels, points, step = {unpack(x.shape)}, x.shape[1], x.shape[2], 1, 1
  for i = 1, n do step = step * x.shape[2 + i] end
  if grid.dtype ~= "float64" then grid = grid:to(step < 2 ^ 24 and "float32" or "float64") end -- places are whole in it
  step = 1
  for i = 1, n do
    shape[2 + i] = grid.shape[1 + i]
    points = points * grid.shape[1 + i]
  end
  grid = ops.reshape(grid, {batch, points, n})
  local places, weight
  for i = 1, n do -- columns first
    local size = x.shape[x.ndim + 1 - i]
    local own, own_weight = taps(grid:select(3, i), size, step, a)
    local all = {batch, own.shape[2] * (places and places.shape[2] or 1), points}
    places = places and ops.reshape(own:unsqueeze(3) + places:unsqueeze(2), all) or own
    weight = weight and ops.reshape(own_weight:unsqueeze(3) * weight:unsqueeze(2), all) or own_weight
    step = step * size
  end
  places = (places + 1):to "int64"
  if weight then weight = weight:to(x.dtype == "float64" and "float64" or "float32") end
  if not sizes.is_channels_last(x) then
    return ops.sample_places(ops.reshape(x, {batch, channels, step, 1}), places, weight):view(shape)
  end
  table.remove(shape, 2)
  shape[#shape + 1] = channels
  local rows = sizes.channels_last(x):view(batch, 1, step, channels)
  return sizes.channels_second(ops.sample_places(rows, places, weight):view(shape))
end)

-- ---- affine_grid

local affine_takes = arguments.of {{"theta", "tensor"}, {"size", "table"}, {"align_corners", "boolean", false}}

--- F.affine_grid(theta, size [, align_corners = false]): the grid for F.grid_sample of images of that size
--- ({N, C, H, W} or {N, C, D, H, W}), whose points (column, row, 1) the matrices theta [N, 2, 3] (or [N, 3, 4]) move.
F.affine_grid = affine_takes:caller("affine_grid", function(a)
  local who, theta, size = "affine_grid", a.theta, a.size
  local n = #size - 2
  if n ~= 2 and n ~= 3 then fail("%s: size has to be {N, C, H, W} or {N, C, D, H, W}", who) end
  for i = 1, #size do options.arg(who, "size", size[i], "count") end
  if theta.ndim ~= 3 or theta.shape[1] ~= size[1] or theta.shape[2] ~= n or theta.shape[3] ~= n + 1 then
    fail("%s: theta has to be [%d, %d, %d], is %s", who, size[1], n, n + 1, describe(theta))
  end
  if not theta:is_floating_point() then fail("%s: theta is %s; convert it with :float()", who, theta.dtype) end
  local how, columns, shape = {device = theta.device, dtype = theta.dtype}, {}, {unpack(size, 3)}
  for i = 1, n do
    local count = size[#size + 1 - i]
    local line = count > 1 and ops.linspace(-1, 1, count, how) or ops.zeros({1}, how)
    if not a.align_corners then line = line * ((count - 1) / count) end
    local view = {}
    for d = 1, n do view[d] = d == n + 1 - i and count or 1 end
    columns[i] = ops.expand(line:view(view), shape)
  end
  columns[n + 1] = ops.expand(ops.ones({1}, how), shape)
  local points = ops.reshape(ops.stack(columns, -1), {1, -1, n + 1})
  table.insert(shape, 1, size[1])
  table.insert(shape, n)
  return ops.matmul(points, ops.transpose(theta, 2, 3)):view(shape)
end)

-- ---- unfold and fold

local function window_rows(first)
  local rows = {{"x", "tensor"}}
  for _, row in ipairs(first) do rows[#rows + 1] = row end
  rows[#rows + 1] = {"dilation", sizes.of(2, 1), 1}
  rows[#rows + 1] = {"padding", sizes.of(2, 0), 0}
  rows[#rows + 1] = {"stride", sizes.of(2, 1), 1}
  return arguments.of(rows)
end

-- Places of all windows' elements in an image of height and width, [1, 1, kH * kW * windows], and how many windows.
local function column_places(who, a, height, width, device)
  local k, s, p, d = a.kernel_size, a.stride, a.padding, a.dilation
  local down = window_places.count(who, height, k[1], s[1], p[1], d[1])
  local across = window_places.count(who, width, k[2], s[2], p[2], d[2])
  local rows = window_places.of_windows(height, down, k[1], s[1], p[1], d[1], width, device)
  local columns = window_places.of_windows(width, across, k[2], s[2], p[2], d[2], 1, device)
  local all = (rows + 1):view(k[1], 1, down, 1) + columns:view(1, k[2], 1, across)
  return all:view(1, 1, -1), down * across
end

--- F.unfold(x, kernel_size [, dilation = 1 [, padding = 0 [, stride = 1]]]): the windows of x [N, C, H, W] or [C, H, W]
--- as columns, [N, C * kH * kW, windows].
F.unfold = window_rows({{"kernel_size", sizes.of(2, 1)}}):caller("unfold", function(a)
  local who = "unfold"
  sizes.check(who, a.x, 2)
  local x = a.x.ndim == 3 and a.x:unsqueeze(1) or a.x
  local n, channels, height, width = unpack(x.shape)
  local places, windows = column_places(who, a, height, width, x.device)
  local y = ops.sample_places(ops.reshape(x, {n, channels, height * width, 1}), places)
  y = y:view(n, channels * a.kernel_size[1] * a.kernel_size[2], windows)
  return a.x.ndim == 3 and y:squeeze(1) or y
end)

--- F.fold(x, output_size, kernel_size [, dilation = 1 [, padding = 0 [, stride = 1]]]): the columns x
--- [N, C * kH * kW, windows] or [C * kH * kW, windows] added up where F.unfold would take them from an image of
--- output_size, [N, C, H, W].
F.fold = window_rows({{"output_size", sizes.of(2, 1)}, {"kernel_size", sizes.of(2, 1)}}):caller("fold", function(a)
  local who, size, area = "fold", a.output_size, a.kernel_size[1] * a.kernel_size[2]
  if a.x.ndim ~= 2 and a.x.ndim ~= 3 then
    fail("%s: x has to be [N, C * kH * kW, windows] or [C * kH * kW, windows], is %s", who, describe(a.x))
  end
  local x = a.x.ndim == 2 and a.x:unsqueeze(1) or a.x
  local places, windows = column_places(who, a, size[1], size[2], x.device)
  local n, columns, given = unpack(x.shape)
  if columns % area ~= 0 or given ~= windows then
    fail("%s: x is %s; for these windows it has to be [N, C * %d, %d]", who, describe(a.x), area, windows)
  end
  local channels = columns / area
  local y = ops.sample_places_input(ops.reshape(x, {n, channels, area * windows, 1}), places, nil,
    {n, channels, size[1] * size[2], 1}):view(n, channels, size[1], size[2])
  return a.x.ndim == 2 and y:squeeze(1) or y
end)

return F
