--- Computes short-time Fourier transforms, and windows for them.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"
local result_type = require("luminary.tensor.dtype_info").result_type

local ops, arg, fail = core.ops, options.arg, options.fail
local stft = {}

-- Checks the common arguments of stft and istft. Returns x and the window, of one dtype and n_fft entries, and the hop.
local function frame_of(who, x, n_fft, hop_length, win_length, window)
  arg(who, "x", x, "tensor")
  arg(who, "n_fft", n_fft, "count")
  win_length = win_length and arg(who, "win_length", win_length, "count") or n_fft
  local hop = hop_length and arg(who, "hop_length", hop_length, "count") or math.floor(n_fft / 4)
  if hop < 1 then options.must_be(who, "n_fft", "at least 4", n_fft, "or pass hop_length") end
  if win_length > n_fft then options.must_be(who, "win_length", "at most n_fft, " .. n_fft, win_length) end
  if window then
    shapes.check(who, "window", arg(who, "window", window, "tensor"), {win_length})
  else
    window = ops.ones({win_length}, {dtype = x.dtype, device = x.device})
  end
  if win_length < n_fft then
    local left = math.floor((n_fft - win_length) / 2)
    window = ops.pad(window, {left, n_fft - win_length - left})
  end
  local dtype = result_type(x, window)
  return x:to(dtype), window:to(dtype), hop
end

-- Pads x [b, n] with `half` samples on both sides.
local function padded(x, half, mode)
  local n = x.shape[2]
  if mode ~= "reflect" or n <= half or half == 0 then
    return ops.squeeze(ops.pad(ops.unsqueeze(x, 1), {half, half}, {mode = mode}), 1)
  end
  local function mirrored(first, last)
    return ops.index_select(x, 2, ops.arange(first, last, -1, {dtype = "int64", device = x.device}))
  end
  return ops.cat({mirrored(half + 1, 1), x, mirrored(n - 1, n - 1 - half)}, 2)
end

--- Computes the short-time Fourier transform.
stft.stft = signature.of([[stft(x: tensor, n_fft, hop_length: any? = (n_fft / 4), win_length: any? = (n_fft),
  window: any?, center: any? = (true), pad_mode: any? = ("reflect"), normalized: any? = (false),
  onesided: any? = (true), return_complex: boolean?)]],
  function(x, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex)
  local who = "stft"
  if return_complex then
    core.warn("stft: return_complex: complex tensors are not supported; the result has a last dim of 2, real and "
      .. "imaginary parts, of which y:norm(2, -1) are the magnitudes, and y:abs() are not")
  end
  if not core.is_floating_point(x) then options.wrong_dtype(who, "x", "floating", x, "convert it with :float()") end
  if x.ndim ~= 1 and x.ndim ~= 2 then options.wrong_shape(who, "x", x, "[n] or [batch, n]") end
  local hop
  local y = x.ndim == 1 and ops.unsqueeze(x, 1) or x
  y, window, hop = frame_of(who, y, n_fft, hop_length, win_length, window)
  if center ~= false then y = padded(y, math.floor(n_fft / 2), pad_mode or "reflect") end
  if y.shape[2] < n_fft then
    fail("%s: x must have at least n_fft samples, got %d%s and n_fft %d", who, y.shape[2],
      center ~= false and " with padding" or "", n_fft)
  end
  local scale = normalized and 1 / math.sqrt(n_fft) or 1
  if onesided == false then
    y = ops.unfold(y, 2, n_fft, hop) * window
    y = ops.fft_c2c(ops.stack({y, ops.zeros_like(y)}, -1), false, scale)
  else
    y = ops.stft_lines(y, window, hop, scale)
  end
  y = ops.transpose(y, 2, 3)
  return x.ndim == 1 and ops.squeeze(y, 1) or y
end)

