--- Computes 1-d and 3-d convolutions and transposed convolutions by conv2d and its gradient for the input. Integers are
--- supported, without gradients.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local sizes = require "luminary.nn.functional.sizes"
local window_indices = require "luminary.nn.functional.window_indices"

local ops, fail, describe = core.ops, options.fail, options.describe
local F = {}

local function check_operands(who, a, n, channels_at)
  local x, weight = a.x, a.weight
  if x.dtype ~= weight.dtype and not core.is_autocast_enabled() then
    options.dtypes_differ(who, "x", x, "weight", weight)
  end
  if weight.ndim ~= n + 2 then
    options.wrong_shape(who, "weight", weight,
      {channels_at == 2 and "out, C / groups" or "C, out / groups", ({"k", "kH, kW", "kD, kH, kW"})[n]})
  end
  local channels, wanted = x.shape[x.ndim - n], weight.shape[channels_at]
  if channels_at == 2 then wanted = wanted * a.groups end
  if channels ~= wanted or (channels_at == 1 and channels or weight.shape[1]) % a.groups ~= 0 then
    fail("%s: x, %s, and weight, %s, do not match with groups = %d", who, describe(x), describe(weight), a.groups)
  end
end

-- Returns stride, padding, dilation and groups for an image of one row, which a 1-d input is.
local function row_arguments(a, padding)
  return {1, a.stride[1]}, {0, (padding or a.padding)[1]}, {1, a.dilation[1]}, a.groups
end

-- Appends list[i] zeros to the i-th of the last #list dims.
local function padded_after(x, list)
  local all, any = {}, false
  for i = #list, 1, -1 do
    all[#all + 1], all[#all + 2] = 0, list[i]
    any = any or list[i] > 0
  end
  return any and ops.pad(x, all) or x
end

-- Converts padding "same" or "valid" to numbers. Returns them, and x with the extra zero at its end for even kernels.
local function numbers_of_padding(who, a, n)
  local padding, more = {}, {}
  for i = 1, n do
    local reach = a.dilation[i] * (a.weight.shape[2 + i] - 1)
    padding[i] = a.padding == "same" and math.floor(reach / 2) or 0
    more[i] = a.padding == "same" and reach - 2 * padding[i] or 0
    if a.padding == "same" and a.stride[i] ~= 1 then
      fail("%s: padding = 'same' requires a stride of 1, got %d", who, a.stride[i])
    end
  end
  return padding, padded_after(a.x, more)
end

-- ---- three dims: the slices of a window are channels of an image

-- Returns gather_weighted's positions for the windows along depth, [1, 1, slices * plane * groups * kernel], among
-- [depth * plane * groups] elements.
local function slice_positions(a, depth, slices, plane, device)
  local step = plane * a.groups
  local at = window_indices.of_windows(depth, slices, a.weight.shape[3], a.stride[1], a.padding[1], a.dilation[1], step,
    device)
  local within = ops.arange(1, step + 1, {device = device, dtype = "int64"})
  return ops.reshape(ops.t(at):unsqueeze(2) + within:view(1, step, 1), {1, 1, -1})
end

-- Returns weight [a, b, kD, kH, kW] as [a, kD * b, kH, kW].
local function slices_of_weight(weight)
  local first, second, depth, height, width = unpack(weight.shape)
  return ops.reshape(ops.permute(weight, {1, 3, 2, 4, 5}), {first, depth * second, height, width})
end

-- Returns stride, padding, dilation and groups of the convolutions of planes.
local function plane_arguments(a)
  local s, p, d = a.stride, a.padding, a.dilation
  return {s[2], s[3]}, {p[2], p[3]}, {d[2], d[3]}, a.groups
end

-- Gathers for integers, which gather_weighted does not support; all positions must be valid.
local function gather_integers(x, positions) return ops.index_select(x, 3, positions:view(-1)) end

-- Largest number of channels of a group for which slices are gathered by planes rather than pixel by pixel.
local FEW = 4

local function convolved_volume(who, a, x)
  local n, channels, depth, height, width = unpack(x.shape)
  local kernel, plane = a.weight.shape[3], height * width
  local slices = window_indices.count(who, depth, kernel, a.stride[1], a.padding[1], a.dilation[1])
  local planar = channels <= FEW * a.groups
  local images = planar and ops.transpose(x, 2, 3):contiguous() or sizes.channels_last(x):contiguous()
  if kernel > 1 or a.stride[1] > 1 or a.padding[1] > 0 then
    local points = planar and 1 or plane
    local positions = slice_positions(a, depth, slices, points, x.device)
    images = (x:is_floating_point() and ops.gather_weighted or gather_integers)(
      images:view(1, n, depth * points * a.groups, channels * plane / (points * a.groups)), positions)
  end
  images = planar and images:view(n * slices, kernel * channels, height, width)
    or sizes.channels_second(images:view(n * slices, height, width, kernel * channels))
  local y = ops.conv2d(images, slices_of_weight(a.weight), a.bias, plane_arguments(a))
  local _, out, rows, columns = unpack(y.shape)
  return sizes.channels_second(ops.reshape(sizes.channels_last(y), {n, slices, rows, columns, out}))
end

local function transposed_volume(a, x, size)
  local n, channels, depth, height, width = unpack(x.shape)
  local kernel, out, plane = a.weight.shape[3], a.weight.shape[2] * a.groups, size[2] * size[3]
  local images = sizes.channels_second(sizes.channels_last(x):contiguous():view(n * depth, height, width, channels))
  local y = ops.conv2d_input(images, slices_of_weight(a.weight), {n * depth, kernel * out, size[2], size[3]},
    plane_arguments(a))
  y = ops.reshape(sizes.channels_last(y), {n, 1, depth * plane * a.groups * kernel, out / a.groups})
  if x:is_floating_point() then
    local positions = slice_positions(a, size[1], depth, plane, x.device)
    y = ops.gather_weighted_input(y, positions, nil, {n, 1, size[1] * plane * a.groups, out / a.groups})
    return sizes.channels_second(y:view(n, size[1], size[2], size[3], out))
  end
  local padding = a.padding[1]
  local whole = size[1] + 2 * padding
  a.padding = {0, a.padding[2], a.padding[3]}
  local all = ops.zeros({n, 1, whole * plane * a.groups, out / a.groups}, {dtype = y.dtype, device = y.device})
  y = ops.index_add(all, 3, slice_positions(a, whole, depth, plane, x.device):view(-1), y)
  return sizes.channels_second(y:view(n, whole, size[2], size[3], out)):narrow(3, padding + 1, size[1])
end

-- ---- convolutions

-- Declares a function `who` of n spatial dims; f takes its arguments by name.
local function convolution(who, n, rest, f)
  local text = who .. "(x: input(N), weight: tensor, bias: tensor?, stride: sizes(N, 1) = 1, " .. rest
  return signature.by_name((text:gsub("N", n)), f)
end

local plain = "padding: sizes_or_word(N) = 0, dilation: sizes(N, 1) = 1, groups: count = 1)"
local of_gradient = [[padding: sizes(N, 0) = 0, output_padding: sizes(N, 0) = 0, groups: count = 1,
  dilation: sizes(N, 1) = 1)]]

