--- Resizes by interpolation of one dim at a time. Weights are those of ATen's upsampling (UpSample.h,
--- UpSampleKernel.cpp).
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local pooling = require "luminary.nn.functional.pooling"
local sizes = require "luminary.nn.functional.sizes"

local ops, fail, describe = core.ops, options.fail, options.describe
local F = {}

local linear = {"linear", "bilinear", "trilinear"}

-- ---- one dim: the source positions and weights of each of `out` positions, both [1, j, out]

-- Returns the kernel of Keys, "Cubic convolution interpolation for digital image processing", 1981, for x ≥ 0.
local function cubic(x, a)
  local near = ((a + 2) * x - (a + 3)) * x * x + 1
  local far = (((x - 5) * x + 8) * x - 4) * a
  return ops.where(ops.lt(x, 1), near, ops.where(ops.lt(x, 2), far, 0))
end

local function triangle(x) return ops.relu(1 - x) end

-- Converts positions from 0 to gather_weighted's: from 1, with a dim of channels.
local function from_one(index) return (index + 1):unsqueeze(1) end

local function nearest(r)
  local how = {device = r.device, dtype = "float32"} -- float32 as in PyTorch: the rounding of .5 depends on it
  local at = ops.arange(r.out, how)
  if r.mode == "nearest-exact" then at = at + 0.5 end
  return from_one(ops.floor(at * r.scale):clamp(nil, r.size - 1):to("int64"):unsqueeze(1))
end

-- Returns positions and weights of two or four neighbors at any scale, clamped to the border.
local function border_clamped(r)
  local at = ops.arange(r.out, {device = r.device, dtype = "float64"})
  at = r.align_corners and at * r.scale or (at + 0.5) * r.scale - 0.5
  if not r.cubic then at = at:clamp(0) end
  local first = ops.floor(at):clamp(nil, r.cubic and math.huge or r.size - 1)
  local part, taps = at - first, ops.arange(r.cubic and -1 or 0, r.cubic and 3 or 2):to {device = r.device}
  taps = taps:to("float64"):unsqueeze(2)
  local distance = ops.abs(taps - (r.cubic and part or part:clamp(0, 1)))
  local weight = r.cubic and cubic(distance, -0.75) or triangle(distance)
  return from_one((first + taps):clamp(0, r.size - 1):to("int64")), weight:unsqueeze(1)
end

-- Returns positions and weights of a filter that is stretched by a scale above 1 and cut at the borders.
local function stretched(r)
  local stretch = math.max(r.scale, 1)
  local support = (r.cubic and 2 or 1) * stretch
  local center = (ops.arange(r.out, {device = r.device, dtype = "float64"}) + 0.5) * r.scale
  local first, stop = ops.trunc(center - support + 0.5):clamp(0), ops.trunc(center + support + 0.5):clamp(nil, r.size)
  local taps = ops.arange(math.ceil(support) * 2 + 1, {device = r.device, dtype = "float64"}):unsqueeze(2)
  local index = first + taps
  local distance = ops.abs((index - center + 0.5) / stretch)
  local weight = r.cubic and cubic(distance, -0.5) or triangle(distance)
  local inside = ops.lt(index, stop)
  weight = ops.where(inside, weight, 0)
  weight = weight / ops.sum(weight, 1, {keepdim = true})
  return from_one(ops.where(inside, index, -1):to("int64")), weight:unsqueeze(1)
end

-- Resizes a dim of x; `last` is true if x is channels last in memory.
local function resized(x, dim, r, last)
  local positions, weight
  if r.mode:find "^nearest" then
    positions = nearest(r)
  elseif r.antialias then
    positions, weight = stretched(r)
  else
    positions, weight = border_clamped(r)
  end
  if weight then weight = weight:to(x.dtype == "float64" and "float64" or "float32") end
  if not x:is_floating_point() then return ops.index_select(x, dim, positions:view(-1)) end
  if last then x, dim = sizes.channels_last(x), dim - 1 end
  local shape, before, after = {unpack(x.shape)}, 1, 1
  for i, size in ipairs(shape) do
    if i < dim then before = before * size elseif i > dim then after = after * size end
  end
  local y = ops.gather_weighted(ops.reshape(x, {1, before, shape[dim], after}), positions, weight)
  shape[dim] = r.out
  y = y:view(shape)
  return last and sizes.channels_second(y) or y
end

-- ---- sizes and scales

local function per_dim(who, name, v, n, kind)
  if type(v) ~= "table" then
    local all = {}
    for i = 1, n do all[i] = v end
    v = all
  end
  sizes.check_list(who, name, v)
  if #v ~= n then options.wrong_length(who, name, n, "spatial dim", #v) end
  for i = 1, n do options.arg(who, name, v[i], kind) end
  return v
end

