--- Implements affine_grid, and unfold and fold, which convert windows of images to columns and back.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local sizes = require "luminary.nn.functional.sizes"
local window_indices = require "luminary.nn.functional.window_indices"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local F = {}

-- ---- affine_grid

--- Generates the grid of an affine transform for F.grid_sample.
F.affine_grid = signature.of([[affine_grid(theta: tensor, size: count[],
  align_corners = false)]], function(theta, size, align_corners)
  local who, n = "affine_grid", #size - 2
  sizes.check_list(who, "size", size)
  if n ~= 2 and n ~= 3 then fail("%s: size must be {N, C, H, W} or {N, C, D, H, W}", who) end
  shapes.check(who, "theta", theta, {size[1], n, n + 1})
  if not theta:is_floating_point() then
    options.wrong_dtype(who, "theta", "floating", theta, "convert it with :float()")
  end
  local how, columns, shape = {device = theta.device, dtype = theta.dtype}, {}, {unpack(size, 3)}
  for i = 1, n do
    local count = size[#size + 1 - i]
    local line = count > 1 and ops.linspace(-1, 1, count, how) or ops.zeros({1}, how)
    if not align_corners then line = line * ((count - 1) / count) end
    columns[i] = ops.expand(shapes.along_dim(line, n + 1 - i, n), shape)
  end
  columns[n + 1] = ops.expand(ops.ones({1}, how), shape)
  local points = ops.reshape(ops.stack(columns, -1), {1, -1, n + 1})
  table.insert(shape, 1, size[1])
  table.insert(shape, n)
  return ops.matmul(points, ops.transpose(theta, 2, 3)):view(shape)
end)

-- ---- unfold and fold

local windows = "dilation: sizes(2, 1) = 1, padding: sizes(2, 0) = 0, stride: sizes(2, 1) = 1)"

-- Returns the positions of all windows' elements in an image of height and width, [1, 1, kH * kW * windows], and the
-- number of windows.
local function column_positions(who, a, height, width, device)
  local k, s, p, d = a.kernel_size, a.stride, a.padding, a.dilation
  local down = window_indices.count(who, height, k[1], s[1], p[1], d[1])
  local across = window_indices.count(who, width, k[2], s[2], p[2], d[2])
  local rows = window_indices.of_windows(height, down, k[1], s[1], p[1], d[1], width, device)
  local columns = window_indices.of_windows(width, across, k[2], s[2], p[2], d[2], 1, device)
  local all = (rows + 1):view(k[1], 1, down, 1) + columns:view(1, k[2], 1, across)
  return all:view(1, 1, -1), down * across
end

--- Extracts sliding windows of images as columns.
F.unfold = signature.by_name("unfold(x: input(2), kernel_size: sizes(2, 1), " .. windows, function(a)
  local x = a.x.ndim == 3 and a.x:unsqueeze(1) or a.x
  local n, channels, height, width = unpack(x.shape)
  local positions, count = column_positions("unfold", a, height, width, x.device)
  local y = ops.gather_weighted(ops.reshape(x, {n, channels, height * width, 1}), positions)
  y = y:view(n, channels * a.kernel_size[1] * a.kernel_size[2], count)
  return a.x.ndim == 3 and y:squeeze(1) or y
end)

--- Combines columns of sliding windows into images by adding them.
F.fold = signature.by_name("fold(x: tensor, output_size: sizes(2, 1), kernel_size: sizes(2, 1), "
  .. windows, function(a)
  local who, size, area = "fold", a.output_size, a.kernel_size[1] * a.kernel_size[2]
  if a.x.ndim ~= 2 and a.x.ndim ~= 3 then
    options.wrong_shape(who, "x", a.x, "[N, C * kH * kW, windows] or [C * kH * kW, windows]")
  end
  local x = a.x.ndim == 2 and a.x:unsqueeze(1) or a.x
  local positions, count = column_positions(who, a, size[1], size[2], x.device)
  local n, columns, given = unpack(x.shape)
  if columns % area ~= 0 or given ~= count then
    options.wrong_shape(who, "x", a.x, {(a.x.ndim == 3 and "N, " or "") .. "C * " .. area, count})
  end
  local channels = columns / area
  local y = ops.gather_weighted_input(ops.reshape(x, {n, channels, area * count, 1}), positions, nil,
    {n, channels, size[1] * size[2], 1}):view(n, channels, size[1], size[2])
  return a.x.ndim == 2 and y:squeeze(1) or y
end)

return options.exact_all(F)
