--- ONNX's convolutions and pooling, over 1 to 3 dims.
local core = require "luminary.core"
local F = require "luminary.nn.functional"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local filled, product = helpers.filled, helpers.product
local convolution = {}

-- Returns {strides, dilations, pads(x, kernel)}, the attributes of windows over `dims` dims. pads returns the elements
-- before and after each dim.
local function windows_of(n, dims)
  local strides, dilations = n.a.strides or filled(dims, 1), n.a.dilations or filled(dims, 1)
  local auto, given = n.a.auto_pad or "NOTSET", n.a.pads or filled(2 * dims, 0)
  local before, after = {unpack(given, 1, dims)}, {unpack(given, dims + 1, 2 * dims)}
  if auto == "VALID" then before, after = filled(dims, 0), filled(dims, 0) end
  return strides, dilations, function(x, kernel)
    if auto == "NOTSET" or auto == "VALID" or auto == "" then return before, after end
    local first, last = {}, {}
    for d = 1, dims do
      local size, span = x.shape[d + 2], (kernel[d] - 1) * dilations[d] + 1
      local total = math.max((math.ceil(size / strides[d]) - 1) * strides[d] + span - size, 0)
      first[d] = auto == "SAME_UPPER" and math.floor(total / 2) or math.ceil(total / 2)
      last[d] = total - first[d]
    end
    return first, last
  end
end

local function are_equal(a, b)
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- Returns x [N, C, ...] padded in the dims from 3 on.
local function padded(x, before, after, value)
  local first, last = {0, 0}, {0, 0}
  for d = 1, #before do first[d + 2], last[d + 2] = before[d], after[d] end
  return helpers.padded(x, first, last, "constant", value)
end

local by_dims = {F.conv1d, ops.conv2d, F.conv3d}
local transposed = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}

-- Returns f(x, w, bias) that convolves.
local function convolve(n)
  local group, dims, strides, dilations, pads_of = n.a.group or 1, nil, nil, nil, nil
  local zeros
  return function(x, w, bias)
    if not dims then
      dims = w.ndim - 2
      if not by_dims[dims] then n:fail("a convolution over %d dims is not supported", dims) end
      strides, dilations, pads_of = windows_of(n, dims)
      zeros = filled(dims, 0)
    end
    local before, after = pads_of(x, n.a.kernel_shape or {unpack(w.shape, 3)})
    if not are_equal(before, after) then x, before = padded(x, before, after), zeros end
    return by_dims[dims](x, w, bias, strides, before, dilations, group)
  end
end

convolution.Conv = convolve

function convolution.ConvInteger(n)
  local f = convolve(n)
  return function(x, w, x_zero, w_zero)
    x, w = to(x, "int32"), to(w, "int32")
    if x_zero then x = x - to(x_zero, "int32") end
    if w_zero then
      w_zero = to(w_zero, "int32")
      w = w - (w_zero.ndim == 1 and w_zero:numel() > 1 and w_zero:reshape({-1, unpack(filled(w.ndim - 1, 1))}) or w_zero)
    end
    return f(x, w)
  end
end

