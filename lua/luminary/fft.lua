--- lm.fft: Computes Fourier transforms under the names of torch.fft. There are no complex numbers: where PyTorch has
--- them, x has a last dim of 2, real and imaginary parts, as torch.view_as_real returns them; x:norm(2, -1) is the
--- magnitude. `dim` counts the other dims, from 1, or from -1 at the last of them. Tensors are float32 or float64, and
--- the transforms run on the CPU: tensors on other devices are copied there and back.
---
--- `x * y` multiplies the parts elementwise; the product of complex numbers is fft.multiply(x, y). The product of
--- spectra is the spectrum of a convolution, for which both signals are padded to its length:
---
---     local n = x.shape[1] + w.shape[1] - 1
---     local product = lm.fft.multiply(lm.fft.rfft(x, n), lm.fft.rfft(w, n))
---     local y = lm.fft.irfft(product, n) -- as numpy.convolve(x, w)
---
--- n, or s for several dims, is the size to which x is cut off, or padded with 0, before the transform. norm is
--- "backward" (inverse transforms divide by n; the default), "ortho" (all divide by its square root) or "forward".
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local fft = {}

local norms = {"backward", "ortho", "forward"}
local function scale_of(who, norm, n, inverse)
  norm = norm and options.choice(who, "norm", norm, norms) or "backward"
  if norm == "ortho" then return 1 / math.sqrt(n) end
  return (norm == "backward") == inverse and 1 / n or 1
end

-- Checks x. Returns it, as floats, and its number of dims without the last one of complex numbers.
local function check_signal(who, x, pairs_too)
  arg(who, "x", x, "tensor")
  if not core.is_floating_point(x) then x = x:float() end
  if x.dtype ~= "float32" and x.dtype ~= "float64" and not core.is_autocast_enabled() then
    options.wrong_dtype(who, "x", "float32 or float64", x, "convert it with :float()")
  end
  local dims = x.ndim - (pairs_too and 1 or 0)
  if pairs_too and (x.ndim < 2 or x.shape[x.ndim] ~= 2) then
    fail("%s: x is %s; complex numbers need a last dim of 2; lm.stack({x, lm.zeros_like(x)}, -1) makes it, or use rfft",
      who, describe(x))
  end
  if dims < 1 then fail("%s: x must have at least 1 dim to transform, got %s", who, describe(x)) end
  return x, dims
end

-- Pads or cuts x to n entries along dim.
local function sized(who, x, dim, n)
  if n < 1 then options.must_be(who, "n", "at least 1", n) end
  local have = x.shape[dim]
  if n < have then return ops.narrow(x, dim, 1, n) end
  if n == have then return x end
  local shape = x.shape
  shape[dim] = n - have
  return ops.cat({x, ops.zeros(shape, {dtype = x.dtype, device = x.device})}, dim)
end

-- Applies f to x with dim swapped with `dims`, the last dim that counts; f's result may be real or complex.
local function along(x, dim, dims, f)
  if dim == dims then return f(x) end
  return ops.transpose(f(ops.transpose(x, dim, dims)), dim, dims)
end

-- Checks arguments of a transform along one dim; is_complex: x has a last dim of real and imaginary parts. Returns x,
-- dim from 1, the number of dims without that last one, and n, by default the size of dim.
local function check_1d_transform(who, x, n, dim, is_complex)
  local dims
  x, dims = check_signal(who, x, is_complex)
  dim = shapes.dim_of(who, x, dim or -1, dims)
  return x, dim, dims, n and arg(who, "n", n, "integer") or x.shape[dim]
end

-- Transforms complex x along dim. `divided`: true to divide as an inverse does, if that differs from `inverse`.
local function transform_complex(who, x, n, dim, norm, inverse, divided)
  local _
  x, dim, _, n = check_1d_transform(who, x, n, dim, true)
  if divided == nil then divided = inverse end
  return ops.fft_c2c(sized(who, x, dim, n), inverse, scale_of(who, norm, n, divided), dim)
end

--- fft.fft(x [, n [, dim = -1 [, norm = "backward"]]]): Computes the discrete Fourier transform along dim.
function fft.fft(x, n, dim, norm) return transform_complex("fft", x, n, dim, norm, false) end

--- fft.ifft(x [, n [, dim = -1 [, norm = "backward"]]]): Computes the inverse of lm.fft.fft.
function fft.ifft(x, n, dim, norm) return transform_complex("ifft", x, n, dim, norm, true) end

-- Transforms real x along dim. `inverse`: true to divide as an inverse transform does, whose conjugate the result is.
local function transform_real(who, x, n, dim, norm, inverse)
  local dims
  x, dim, dims, n = check_1d_transform(who, x, n, dim, false)
  return along(sized(who, x, dim, n), dim, dims, function(y) return ops.fft_r2c(y, scale_of(who, norm, n, inverse)) end)
end

