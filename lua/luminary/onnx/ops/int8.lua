--- Products of integers of 8 bits, for ONNX's quantized ops.
local core = require "luminary.core"
local convolution = require "luminary.onnx.ops.convolution"
local helpers = require "luminary.onnx.ops.sizes"
local ops, to = core.ops, core.methods.to
local int8 = {}

--- Dtypes of 8 bits.
int8.dtypes = {uint8 = true, int8 = true}
--- Returns whether all of some tensors, or nil, are of 8 bits, on the CPU, which multiplies these.
function int8.are_bytes(...)
  for i = 1, select("#", ...) do
    local t = select(i, ...)
    if t and not (int8.dtypes[t.dtype] and t.device:find "^cpu") then return false end
  end
  return true
end

--- Returns x, in float, rounded to even and saturated to a dtype of integers.
function int8.saturated(x, dtype, zero)
  local range, y = require("luminary.tensor.dtype_info").iinfo(dtype), ops.round(x)
  return to(ops.clamp(zero and y + to(zero, y.dtype) or y, range.min, range.max), dtype)
end

-- Returns numbers for n channels, of which t has one or all.
local function for_channels(t, n, dtype) return t and ops.expand(to(t, dtype):reshape(-1), {n}):contiguous() end

-- Returns weights [K, C, kH, kW] as four_dims(w) has them, packed, and their zero points, of inputs k and k_zero. Those
-- of a constant are kept while it does not change.
local function packed_weight(n, w, w_zero, k, k_zero, groups, four_dims)
  local kept = n.kept_weight
  if kept and kept.is_current(w, w_zero) then return kept end
  local weight = four_dims(w)
  local made = {
    weight = weight, packed = ops.int8_pack(weight, groups), zero = for_channels(w_zero, weight.shape[1], "int32"),
  }
  if n:const(k) and (not w_zero or n:const(k_zero)) then
    made.is_current = helpers.watch(w, w_zero)
    n.kept_weight = core.keep(made)
  end
  return made
end

-- A product is {x, x_zero, w, w_zero, ix_zero, iw, iw_zero = indices of inputs, zero = 0-d tensor of the result's
-- dtype, scale, bias = or nil}: see ops.int8_conv.

--- Returns a product as a convolution over 2 dims, or nil.
function int8.convolve(n, p)
  if p.w.ndim ~= 4 or not int8.are_bytes(p.x, p.w) then return nil end
  local kept = packed_weight(n, p.w, p.w_zero, p.iw, p.iw_zero, n.group, function(w) return w end)
  local w, K = kept.weight, kept.weight.shape[1]
  local x, how = convolution.int8_windows(n, p.x, {w.shape[3], w.shape[4]}, n:number(p.ix_zero, p.x_zero) or 0)
  return ops.int8_conv(x, w, kept.packed, p.zero, for_channels(p.scale, K, "float32"), p.bias, kept.zero, how)
end

local function weight_of_columns(w) return ops.transpose(w, 1, 2):reshape(w.shape[2], w.shape[1], 1, 1) end
local function weight_of_rows(w) return w:reshape(w.shape[1], w.shape[2], 1, 1) end

--- Returns a product of matrices, or nil. n.transB: w is transposed, and has 2 dims.
function int8.multiply(n, p)
  local a, b, x_zero = p.x, p.w, p.x_zero
  if a.ndim < 2 or b.ndim < 2 or x_zero and x_zero:numel() > 1 or not int8.are_bytes(a, b) then return nil end
  local M, K, N = a.shape[-2], a.shape[-1], b.shape[n.transB == 1 and -2 or -1]
  local shape, groups, x, kept = {unpack(a.shape)}, 1
  shape[#shape] = N
  if b.ndim == 2 then
    x = a:reshape(helpers.product(shape, 1, #shape - 1), K, 1, 1)
    kept = packed_weight(n, b, p.w_zero, p.iw, p.iw_zero, 1, n.transB == 1 and weight_of_rows or weight_of_columns)
  else
    groups = helpers.product(shape, 1, #shape - 2)
    for d = 1, b.ndim - 2 do
      if a.ndim ~= b.ndim or a.shape[d] ~= b.shape[d] then return nil end
    end
    if groups == 0 or p.w_zero and p.w_zero:numel() > 1 or p.scale and p.scale:numel() > 1 then return nil end
    x = ops.transpose(a:reshape(groups, M, K), 1, 2):reshape(M, groups * K, 1, 1)
    local weight = ops.transpose(b:reshape(groups, K, N), 2, 3):reshape(groups * N, K, 1, 1)
    kept = {weight = weight, packed = ops.int8_pack(weight, groups), zero = for_channels(p.w_zero, groups * N, "int32")}
  end
  local y = ops.int8_conv(x, kept.weight, kept.packed, p.zero, for_channels(p.scale, groups * N, "float32"),
    for_channels(p.bias, groups * N, "int32"), kept.zero, {groups = groups, x_zero = x_zero and x_zero:reshape({})})
  if groups > 1 then y = ops.transpose(y:reshape(M, groups, N), 1, 2) end
  return y:reshape(shape)
end

--- Returns a zero of a dtype, of no dims, on x's device.
function int8.no_zero(x, dtype) return ops.zeros({}, {dtype = dtype, device = x.device}) end
--- Returns x less its zero point, or nil, in int32.
function int8.integers(x, zero) return zero and to(x, "int32") - to(zero, "int32") or to(x, "int32") end
--- Returns numbers for rows, [M], so that they broadcast over the columns of a matrix.
function int8.as_column(t) return t and t.ndim >= 1 and t:numel() > 1 and ops.unsqueeze(t, -1) or t end

return int8
