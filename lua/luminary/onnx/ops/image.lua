--- ONNX's resizing and sampling of images.
local core = require "luminary.core"
local F = require "luminary.nn.functional"
local helpers = require "luminary.onnx.ops.sizes"
local iinfo = require("luminary.tensor.dtype_info").iinfo
local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local filled, integers = helpers.filled, helpers.integers
local op = {}

-- Return the coordinate in the input, of `size` elements, of output element i of `out`, from 0.
local coordinates = {
  half_pixel = function(i, scale) return (i + 0.5) / scale - 0.5 end,
  half_pixel_symmetric = function(i, scale, size, out)
    return size / 2 * (1 - out / (scale * size)) + (i + 0.5) / scale - 0.5
  end,
  pytorch_half_pixel = function(i, scale, _, out) return out == 1 and -0.5 or (i + 0.5) / scale - 0.5 end,
  align_corners = function(i, scale, size, out) return out == 1 and 0 or i * (size - 1) / (scale * size - 1) end,
  asymmetric = function(i, scale) return i / scale end,
  tf_half_pixel_for_nn = function(i, scale) return (i + 0.5) / scale end,
  tf_crop_and_resize = function(i, _, size, out, first, last)
    return (size - 1) * (out == 1 and 0.5 * (first + last) or first + i * (last - first) / (out - 1))
  end,
}
local nearest = {
  round_prefer_floor = function(x) return math.ceil(x - 0.5) end,
  round_prefer_ceil = function(x) return math.floor(x + 0.5) end, floor = math.floor, ceil = math.ceil,
}

local function weight_of(n, x)
  x = math.abs(x)
  if n.radius == 1 then return math.max(1 - x, 0) end
  local a = n.cubic_coeff_a
  if x <= 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
  return x < 2 and ((a * x - 5 * a) * x + 8 * a) * x - 4 * a or 0
end

-- Returns x resized along dim d to `out` elements; first and last: the region to crop, as parts of the size.
local function resized(n, x, d, out, scale, first, last)
  local size, points, outside, shape = x.shape[d], {}, {}, filled(x.ndim, 1, d, out)
  if out == 0 then return ops.narrow(x, d, 1, 0) end
  local function clamped(i) return math.max(math.min(i, size - 1), 0) + 1 end
  for i = 1, helpers.bounded(out, "a size of the result") do
    points[i] = n.at(i - 1, scale, size, out, first, last)
    outside[i] = first and (points[i] < 0 or points[i] > size - 1) or false
  end
  local y, at, sums = nil, {}, {}
  if n.round then
    for i, p in ipairs(points) do at[i] = clamped(n.round(p)) end
    y = ops.index_select(x, d, integers(at, x))
  else
    local narrow, taps, weights = n.antialias == 1 and math.min(scale, 1) or 1, {}, {}
    local from = math.floor(-n.radius / narrow) + 1
    helpers.bounded(2 * (1 - from) * out, "the number of elements that a size of the result is computed from")
    for k = from, 1 - from do
      taps[k], weights[k] = {}, {}
      for i, p in ipairs(points) do
        local index = math.floor(p) + k
        local weight = weight_of(n, (index - p) * narrow)
        if n.exclude_outside == 1 and (index < 0 or index >= size) then weight = 0 end
        taps[k][i], weights[k][i], sums[i] = clamped(index), weight, (sums[i] or 0) + weight
      end
    end
    for k = from, 1 - from do
      for i = 1, out do weights[k][i] = weights[k][i] / sums[i] end
      local weight = core.tensor(weights[k], {dtype = x.dtype, device = x.device}):reshape(shape)
      local part = ops.index_select(x, d, integers(taps[k], x)) * weight
      y = y and y + part or part
    end
  end
  if not first then return y end
  return ops.masked_fill(y, core.tensor(outside, {device = x.device}):reshape(shape), n.extrapolation_value)
end