--- fft.rfft(x [, n [, dim = -1 [, norm = "backward"]]]): Computes the discrete Fourier transform of real numbers along
--- dim.
function fft.rfft(x, n, dim, norm) return transform_real("rfft", x, n, dim, norm, false) end

local function transform_to_real(who, x, n, dim, norm, inverse)
  local dims, size
  x, dim, dims, size = check_1d_transform(who, x, n, dim, true)
  if not n then size = 2 * (size - 1) end
  if size < 1 then options.must_be(who, "n", "at least 1", size) end
  x = sized(who, x, dim, math.floor(size / 2) + 1)
  return along(x, dim, dims, function(y) return ops.fft_c2r(y, size, scale_of(who, norm, size, inverse)) end)
end

--- fft.irfft(x [, n [, dim = -1 [, norm = "backward"]]]): Computes the inverse of lm.fft.rfft.
function fft.irfft(x, n, dim, norm) return transform_to_real("irfft", x, n, dim, norm, true) end

-- Returns the conjugate of pairs.
local function conjugated(x) return x * core.tensor({1, -1}, {dtype = x.dtype, device = x.device}) end

--- fft.multiply(x, other [, conjugate = false]): Computes the product of complex numbers.
function fft.multiply(x, other, conjugate) return ops.fft_multiply(x, other, conjugate) end

--- fft.conjugate(x): Computes the conjugates of complex numbers.
function fft.conjugate(x) return conjugated((check_signal("conjugate", x, true))) end

--- Computes the discrete Fourier transform of a Hermitian symmetric signal along dim.
fft.hfft = signature.of([[hfft(x, n: any?, dim: dims? = (-1), norm: any? = ("backward"))]], function(x, n, dim, norm)
  return transform_to_real("hfft", conjugated((check_signal("hfft", x, true))), n, dim, norm, false)
end)

--- fft.ihfft(x [, n [, dim = -1 [, norm = "backward"]]]): Computes the inverse of lm.fft.hfft.
function fft.ihfft(x, n, dim, norm) return conjugated(transform_real("ihfft", x, n, dim, norm, true)) end

-- Checks a transform along several dims. Returns x, the dims, by default the last #s or all, and their sizes: nil where
-- x has the size already.
local function lines_of(who, x, s, dim, is_complex, default)
  local dims
  x, dims = check_signal(who, x, is_complex)
  s, dim = s and arg(who, "s", s, "integers"), dim and arg(who, "dim", dim, "integers") or default
  if not dim then
    dim = {}
    for d = 1, s and #s or dims do dim[d] = d - 1 - (s and #s or dims) end
  end
  if s and #s ~= #dim then options.wrong_length(who, "s", #dim, "dim", #s) end
  local list, sizes, seen = {}, {}, {}
  for i, d in ipairs(dim) do
    list[i] = shapes.dim_of(who, x, d, dims)
    if seen[list[i]] then fail("%s: dim must not list dim %d twice", who, list[i]) end
    seen[list[i]], sizes[i] = true, s and s[i] ~= -1 and s[i] or nil
  end
  if #list == 0 then fail("%s: dim must not be empty", who) end
  return x, list, sizes, dims
end

-- Transforms complex x along the first n dims of a list, from the last on.
local function transform_complexes(who, x, list, sizes, n, norm, inverse, divided)
  for i = n, 1, -1 do x = transform_complex(who, x, sizes[i], list[i], norm, inverse, divided) end
  return x
end

