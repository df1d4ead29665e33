--- Computes with boxes in images, as torchvision.ops does: rows (x1, y1, x2, y2) of a floating tensor [N, 4], with x1
--- <= x2 and y1 <= y2. Images and boxes count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local sizes = require "luminary.nn.functional.sizes"

local ops, fail = core.ops, options.fail
local vision = {}

local boxes_of = options.kind("boxes", "tensor [N, 4]", function(who, name, v)
  if not core.is_tensor(v) or v.ndim ~= 2 or v.shape[2] ~= 4 then
    options.wrong_shape(who, name, v, "[N, 4]")
  end
  return v
end)

options.kind("boxes_of_dims", "tensor", function(who, name, v)
  options.arg(who, name, v, "tensor")
  if v.ndim < 1 or v.shape[v.ndim] ~= 4 then options.wrong_shape(who, name, v, "[..., 4]") end
  return v
end)

-- Returns boxes in a dtype that holds their areas, as torchvision does: float32 at least, or int32; with `float`
-- always floating.
local function upcast(boxes, float)
  if boxes.dtype == "float64" or not float and boxes.dtype == "int64" then return boxes end
  return boxes:to((float or boxes:is_floating_point()) and "float32" or "int32")
end

local function coordinate(boxes, i) return boxes:select(2, i) end

-- ---- areas and intersections

--- Computes the area of boxes.
vision.box_area = signature.of("box_area(boxes: boxes)", function(boxes)
  boxes = upcast(boxes)
  return (coordinate(boxes, 3) - coordinate(boxes, 1)) * (coordinate(boxes, 4) - coordinate(boxes, 2))
end)

-- Returns the area of the intersection, or with `hull` of the enclosing box, of each of a and each of b: [N, M].
local function shared(a, b, hull)
  local low, high = ops.maximum, ops.minimum
  if hull then low, high = high, low end
  local function extent(i)
    local first = low(coordinate(a, i):unsqueeze(2), coordinate(b, i))
    return ops.relu(high(coordinate(a, i + 2):unsqueeze(2), coordinate(b, i + 2)) - first)
  end
  return extent(1) * extent(2)
end

local function inter_union(a, b)
  local inter = shared(a, b)
  return inter, vision.box_area(a):unsqueeze(2) + vision.box_area(b) - inter
end

--- Computes the intersection over union (IoU, Jaccard index) of all pairs of two sets of boxes.
vision.box_iou = signature.of("box_iou(boxes1: boxes, boxes2: boxes)", function(a, b)
  local inter, union = inter_union(upcast(a, true), upcast(b, true))
  return inter / union
end)

--- Computes the generalized intersection over union of all pairs of two sets of boxes. Rezatofighi et al.,
--- "Generalized Intersection over Union", 2019.
vision.generalized_box_iou = signature.of("generalized_box_iou(boxes1: boxes, boxes2: boxes)", function(a, b)
  local first, second = upcast(a, true), upcast(b, true)
  local inter, union = inter_union(first, second)
  local hull = shared(first, second, true)
  return inter / union - (hull - union) / hull
end)

-- ---- conversion of box formats

--- Converts boxes from one format to another.
vision.box_convert = signature.of([[box_convert(boxes: boxes_of_dims, in_fmt: "xyxy" | "xywh" | "cxcywh",
  out_fmt: "xyxy" | "xywh" | "cxcywh")]], function(boxes, from, to)
  if from == to then return boxes:clone() end
  local x, y, w, h = unpack(boxes:unbind(-1))
  if from == "xyxy" then w, h = w - x, h - y end
  if from == "cxcywh" then x, y = x - w * 0.5, y - h * 0.5 end
  if to == "xyxy" then return ops.stack({x, y, x + w, y + h}, -1) end
  if to == "cxcywh" then return ops.stack({x + w * 0.5, y + h * 0.5, w, h}, -1) end
  return ops.stack({x, y, w, h}, -1)
end)

--- Clips boxes so that they lie inside of an image.
vision.clip_boxes_to_image = signature.of([[clip_boxes_to_image(boxes: boxes_of_dims,
  size: sizes(2, 0))]], function(boxes, size)
  local x1, y1, x2, y2 = unpack(boxes:unbind(-1))
  local height, width = size[1], size[2]
  return ops.stack({x1:clamp(0, width), y1:clamp(0, height), x2:clamp(0, width), y2:clamp(0, height)}, -1)
end)

