--- ONNX's Fourier transforms, windows and mel filters.
local core = require "luminary.core"
local fft = require "luminary.fft"
local helpers = require "luminary.onnx.ops.sizes"
local ops, to = core.ops, core.methods.to
local op = {}

-- Returns the transform of x [..., 1 or 2] along dim d, its first half if `half`, in float64.
local function transform(x, d, half, inverse)
  if x.shape[-1] == 1 then x = ops.cat({x, ops.zeros_like(x)}, -1) end
  local y = (inverse and fft.ifft or fft.fft)(x, x.shape[d], d)
  return half and ops.narrow(y, d, 1, math.floor(x.shape[d] / 2) + 1) or y
end

op.DFT = {function(n, x, length, axis)
  local d = helpers.dim_in(x, n:number(3, axis) or n.axis or (n.version < 20 and 1 or -2))
  local y, size, inverse = to(x, "float64"), n:number(2, length), n.inverse == 1
  if inverse and n.onesided == 1 then
    return to(ops.unsqueeze(fft.irfft(y, size or 2 * (x.shape[d] - 1), d), -1), x.dtype)
  end
  return to(transform(size and helpers.resized(y, d, size) or y, d, n.onesided == 1, inverse), x.dtype)
end}
op.STFT = {function(n, x, step, window, length)
  local size, y = n:number(4, length) or window and window.shape[1] or x.shape[2], to(x, "float64")
  y = ops.permute((y.ndim == 2 and ops.unsqueeze(y, 3) or y):unfold(2, size, n:number(2, step)), {1, 2, 4, 3})
  if window then y = y * to(window, "float64"):reshape(size, 1) end
  return to(transform(y, 3, n.onesided ~= 0 and y.shape[4] == 1), x.dtype)
end}

local function window(a0, a1, a2)
  return {output_datatype = 1, periodic = 1, dtype_in = "output_datatype", function(n, size)
    size = n:number(1, size)
    local at = ops.arange(size, {dtype = "float64"}) * (2 * math.pi / (size - 1 + n.periodic))
    return to(a0 - a1 * ops.cos(at) + a2 * ops.cos(at * 2), n.dtype)
  end}
end
op.HannWindow, op.BlackmanWindow = window(0.5, 0.5, 0), window(0.42, 0.5, 0.08)
op.HammingWindow = window(25 / 46, 21 / 46, 0)

local function mel(hertz) return 2595 * math.log10(1 + hertz / 700) end
op.MelWeightMatrix = {output_datatype = 1, dtype_in = "output_datatype", function(n, bins, length, rate, low, high)
  bins, length, rate = n:number(1, bins), n:number(2, length), n:number(3, rate)
  low, high = mel(n:number(4, low)), mel(n:number(5, high))
  local edges, rows = {}, {}
  helpers.bounded(math.max(bins, 1) * math.max(length, 1), "the number of weights")
  for i = 0, bins + 1 do
    local hertz = 700 * (10 ^ ((low + i * (high - low) / (bins + 2)) / 2595) - 1)
    edges[i] = math.floor((length + 1) * hertz / rate)
  end
  for i = 0, math.floor(length / 2) do
    rows[i + 1] = {}
    for k = 1, bins do
      local a, b, c = edges[k - 1], edges[k], edges[k + 1]
      local up = b == a and i == b and 1 or b > a and i >= a and i <= b and (i - a) / (b - a) or 0
      rows[i + 1][k] = i >= b and i < c and (c - i) / (c - b) or up
    end
  end
  return core.tensor(rows, {dtype = n.dtype})
end}

return op