--- Computes the inverse of lm.stft.
stft.istft = signature.of([[istft(x: tensor, n_fft, hop_length: any?, win_length: any?, window: any?,
  center: any? = (true), normalized: any? = (false), onesided: any? = (true),
  length: any?)]], function(x, n_fft, hop_length, win_length, window, center, normalized, onesided, length)
  local who = "istft"
  local hop
  x, window, hop = frame_of(who, x, n_fft, hop_length, win_length, window)
  local rows = onesided == false and n_fft or math.floor(n_fft / 2) + 1
  if (x.ndim ~= 3 and x.ndim ~= 4) or x.shape[x.ndim] ~= 2 or x.shape[x.ndim - 2] ~= rows then
    options.wrong_shape(who, "x", x, ("[%d, frames, 2] or [batch, %d, frames, 2]"):format(rows, rows))
  end
  local y = ops.transpose(x.ndim == 3 and ops.unsqueeze(x, 1) or x, 2, 3)
  local scale = normalized and 1 / math.sqrt(n_fft) or 1 / n_fft
  if onesided == false then
    y = ops.select(ops.fft_c2c(y, true, scale), -1, 1)
  else
    y = ops.fft_c2r(y, n_fft, scale)
  end
  local frames = y.shape[2]
  local samples = (frames - 1) * hop + n_fft
  y = ops.overlap_add(y, window, hop, samples)
  local weight = ops.overlap_add(ops.expand(window, {1, frames, n_fft}), window, hop, samples)
  local first, last = 1, y.shape[2]
  if center ~= false then first = math.floor(n_fft / 2) + 1 end
  if length then
    last = math.min(last, first - 1 + arg(who, "length", length, "count"))
  elseif center ~= false then
    last = last - math.floor(n_fft / 2)
  end
  if last < first then fail("%s: %d frames are too few for one sample", who, frames) end
  y, weight = ops.narrow(y, 2, first, last - first + 1), ops.narrow(weight, 2, first, last - first + 1)
  if ops.amin(ops.abs(weight)):item() < 1e-11 then
    fail("%s: the window at hop_length %d does not cover all samples; use a smaller hop_length or another window", who,
      hop)
  end
  y = y / weight
  if length and y.shape[2] < length then y = ops.pad(y, {0, length - y.shape[2]}) end
  return x.ndim == 3 and ops.squeeze(y, 1) or y
end)

-- ---- windows

-- Defines a window: f(n, whole, dtype, values of `more`) returns its n entries, in float64 or dtype; `whole` is the
-- length of a period. more: arguments after `periodic`, which f checks.
local function define(who, more, f)
  local text = ("%s(window_length, periodic: any? = (true), %sdtype: any?, device: any?)"):format(who, more)
  local n_more = select(2, more:gsub(",", ""))
  stft[who] = signature.of(text, function(n, periodic, ...)
    arg(who, "window_length", n, "natural")
    if periodic ~= nil then arg(who, "periodic", periodic, "boolean") end
    local dtype = select(n_more + 1, ...) or core.get_default_dtype()
    local device = select(n_more + 2, ...) or core.get_default_device()
    if not core.is_floating_point(dtype) then fail("%s: dtype must be floating, got %s", who, dtype) end
    local y = f(n, math.max(periodic == false and n - 1 or n, 1), dtype, ...)
    if n <= 1 then return ops.ones({n}, {dtype = dtype, device = device}) end
    return y:to(dtype):to(device)
  end)
end

-- Returns n numbers: 0, step, 2 step, ….
local function steps(n, step) return ops.arange(0, n, 1, {dtype = "float64", device = "cpu"}):mul_(step) end

-- Returns a0 - a1 cos(2 pi k / whole) + a2 cos(4 pi k / whole) for k from 0 to n - 1.
local function cosines(n, whole, dtype, a0, a1, a2)
  return ops.cosine_window(n, whole, a0, a1, a2 or 0, {dtype = dtype, device = "cpu"})
end

--- lm.hann_window(…): Returns the Hann window.
define("hann_window", "", function(n, whole, dtype) return cosines(n, whole, dtype, 0.5, 0.5) end)

--- lm.hamming_window(…): Returns the Hamming window.
define("hamming_window", "alpha: any? = (0.54), beta: any? = (0.46), ", function(n, whole, dtype, alpha, beta)
  return cosines(n, whole, dtype, alpha or 0.54, beta or 0.46)
end)

--- lm.blackman_window(…): Returns the Blackman window.
define("blackman_window", "", function(n, whole, dtype) return cosines(n, whole, dtype, 0.42, 0.5, 0.08) end)

--- lm.bartlett_window(…): Returns the Bartlett window.
define("bartlett_window", "", function(n, whole) return 1 - ops.abs(steps(n, 2 / whole) - 1) end)

-- Computes the Bessel function I0 by its series, for x from 0 to `largest`.
local function bessel(x, largest)
  local quarter, sum, term = ops.square(x) * 0.25, ops.ones_like(x), ops.ones_like(x)
  for k = 1, 20 + math.ceil(largest * 1.5) do
    term = term * quarter / (k * k)
    sum = sum + term
  end
  return sum
end

--- lm.kaiser_window(…): Returns the Kaiser window.
define("kaiser_window", "beta: any? = (12), ", function(n, whole, _, beta)
  beta = arg("kaiser_window", "beta", beta or 12, "finite(0, 700)")
  local inside = ops.clamp(1 - ops.square(steps(n, 2 / whole) - 1), 0)
  return bessel(ops.sqrt(inside) * beta, beta) / bessel(ops.full({}, beta, {dtype = "float64", device = "cpu"}), beta)
end)

return signature.all(stft)
