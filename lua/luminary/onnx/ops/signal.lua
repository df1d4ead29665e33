--- ONNX's Fourier transforms, windows and mel filters.
local core = require "luminary.core"
local fft = require "luminary.fft"
local helpers = require "luminary.onnx.ops.sizes"

local ops, to = core.ops, core.methods.to
local dim_in = helpers.dim_in
local signal = {}

-- Returns x [..., n, ..., 1 or 2] cut off or padded to n along dim d.
local function resized(x, d, n)
  local first, last = helpers.filled(x.ndim, 0), helpers.filled(x.ndim, 0)
  last[d] = n - x.shape[d]
  return helpers.padded(x, first, last, "constant")
end

local function number(t) return t and tonumber(t:reshape(-1):select(1, 1):item()) end

function signal.DFT(n)
  local inverse, onesided = n.a.inverse == 1, n.a.onesided == 1
  return function(x, length, axis)
    local at = number(axis) or n.a.axis or (n.version < 20 and 1 or -2)
    local dtype, d = x.dtype, dim_in(x, at)
    local size = number(length)
    local y = to(x, "float64")
    if inverse and onesided then
      size = size or 2 * (x.shape[d] - 1)
      return to(ops.unsqueeze(fft.irfft(y, size, d), -1), dtype)
    end
    size = size or x.shape[d]
    y = resized(y, d, size)
    if y.shape[-1] == 1 then y = ops.cat({y, ops.zeros_like(y)}, -1) end
    y = inverse and fft.ifft(y, size, d) or fft.fft(y, size, d)
    return to(onesided and ops.narrow(y, d, 1, math.floor(size / 2) + 1) or y, dtype)
  end
end

function signal.STFT(n)
  local onesided = n.a.onesided ~= 0
  return function(x, step, window, length)
    local dtype, size = x.dtype, number(length) or window and window.shape[1] or x.shape[2]
    local y = to(x, "float64")
    if y.ndim == 2 then y = ops.unsqueeze(y, 3) end
    y = ops.permute(y:unfold(2, size, number(step)), {1, 2, 4, 3}) -- [batch, frames, size, 1 or 2]
    if window then y = y * to(window, y.dtype):reshape(size, 1) end
    local whole = y.shape[4] == 2
    if not whole then y = ops.cat({y, ops.zeros_like(y)}, 4) end
    y = fft.fft(y, size, 3)
    return to(onesided and not whole and ops.narrow(y, 3, 1, math.floor(size / 2) + 1) or y, dtype)
  end
end

local function window(a0, a1, a2)
  return function(n)
    local dtype, periodic = n:dtype(n.a.output_datatype, "float32"), n.a.periodic ~= 0
    return function(size)
      size = number(size)
      local period = periodic and size or size - 1
      local at = ops.arange(size, {dtype = "float64"}) * (2 * math.pi / period)
      return to(a0 - a1 * ops.cos(at) + a2 * ops.cos(at * 2), dtype)
    end
  end
end
signal.HannWindow, signal.BlackmanWindow = window(0.5, 0.5, 0), window(0.42, 0.5, 0.08)
signal.HammingWindow = window(25 / 46, 21 / 46, 0)

function signal.MelWeightMatrix(n)
  local dtype = n:dtype(n.a.output_datatype, "float32")
  return function(bins, length, rate, low, high)
    bins, length, rate, low, high = number(bins), number(length), number(rate), number(low), number(high)
    local function mel(hertz) return 2595 * math.log10(1 + hertz / 700) end
    local first, step, edges = mel(low), (mel(high) - mel(low)) / (bins + 2), {}
    for i = 0, bins + 1 do
      edges[i] = math.floor((length + 1) * (700 * (10 ^ ((first + i * step) / 2595) - 1)) / rate)
    end
    local rows = {}
    for i = 0, math.floor(length / 2) do
      local row = {}
      for k = 1, bins do
        local a, b, c = edges[k - 1], edges[k], edges[k + 1]
        local up = b == a and i == b and 1 or b > a and i >= a and i <= b and (i - a) / (b - a) or 0
        row[k] = i >= b and i < c and (c - i) / (c - b) or up
      end
      rows[i + 1] = row
    end
    return core.tensor(rows, {dtype = dtype})
  end
end

return signal
