--- ONNX's resizing and sampling of images.
local core = require "luminary.core"
local F = require "luminary.nn.functional"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local image = {}

-- Returns the coordinate in the input, of `size` elements, of each output element i, from 0. out: output elements.
local coordinates = {
  half_pixel = function(i, scale) return (i + 0.5) / scale - 0.5 end,
  half_pixel_symmetric = function(i, scale, size, out)
    local center = size / 2
    return center * (1 - out / (scale * size)) + (i + 0.5) / scale - 0.5
  end,
  pytorch_half_pixel = function(i, scale, _, out) return out == 1 and -0.5 or (i + 0.5) / scale - 0.5 end,
  align_corners = function(i, scale, size, out) return out == 1 and 0 or i * (size - 1) / (scale * size - 1) end,
  asymmetric = function(i, scale) return i / scale end,
  tf_half_pixel_for_nn = function(i, scale) return (i + 0.5) / scale end,
  tf_crop_and_resize = function(i, _, size, out, first, last)
    if out == 1 then return 0.5 * (first + last) * (size - 1) end
    return first * (size - 1) + i * (last - first) * (size - 1) / (out - 1)
  end,
}

local nearest = {
  round_prefer_floor = function(x) return math.ceil(x - 0.5) end,
  round_prefer_ceil = function(x) return math.floor(x + 0.5) end, floor = math.floor, ceil = math.ceil,
}

local function triangle(x) return math.max(1 - math.abs(x), 0) end
local function cubic(a)
  return function(x)
    x = math.abs(x)
    if x <= 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
    return x < 2 and ((a * x - 5 * a) * x + 8 * a) * x - 4 * a or 0
  end
end

