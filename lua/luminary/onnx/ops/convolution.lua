--- ONNX's convolutions and pooling, over 1 to 3 dims.
local core = require "luminary.core"
local F = require "luminary.nn.functional"
local helpers = require "luminary.onnx.ops.sizes"
local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local filled, product, joined, refuse = helpers.filled, helpers.product, helpers.joined, helpers.refuse
local op = {}

local by_dims = {F.conv1d, ops.conv2d, F.conv3d}
local transposed = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}

local function are_equal(a, b)
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- Returns an attribute, a list of `count` integers of at least `least`; filled with `default` if the node lacks it.
local function list_of(n, name, count, least, default)
  local list = n[name] or default and filled(count, default) or refuse("attribute '%s' is missing", name)
  local is_list = type(list) == "table" and #list == count
  for i = 1, is_list and count or 0 do is_list = is_list and list[i] >= least and list[i] == math.floor(list[i]) end
  if not is_list then
    refuse("attribute '%s' must be %d integers%s", name, count, least > -math.huge and " of at least " .. least or "")
  end
  return list
end

-- Fails if the attribute kernel_shape differs from the sizes of a kernel.
local function check_kernel(n, kernel)
  if n.kernel_shape and not are_equal(kernel, list_of(n, "kernel_shape", #kernel, 1)) then
    refuse("attribute 'kernel_shape' differs from the weight's sizes")
  end
end

-- Returns strides, dilations, and the elements before and after each dim from 3 on, by a node's attributes.
local function windows_of(n, x, kernel)
  local dims, auto = #kernel, n.auto_pad or "NOTSET"
  if dims ~= x.ndim - 2 then refuse("the kernel has %d dims, the input %d", dims, x.ndim - 2) end
  check_kernel(n, kernel)
  local strides, dilations = list_of(n, "strides", dims, 1, 1), list_of(n, "dilations", dims, 1, 1)
  local pads = n.pads and list_of(n, "pads", 2 * dims, -math.huge)
  if not auto:find "^SAME" then
    if not pads or auto == "VALID" then return strides, dilations, filled(dims, 0), filled(dims, 0) end
    return strides, dilations, {unpack(pads, 1, dims)}, {unpack(pads, dims + 1, 2 * dims)}
  end
  local before, after = {}, {}
  for d = 1, dims do
    local size, span = x.shape[d + 2], (kernel[d] - 1) * dilations[d] + 1
    local total = math.max((math.ceil(size / strides[d]) - 1) * strides[d] + span - size, 0)
    before[d] = auto == "SAME_UPPER" and math.floor(total / 2) or math.ceil(total / 2)
    after[d] = total - before[d]
  end
  return strides, dilations, before, after
end

-- Returns x [N, C, ...] padded in the dims from 3 on.
local function padded(x, before, after, value)
  return helpers.padded(x, joined({0, 0}, before), joined({0, 0}, after), "constant", value)
end

local function convolve(n, x, w, bias)
  local dims = w.ndim - 2
  local f = by_dims[dims] or refuse("a convolution over %d dims is not supported", dims)
  local kernel = {unpack(w.shape, 3)}
  local strides, dilations, before, after = windows_of(n, x, kernel)
  if not are_equal(before, after) then x, before = padded(x, before, after), filled(dims, 0) end
  return f(x, w, bias, strides, before, dilations, n.group)
end
op.Conv = {group = 1, convolve}

--- Returns what ops.int8_conv gets for x [N, C, H, W] and the kernel's sizes: x, padded by the number x_zero if need
--- be, and a table of strides, padding, dilations, groups and x_zero.
function op.int8_windows(n, x, kernel, x_zero)
  local strides, dilations, before, after = windows_of(n, x, kernel)
  if not are_equal(before, after) then x, before = padded(x, before, after, x_zero), {0, 0} end
  return x, {stride = strides, padding = before, dilation = dilations, groups = n.group, x_zero = x_zero}
end

--- Returns a convolution of integers less their zero points, int32; w_zero is one number, or one for each result
--- channel.
function op.of_integers(n, x, w, x_zero, w_zero, bias)
  x, w = to(x, "int32"), to(w, "int32")
  if x_zero then x = x - to(x_zero, "int32") end
  if w_zero then w = w - to(w_zero, "int32"):reshape(joined({-1}, filled(w.ndim - 1, 1))) end
  return convolve(n, x, w, bias)
end
op.ConvInteger = {group = 1, op.of_integers}

op.ConvTranspose = {group = 1, auto_pad = "NOTSET", function(n, x, w, bias)
  local dims, before, after = w.ndim - 2, {}, {}
  local f = transposed[dims] or refuse("a convolution over %d dims is not supported", dims)
  if x.ndim ~= w.ndim then refuse("the kernel has %d dims, the input %d", dims, x.ndim - 2) end
  check_kernel(n, {unpack(w.shape, 3)})
  local strides, dilations = list_of(n, "strides", dims, 1, 1), list_of(n, "dilations", dims, 1, 1)
  local extra, none, shape = list_of(n, "output_padding", dims, 0, 0), filled(dims, 0), n.output_shape
  local pads = list_of(n, "pads", 2 * dims, -math.huge, 0)
  if shape and (type(shape) ~= "table" or #shape < dims) then list_of(n, "output_shape", dims, 0) end
  for d = 1, dims do
    local size = x.shape[d + 2]
    local wanted = shape and shape[#shape - dims + d] or n.auto_pad:find "^SAME" and size * strides[d]
    before[d], after[d] = pads[d], pads[d + dims]
    if wanted then
      local total = strides[d] * (size - 1) + extra[d] + (w.shape[d + 2] - 1) * dilations[d] + 1 - wanted
      before[d] = n.auto_pad == "SAME_UPPER" and math.floor(total / 2) or math.ceil(total / 2)
      after[d] = total - before[d]
    end
  end
  if are_equal(before, after) and math.min(unpack(before)) >= 0 and are_equal(extra, none) then
    return f(x, w, bias, strides, before, none, n.group, dilations)
  end
  for d = 1, dims do before[d], after[d] = -before[d], extra[d] - after[d] end
  local y = padded(f(x, w, nil, strides, none, none, n.group, dilations), before, after)
  return bias and y + bias:reshape(joined({1, -1}, filled(dims, 1))) or y
end}

op.CausalConvWithState = {function(n, x, w, bias, past)
  local N, C, k = x.shape[1], x.shape[2], w.shape[3]
  local all = ops.cat({past or ops.zeros({N, C, k - 1}, {dtype = x.dtype, device = x.device}), x}, 3)
  local y = F.conv1d(all, w, bias, {1}, {0}, {1}, C)
  local activated = n.activation == "silu" or n.activation == "swish"
  return activated and ops.silu(y) or y, ops.narrow(all, 3, all.shape[3] - k + 2, k - 1)
end}

-- ---- windows: pooling and patches

-- Returns the number of windows along each dim.
local function counts_of(n, x, kernel, strides, dilations, before, after)
  local counts = {}
  for d = 1, #kernel do
    local size = x.shape[d + 2]
    local left = size + before[d] + after[d] - (kernel[d] - 1) * dilations[d] - 1
    counts[d] = (n.ceil_mode == 1 and math.ceil or math.floor)(left / strides[d]) + 1
    if n.ceil_mode == 1 and (counts[d] - 1) * strides[d] >= size + before[d] then counts[d] = counts[d] - 1 end
  end
  return counts
end

-- Returns a view [N, C, counts..., kernel...] of x padded with a value.
local function view_windows(x, kernel, strides, dilations, before, counts, value)
  local dims, last, steps, step = #kernel, {}, {}, 1
  for d = 1, dims do
    last[d] = (counts[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - before[d] - x.shape[d + 2]
  end
  x = padded(x, before, last, value):contiguous()
  for d = dims, 1, -1 do
    steps[d + 2], steps[d + 2 + dims], step = step * strides[d], step * dilations[d], step * x.shape[d + 2]
  end
  steps[1], steps[2] = step * x.shape[2], step
  return ops.as_strided(x, joined({x.shape[1], x.shape[2]}, counts, kernel), steps)
end

-- Returns the entry of a pooling: f(n, x, view, counts, before, after), where view(x, value, before) returns windows
-- [N, C, counts..., product of the kernel]; quick(n, x, kernel, strides, padding, dilations) if the padding is plain,
-- or nil.
local function pool(f, quick)
  return {ceil_mode = 0, count_include_pad = 0, p = 2, function(n, x)
    local kernel = list_of(n, "kernel_shape", x.ndim - 2, 1)
    local strides, dilations, before, after = windows_of(n, x, kernel)
    local plain = quick and #kernel == 2 and n.ceil_mode == 0 and n.results == 1
    for d = 1, #kernel do plain = plain and before[d] == after[d] and before[d] * 2 <= kernel[d] end
    local y = plain and quick(n, x, kernel, strides, before, dilations)
    if y then return y end
    local counts = counts_of(n, x, kernel, strides, dilations, before, after)
    return f(n, x, function(of, value, first)
      local shape = joined({of.shape[1], of.shape[2]}, counts, {product(kernel)})
      return view_windows(of, kernel, strides, dilations, first or before, counts, value):reshape(shape)
    end, counts, before, after)
  end}
end

op.MaxPool = pool(function(n, x, view, counts)
  local values = view(x, is_float(x) and -math.huge or require("luminary.tensor.dtype_info").iinfo(x.dtype).min)
  if n.results < 2 then return ops.amax(values, -1) end
  local spatial, dims, N, C = {unpack(x.shape, 3)}, #counts, x.shape[1], x.shape[2]
  local numel = product(spatial)
  local at = ops.arange(numel, {dtype = "int64"})
  if n.storage_order == 1 then
    local backward, order = {1, 1}, {1, 2}
    for d = 1, dims do backward[d + 2], order[d + 2] = spatial[dims + 1 - d], dims + 3 - d end
    at = ops.permute(at:reshape(backward), order)
  end
  local best = ops.argmax(values, -1, true)
  local index = ops.gather(ops.expand(view(at:reshape(joined({1, 1}, spatial)), 0), values.shape), -1, best)
  local base = (ops.arange(N * C, {dtype = "int64"}) * numel):reshape(joined({N, C}, filled(dims, 1)))
  return ops.squeeze(ops.gather(values, -1, best), -1), ops.squeeze(index, -1) + base
end, function(_, x, ...) return ops.max_pool2d(x, ...) end)
op.AveragePool = pool(function(n, x, view, _, before, after)
  local ones, first = ops.ones({1, 1, unpack(x.shape, 3)}, {dtype = x.dtype, device = x.device}), before
  if n.count_include_pad == 1 then ones, first = padded(ones, before, after, 1), filled(#before, 0) end
  return ops.sum(view(x, 0), -1) / ops.sum(view(ones, 0, first), -1)
end, function(n, x, kernel, strides, padding, dilations)
  if product(dilations) > 1 then return nil end
  return ops.avg_pool2d(x, kernel, strides, padding, false, n.count_include_pad == 1)
end)
op.LpPool = pool(function(n, x, view) return ops.norm(view(x, 0), n.p, -1) end)

local function global(f)
  return {p = 2, function(n, x)
    local dims = {}
    for d = 3, x.ndim do dims[d - 2] = d end
    return f(x, dims, n.p)
  end}
end
op.GlobalAveragePool = global(function(x, dims) return ops.mean(x, dims, true) end)
op.GlobalMaxPool = global(function(x, dims) return ops.amax(x, dims, true) end)
op.GlobalLpPool = global(function(x, dims, p) return ops.norm(x, p, dims, true) end)

op.MaxUnpool = {function(n, x, indices, given)
  helpers.check_shape("I", indices, x.shape)
  local dims, sizes, after, wanted = x.ndim - 2, {x.shape[1], x.shape[2]}, {}, n:ints(3, given)
  local kernel, strides = list_of(n, "kernel_shape", dims, 1), list_of(n, "strides", dims, 1, 1)
  local pads = list_of(n, "pads", 2 * dims, -math.huge, 0)
  for d = 1, #kernel do
    sizes[d + 2] = (x.shape[d + 2] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + #kernel]
  end
  for d = 1, x.ndim do after[d] = wanted and wanted[d] - sizes[d] or 0 end
  local y = ops.scatter(ops.zeros({product(sizes)}, {dtype = x.dtype}), 1, indices:reshape(-1) + 1, x:reshape(-1))
  return helpers.padded(y:reshape(sizes), {}, after)
end}

op.Col2Im = {function(n, x, image_shape, block_shape)
  local image, block, order = n:ints(2, image_shape), n:ints(3, block_shape), {1, 2}
  local at = ops.arange(product(image), {dtype = "int64"}):reshape(joined({1, 1}, image)) + 1
  local strides, dilations, before, after = windows_of(n, at, block)
  local counts, dims = counts_of(n, at, block, strides, dilations, before, after), #image
  for d = 1, dims do order[d + 2], order[d + 2 + dims] = d + 2 + dims, d + 2 end
  at = ops.permute(view_windows(at, block, strides, dilations, before, counts, 0), order):reshape(1, 1, -1) + 1
  local N, C = x.shape[1], x.shape[2] / product(block)
  x = x:reshape(N, C, -1)
  local y = ops.scatter_add(ops.zeros({N, C, product(image) + 1}, {dtype = x.dtype}), 3, ops.expand(at, x.shape), x)
  return ops.narrow(y, 3, 2, product(image)):reshape(joined({N, C}, image))
end}

op.DeformConv = {group = 1, offset_group = 1, function(n, x, w, offset, bias, mask)
  local N, C, H, W = unpack(x.shape)
  local G, M, dtype, kh, kw = n.offset_group, w.shape[1], x.dtype, w.shape[3], w.shape[4]
  x, offset = to(x, "float64"), to(offset, "float64") -- so that points on pixels are just these
  local strides, dilations, before, after = windows_of(n, x, {kh, kw})
  local counts, K, ys, xs = counts_of(n, x, {kh, kw}, strides, dilations, before, after), kh * kw, {}, {}
  local function positions(d, k)
    local at = ops.arange(counts[d], {dtype = "float64"}) * strides[d] - before[d] + k * dilations[d]
    return ops.expand(at:reshape(d == 1 and {-1, 1} or {1, -1}), counts)
  end
  for k = 0, K - 1 do ys[k + 1], xs[k + 1] = positions(1, math.floor(k / kw)), positions(2, k % kw) end
  offset = offset:reshape(N * G, K, 2, counts[1], counts[2])
  local y, z = ops.select(offset, 3, 1) + ops.stack(ys, 1), ops.select(offset, 3, 2) + ops.stack(xs, 1)
  local grid = ops.stack({(z * 2 + 1) / W - 1, (y * 2 + 1) / H - 1}, 5):reshape(N * G, K * counts[1], counts[2], 2)
  local taps = ops.grid_sample(x:reshape(N * G, C / G, H, W), grid, "bilinear", "zeros", false)
  taps = to(taps, dtype):reshape(N, G, C / G, K, -1)
  if mask then taps = taps * mask:reshape(N, G, 1, K, -1) end
  taps = taps:reshape(N, n.group, C / n.group * K, -1)
  local out = ops.matmul(w:reshape(1, n.group, M / n.group, -1), taps):reshape(N, M, counts[1], counts[2])
  return bias and out + bias:reshape(1, -1, 1, 1) or out
end}

return op