--- Returns the indices of the boxes whose sides are at least min_size.
vision.remove_small_boxes = signature.of("remove_small_boxes(boxes: boxes, min_size: number)", function(boxes, min_size)
  local wide, high = coordinate(boxes, 3) - coordinate(boxes, 1), coordinate(boxes, 4) - coordinate(boxes, 2)
  return ops.nonzero(ops.logical_and(ops.ge(wide, min_size), ops.ge(high, min_size))):reshape(-1)
end)

-- ---- non-maximum suppression

local function check_each(who, boxes, name, t)
  if t.ndim ~= 1 or t.shape[1] ~= boxes.shape[1] then
    options.wrong_shape(who, name, t, ("[%d], one for each box"):format(boxes.shape[1]))
  end
end

local function check_scores(who, boxes, scores)
  check_each(who, boxes, "scores", scores)
  if not boxes:is_floating_point() then
    options.wrong_dtype(who, "boxes", "floating", boxes, "convert it with :float()")
  end
end

--- Performs non-maximum suppression of boxes according to their intersection over union (IoU).
vision.nms = signature.of("nms(boxes: boxes, scores: tensor, iou_threshold: number)", function(boxes, scores, threshold)
  check_scores("nms", boxes, scores)
  boxes = boxes:detach()
  if boxes.shape[1] == 0 then return ops.empty({0}, {device = boxes.device, dtype = "int64"}) end
  local _, order = ops.sort(scores:detach(), 1, {descending = true, stable = true})
  return order:masked_select(ops.nms_sorted(boxes:index_select(1, order), threshold))
end)

--- Performs non-maximum suppression of boxes separately for each class.
vision.batched_nms = signature.of([[batched_nms(boxes: boxes, scores: tensor, idxs: tensor,
  iou_threshold: number)]], function(boxes, scores, idxs, threshold)
  check_scores("batched_nms", boxes, scores)
  boxes = upcast(boxes:detach(), true) -- offsets of many classes leave half precision
  check_each("batched_nms", boxes, "idxs", idxs)
  if boxes.shape[1] == 0 then return ops.empty({0}, {device = boxes.device, dtype = "int64"}) end
  local apart = idxs:to(boxes.dtype) * (ops.amax(boxes) - ops.amin(boxes) + 1) -- separates boxes of different classes
  return vision.nms(boxes + apart:unsqueeze(2), scores, threshold)
end)

-- ---- pooling of boxes

local pooled = "x: tensor, boxes: any, output_size: sizes(2, 1), spatial_scale = 1"

-- Returns boxes as rows (image, x1, y1, x2, y2), also from a list with the boxes of each image.
local function rows_of(who, x, boxes)
  if x.ndim ~= 4 then options.wrong_shape(who, "x", x, "[N, C, H, W]") end
  if not x:is_floating_point() then options.wrong_dtype(who, "x", "floating", x, "convert it with :float()") end
  if core.is_tensor(boxes) then
    if boxes.ndim ~= 2 or boxes.shape[2] ~= 5 then
      options.wrong_shape(who, "boxes", boxes, "[K, 5] (image, x1, y1, x2, y2) or a list of [K, 4] for each image")
    end
    if boxes.dtype ~= x.dtype then
      options.dtypes_differ(who, "x", x, "boxes", boxes)
    end
    return boxes:detach()
  end
  if type(boxes) ~= "table" or #boxes ~= x.shape[1] then
    options.wrong_shape(who, "boxes", boxes, ("[K, 5] or a list of %d tensors [K, 4]"):format(x.shape[1]))
  end
  local all = {}
  for i, each in ipairs(boxes) do
    boxes_of(who, "boxes[" .. i .. "]", each)
    local image = ops.full({each.shape[1], 1}, i, {device = x.device, dtype = x.dtype})
    all[i] = ops.cat({image, each:detach():to(x.dtype)}, 2)
  end
  return ops.cat(all, 1)
end

--- Performs region of interest (RoI) max pooling. Girshick, "Fast R-CNN", 2015.
vision.roi_pool = signature.of("roi_pool(" .. pooled .. ")", function(x, boxes, size, scale)
  return (ops.roi_pool(x, rows_of("roi_pool", x, boxes), size, scale))
end)