function convolution.ConvTranspose(n)
  local a = n.a
  local group = a.group or 1
  return function(x, w, bias)
    local dims = w.ndim - 2
    local f = transposed[dims] or n:fail("a convolution over %d dims is not supported", dims)
    local strides, dilations = a.strides or filled(dims, 1), a.dilations or filled(dims, 1)
    local extra, given, auto = a.output_padding or filled(dims, 0), a.pads or filled(2 * dims, 0), a.auto_pad or "NOTSET"
    local before, after = {}, {}
    for d = 1, dims do
      before[d], after[d] = given[d], given[d + dims]
      local size, wanted = x.shape[d + 2], a.output_shape and a.output_shape[#a.output_shape - dims + d]
      if not wanted and auto:find "^SAME" then wanted = size * strides[d] end
      if wanted then
        local total = strides[d] * (size - 1) + extra[d] + (w.shape[d + 2] - 1) * dilations[d] + 1 - wanted
        local half = math.floor(total / 2)
        before[d] = auto == "SAME_UPPER" and half or total - half
        after[d] = total - before[d]
      end
    end
    if are_equal(before, after) and math.min(unpack(before)) >= 0
      and are_equal(extra, filled(dims, 0)) then
      return f(x, w, bias, strides, before, filled(dims, 0), group, dilations)
    end
    local y = f(x, w, nil, strides, filled(dims, 0), filled(dims, 0), group, dilations)
    for d = 1, dims do before[d], after[d] = -before[d], extra[d] - after[d] end
    y = padded(y, before, after)
    return bias and y + bias:reshape({1, -1, unpack(filled(dims, 1))}) or y
  end
end

function convolution.CausalConvWithState(n)
  local silu = n.a.activation == "silu" or n.a.activation == "swish"
  return function(x, w, bias, past)
    local N, C, k = x.shape[1], x.shape[2], w.shape[3]
    past = past or ops.zeros({N, C, k - 1}, {dtype = x.dtype, device = x.device})
    local all = ops.cat({past, x}, 3)
    local y = F.conv1d(all, w, bias, {1}, {0}, {1}, C)
    return silu and ops.silu(y) or y, ops.narrow(all, 3, all.shape[3] - k + 2, k - 1)
  end
end

-- ---- windows: pooling and patches

-- Returns the number of windows along each dim.
local function counts_of(x, kernel, strides, dilations, before, after, ceil)
  local counts = {}
  for d = 1, #kernel do
    local size = x.shape[d + 2]
    local left = size + before[d] + after[d] - (kernel[d] - 1) * dilations[d] - 1
    counts[d] = (ceil and math.ceil or math.floor)(left / strides[d]) + 1
    if ceil and (counts[d] - 1) * strides[d] >= size + before[d] then counts[d] = counts[d] - 1 end
  end
  return counts
end

-- Returns a view [N, C, counts..., kernel...] of x padded with a value.
local function view_windows(x, kernel, strides, dilations, before, counts, value)
  local dims, last = #kernel, {}
  for d = 1, dims do
    last[d] = (counts[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - before[d] - x.shape[d + 2]
  end
  x = padded(x, before, last, value):contiguous()
  local sizes, steps, step = {x.shape[1], x.shape[2]}, {}, 1
  for d = dims, 1, -1 do
    steps[d + 2], steps[d + 2 + dims], step = step * strides[d], step * dilations[d], step * x.shape[d + 2]
  end
  steps[2], steps[1] = step, step * x.shape[2]
  for d = 1, dims do sizes[d + 2], sizes[d + 2 + dims] = counts[d], kernel[d] end
  return ops.as_strided(x, sizes, steps)
end

local function last_dims(count)
  local dims = {}
  for d = 1, count do dims[d] = -d end
  return dims
end

local function lowest(x)
  return is_float(x) and -math.huge or require("luminary.tensor.dtype_info").iinfo(x.dtype).min
end

-- Makes a pooling of f(x, window attributes, counts).
local function pool(n, f)
  local kernel, ceil = n.a.kernel_shape, n.a.ceil_mode == 1
  local dims = #kernel
  local strides, dilations, pads_of = windows_of(n, dims)
  return function(x)
    local before, after = pads_of(x, kernel)
    local counts = counts_of(x, kernel, strides, dilations, before, after, ceil)
    return f(x, kernel, strides, dilations, before, counts, after, ceil)
  end
end

local function is_small(before, after, kernel)
  for d = 1, #before do
    if before[d] ~= after[d] or before[d] * 2 > kernel[d] then return false end
  end
  return true
end

function convolution.MaxPool(n)
  local wants_indices, column_major = n:wants(2), n.a.storage_order == 1
  return pool(n, function(x, kernel, strides, dilations, before, counts, after, ceil)
    local dims = #kernel
    if dims == 2 and not wants_indices and not ceil and is_small(before, after, kernel) then
      return ops.max_pool2d(x, kernel, strides, before, dilations)
    end
    local values = view_windows(x, kernel, strides, dilations, before, counts, lowest(x))
    if not wants_indices then return ops.amax(values, last_dims(dims)) end
    local spatial = {unpack(x.shape, 3)}
    local numel = product(spatial)
    local at
    if column_major then
      local reversed, order = {}, {1, 2}
      for d = 1, dims do reversed[d], order[d + 2] = spatial[dims + 1 - d], dims + 3 - d end
      at = ops.permute(ops.arange(numel, {dtype = "int64"}):reshape({1, 1, unpack(reversed)}), order)
    else
      at = ops.arange(numel, {dtype = "int64"}):reshape({1, 1, unpack(spatial)})
    end
    local N, C = x.shape[1], x.shape[2]
    local all = {N, C, unpack(counts)}
    all[#all + 1] = product(kernel)
    local flat = values:reshape(all)
    local best = ops.argmax(flat, -1, true)
    all[1], all[2] = 1, 1
    local of_window = view_windows(at, kernel, strides, dilations, before, counts, 0):reshape(all)
    all[1], all[2] = N, C
    local index = ops.squeeze(ops.gather(ops.expand(of_window, all), -1, best), -1)
    local base = (ops.arange(N * C, {dtype = "int64"}) * numel):reshape({N, C, unpack(filled(dims, 1))})
    return ops.squeeze(ops.gather(flat, -1, best), -1), index + base
  end)
end

function convolution.AveragePool(n)
  local all = n.a.count_include_pad == 1
  return pool(n, function(x, kernel, strides, dilations, before, counts, after, ceil)
    local dims = #kernel
    if dims == 2 and not ceil and is_small(before, after, kernel) and product(dilations) == 1 then
      return ops.avg_pool2d(x, kernel, strides, before, false, all)
    end
    local ones = ops.ones({1, 1, unpack(x.shape, 3)}, {dtype = x.dtype, device = x.device})
    local first, over = before, last_dims(dims)
    if all then
      ones, first = padded(ones, before, after, 1), filled(dims, 0)
    end
    local number = ops.sum(view_windows(ones, kernel, strides, dilations, first, counts, 0), over)
    return ops.sum(view_windows(x, kernel, strides, dilations, before, counts, 0), over) / number
  end)
end

function convolution.LpPool(n)
  local p = n.a.p or 2
  return pool(n, function(x, kernel, strides, dilations, before, counts)
    return ops.norm(view_windows(x, kernel, strides, dilations, before, counts, 0):flatten(3 + #kernel), p, {-1})
  end)
end

local function global(f)
  return function(n)
    return function(x)
      local dims = {}
      for d = 3, x.ndim do dims[d - 2] = d end
      return f(x, dims, n.a.p or 2)
    end
  end
end
convolution.GlobalAveragePool = global(function(x, dims) return ops.mean(x, dims, true) end)
convolution.GlobalMaxPool = global(function(x, dims) return ops.amax(x, dims, true) end)
convolution.GlobalLpPool = global(function(x, dims, p) return ops.norm(x, p, dims, true) end)

function convolution.MaxUnpool(n)
  local kernel = n.a.kernel_shape
  local strides, pads, sizes_of = n.a.strides or filled(#kernel, 1), n.a.pads or filled(2 * #kernel, 0), n:list(3)
  return function(x, indices, given)
    local sizes, before, after, wanted = {x.shape[1], x.shape[2]}, filled(x.ndim, 0), {}, sizes_of(given)
    for d = 1, #kernel do
      sizes[d + 2] = (x.shape[d + 2] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + #kernel]
    end
    local y = ops.scatter(ops.zeros({product(sizes)}, {dtype = x.dtype}), 1, indices:reshape(-1) + 1, x:reshape(-1))
    for d = 1, x.ndim do after[d] = wanted and wanted[d] - sizes[d] or 0 end
    return helpers.padded(y:reshape(sizes), before, after, "constant")
  end
end

function convolution.Col2Im(n)
  local image_of, block_of = n:list(2), n:list(3)
  return function(x, image_shape, block_shape)
    local image, block = image_of(image_shape), block_of(block_shape)
    local dims = #image
    local strides, dilations, pads_of = windows_of(n, dims)
    local before, after = pads_of(x, block)
    local at = ops.arange(product(image), {dtype = "int64"}):reshape({1, 1, unpack(image)}) + 1
    local counts = counts_of(at, block, strides, dilations, before, after, false)
    local order = {1, 2}
    for d = 1, dims do order[d + 2], order[d + 2 + dims] = d + 2 + dims, d + 2 end
    at = ops.permute(view_windows(at, block, strides, dilations, before, counts, 0), order):reshape(1, 1, -1) + 1
    local N, C = x.shape[1], x.shape[2] / product(block)
    x = x:reshape(N, C, -1)
    local y = ops.scatter_add(ops.zeros({N, C, product(image) + 1}, {dtype = x.dtype}), 3, ops.expand(at, x.shape), x)
    return ops.narrow(y, 3, 2, product(image)):reshape({N, C, unpack(image)})
  end
end

function convolution.DeformConv(n)
  local group, parts = n.a.group or 1, n.a.offset_group or 1
  local strides, dilations, pads_of = windows_of(n, 2)
  return function(x, w, offset, bias, mask)
    local dtype = x.dtype
    x, offset = to(x, "float64"), to(offset, "float64") -- so that points on pixels are just these
    local N, C, H, W = unpack(x.shape)
    local kh, kw = w.shape[3], w.shape[4]
    local before, after = pads_of(x, {kh, kw})
    local counts = counts_of(x, {kh, kw}, strides, dilations, before, after, false)
    local oh, ow, K, opts = counts[1], counts[2], kh * kw, {dtype = x.dtype, device = x.device}
    -- Positions [K, oh, ow] of the taps, to which the offsets are added.
    local function positions(d, size, k, shape)
      local base = ops.arange(size, opts) * strides[d] - before[d]
      return ops.expand(base:reshape(shape), {oh, ow}) + k * dilations[d]
    end
    local ys, xs = {}, {}
    for k = 0, K - 1 do
      ys[k + 1], xs[k + 1] = positions(1, oh, math.floor(k / kw), {oh, 1}), positions(2, ow, k % kw, {1, ow})
    end
    offset = offset:reshape(N * parts, K, 2, oh, ow)
    local y = ops.select(offset, 3, 1) + ops.stack(ys, 1)
    local z = ops.select(offset, 3, 2) + ops.stack(xs, 1)
    local grid = ops.stack({(z * 2 + 1) / W - 1, (y * 2 + 1) / H - 1}, 5):reshape(N * parts, K * oh, ow, 2)
    local taps = to(ops.grid_sample(x:reshape(N * parts, C / parts, H, W), grid, "bilinear", "zeros", false), dtype)
      :reshape(N, parts, C / parts, K, oh * ow)
    if mask then taps = taps * mask:reshape(N, parts, 1, K, oh * ow) end
    taps = taps:reshape(N, group, C / group * K, oh * ow)
    local out = ops.matmul(w:reshape(1, group, w.shape[1] / group, -1), taps):reshape(N, w.shape[1], oh, ow)
    return bias and out + bias:reshape(1, -1, 1, 1) or out
  end
end

return convolution
