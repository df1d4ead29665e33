--- onnxruntime's ops of quantized tensors, of the domain com.microsoft.
local core = require "luminary.core"
local convolution = require "luminary.onnx.ops.convolution"
local helpers = require "luminary.onnx.ops.sizes"
local int8 = require "luminary.onnx.ops.int8"
local plain = require "luminary.onnx.ops.quantized"
local recurrent = require "luminary.onnx.ops.recurrent"
local reduction = require "luminary.onnx.ops.reduction"
local ops, to = core.ops, core.methods.to
local op = {QuantizeLinear = plain.QuantizeLinear, DequantizeLinear = plain.DequantizeLinear}

-- Returns bytes times their scales, in float32, plus a bias.
local function to_float(n, p, bias)
  local y = int8.multiply(n, p)
    or to(ops.matmul(int8.integers(p.x, int8.as_column(p.x_zero)), int8.integers(p.w, p.w_zero)), "float32") * p.scale
  return bias and y + bias or y
end
op.MatMulIntegerToFloat = {function(n, a, b, a_scale, b_scale, a_zero, b_zero, bias)
  return to_float(n, {
    x = a, x_zero = a_zero, w = b, w_zero = b_zero, ix_zero = 5, iw = 2, iw_zero = 6, zero = int8.no_zero(a, "float32"),
    scale = a_scale * b_scale,
  }, bias)
end}
op.DynamicQuantizeMatMul = {function(n, a, b, b_scale, b_zero, bias)
  local x, scale, zero = plain.DynamicQuantizeLinear[1](n, a)
  return to_float(n, {
    x = x, x_zero = zero, w = b, w_zero = b_zero, ix_zero = 0, iw = 2, iw_zero = 4, zero = int8.no_zero(x, "float32"),
    scale = scale * b_scale,
  }, bias)
end}

local function dequantized(x, scale, zero) return to(int8.integers(x, zero), "float32") * to(scale, "float32") end
local function quantized(y, scale, zero, like)
  return int8.saturated(y / to(scale, "float32"), (zero or like).dtype, zero)
end

-- Returns x as bytes of a dynamic scale have it, one for all, or for each index of the dims other than dim.
local function rounded(x, dim)
  local least = ops.clamp(dim and ops.amin(x, {dim}, true) or ops.amin(x), nil, 0)
  local scale = (ops.clamp(dim and ops.amax(x, {dim}, true) or ops.amax(x), 0) - least) / 255
  scale = ops.masked_fill(scale, ops.eq(scale, 0), 1)
  local zero = ops.clamp(ops.round(-least / scale), 0, 255)
  return (ops.clamp(ops.round(x / scale) + zero, 0, 255) - zero) * scale
end
-- Returns weights [D, K, 4 H] of bytes as floats [D, 4 H, K]; scales and zero points: [D] or [D, 4 H].
local function gates_of(w, scale, zero)
  local D = w.shape[1]
  return ops.transpose(dequantized(w, scale:reshape(D, 1, -1), zero and zero:reshape(D, 1, -1)), 2, 3):contiguous()
end
op.DynamicQuantizeLSTM = {direction = "forward", prepare = function(n)
  recurrent.LSTM.prepare(n)
  function n.carry(h) return rounded(h, 2) end
  n.clip = n.clip or 1e30 -- a limit, so that steps are computed one by one
end, function(n, x, w, r, bias, lengths, h0, c0, peepholes, ...)
  local w_scale, w_zero, r_scale, r_zero = ...
  local kept = n.kept_weight
  if not (kept and kept.is_current(w, r, ...)) then
    kept = {w = gates_of(w, w_scale, w_zero), r = gates_of(r, r_scale, r_zero)}
    if n:const(2) and n:const(3) then kept.is_current, n.kept_weight = helpers.watch(w, r, ...), core.keep(kept) end
  end
  return recurrent.LSTM[1](n, rounded(x), kept.w, kept.r, bias, lengths, h0, c0, peepholes)
end}
op.QGemm = {alpha = 1, transA = 0, transB = 0,
  function(n, a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero)
    if n.transA == 1 then a = ops.transpose(a, 1, 2) end
    local scale = a_scale * b_scale * n.alpha
    if y_scale then scale = scale / y_scale end
    local y = (not c or c.ndim == 1) and int8.multiply(n, {
      x = a, x_zero = a_zero, w = b, w_zero = b_zero, ix_zero = 3, iw = 4, iw_zero = 6, scale = scale, bias = c,
      zero = y_zero and y_zero:reshape({}) or int8.no_zero(a, y_scale and a.dtype or "float32"),
    })
    if y then return y end
    local weight = int8.integers(b, n.transB == 1 and int8.as_column(b_zero) or b_zero)
    y = ops.matmul(int8.integers(a, a_zero), n.transB == 1 and ops.transpose(weight, 1, 2) or weight)
    y = to(c and y + c or y, "float32") * scale
    return y_scale and int8.saturated(y, (y_zero or a).dtype, y_zero) or y
  end}
op.QLinearAdd = {function(n, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
  local alike = a_scale:numel() + b_scale:numel() == 2 and tostring(a.shape) == tostring(b.shape)
  if alike and int8.are_bytes(a, b, y_zero) then
    local by, zero = n:number(7, y_scale), y_zero and y_zero:reshape({}) or int8.no_zero(a, a.dtype)
    return ops.int8_add(a, b, zero, n:number(2, a_scale) / by, n:number(5, b_scale) / by, n:number(3, a_zero) or 0,
      n:number(6, b_zero) or 0)
  end
  return quantized(dequantized(a, a_scale, a_zero) + dequantized(b, b_scale, b_zero), y_scale, y_zero, a)
end}
op.QLinearMul = function(...)
  local a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = ...
  return quantized(dequantized(a, a_scale, a_zero) * dequantized(b, b_scale, b_zero), y_scale, y_zero, a)
end
op.QLinearConcat = {axis = 0, how = "list", function(n, list, count)
  local parts = {}
  for i = 3, count, 3 do parts[#parts + 1] = dequantized(list[i], list[i + 1], list[i + 2]) end
  return quantized(ops.cat(parts, helpers.dim_in(parts[1], n.axis)), list[1], list[2], list[3])
end}

-- Returns the entry of an op of one input and a result of integers, by f(n, x), that of floats.
local function through_float(f, more)
  more[1] = function(n, x, scale, zero, y_scale, y_zero)
    return quantized(f(n, dequantized(x, scale, zero)), y_scale, y_zero, x)
  end
  return more
end
op.QLinearSigmoid = through_float(function(_, x) return ops.sigmoid(x) end, {})
op.QLinearLeakyRelu = through_float(function(n, x) return ops.leaky_relu(x, n.alpha) end, {alpha = 0.01})
op.QLinearSoftmax = through_float(function(n, x)
  return reduction.Softmax[1]({version = n.opset or 13, axis = n.axis or -1}, x)
end, {})

-- Returns f for images whose channels are their second dim, or, if the node says so, the last.
local function any_layout(f)
  return function(n, x)
    if n.channels_last ~= 1 then return f(n, x) end
    return f(n, x:movedim(-1, 2)):movedim(2, -1)
  end
end
op.QLinearAveragePool = through_float(any_layout(convolution.AveragePool[1]), {ceil_mode = 0, count_include_pad = 0})
op.QLinearGlobalAveragePool = through_float(any_layout(convolution.GlobalAveragePool[1]), {})

return op