-- Returns sample points along one side of boxes, from `start`, with bins of length `each`: positions from 0 and weights
-- of two pixels each, [K, bins, samples, 2]. `counts` [K, 1, 1]: the number of samples that count.
local function sample_points(start, each, bins, samples, counts, size)
  local how = {device = start.device, dtype = start.dtype}
  local bin, sample = ops.arange(bins, how):view(1, bins, 1), ops.arange(samples, how)
  local divisor = counts:clamp(1)
  local at = start + bin * each + (sample + 0.5) * each / divisor
  local inside = ops.logical_and(ops.logical_and(ops.ge(at, -1), ops.le(at, size)), ops.lt(sample, counts))
  at = at:clamp(0)
  local low = ops.floor(at):clamp(nil, size - 1)
  local part = ops.where(ops.ge(low, size - 1), 0, at - low)
  local indices = ops.stack({low, (low + 1):clamp(nil, size - 1)}, -1)
  local weight = ops.where(inside, 1, 0):to(how) / divisor
  return indices, ops.stack({weight * (1 - part), weight * part}, -1)
end

--- Performs region of interest (RoI) align, average pooling of interpolated points. He et al., "Mask R-CNN", 2017.
vision.roi_align = signature.by_name("roi_align(" .. pooled .. ", sampling_ratio: integer = -1, aligned = false)",
  function(a)
  local who, x = "roi_align", a.x
  local boxes, rows, columns = rows_of(who, x, a.boxes), a.output_size[1], a.output_size[2]
  local n, channels, height, width = unpack(x.shape)
  local count = boxes.shape[1]
  local precise = x.dtype == "float64" and "float64" or "float32"
  if count == 0 or x:numel() == 0 then
    return ops.sum(x) * 0 + ops.zeros({count, channels, rows, columns}, {device = x.device, dtype = x.dtype})
  end
  boxes = boxes:to(precise)
  local image = coordinate(boxes, 1)
  if ops.any(ops.logical_or(ops.lt(image, 1), ops.gt(image, n))):item() then
    fail("%s: image indices in boxes are from %g to %g; x has images 1 to %d", who, ops.amin(image):item(),
      ops.amax(image):item(), n)
  end
  local function along(first, last, bins, size)
    local start = coordinate(boxes, first) * a.spatial_scale - (a.aligned and 0.5 or 0)
    local extent = coordinate(boxes, last) * a.spatial_scale - (a.aligned and 0.5 or 0) - start
    if not a.aligned then extent = extent:clamp(1) end
    local counts, samples = ops.full_like(start, a.sampling_ratio), a.sampling_ratio
    if samples < 1 then
      counts = ops.ceil(extent / bins) -- 0 of a box without size, whose result is 0
      samples = math.max(1, ops.amax(counts):item())
    end
    if samples ~= samples or samples > 4096 then
      fail("%s: sampling points per bin must be at most 4096, got %g", who, samples)
    end
    local shape = {count, 1, 1}
    return sample_points(start:view(shape), (extent / bins):view(shape), bins, samples, counts:view(shape), size)
  end
  local y, y_weight = along(3, 5, rows, height)
  local z, z_weight = along(2, 4, columns, width)
  local taps_y, taps_x = y.shape[3] * 2, z.shape[3] * 2
  -- Views of shape [taps of rows, taps of columns, K, rows, columns]
  local function down(v) return v:view(count, rows, taps_y):permute(3, 1, 2):reshape(taps_y, 1, count, rows, 1) end
  local function across(v)
    return v:view(count, columns, taps_x):permute(3, 1, 2):reshape(1, taps_x, count, 1, columns)
  end
  local function wide(v) return v:to "int64" end
  local first = wide(image - 1):view(1, 1, count, 1, 1) * (height * width) + 1
  local indices = (first + wide(down(y)) * width + wide(across(z))):reshape(1, taps_y * taps_x, -1)
  local weight = (down(y_weight) * across(z_weight)):reshape(1, taps_y * taps_x, -1)
  local pixels = ops.reshape(sizes.channels_last(x), {1, 1, n * height * width, channels})
  local pooled_rows = ops.gather_weighted(pixels, indices, weight):view(count, rows, columns, channels)
  return sizes.channels_second(pooled_rows):contiguous()
end)

return vision