local function all_complex(who, x, s, dim, norm, inverse, default)
  local list, sizes
  x, list, sizes = lines_of(who, x, s, dim, true, default)
  return transform_complexes(who, x, list, sizes, #list, norm, inverse)
end

-- Transforms real x along several dims; `inverse` as in transform_real.
local function transform_reals(who, x, s, dim, norm, default, inverse)
  local list, sizes, dims
  x, list, sizes, dims = lines_of(who, x, s, dim, false, default)
  local n = #list
  if n > 1 and list[n] == dims and list[n - 1] == dims - 1 then -- one call transforms the last two dims
    local scale = 1
    for i = n - 1, n do
      local size = sizes[i] or x.shape[list[i]]
      x = sized(who, x, list[i], size)
      scale = scale * scale_of(who, norm, size, inverse or false)
    end
    x = ops.fft_r2c_2d(x, scale)
    n = n - 1
  else
    x = transform_real(who, x, sizes[n], list[n], norm, inverse or false)
  end
  return transform_complexes(who, x, list, sizes, n - 1, norm, false, inverse or false)
end

-- Returns real numbers: all dims except the last are transformed first. half: true for Hermitian signals, whose forward
-- transforms, conjugated, are the inverse transforms of x's conjugate.
local function transform_to_reals(who, x, s, dim, norm, default, half)
  local list, sizes
  x, list, sizes = lines_of(who, x, s, dim, true, default)
  local n = #list
  for i = 1, n - 1 do x = transform_complex(who, x, sizes[i], list[i], norm, not half) end
  return transform_to_real(who, half and conjugated(x) or x, sizes[n], list[n], norm, not half)
end

local last_two = {-2, -1}

--- fft.fft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the 2-d discrete Fourier transform.
function fft.fft2(x, s, dim, norm) return all_complex("fft2", x, s, dim, norm, false, last_two) end
--- fft.ifft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the inverse of lm.fft.fft2.
function fft.ifft2(x, s, dim, norm) return all_complex("ifft2", x, s, dim, norm, true, last_two) end
--- fft.rfft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the 2-d discrete Fourier transform of real numbers.
function fft.rfft2(x, s, dim, norm) return transform_reals("rfft2", x, s, dim, norm, last_two) end
--- fft.irfft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the inverse of lm.fft.rfft2.
function fft.irfft2(x, s, dim, norm) return transform_to_reals("irfft2", x, s, dim, norm, last_two) end
--- fft.fftn(x [, s [, dim [, norm]]]): Computes the discrete Fourier transform along several dims.
function fft.fftn(x, s, dim, norm) return all_complex("fftn", x, s, dim, norm, false) end
--- fft.ifftn(x [, s [, dim [, norm]]]): Computes the inverse of lm.fft.fftn.
function fft.ifftn(x, s, dim, norm) return all_complex("ifftn", x, s, dim, norm, true) end
--- fft.rfftn(x [, s [, dim [, norm]]]): Computes the discrete Fourier transform of real numbers along several dims.
function fft.rfftn(x, s, dim, norm) return transform_reals("rfftn", x, s, dim, norm) end
--- fft.irfftn(x [, s [, dim [, norm]]]): Computes the inverse of lm.fft.rfftn.
function fft.irfftn(x, s, dim, norm) return transform_to_reals("irfftn", x, s, dim, norm) end

--- fft.hfft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the 2-d discrete Fourier transform of a Hermitian symmetric
--- signal.
function fft.hfft2(x, s, dim, norm) return transform_to_reals("hfft2", x, s, dim, norm, last_two, true) end
--- fft.hfftn(x [, s [, dim [, norm]]]): Computes the discrete Fourier transform of a Hermitian symmetric signal along
--- several dims.
function fft.hfftn(x, s, dim, norm) return transform_to_reals("hfftn", x, s, dim, norm, nil, true) end
--- fft.ihfft2(x [, s [, dim = {-2, -1} [, norm]]]): Computes the inverse of lm.fft.hfft2.
function fft.ihfft2(x, s, dim, norm) return conjugated(transform_reals("ihfft2", x, s, dim, norm, last_two, true)) end
--- fft.ihfftn(x [, s [, dim [, norm]]]): Computes the inverse of lm.fft.hfftn.
function fft.ihfftn(x, s, dim, norm) return conjugated(transform_reals("ihfftn", x, s, dim, norm, nil, true)) end

--- Returns the sample frequencies of lm.fft.fft.
fft.fftfreq = signature.of("fftfreq(n: count, d = 1, dtype: any?, device: any?)", function(n, d, dtype, device)
  local half, like = math.floor((n - 1) / 2), {dtype = dtype or core.get_default_dtype(), device = device}
  local frequencies = ops.cat {ops.arange(0, half + 1, 1, like), ops.arange(half + 1 - n, 0, 1, like)}
  return frequencies * (1 / (n * d))
end)

--- Returns the sample frequencies of lm.fft.rfft.
fft.rfftfreq = signature.of([[rfftfreq(n: count, d = 1, dtype: any?,
  device: any?)]], function(n, d, dtype, device)
  local like = {dtype = dtype or core.get_default_dtype(), device = device}
  return ops.arange(0, math.floor(n / 2) + 1, 1, like) * (1 / (n * d))
end)

-- Rolls x along dims, by default all, by by(n) entries, where n is the size of the dim.
local function moved(who, x, dim, by)
  arg(who, "x", x, "tensor")
  dim = dim and arg(who, "dim", dim, "integers")
  if not dim then
    dim = {}
    for d = 1, x.ndim do dim[d] = d end
  end
  local shifts = {}
  for i, d in ipairs(dim) do shifts[i] = by(x.shape[shapes.dim_of(who, x, d, x.ndim)]) end
  return #dim > 0 and ops.roll(x, shifts, dim) or ops.clone(x)
end

--- fft.fftshift(x [, dim]): Moves the element of frequency 0 to the middle of dim, or of all dims.
function fft.fftshift(x, dim) return moved("fftshift", x, dim, function(n) return math.floor(n / 2) end) end

--- fft.ifftshift(x [, dim]): Computes the inverse of lm.fft.fftshift.
function fft.ifftshift(x, dim) return moved("ifftshift", x, dim, function(n) return -math.floor(n / 2) end) end

return options.strict("fft", signature.all(fft))
