--- Implements pixel_shuffle, pixel_unshuffle, channel_shuffle, and bilinear.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops
local F = {}

-- Returns the sizes of x before its last n dims, and the last n sizes.
local function split_shape(who, x, n)
  if x.ndim < n then options.must_be(who, "x", ("a tensor of at least %d dims, [..., C, H, W]"):format(n), x) end
  return lists.slice(x.shape, 1, x.ndim - n), lists.slice(x.shape, x.ndim - n + 1)
end

-- Views x as [batch…, sizes…], permutes the dims after the batch, and reshapes to [batch…, shape…].
local function rearranged(x, batch, sizes, order, shape)
  local dims = {}
  for i = 1, #batch do dims[i] = i end
  for _, dim in ipairs(order) do dims[#dims + 1] = #batch + dim end
  return shapes.reshape_copy(ops.permute(ops.reshape(x, lists.joined(batch, sizes)), dims), lists.joined(batch, shape))
end

--- Rearranges [..., C * r^2, H, W] to [..., C, H * r, W * r].
F.pixel_shuffle = signature.of("pixel_shuffle(x: tensor, upscale_factor: count)", function(x, r)
  local who = "pixel_shuffle"
  local batch, last = split_shape(who, x, 3)
  local c, h, w = unpack(last)
  options.divisible(who, "the number of channels", c, "upscale_factor^2", r * r)
  c = c / (r * r)
  return rearranged(x, batch, {c, r, r, h, w}, {1, 4, 2, 5, 3}, {c, h * r, w * r})
end)

--- Rearranges [..., C, H * r, W * r] to [..., C * r^2, H, W].
F.pixel_unshuffle = signature.of("pixel_unshuffle(x: tensor, downscale_factor: count)", function(x, r)
  local who = "pixel_unshuffle"
  local batch, last = split_shape(who, x, 3)
  local c, h, w = unpack(last)
  if h % r ~= 0 or w % r ~= 0 then
    options.fail("%s: height (%d) and width (%d) must be divisible by downscale_factor (%d)", who, h, w, r)
  end
  h, w = h / r, w / r
  return rearranged(x, batch, {c, h, r, w, r}, {1, 3, 5, 2, 4}, {c * r * r, h, w})
end)

--- Rearranges the channels so that the channels of all groups alternate.
F.channel_shuffle = signature.of("channel_shuffle(x: tensor, groups: count)", function(x, groups)
  local who = "channel_shuffle"
  if x.ndim < 3 then options.must_be(who, "x", "a tensor of at least 3 dims, [N, C, …]", x) end
  local shape = x.shape
  options.divisible(who, "the number of channels", shape[2], "groups", groups)
  local apart = {shape[1], groups, shape[2] / groups, unpack(shape, 3)}
  return shapes.reshape_copy(ops.transpose(ops.reshape(x, apart), 2, 3), shape)
end)

--- Applies a bilinear transformation to two inputs.
F.bilinear = signature.of("bilinear(x1: tensor, x2: tensor, weight: tensor, bias: any?)", function(x1, x2, weight, bias)
  local who = "bilinear"
  shapes.check(who, "weight", weight, {"out", "in1", "in2"})
  local out, in1, in2 = unpack(weight.shape)
  if x1.ndim < 1 or x2.ndim ~= x1.ndim or x1.shape[x1.ndim] ~= in1 or x2.shape[x2.ndim] ~= in2 then
    options.fail("%s: expected x1 [..., %d] and x2 [..., %d], got %s and %s", who, in1, in2, options.describe(x1),
      options.describe(x2))
  end
  local batch = {}
  for i = 1, x1.ndim - 1 do
    batch[i] = x1.shape[i]
    if x2.shape[i] ~= batch[i] then
      options.fail("%s: x1 and x2 must have the same shape except for the last dim, got %s and %s", who,
        options.describe(x1), options.describe(x2))
    end
  end
  local rows = lists.product(batch)
  local flat = ops.reshape(ops.permute(weight, {2, 1, 3}), {in1, out * in2})
  local y = ops.reshape(ops.matmul(ops.reshape(x1, {rows, in1}), flat), {rows, out, in2})
  y = ops.sum(y * ops.reshape(x2, {rows, 1, in2}), 3)
  if bias then y = y + bias end
  batch[#batch + 1] = out
  return ops.reshape(y, batch)
end)

return options.exact_all(F)