op.Resize = {
  mode = "nearest", cubic_coeff_a = -0.75, extrapolation_value = 0, keep_aspect_ratio_policy = "stretch",
  prepare = function(n)
    local old = n.version < 11
    local name = n.coordinate_transformation_mode or (old and "asymmetric" or "half_pixel")
    n.at, n.crops = coordinates[name] or n:unsupported("with coordinates " .. name), name == "tf_crop_and_resize"
    n.round = n.mode == "nearest" and nearest[n.nearest_mode or (old and "floor" or "round_prefer_floor")]
    n.radius, n.old = n.mode:find "linear" and 1 or 2, old
  end,
  function(n, x, roi, scales, sizes)
    local factors = n.scales or n.old and n:ints(2, roi) or n:ints(3, scales)
    if factors and #factors == 0 then factors = nil end
    local wanted, region, ratio = n:ints(4, sizes), n.crops and n:ints(2, roi), nil
    local count = #(wanted or factors or helpers.refuse "neither scales nor sizes are given")
    local dims = helpers.dims_of(x.ndim, n.axes, count, wanted and "sizes" or "scales")
    if region and #region ~= 2 * count then helpers.refuse("expected %d numbers of roi, got %d", 2 * count, #region) end
    for i, size in ipairs(n.keep_aspect_ratio_policy ~= "stretch" and wanted or {}) do
      local pick = n.keep_aspect_ratio_policy == "not_larger" and math.min or math.max
      ratio = pick(ratio or size / x.shape[dims[i]], size / x.shape[dims[i]])
    end
    local y = (is_float(x) or n.round) and x or to(x, "float32")
    for i, d in ipairs(dims) do
      local size = x.shape[d]
      local scale = factors and factors[i] or ratio or wanted[i] / size
      local out = factors and math.floor(size * scale) or ratio and math.floor(size * ratio + 0.5) or wanted[i]
      if scale <= 0 or scale ~= scale then helpers.refuse("a scale must be above 0, got %g", scale) end
      if out ~= size or scale ~= 1 or region then
        y = resized(n, y, d, out, scale, region and region[i], region and region[i + count])
      end
    end
    if y.dtype == x.dtype then return y end
    local range = iinfo(x.dtype)
    return to(ops.clamp(n.antialias == 1 and ops.round(y) or ops.trunc(y), range.min, range.max), x.dtype)
  end,
}
op.Upsample = op.Resize

local modes = {linear = "bilinear", cubic = "bicubic"}
op.GridSample = {mode = "bilinear", padding_mode = "zeros", function(n, x, grid)
  return ops.grid_sample(x, grid, modes[n.mode] or n.mode, n.padding_mode, n.align_corners == 1)
end}
op.AffineGrid = {function(n, theta, size) return F.affine_grid(theta, n:ints(2, size), n.align_corners == 1) end}

-- Returns the greatest product, by channel, of the pixels of a plane [C, H, W] that bilinear samples of a bin read,
-- with their weights.
local function greatest(plane, v0, dv, rows, u0, du, columns)
  local C, H, W = unpack(plane.shape)
  local at, weights = {}, {}
  for p = 0, rows * columns - 1 do
    local v, u = v0 + (math.floor(p / columns) + 0.5) * dv, u0 + (p % columns + 0.5) * du
    if v >= -1 and v <= H and u >= -1 and u <= W then
      v, u = math.min(math.max(v, 0), H - 1), math.min(math.max(u, 0), W - 1)
      for k = 0, 3 do
        local y, x = math.min(math.floor(v) + k % 2, H - 1), math.min(math.floor(u) + math.floor(k / 2), W - 1)
        at[#at + 1] = y * W + x + 1
        weights[#at] = math.max(1 - math.abs(v - math.floor(v) - k % 2), 0)
          * math.max(1 - math.abs(u - math.floor(u) - math.floor(k / 2)), 0)
      end
    end
  end
  if #at == 0 then return ops.zeros({C}, {dtype = plane.dtype}) end
  local values = ops.index_select(plane:reshape(C, -1), 2, integers(at, plane))
  return ops.amax(values * core.tensor(weights, {dtype = plane.dtype, device = plane.device}), {2})
end

op.RoiAlign = {output_height = 1, output_width = 1, sampling_ratio = 0, spatial_scale = 1, function(n, x, boxes, images)
  local size, samples, scale, out = {n.output_height, n.output_width}, n.sampling_ratio, n.spatial_scale, {}
  local aligned = (n.coordinate_transformation_mode or n.version < 16 and "output_half_pixel") ~= "output_half_pixel"
  if n.mode ~= "max" then
    boxes = ops.cat({to(ops.unsqueeze(images, 2), boxes.dtype) + 1, boxes}, 2)
    return require("luminary.vision.boxes").roi_align(x, boxes, size, scale, samples > 0 and samples or -1, aligned)
  end
  local shift, image = aligned and 0.5 or 0, images:totable()
  for r, box in ipairs(boxes:totable()) do
    local plane, bins, left, top = ops.select(x, 1, image[r] + 1), {}, box[1] * scale - shift, box[2] * scale - shift
    local w, h = box[3] * scale - shift - left, box[4] * scale - shift - top
    if not aligned then w, h = math.max(w, 1), math.max(h, 1) end
    local dw, dh = w / size[2], h / size[1]
    local columns, rows = samples > 0 and samples or math.ceil(dw), samples > 0 and samples or math.ceil(dh)
    helpers.bounded(size[1] * size[2] * columns * rows, "the number of samples of a box")
    for k = 0, size[1] * size[2] - 1 do
      bins[k + 1] = greatest(plane, top + math.floor(k / size[2]) * dh, dh / rows, rows, left + k % size[2] * dw,
        dw / columns, columns)
    end
    out[r] = ops.stack(bins, 2):reshape(x.shape[2], size[1], size[2])
  end
  return ops.stack(out, 1)
end}
op.MaxRoiPool = {spatial_scale = 1, function(n, x, boxes)
  local image, corners = unpack(helpers.parts_of(boxes, 2, {1, 4}))
  return ops.roi_pool(x, ops.cat({image + 1, corners}, 2), n.pooled_shape, n.spatial_scale)
end}

return op