-- Returns x resized along dim d to `out` elements. how: {at = coordinate function, nearest = rounding, or kernel and its
-- radius, antialias, exclude, extrapolate}.
local function resized(x, d, out, scale, how, first, last)
  local size, points, outside = x.shape[d], {}, nil
  for i = 1, out do
    points[i] = how.at(i - 1, scale, size, out, first, last)
    if how.extrapolate and (points[i] < 0 or points[i] > size - 1) then
      outside = outside or {}
      outside[i] = true
    end
  end
  local function clamped(i) return math.max(math.min(i, size - 1), 0) + 1 end
  local y
  if how.nearest then
    local at = {}
    for i, p in ipairs(points) do at[i] = clamped(how.nearest(p)) end
    y = ops.index_select(x, d, helpers.integers(at, x))
  else
    local narrow = how.antialias and math.min(scale, 1) or 1
    local from = math.floor(-how.radius / narrow) + 1
    local taps, weights, sums = {}, {}, {}
    for k = from, 1 - from do
      local at, weight = {}, {}
      for i, p in ipairs(points) do
        local base = math.floor(p)
        local index = base + k
        at[i], weight[i] = clamped(index), how.kernel((k - (p - base)) * narrow)
        if how.exclude and (index < 0 or index >= size) then weight[i] = 0 end
        sums[i] = (sums[i] or 0) + weight[i]
      end
      taps[#taps + 1], weights[#weights + 1] = at, weight
    end
    local sizes = helpers.filled(x.ndim, 1)
    sizes[d] = out
    for k, at in ipairs(taps) do
      for i = 1, out do weights[k][i] = weights[k][i] / sums[i] end
      local part = ops.index_select(x, d, helpers.integers(at, x))
        * core.tensor(weights[k], {dtype = x.dtype, device = x.device}):reshape(sizes)
      y = y and y + part or part
    end
  end
  if not outside then return y end
  local sizes, mask = helpers.filled(x.ndim, 1), {}
  sizes[d] = out
  for i = 1, out do mask[i] = outside[i] or false end
  return ops.masked_fill(y, core.tensor(mask, {device = x.device}):reshape(sizes), how.extrapolate)
end

function image.Resize(n)
  local a, old = n.a, n.version < 11
  local mode = a.mode or "nearest"
  local name = a.coordinate_transformation_mode or (old and "asymmetric" or "half_pixel")
  local how = {
    at = coordinates[name], antialias = a.antialias == 1, exclude = a.exclude_outside == 1,
    extrapolate = name == "tf_crop_and_resize" and (a.extrapolation_value or 0) or nil,
  }
  if not how.at then n:unsupported("with coordinates " .. name) end
  if mode == "nearest" then
    how.nearest = nearest[a.nearest_mode or (old and "floor" or "round_prefer_floor")]
  elseif mode:find "linear" then
    how.kernel, how.radius = triangle, 1
  else
    how.kernel, how.radius = cubic(a.cubic_coeff_a or -0.75), 2
  end
  local scales_of, sizes_of = n:list(old and 2 or 3), n:list(4)
  if n.version < 9 and n.op == "Upsample" then
    local list = a.scales
    function scales_of() return list end
  end
  local roi_of, policy, axes = n:list(2), a.keep_aspect_ratio_policy or "stretch", a.axes
  return function(x, roi, scales, sizes)
    local factors, wanted, region = scales_of(old and roi or scales), sizes_of(sizes), nil
    if how.extrapolate then region = roi_of(roi) end
    if factors and #factors == 0 then factors = nil end
    local count = wanted and #wanted or #factors
    local ratio
    if wanted and policy ~= "stretch" then
      for i = 1, count do
        local d = helpers.dim_in(x, axes and axes[i] or i - 1)
        local r = wanted[i] / x.shape[d]
        ratio = ratio and (policy == "not_larger" and math.min or math.max)(ratio, r) or r
      end
    end
    local y = is_float(x) and x or how.nearest and x or to(x, "float32")
    for i = 1, count do
      local d = helpers.dim_in(x, axes and axes[i] or i - 1)
      local size = x.shape[d]
      local scale = factors and factors[i] or ratio or wanted[i] / size
      local out = factors and math.floor(size * scale) or ratio and math.floor(size * ratio + 0.5) or wanted[i]
      if out ~= size or scale ~= 1 or region then
        y = resized(y, d, out, scale, how, region and region[i], region and region[i + count])
      end
    end
    if y.dtype == x.dtype then return y end
    return to(ops.clamp(ops.round(y), 0, 255), x.dtype)
  end
end
image.Upsample = image.Resize

function image.GridSample(n)
  local mode = ({linear = "bilinear", cubic = "bicubic"})[n.a.mode] or n.a.mode or "bilinear"
  local padding, align = n.a.padding_mode or "zeros", n.a.align_corners == 1
  return function(x, grid) return ops.grid_sample(x, grid, mode, padding, align) end
end

function image.AffineGrid(n)
  local sizes_of, align = n:list(2), n.a.align_corners == 1
  return function(theta, size) return F.affine_grid(theta, sizes_of(size), align) end
end

-- Returns boxes with the number of their image, from 1, in front.
local function boxes_of(boxes, images) return ops.cat({to(ops.unsqueeze(images, 2), boxes.dtype) + 1, boxes}, 2) end

function image.RoiAlign(n)
  local a = n.a
  local size, max = {a.output_height or 1, a.output_width or 1}, a.mode == "max"
  local aligned = (a.coordinate_transformation_mode or (n.version < 16 and "output_half_pixel" or "half_pixel"))
    == "half_pixel"
  local samples, scale = a.sampling_ratio or 0, a.spatial_scale or 1
  return function(x, boxes, images)
    if not max then
      return require("luminary.vision.boxes").roi_align(x, boxes_of(boxes, images), size, scale,
        samples > 0 and samples or -1, aligned)
    end
    return image.roi_max(x, boxes, images, size, scale, samples, aligned)
  end
end

-- Returns for each box and bin the greatest product of a sample's pixel and its weight, as ONNX defines the mode "max".
function image.roi_max(x, boxes, images, size, scale, samples, aligned)
  local H, W, out = x.shape[3], x.shape[4], {}
  local shift = aligned and 0.5 or 0
  for r, box in ipairs(boxes:totable()) do
    local plane = ops.select(x, 1, tonumber(images:select(1, r):item()) + 1)
    local x1, y1 = box[1] * scale - shift, box[2] * scale - shift
    local width, height = box[3] * scale - shift - x1, box[4] * scale - shift - y1
    if not aligned then width, height = math.max(width, 1), math.max(height, 1) end
    local bw, bh = width / size[2], height / size[1]
    local nx, ny = samples > 0 and samples or math.ceil(bw), samples > 0 and samples or math.ceil(bh)
    local bins = {}
    for i = 0, size[1] - 1 do
      for j = 0, size[2] - 1 do
        local rows, columns, weights = {}, {}, {}
        for p = 0, ny - 1 do
          for q = 0, nx - 1 do
            local v, u = y1 + (i + (p + 0.5) / ny) * bh, x1 + (j + (q + 0.5) / nx) * bw
            if v >= -1 and v <= H and u >= -1 and u <= W then
              v, u = math.max(v, 0), math.max(u, 0)
              local v0, u0 = math.min(math.floor(v), H - 1), math.min(math.floor(u), W - 1)
              local v1, u1 = math.min(v0 + 1, H - 1), math.min(u0 + 1, W - 1)
              local dv, du = v0 == H - 1 and 0 or v - v0, u0 == W - 1 and 0 or u - u0
              for _, tap in ipairs {{v0, u0, (1 - dv) * (1 - du)}, {v0, u1, (1 - dv) * du}, {v1, u0, dv * (1 - du)},
                {v1, u1, dv * du}} do
                rows[#rows + 1], columns[#columns + 1], weights[#weights + 1] = tap[1] + 1, tap[2] + 1, tap[3]
              end
            end
          end
        end
        if #rows == 0 then
          bins[#bins + 1] = ops.zeros({x.shape[2]}, {dtype = x.dtype})
        else
          local at = (helpers.integers(rows, x) - 1) * W + helpers.integers(columns, x)
          local values = ops.index_select(plane:reshape(x.shape[2], -1), 2, at)
          bins[#bins + 1] = ops.amax(values * core.tensor(weights, {dtype = x.dtype, device = x.device}), {2})
        end
      end
    end
    out[r] = ops.stack(bins, 2):reshape(x.shape[2], size[1], size[2])
  end
  return ops.stack(out, 1)
end

function image.MaxRoiPool(n)
  local size, scale = n.a.pooled_shape, n.a.spatial_scale or 1
  return function(x, boxes)
    local images = ops.narrow(boxes, 2, 1, 1) + 1
    return ops.roi_pool(x, ops.cat({images, ops.narrow(boxes, 2, 2, 4)}, 2), size, scale)
  end
end

return image
