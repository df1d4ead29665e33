--- ONNX's quantized ops: integers with a scale and a zero point.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local int8 = require "luminary.onnx.ops.int8"
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

op.QuantizeLinear = {axis = 1, block_size = 0, dtype_in = "output_dtype",
  prepare = function(n) n.wide = n:dtype_of(n.precision) end,
  function(n, x, scale, zero)
    local dtype = n.dtype or zero and zero.dtype or "uint8"
    if int8.dtypes[dtype] and scale:numel() == 1 and int8.are_bytes(zero) and x.device:find "^cpu"
      and x.dtype == "float32" and (n.wide or "float32") == "float32" then
      zero = zero or ops.zeros({}, {dtype = dtype, device = x.device})
      return ops.int8_quantize(x, scale:reshape({}), zero:reshape({}))
    end
    local wide = n.wide or n.version < 19 and "float32" or scale.dtype
    local y = to(x, wide) / spread(n, to(scale, wide), x)
    return int8.saturated(y, dtype, spread(n, zero, x))
  end}
op.DequantizeLinear = {axis = 1, block_size = 0, dtype_in = "output_dtype", function(n, x, scale, zero)
  local dtype = n.dtype or scale.dtype
  if scale:numel() == 1 and dtype == "float32" and int8.are_bytes(x) then
    return ops.int8_dequantize(x, n:number(2, scale), n:number(3, zero) or 0)
  end
  if zero then x = to(x, "int32") - to(spread(n, zero, x), "int32") end
  return to(x, dtype) * to(spread(n, scale, x), dtype)
end}
op.DynamicQuantizeLinear = {function(_, x)
  local least, most = ops.aminmax(x)
  least, most = ops.clamp(least, nil, 0), ops.clamp(most, 0)
  local scale = (most - least) / 255
  scale = ops.masked_fill(scale, ops.eq(scale, 0), 1)
  local zero = to(ops.clamp(ops.round(-least / scale), 0, 255), "uint8")
  if int8.are_bytes(zero) then return ops.int8_quantize(x, scale, zero), scale, zero end
  return int8.saturated(x / scale, "uint8", zero), scale, zero
end}

op.MatMulInteger = {function(n, a, b, a_zero, b_zero)
  local y = int8.multiply(n, {
    x = a, x_zero = a_zero, w = b, w_zero = b_zero, ix_zero = 3, iw = 2, iw_zero = 4, zero = int8.no_zero(a, "int32"),
  })
  return y or ops.matmul(int8.integers(a, int8.as_column(a_zero)), int8.integers(b, b_zero))
end}
op.ConvInteger = {group = 1, function(n, x, w, x_zero, w_zero)
  local y = int8.convolve(n, {
    x = x, x_zero = x_zero, w = w, w_zero = w_zero, ix_zero = 3, iw = 2, iw_zero = 4, zero = int8.no_zero(x, "int32"),
  })
  return y or of_integers(n, x, w, x_zero, w_zero)
end}
op.QLinearMatMul = {function(n, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
  local scale = to(int8.as_column(a_scale), "float32") * to(b_scale, "float32") / to(y_scale, "float32")
  local y = int8.dtypes[y_zero.dtype] and a_scale:numel() == 1 and int8.multiply(n, {
    x = a, x_zero = a_zero, w = b, w_zero = b_zero, ix_zero = 3, iw = 4, iw_zero = 6, zero = y_zero:reshape({}),
    scale = scale,
  })
  if y then return y end
  y = ops.matmul(int8.integers(a, int8.as_column(a_zero)), int8.integers(b, b_zero))
  return int8.saturated(to(y, "float32") * scale, y_zero.dtype, y_zero)
end}
op.QLinearConv = {group = 1, function(n, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
  local scale = x_scale * w_scale / y_scale
  local y = int8.dtypes[y_zero.dtype] and int8.convolve(n, {
    x = x, x_zero = x_zero, w = w, w_zero = w_zero, ix_zero = 3, iw = 4, iw_zero = 6, zero = y_zero:reshape({}),
    scale = scale, bias = bias,
  })
  if y then return y end
  scale = scale:reshape(helpers.joined({-1}, helpers.filled(w.ndim - 2, 1)))
  return int8.saturated(to(of_integers(n, x, w, x_zero, w_zero, bias), "float32") * scale, y_zero.dtype, y_zero)
end}

return op