--- Applies a 1-d convolution.
F.conv1d = convolution("conv1d", 1, plain, function(a)
  check_operands("conv1d", a, 1, 2)
  local padding = a.padding
  if type(padding) == "string" then padding, a.x = numbers_of_padding("conv1d", a, 1) end
  window_indices.count("conv1d", a.x.shape[a.x.ndim], a.weight.shape[3], a.stride[1], padding[1], a.dilation[1])
  return ops.conv2d(a.x:unsqueeze(-2), a.weight:unsqueeze(-2), a.bias, row_arguments(a, padding)):squeeze(-2)
end)

--- Applies a 3-d convolution.
F.conv3d = convolution("conv3d", 3, plain, function(a)
  check_operands("conv3d", a, 3, 2)
  if type(a.padding) == "string" then a.padding, a.x = numbers_of_padding("conv3d", a, 3) end
  if not a.x:is_floating_point() then
    local padding = a.padding
    a.x, a.padding = ops.pad(a.x, {0, 0, 0, 0, padding[1], padding[1]}), {0, padding[2], padding[3]}
  end
  if a.x.ndim == 5 then return convolved_volume("conv3d", a, a.x) end
  return convolved_volume("conv3d", a, a.x:unsqueeze(1)):squeeze(1)
end)

-- Returns the sizes of the result, and x with zeros for an output_padding of a stride or more.
local function transposed_size(who, a, n)
  local size, more = {}, {}
  for i = 1, n do
    local kernel, stride, after = a.weight.shape[2 + i], a.stride[i], a.output_padding[i]
    if after >= stride and after >= a.dilation[i] then
      fail("%s: output_padding (%d) must be less than the stride (%d) or the dilation (%d)", who, after, stride,
        a.dilation[i])
    end
    size[i] = (a.x.shape[a.x.ndim - n + i] - 1) * stride - 2 * a.padding[i] + a.dilation[i] * (kernel - 1) + 1 + after
    if size[i] < 1 then
      fail("%s: x, %s, with padding %d would have an empty result", who, describe(a.x), a.padding[i])
    end
    more[i] = math.floor(after / stride)
  end
  return size, padded_after(a.x, more)
end

local function transposed(who, n)
  return convolution(who, n, of_gradient, function(a)
    check_operands(who, a, n, 1)
    local size, x = transposed_size(who, a, n)
    local alone = x.ndim == n + 1
    if alone then x = x:unsqueeze(1) end
    local out, y = a.weight.shape[2] * a.groups
    if a.bias and (a.bias.ndim ~= 1 or a.bias.shape[1] ~= out) then
      fail("%s: bias is %s, but weight, %s, has %d output channels", who, describe(a.bias), describe(a.weight), out)
    end
    if n == 1 then
      local row = {x.shape[1], out, 1, size[1]}
      y = ops.conv2d_input(x:unsqueeze(-2), a.weight:unsqueeze(-2), row, row_arguments(a)):squeeze(-2)
    elseif n == 2 then
      y = ops.conv2d_input(x, a.weight, {x.shape[1], out, size[1], size[2]}, a.stride, a.padding, a.dilation, a.groups)
    else
      y = transposed_volume(a, x, size)
    end
    if a.bias then y = y + a.bias:to(y.dtype):view(out, unpack({1, 1, 1}, 1, n)) end
    return alone and y:squeeze(1) or y
  end)
end

for n = 1, 3 do
  local name = ("conv_transpose%dd"):format(n)
  F[name] = signature.explained("F." .. name, ("Applies a %d-d transposed convolution."):format(n), transposed(name, n))
end

return options.exact_all(F)
