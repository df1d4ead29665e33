--- ONNX's quantized ops: integers with a scale and a zero point.
local core = require "luminary.core"
local dtype_info = require "luminary.tensor.dtype_info"
local helpers = require "luminary.onnx.ops.sizes"
local convolve = require("luminary.onnx.ops.convolution").Conv

local ops, to = core.ops, core.methods.to
local quantized = {}

-- Returns a scale or zero point so that it broadcasts with x: one number, one for each index of axis, or for blocks.
local function spread(t, x, axis, block)
  if not t or t:numel() == 1 then return t and t:reshape({}) end
  local d = helpers.dim_in(x, axis)
  if t.ndim == 1 and not (block and block > 0 and x.ndim == 1) then
    local sizes = helpers.filled(x.ndim, 1)
    sizes[d] = -1
    return t:reshape(sizes)
  end
  local repeats = block and block > 0 and block or math.ceil(x.shape[d] / t.shape[d])
  return ops.narrow(t:repeat_interleave(repeats, d), d, 1, x.shape[d])
end

-- Returns x, in float, rounded to even and saturated to a dtype of integers.
local function saturated(x, dtype, zero)
  local range = dtype_info.iinfo(dtype)
  local y = ops.round(x)
  if zero then y = y + to(zero, y.dtype) end
  return to(ops.clamp(y, range.min, range.max), dtype)
end

function quantized.QuantizeLinear(n)
  local axis, block = n.a.axis or 1, n.a.block_size
  local number = n.a.output_dtype
  local dtype = number and number ~= 0 and n:dtype(number)
  local precision = n.a.precision and n.a.precision ~= 0 and n:dtype(n.a.precision)
  return function(x, scale, zero)
    local wide = precision or scale.dtype
    if n.version < 19 then wide = "float32" end
    local y = to(x, wide) / spread(to(scale, wide), x, axis, block)
    return saturated(y, dtype or zero and zero.dtype or "uint8", spread(zero, x, axis, block))
  end
end

local function dequantized(x, scale, zero, axis, block, dtype)
  dtype = dtype or scale.dtype
  local y = x
  if zero then y = to(x, "int32") - to(spread(zero, x, axis, block), "int32") end
  return to(y, dtype) * to(spread(scale, x, axis, block), dtype)
end

function quantized.DequantizeLinear(n)
  local axis, block, number = n.a.axis or 1, n.a.block_size, n.a.output_dtype
  local dtype = number and number ~= 0 and n:dtype(number)
  return function(x, scale, zero) return dequantized(x, scale, zero, axis, block, dtype) end
end

function quantized.DynamicQuantizeLinear()
  return function(x)
    local least, most = ops.clamp(ops.amin(x), nil, 0), ops.clamp(ops.amax(x), 0)
    local scale = (most - least) / 255
    local zero = ops.clamp(ops.round(-least / scale), 0, 255)
    return to(ops.clamp(ops.round(x / scale) + zero, 0, 255), "uint8"), scale, to(zero, "uint8")
  end
end

local function integers(x, zero) return zero and to(x, "int32") - to(zero, "int32") or to(x, "int32") end

-- Returns the zero points of rows, [M], so that they broadcast over the columns of a matrix.
local function of_rows(zero) return zero and zero.ndim >= 1 and zero:numel() > 1 and ops.unsqueeze(zero, -1) or zero end

function quantized.MatMulInteger()
  return function(a, b, a_zero, b_zero) return ops.matmul(integers(a, of_rows(a_zero)), integers(b, b_zero)) end
end

function quantized.QLinearMatMul()
  return function(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
    local y = ops.matmul(integers(a, of_rows(a_zero)), integers(b, b_zero))
    local scale = to(of_rows(a_scale), "float32") * to(b_scale, "float32") / to(y_scale, "float32")
    return saturated(to(y, "float32") * scale, y_zero.dtype, y_zero)
  end
end

function quantized.QLinearConv(n)
  local f = convolve(n)
  return function(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    local rows = {-1, unpack(helpers.filled(w.ndim - 1, 1))}
    local zero = w_zero:numel() > 1 and w_zero:reshape(rows) or w_zero:reshape({})
    local y = f(integers(x, x_zero), integers(w, zero), bias)
    local scale = x_scale * w_scale / y_scale
    if scale:numel() > 1 then
      scale = scale:reshape({-1, unpack(helpers.filled(w.ndim - 2, 1))})
    else
      scale = scale:reshape({})
    end
    return saturated(to(y, "float32") * scale, y_zero.dtype, y_zero)
  end
end

return quantized
