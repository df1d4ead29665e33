--- Pools over one and three dims by 2-d pooling. A 1-d input is an image of one row. In 3-d inputs, planes are pooled
--- first and then their columns, since windows are boxes.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
require "luminary.nn.functional.sizes" -- defines the kinds of its arguments

local ops, fail, describe = core.ops, options.fail, options.describe
local F = {}

local function row(v, for_rows) return {for_rows, v[1]} end
local function last_two(v) return {v[2], v[3]} end
local function first(v) return {v[1], 1} end
local function max_pool(x, return_indices, ...)
  return (return_indices and ops.max_pool2d_with_indices or ops.max_pool2d)(x, ...)
end
local function squeezed(y, indices)
  y = y:squeeze(-2)
  if indices then return y, indices:squeeze(-2) end
  return y
end

-- Pools x [..., D, H, W] by images(x [n, D, H, W]) and then columns(y [n, 1, D, H * W]). Both functions may return
-- indices as a second value.
local function pool_volume(x, images, columns)
  local shape, n = {unpack(x.shape)}, 1
  for i = 1, #shape - 3 do n = n * shape[i] end
  local depth, height, width = unpack(shape, #shape - 2)
  local y, in_image = images(ops.reshape(x, {n, depth, height, width}))
  local _, _, rows, across = unpack(y.shape)
  local z, in_column = columns(ops.reshape(y, {n, 1, depth, rows * across}))
  shape[#shape - 2], shape[#shape - 1], shape[#shape] = z.shape[3], rows, across
  if not in_column then return ops.reshape(z, shape) end
  in_column = ops.reshape(in_column, {n, z.shape[3] * rows * across})
  local plane = ops.reshape(in_image, {n, depth * rows * across}):gather(2, in_column:clamp(1))
  local indices = ops.floor_divide(in_column - 1, math.max(rows * across, 1)) * (height * width) + plane
  indices = indices:masked_fill(ops.minimum(in_column, plane):lt(1), 0) -- windows of only padding have index 0
  return ops.reshape(z, shape), ops.reshape(indices, shape)
end

-- Checks what the 2-d op would report under its own name and sizes: x's dtype, floating or in `takes`, and its last n
-- sizes.
local function check_input(who, x, n, takes)
  local good = x:is_floating_point() or takes and takes ~= "not bool" and x.dtype == takes
  if not good and (takes ~= "not bool" or x.dtype == "bool") then
    options.wrong_dtype(who, "x", takes == "not bool" and "a number dtype" or "floating point", x,
      takes == "not bool" and 'convert it with :to("uint8")' or "convert it with :float()")
  end
  for i = 1, n do
    if x.shape[x.ndim - n + i] == 0 then
      options.wrong_shape(who, "x", x, ("[N, C, …] or [C, …] with the last %d of at least 1"):format(n))
    end
  end
end

local function check_windows(who, a, takes)
  local n, pads = #a.kernel_size, {}
  check_input(who, a.x, n, takes)
  for i = 1, n do
    local kernel, padding, first_dim = a.kernel_size[i], a.padding and a.padding[i] or 0, a.x.ndim - n
    if padding > kernel / 2 then
      for d = n, 1, -1 do pads[#pads + 1] = ("%d, %d"):format(a.padding[d], a.padding[d]) end
      fail("%s: padding must be at most half of kernel_size {%s}, got {%s}; pad x before: F.pad(x, {%s}%s)", who,
        table.concat(a.kernel_size, ", "), table.concat(a.padding, ", "), table.concat(pads, ", "),
        takes == "not bool" and ", {value = -math.huge}" or "")
    end
    local window = (a.dilation and a.dilation[i] or 1) * (kernel - 1) + 1
    local room = a.x.shape[first_dim + i] + 2 * padding
    if window > room + (a.ceil_mode and a.stride[i] - 1 or 0) then
      fail("%s: the window must be at most the padded input's %d in dim %d, got %d", who, room, first_dim + i, window)
    end
  end
end

-- ---- sliding windows

-- Declares name(x, windows…, `more`) of n spatial dims; f takes its arguments by name. Besides floating dtypes it
-- accepts the dtypes `takes`.
local function windows(n, name, takes, more, f)
  local text = "(x: input(N), kernel_size: sizes(N, 1), stride = kernel_size, padding: sizes(N, 0) = 0, "
  return signature.by_name(name .. (text .. more .. ")"):gsub("N", n), function(a)
    check_windows(name, a, takes)
    return f(a)
  end)
end

local max_options = "dilation: sizes(N, 1) = 1, ceil_mode = false, return_indices = false"
local avg_options = "ceil_mode = false, count_include_pad = true"

-- Returns only the values, unless return_indices is set.
local function select_results(return_indices, y, indices)
  if return_indices then return y, indices end
  return y
end

--- F.max_pool1d(…): Applies a 1-d max pooling.
F.max_pool1d = windows(1, "max_pool1d", "not bool", max_options, function(a)
  return squeezed(max_pool(a.x:unsqueeze(-2), a.return_indices, row(a.kernel_size, 1), row(a.stride, 1),
    row(a.padding, 0), row(a.dilation, 1), a.ceil_mode))
end)

--- F.max_pool3d(…): Applies a 3-d max pooling.
F.max_pool3d = windows(3, "max_pool3d", "not bool", max_options, function(a)
  local function pool(of)
    return function(x)
      return max_pool(x, a.return_indices, of(a.kernel_size), of(a.stride),
        {of(a.padding)[1], of == first and 0 or a.padding[3]}, of(a.dilation), a.ceil_mode)
    end
  end
  return pool_volume(a.x, pool(last_two), pool(first))
end)

--- F.avg_pool1d(…): Applies a 1-d average pooling.
F.avg_pool1d = windows(1, "avg_pool1d", "int64", avg_options, function(a)
  return squeezed(ops.avg_pool2d(a.x:unsqueeze(-2), row(a.kernel_size, 1), row(a.stride, 1), row(a.padding, 0),
    a.ceil_mode, a.count_include_pad))
end)

local means_of_volume = full_precision.rounds_once(pool_volume)

-- Averages windows of 3-d inputs; with a divisor returns sums / divisor.
local function mean_of_volume(a, x, divisor)
  return means_of_volume(x, function(images)
    return ops.avg_pool2d(images, last_two(a.kernel_size), last_two(a.stride), last_two(a.padding), a.ceil_mode,
      a.count_include_pad, divisor and 1 or nil)
  end, function(columns)
    return ops.avg_pool2d(columns, first(a.kernel_size), first(a.stride), {a.padding[1], 0}, a.ceil_mode,
      a.count_include_pad, divisor)
  end)
end

--- F.avg_pool3d(…): Applies a 3-d average pooling.
F.avg_pool3d = windows(3, "avg_pool3d", "int64", avg_options .. ", divisor_override: integer?", function(a)
  if a.x.dtype ~= "int64" or a.divisor_override then return mean_of_volume(a, a.x, a.divisor_override) end
  -- Divides sums by counts (sums of ones over their mean), since averaging planes first would truncate twice.
  local ones = ops.ones(a.x.shape, {device = a.x.device, dtype = "float64"})
  local counts = ops.round(mean_of_volume(a, ones, 1) / mean_of_volume(a, ones)):long()
  return ops.trunc_divide(mean_of_volume(a, a.x, 1), counts)
end)

-- ---- adaptive pooling

-- Returns true if one window covers all positions, for which a mean is faster.
local function is_mean(a)
  local alone = a.x:is_floating_point() and a.x:numel() > 0 and a.x.ndim >= #a.output_size + 1
  for _, size in ipairs(a.output_size) do alone = alone and size == 1 end
  return alone and a.x.ndim <= #a.output_size + 2
end

-- Declares adaptive pooling over n dims. pool: the op for 2 dims; more: its options after output_size.
local function adaptive(who, n, pool, more)
  local kind = n == 2 and "tensor" or ("input(%d)"):format(n)
  local text = ("%s(x: %s, output_size: output_sizes(%d)%s)"):format(who, kind, n, more or "")
  return signature.by_name(text, function(a)
    local x, size = a.x, a.output_size
    if pool == ops.adaptive_avg_pool2d and n > 1 and is_mean(a) then
      return ops.mean(x, {-1, -2, n == 3 and -3 or nil}, {keepdim = true})
    end
    if n ~= 2 then check_input(who, x, n) end
    if n == 2 then return select_results(a.return_indices, pool(x, size)) end
    if n == 1 then return select_results(a.return_indices, squeezed(pool(x:unsqueeze(-2), row(size, 1)))) end
    local by_planes = pool == ops.adaptive_avg_pool2d and means_of_volume or pool_volume
    return select_results(a.return_indices, by_planes(x, function(images) return pool(images, last_two(size)) end,
      function(columns) return pool(columns, {size[1], -1}) end))
  end)
end

for n = 1, 3 do
  for kind, of_kind in pairs {avg = {"average", ""}, max = {"max", ", return_indices = false"}} do
    local who = ("adaptive_%s_pool%dd"):format(kind, n)
    F[who] = signature.explained("F." .. who, ("Applies a %d-d adaptive %s pooling."):format(n, of_kind[1]),
      adaptive(who, n, ops["adaptive_" .. kind .. "_pool2d"], of_kind[2]))
  end
end

-- ---- unpooling

-- Returns the last n sizes of the unpooled tensor: the smallest possible ones, or those in output_size.
local function unpooled_size(who, a, n)
  local x, size, given = a.x, {}, a.output_size
  if given ~= nil and (type(given) ~= "table" or #given ~= n and #given ~= x.ndim) then
    fail("%s: output_size must have %d or %d entries, got %s", who, n, x.ndim, describe(given))
  end
  for i = 1, n do
    local stride = a.stride[i]
    size[i] = (x.shape[x.ndim - n + i] - 1) * stride - 2 * a.padding[i] + a.kernel_size[i]
    if given then
      local wanted = given[#given - n + i]
      if not options.is("integer", wanted) or wanted <= size[i] - stride or wanted >= size[i] + stride then
        fail("%s: output_size has %s; it must be between %d and %d", who, tostring(wanted), size[i] - stride + 1,
          size[i] + stride - 1)
      end
      size[i] = wanted
    end
    if size[i] < 1 then fail("%s: the result for x %s would be empty", who, describe(x)) end
  end
  return size
end

local function unpool(who, n)
  return signature.by_name(who .. ([[(x: input(N), indices: tensor, kernel_size: sizes(N, 1), stride = kernel_size,
    padding: sizes(N, 0) = 0, output_size: any?)]]):gsub("N", n), function(a)
    local shape, planes, area, pooled_area = {unpack(a.x.shape)}, 1, 1, 1 -- areas count positions per plane
    if a.indices.dtype ~= "int64" or table.concat(a.indices.shape, ",") ~= table.concat(shape, ",") then
      fail("%s: indices must be int64 with the shape of x, %s, got %s %s", who, describe(a.x), a.indices.dtype,
        describe(a.indices))
    end
    local size = unpooled_size(who, a, n)
    for i, v in ipairs(shape) do
      local k = i - (#shape - n)
      if k > 0 then
        shape[i], area, pooled_area = size[k], area * size[k], pooled_area * v
      else
        planes = planes * v
      end
    end
    if area > 2 ^ 31 - 1 then
      fail("%s: the result has %d elements per channel; at most 2^31 - 1 are supported", who, area)
    end
    local y = ops.zeros({planes, area}, {device = a.x.device, dtype = a.x.dtype})
    ops.scatter_(y, 2, ops.reshape(a.indices, {planes, pooled_area}), ops.reshape(a.x, {planes, pooled_area}))
    return ops.reshape(y, shape)
  end)
end

--- F.max_unpool1d(…): Computes a partial inverse of F.max_pool1d.
F.max_unpool1d = unpool("max_unpool1d", 1)

--- F.max_unpool3d(…): Computes a partial inverse of F.max_pool3d.
F.max_unpool3d = unpool("max_unpool3d", 3)

-- ---- norms of windows

local function lp_pool(who, n, mean)
  return signature.by_name(("%s(x: input(%d), norm_type: number, kernel_size: sizes(%d, 1), "
    .. "stride = kernel_size, ceil_mode = false)"):format(who, n, n), function(a)
    if a.norm_type == 0 then fail("%s: norm_type must not be 0", who) end
    check_windows(who, a)
    return full_precision.rounds_once(function(x)
      local window = lists.product(a.kernel_size) -- elements
      local square = a.norm_type == 2 -- faster than a power
      local y = mean(square and ops.square(x) or ops.pow(x, a.norm_type), a.kernel_size, a.stride, 0, a.ceil_mode)
      y = ops.sign(y) * ops.relu(ops.abs(y)) * window
      return square and ops.sqrt(y) or y ^ (1 / a.norm_type)
    end)(a.x)
  end)
end

for n, mean in ipairs {F.avg_pool1d, ops.avg_pool2d, F.avg_pool3d} do
  local who = ("lp_pool%dd"):format(n)
  F[who] = signature.explained("F." .. who,
    ("Applies a %d-d power-average pooling: (the sum of x^p in each window)^(1 / p)."):format(n), lp_pool(who, n, mean))
end

-- ---- random windows

-- Returns the starts of windows along one axis, from 0: [N, C, out], as PyTorch's generate_intervals.
local function random_starts(samples, size, out, kernel)
  local alpha = out > 1 and (size - kernel) / (out - 1) or 0
  local steps = ops.arange(out, {device = samples.device, dtype = samples.dtype})
  local starts = ops.floor((steps + samples:unsqueeze(-1)) * alpha) - ops.floor(samples:unsqueeze(-1) * alpha)
  return ops.where(ops.eq(steps, out - 1), size - kernel, starts):to "int64"
end

local function fractional_max_pool(who, n)
  return signature.by_name((who .. [[(x: input(N), kernel_size: sizes(N, 1), output_size: sizes(N, 1)?,
    output_ratio: any?, return_indices = false, _random_samples: tensor?)]]):gsub("%f[%w]N%f[%W]", n), function(a)
    local x, kernel, size = a.x, a.kernel_size, a.output_size or {}
    if (a.output_size == nil) == (a.output_ratio == nil) then
      fail("%s: pass either output_size or output_ratio", who)
    end
    if x.ndim == n + 1 then x = x:unsqueeze(1) end
    local batch, channels, sides = x.shape[1], x.shape[2], {unpack(x.shape, 3)}
    for d = 1, n do
      local ratio = type(a.output_ratio) == "table" and a.output_ratio[d] or a.output_ratio
      size[d] = size[d] or math.floor(sides[d] * options.arg(who, "output_ratio", ratio, "probability"))
      if size[d] < 1 then options.must_be(who, "output_size", "at least 1", size[d]) end
      if size[d] + kernel[d] - 1 > sides[d] then
        fail("%s: %s windows of %s do not fit into %s", who, table.concat(size, " x "), table.concat(kernel, " x "),
          describe(x))
      end
    end
    local samples = a._random_samples or ops.rand({batch, channels, n}, {device = x.device, dtype = x.dtype})
    local given = samples.shape
    if samples.ndim ~= 3 or given[1] < batch or given[2] ~= channels or given[3] ~= n then
      options.wrong_shape(who, "_random_samples", samples, {batch, channels, n})
    end
    samples = samples:narrow(1, 1, batch)
    local corner, stride, count, shifts = 1, 1, 1, {0} -- shifts: offsets of a window's elements from its first
    for d = n, 1, -1 do
      local starts = random_starts(samples:select(3, n == 2 and 3 - d or d), sides[d], size[d], kernel[d])
      local view, all = {batch, channels}, {}
      for i = 1, n do view[i + 2] = i == d and size[d] or 1 end
      corner = starts:view(view) * stride + corner
      for k = 0, kernel[d] - 1 do
        for _, shift in ipairs(shifts) do all[#all + 1] = k * stride + shift end
      end
      shifts, stride, count = all, stride * sides[d], count * size[d]
    end
    corner = ops.reshape(corner, {batch * channels, count})
    local flat, taps = ops.reshape(x, {batch * channels, stride}), {}
    core.no_grad(function()
      for i, shift in ipairs(shifts) do -- shift x instead of the index, so that all taps share it
        taps[i] = flat:narrow(2, 1 + shift, stride - shift):gather(2, corner)
      end
    end)
    local tap = ops.argmax(ops.stack(taps, 2), 2)
    shifts = core.tensor(shifts, {device = x.device, dtype = "int64"})
    local indices = corner + ops.reshape(ops.index_select(shifts, 1, ops.flatten(tap)), corner.shape)
    local y, shape = flat:gather(2, indices), {batch, channels, unpack(size)}
    if a.x.ndim == n + 1 then table.remove(shape, 1) end
    if not a.return_indices then return y:view(shape) end
    return y:view(shape), indices:view(shape)
  end)
end

--- F.fractional_max_pool2d(…): Applies a 2-d fractional max pooling.
F.fractional_max_pool2d = fractional_max_pool("fractional_max_pool2d", 2)
--- F.fractional_max_pool3d(…): Applies a 3-d fractional max pooling.
F.fractional_max_pool3d = fractional_max_pool("fractional_max_pool3d", 3)

return options.exact_all(F)
