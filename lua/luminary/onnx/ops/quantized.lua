--- ONNX's quantized ops: integers with a scale and a zero point.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local of_integers = require("luminary.onnx.ops.convolution").of_integers
local ops, to = core.ops, core.methods.to
local op = {}

-- Returns a scale or zero point so that it broadcasts with x: one number, one for each index of n.axis, or for blocks.
local function spread(n, t, x)
  if not t or t:numel() == 1 then return t and t:reshape({}) end
  local d = helpers.dim_in(x, n.axis)
  if t.ndim == 1 and not (n.block_size > 0 and x.ndim == 1) then return t:reshape(helpers.filled(x.ndim, 1, d, -1)) end
  local repeats = n.block_size > 0 and n.block_size or math.ceil(x.shape[d] / t.shape[d])
  return ops.narrow(t:repeat_interleave(repeats, d), d, 1, x.shape[d])
end

-- Returns x, in float, rounded to even and saturated to a dtype of integers.
local function saturated(x, dtype, zero)
  local range, y = require("luminary.tensor.dtype_info").iinfo(dtype), ops.round(x)
  return to(ops.clamp(zero and y + to(zero, y.dtype) or y, range.min, range.max), dtype)
end

op.QuantizeLinear = {axis = 1, block_size = 0, dtype_in = "output_dtype",
  prepare = function(n) n.wide = n:dtype_of(n.precision) end,
  function(n, x, scale, zero)
    local wide = n.wide or n.version < 19 and "float32" or scale.dtype
    local y = to(x, wide) / spread(n, to(scale, wide), x)
    return saturated(y, n.dtype or zero and zero.dtype or "uint8", spread(n, zero, x))
  end}
op.DequantizeLinear = {axis = 1, block_size = 0, dtype_in = "output_dtype", function(n, x, scale, zero)
  local dtype = n.dtype or scale.dtype
  if zero then x = to(x, "int32") - to(spread(n, zero, x), "int32") end
  return to(x, dtype) * to(spread(n, scale, x), dtype)
end}
op.DynamicQuantizeLinear = function(x)
  local least, most = ops.clamp(ops.amin(x), nil, 0), ops.clamp(ops.amax(x), 0)
  local scale = (most - least) / 255
  local zero = ops.clamp(ops.round(-least / scale), 0, 255)
  return to(ops.clamp(ops.round(x / scale) + zero, 0, 255), "uint8"), scale, to(zero, "uint8")
end

local function integers(x, zero) return zero and to(x, "int32") - to(zero, "int32") or to(x, "int32") end
-- Returns numbers for rows, [M], so that they broadcast over the columns of a matrix.
local function of_rows(t) return t and t.ndim >= 1 and t:numel() > 1 and ops.unsqueeze(t, -1) or t end
op.MatMulInteger = function(a, b, a_zero, b_zero)
  return ops.matmul(integers(a, of_rows(a_zero)), integers(b, b_zero))
end
op.QLinearMatMul = {function(_, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
  local y = op.MatMulInteger(a, b, a_zero, b_zero)
  local scale = to(of_rows(a_scale), "float32") * to(b_scale, "float32") / to(y_scale, "float32")
  return saturated(to(y, "float32") * scale, y_zero.dtype, y_zero)
end}
op.QLinearConv = {group = 1, function(n, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
  local y = of_integers(n, x, w, x_zero, w_zero, bias)
  local scale = (x_scale * w_scale / y_scale):reshape(helpers.joined({-1}, helpers.filled(w.ndim - 2, 1)))
  return saturated(to(y, "float32") * scale, y_zero.dtype, y_zero)
end}

return op