-- Returns the parameters of each dim's resize.
local function plans(who, a, n)
  if (a.size == nil) == (a.scale_factor == nil) then fail("%s: pass either size or scale_factor", who) end
  local size = a.size ~= nil and per_dim(who, "size", a.size, n, "count")
  local factor = a.scale_factor ~= nil and per_dim(who, "scale_factor", a.scale_factor, n, "positive")
  local list = {}
  for i = 1, n do
    local r = {
      size = a.x.shape[2 + i], mode = a.mode, align_corners = a.align_corners, antialias = a.antialias,
      cubic = a.mode == "bicubic", device = a.x.device,
    }
    r.out = size and size[i] or math.floor(r.size * factor[i])
    if r.out < 1 or r.size < 1 then
      fail("%s: dim %d of %s would have the size %d", who, 2 + i, describe(a.x), r.out)
    end
    if a.align_corners then
      r.scale = r.out > 1 and (r.size - 1) / (r.out - 1) or 0
    else
      local by_factor = factor and not a.recompute_scale_factor and factor[i] > 0
      r.scale = by_factor and 1 / factor[i] or r.size / r.out
    end
    list[i] = r
  end
  return list
end

local function check_mode(who, a, n)
  local mode = a.mode
  local dims = ({linear = 1, bilinear = 2, bicubic = 2, trilinear = 3})[mode]
  if dims and dims ~= n then
    fail("%s: mode '%s' requires x of %d dims, got %s; use '%s'", who, mode, dims + 2, describe(a.x), linear[n])
  end
  if dims and not a.x:is_floating_point() and a.x.dtype ~= "uint8" then
    fail("%s: mode '%s' requires a floating or uint8 x, got %s; convert it with :float() or use mode 'nearest'", who,
      mode, a.x.dtype)
  end
  if a.align_corners ~= nil and not dims then fail("%s: align_corners does not apply to mode '%s'", who, mode) end
  if a.antialias and mode ~= "bilinear" and mode ~= "bicubic" then
    fail("%s: antialias requires mode 'bilinear' or 'bicubic', got '%s'", who, mode)
  end
  if a.recompute_scale_factor and a.size ~= nil then
    fail("%s: recompute_scale_factor requires scale_factor, not size", who)
  end
end

local function interpolate(who, a)
  local x = a.x
  local n = x.ndim - 2
  if n < 1 or n > 3 then options.wrong_shape(who, "x", x, "[N, C, L], [N, C, H, W] or [N, C, D, H, W]") end
  check_mode(who, a, n)
  local list = plans(who, a, n)
  if a.mode == "area" then
    local size = {}
    for i, r in ipairs(list) do size[i] = r.out end
    return ({pooling.adaptive_avg_pool1d, ops.adaptive_avg_pool2d, pooling.adaptive_avg_pool3d})[n](x, size)
  end
  if (x.dtype == "uint8" or n > 1 and x:element_size() == 2) and not a.mode:find "^nearest" then -- each dim would round
    a.x = x:to "float32"
    local y = interpolate(who, a)
    return (x.dtype == "uint8" and ops.round(y):clamp(0, 255) or y):to(x.dtype)
  end
  local last = sizes.is_channels_last(x)
  local done = false
  local copies = a.mode:find "linear$" or a.antialias or a.mode == "nearest" and n == 2 -- equal sizes, as PyTorch
  local function resize(i)
    if list[i].out == list[i].size and (copies or list[i].scale == 1) then return end
    x, done = resized(x, 2 + i, list[i], last), true
  end
  for i = 1, n do -- shrink first, so that later dims have less work
    if list[i].out <= list[i].size then resize(i) end
  end
  for i = n, 1, -1 do
    if list[i].out > list[i].size then resize(i) end
  end
  return done and x or x:clone()
end

local sized = "(x: tensor, size: any?, scale_factor: any?"
local with_mode = sized
  .. [[, mode = "nearest" | "nearest-exact" | "linear" | "bilinear" | "bicubic" | "trilinear" | "area",
    align_corners: boolean?]]

--- Resizes the input to a size or by a scale factor.
F.interpolate = signature.by_name("interpolate" .. with_mode
  .. ", recompute_scale_factor: boolean?, antialias = false)", function(a) return interpolate("interpolate", a) end)

--- Resizes the input; the old name of F.interpolate.
F.upsample = signature.by_name("upsample" .. with_mode .. ")", function(a) return interpolate("upsample", a) end)

--- Resizes the input by nearest neighbors.
F.upsample_nearest = signature.by_name("upsample_nearest" .. sized .. ")", function(a)
  a.mode = "nearest"
  return interpolate("upsample_nearest", a)
end)

--- Resizes the input by bilinear interpolation with align_corners.
F.upsample_bilinear = signature.by_name("upsample_bilinear" .. sized .. ")", function(a)
  a.mode, a.align_corners = "bilinear", true
  return interpolate("upsample_bilinear", a)
end)

return options.exact_all(F)
