-- Fourier transforms beside spec/op/op_cases.lua: lengths of every kind, lm.fft's functions, stft and istft, windows.
local lm = require "luminary"
local message = require "spec.support.error_of"
local near = require "spec.support.near"
local fft = lm.fft

local double = { dtype = "float64" }
local function random(...) return lm.randn({ ... }, double) end
-- Returns the transform of pairs x [lines, n, 2] by its definition.
local function by_sums(x)
  local n = x.shape[2]
  local k = lm.arange(0, n, 1, double)
  local angle = (k:unsqueeze(2) * k):remainder(n) * (-2 * math.pi / n)
  local c, s, re, im = angle:cos(), angle:sin(), x:select(3, 1), x:select(3, 2)
  return lm.stack({ re:matmul(c) - im:matmul(s), re:matmul(s) + im:matmul(c) }, 3)
end

describe("Fourier transforms", function()
  before_each(function() lm.manual_seed(3) end)

  it("are right for lengths of small and large primes, for few and many lines, long and short", function()
    for _, n in ipairs { 1, 2, 3, 4, 5, 6, 8, 12, 13, 16, 17, 24, 30, 32, 34, 40, 64, 97, 128, 143, 256, 257, 300, 509,
      1024 } do
      for _, lines in ipairs { 1, 17 } do
        if lines == 1 or n < 300 then
          local x = random(lines, n, 2)
          local y, real = by_sums(x), x:select(3, 1)
          near(y, lm.fft_c2c(x), 1e-10 * n)
          near(x, fft.ifft(y), 1e-11)
          near(y:float(), lm.fft_c2c(x:float()), 1e-5 * n)
          local half = by_sums(lm.stack({ real, lm.zeros_like(real) }, 3)):slice(2, 1, math.floor(n / 2) + 1)
          near(half, fft.rfft(real), 1e-10 * n)
          near(real, fft.irfft(half, n))
        end
      end
    end
    local x = random(5000) -- longer than a block
    near(x, fft.irfft(fft.rfft(x)))
    near(x:slice(1, 1, 4999), fft.irfft(fft.rfft(x:slice(1, 1, 4999)), 4999))
    near((x * x):sum() * 5000, (fft.fft(lm.stack({ x, x * 0 }, 2)) ^ 2):sum(), 1e-5)
  end)

  it("take frames as they lie in a line, and lines whose entries lie side by side", function()
    for _, dtype in ipairs { "float32", "float64" } do
      for _, n in ipairs { 64, 38, 15 } do
        local x, window = lm.randn({ 3, 201 }, { dtype = dtype }), lm.rand({ n }, { dtype = dtype })
        local frames = x:unfold(2, n, 3)
        local want = lm.fft_r2c(frames * window, 0.5)
        near(want, lm.stft_lines(x, window, 3, 0.5), 1e-5)
        local sum = lm.zeros({ 3, 201 }, { dtype = dtype })
        local length = (frames.shape[2] - 1) * 3 + n
        for f = 1, frames.shape[2] do
          local at = sum:narrow(2, 3 * f - 2, n)
          at:add_(frames:select(2, f) * window)
        end
        near(sum:narrow(2, 1, length), lm.overlap_add(frames, window, 3, length), 1e-5)
        local beside = want:transpose(2, 3):contiguous():transpose(2, 3)
        near(lm.fft_c2r(want, n), lm.fft_c2r(beside, n), 1e-5)
      end
    end
  end)

  it("are the same where results are written past the caches", function()
    local x = lm.randn(3300, 256)
    local y = fft.rfft(x)
    near(lm.cat({ fft.rfft(x:slice(1, 1, 1650)), fft.rfft(x:slice(1, 1651, 3300)) }, 1), y, 0)
    local z = lm.randn(3300, 128, 2)
    near(lm.cat({ fft.fft(z:slice(1, 1, 1650)), fft.fft(z:slice(1, 1651, 3300)) }, 1), fft.fft(z), 0)
    near(x, fft.irfft(y), 1e-5)
  end)

  it("are those of rows and then of columns, in a cache or past it", function()
    for _, size in ipairs { { 5, 24, 32 }, { 3, 17, 10 }, { 2, 34, 8 }, { 1, 20, 7 }, { 4, 3, 99 }, { 2, 300, 512 } } do
      local x = random(unpack(size))
      near(fft.fft(fft.rfft(x, nil, -1, "ortho"), nil, -2, "ortho"), fft.rfft2(x, nil, nil, "ortho"), 1e-9)
      near(fft.rfft2(x):float(), fft.rfft2(x:float()), 1e-2)
      near(x, fft.irfft2(fft.rfft2(x), { size[2], size[3] }), 1e-10)
    end
    local x = random(4, 6, 8)
    near(fft.rfft2(x:slice(2, 1, 5):slice(3, 1, 6):contiguous()), fft.rfft2(x, { 5, 6 }))
    near(fft.rfft2(x):transpose(1, 2), fft.rfft2(x:transpose(1, 2), nil, { 1, 3 }))
  end)

  it("go along dims that are not dense, short, long and of large primes", function()
    for _, size in ipairs { { 2, 6, 3 }, { 1, 34, 2 }, { 1, 4099, 2 }, { 2, 4500, 1 }, { 3, 8, 40 } } do
      local x = random(size[1], size[2], size[3], 2)
      local want = lm.fft_c2c(x:transpose(2, 3)):transpose(2, 3)
      near(want, lm.fft_c2c(x, false, 1, 2), 1e-8)
      near(x, lm.fft_c2c(want, true, 1 / size[2], -3))
    end
    assert.same({ 4, 0, 2 }, lm.fft_c2c(lm.ones(4, 0, 2), false, 1, 1).shape)
    assert.matches("dim must be a dim of the transformed x of shape %[4, 2, 2%], got 3",
      message(lm.fft_c2c, random(4, 2, 2), false, 1, 3))
  end)

  it("are the same on one thread and on four", function()
    local x, before = random(64, 300, 2), lm.get_num_threads()
    lm.set_num_threads(1)
    local one = lm.fft_c2c(x)
    lm.set_num_threads(4)
    near(one, lm.fft_c2c(x), 0)
    lm.set_num_threads(before)
  end)

  it("go along any dim, of other lengths and scaled", function()
    local x = random(3, 8)
    near(fft.rfft(x:t()):transpose(1, 2), fft.rfft(x, nil, 1))
    near(fft.rfft(x:t():contiguous()):transpose(1, 2), fft.rfft(x, { dim = 1 }))
    near(fft.rfft(x:slice(2, 1, 5)), fft.rfft(x, 5))
    near(fft.rfft(lm.cat({ x, lm.zeros({ 3, 2 }, double) }, 2)), fft.rfft(x, 10))
    near(fft.rfft(x) / 8, fft.rfft(x, { norm = "forward" }))
    near(fft.rfft(x) / math.sqrt(8), fft.rfft(x, { norm = "ortho" }))
    for _, norm in ipairs { "backward", "ortho", "forward" } do
      near(x, fft.irfft(fft.rfft(x, { norm = norm }), { norm = norm }))
      local z = random(3, 5, 2)
      near(z, fft.ifft(fft.fft(z, nil, 1, norm), nil, 1, norm))
      near(x, fft.hfft(fft.ihfft(x, { norm = norm }), { norm = norm }))
    end
    assert.same({ 3, 4 }, fft.irfft(random(3, 3, 2)).shape)
    near(lm.tensor({ 10, 0, -2, 2, -2, 0 }, double):reshape(3, 2), fft.rfft(lm.tensor({ 1, 2, 3, 4 }, double)))
    assert.equal("float32", fft.rfft(lm.tensor({ 1, 2 }, { dtype = "int64" })).dtype)
  end)

  it("go along several dims", function()
    local x, z = random(2, 4, 6), random(2, 4, 6, 2)
    near(fft.fft(fft.rfft(x), nil, 2), fft.rfft2(x))
    near(fft.fft(fft.rfft2(x), nil, 1), fft.rfftn(x))
    near(fft.fft(fft.fft(z), nil, 2), fft.fft2(z))
    near(z, fft.ifft2(fft.fft2(z)))
    near(z, fft.ifftn(fft.fftn(z)))
    near(x, fft.irfft2(fft.rfft2(x)))
    near(x, fft.irfftn(fft.rfftn(x, nil, { 1, 3 }), nil, { 1, 3 }))
    near(x, fft.hfftn(fft.ihfftn(x), { 2, 4, 6 }))
    near(x, fft.hfft2(fft.ihfft2(x), { 4, 6 }))
    local pairs_of = lm.tensor({ { { 1, 2 }, { 3, -1 } }, { { 2, 0 }, { 0, 1 } } }, double)
    near(lm.tensor({ { 6, 0 }, { 2, -4 } }, double), fft.hfftn(pairs_of)) -- PyTorch's
    local half = fft.ihfft2(lm.tensor({ { 1, 2, 3 }, { 4, 5, 7 } }, double), { norm = "forward" })
    near(lm.tensor({ { 22, -3.5 }, { -10, 0.5 } }, double), half:select(-1, 1))
    near(lm.tensor({ 3 ^ 0.5 * -1.5, 3 ^ 0.5 / 2 }, double), half:select(-1, 2):select(2, 2))
    assert.same({ 2, 3, 3, 2 }, fft.rfft2(x, { 3, 4 }).shape)
    assert.same({ 2, 3, 4 }, fft.irfftn(fft.rfft2(x), { 3, 4 }).shape)
  end)

  it("have gradients through every dim and length", function()
    local function check(f, x)
      x:requires_grad_()
      lm.autograd.gradcheck(f, { x })
      lm.autograd.gradgradcheck(f, { x })
    end
    check(function(x) return fft.rfft2(x, { 3, 2 }) end, random(2, 3))
    check(function(x) return fft.irfft(x, 3) end, random(3, 2))
    check(function(x) return fft.fft(x, 3, 1) end, random(2, 2, 2))
    check(function(x) return lm.stft(x, 4, { hop_length = 2, window = lm.hann_window(4, double) }) end, random(7))
    check(function(x) return lm.istft(x, 4, { hop_length = 2, window = lm.hann_window(4, double) }) end,
      random(3, 3, 2))
  end)

  it("have frequencies, and shifts of them", function()
    near(lm.tensor { 0, 0.25, -0.5, -0.25 }, fft.fftfreq(4))
    near(lm.tensor { 0, 0.2, 0.4, -0.4, -0.2 }, fft.fftfreq(5), 1e-7)
    near(lm.tensor { 0, 1, 2 }, fft.rfftfreq(4, 0.25))
    for _, f in ipairs { fft.fftfreq, fft.rfftfreq } do
      assert.error_matches(function() f(4, coroutine.create(print)) end, "freq: d must be a number, got a thread")
    end
    local x = lm.arange(5):float()
    assert.same({ 3, 4, 0, 1, 2 }, fft.fftshift(x):totable())
    near(x, fft.ifftshift(fft.fftshift(x)))
    assert.same({ { 2, 1 }, { 4, 3 } }, fft.fftshift(lm.tensor { { 1, 2 }, { 3, 4 } }, 2):totable())
    assert.same({ { 4, 3 }, { 2, 1 } }, fft.fftshift(lm.tensor { { 1, 2 }, { 3, 4 } }):totable())
  end)

  it("refuse what has no transform", function()
    assert.matches("x is a tensor %[3%]", message(fft.fft, lm.ones(3)))
    assert.matches("rfft: x must be float32 or float64, got float16; convert it with :float%(%)$",
      message(fft.rfft, lm.ones(4):half()))
    assert.matches("rfft2: unknown option 'dims'; did you mean 'dim'%?$",
      message(fft.rfft2, lm.ones(2, 2), { dims = 1 }))
    assert.matches("stft: unknown option 'hop_size'",
      message(lm.stft, lm.ones(9), 4, { hop_size = 2 }))
    assert.matches("stft: x must be floating, got int64; convert it with :float%(%)$",
      message(lm.stft, lm.ones(9):long(), 4))
    assert.matches("rfft: n must be at least 1, got 0$", message(fft.rfft, lm.ones(3), 0))
    assert.matches("rfft: dim must be from 1 to 2 or from %-2 to %-1, got 3; x is a tensor %[2, 2%]$",
      message(fft.rfft, lm.ones(2, 2), { dim = 3 }))
    assert.matches("norm must be one of 'backward', 'ortho',", message(fft.rfft, lm.ones(3), { norm = "orto" }))
    assert.matches("rfft2: s must have 2 entries, one for each dim, got 1$", message(fft.rfft2, lm.ones(3, 3), { 2 }))
    assert.matches("rfft: x must be float32 or float64, got float16; convert it with :float%(%)$",
      message(fft.rfft, lm.ones(4):half()))
  end)
end)

describe("stft", function()
  it("is rfft of frames, and istft its inverse", function()
    for _, o in ipairs {
      { n_fft = 16, hop_length = 4 }, { n_fft = 15, hop_length = 4 }, { n_fft = 16, hop_length = 5, win_length = 12 },
      { n_fft = 16, hop_length = 4, normalized = true }, { n_fft = 16, hop_length = 4, onesided = false },
      { n_fft = 130, hop_length = 3 },
    } do
      local x, n, win = random(2, 400), o.n_fft, o.win_length or o.n_fft
      local window = lm.hann_window(win, double)
      local given = { window = window }
      for k, v in pairs(o) do given[k] = v end
      given.n_fft = nil
      local y = lm.stft(x, n, given)
      local half, rows = math.floor(n / 2), o.onesided == false and n or math.floor(n / 2) + 1
      assert.same({ 2, rows, 1 + math.floor((400 + 2 * half - n) / o.hop_length), 2 }, y.shape)
      local at, left = 20, math.floor((n - win) / 2) -- a frame away from both ends
      local first = (at - 1) * o.hop_length - half + left
      local frame = lm.zeros({ n }, double)
      if first > 0 and first + win <= 400 then
        frame:narrow(1, left + 1, win):copy_(x[2]:narrow(1, first + 1, win) * window)
        local want = fft.rfft(frame) * (o.normalized and 1 / math.sqrt(n) or 1)
        near(want, y[2]:select(2, at):slice(1, 1, half + 1))
      end
      given.length = 400
      near(x, lm.istft(y, n, given))
      near(x[1], y[1]:istft(n, given))
    end
    local x = random(40)
    local y = x:stft(8, { center = false })
    assert.same({ 5, 17, 2 }, y.shape)
    near(fft.rfft(x:slice(1, 1, 8)), y:select(2, 1))
    near(x, y:istft(8, { center = false }))
    local first = lm.cat { lm.zeros({ 4 }, double), x:slice(1, 1, 4) }
    near(fft.rfft(first), lm.stft(x, 8, { pad_mode = "constant" }):select(2, 1))
  end)

  it("refuses what does not fit", function()
    local x = lm.ones(40)
    assert.matches("stft: expected window to have shape %[8%], got %[5%]$",
      message(lm.stft, x, 8, { window = lm.ones(5) }))
    assert.matches("stft: win_length must be at most n_fft, 8, got 9$", message(lm.stft, x, 8, { win_length = 9 }))
    assert.matches("stft: x must have at least n_fft samples, got 40 and n_fft 64$",
      message(lm.stft, x, 64, { center = false }))
    assert.matches("istft: expected x to have shape %[5, frames, 2%] or %[batch, 5, frames, 2%], got %[4, 3, 2%]$",
      message(lm.istft, lm.ones(4, 3, 2), 8))
    local y = lm.stft(x, 8, { hop_length = 8, window = lm.hann_window(8) })
    assert.matches("the window at hop_length 8 does not cover all samples", message(lm.istft, y, 8,
      { hop_length = 8, window = lm.hann_window(8), center = false }))
  end)
end)

describe("products of complex numbers", function()
  it("make convolutions and correlations of spectra", function()
    local x, w = random(2, 9), random(4)
    local y = fft.irfft(fft.multiply(fft.rfft(x, 12), fft.rfft(w, 12)), 12)
    local padded = lm.nn.functional.pad(x, { 3, 3 }):unsqueeze(2)
    near(lm.nn.functional.conv1d(padded, w:flip(1):view(1, 1, 4)):squeeze(2), y)
    local alike = fft.irfft(fft.multiply(fft.rfft(x), fft.rfft(x), { conjugate = true }), 9)
    near(x:square():sum(2), alike:select(2, 1))
    near(fft.conjugate(fft.rfft(x)), fft.rfft(x) * lm.tensor({ 1, -1 }, double))
    lm.autograd.gradcheck(function(a, b) return fft.multiply(a, b, true) end,
      { random(3, 2):requires_grad_(), random(2, 1, 2):requires_grad_() })
    lm.autograd.gradgradcheck(fft.multiply, { random(3, 2):requires_grad_(), random(2, 1, 2):requires_grad_() })
    local function kept()
      local z = fft.multiply(x, x)
      return z
    end
    for _, f in ipairs { function() return fft.multiply(x, x) end, kept } do
      assert.matches("multiply: expected x to have shape %[..., 2%], real and imaginary parts, got %[2, 9%]",
        message(f))
    end
  end)

  it("have lengths that can be", function()
    assert.matches("fft: n must be an integer and less than 2^53,", message(fft.fft, random(4, 2), 2 ^ 53), 1, true)
    assert.matches("must be an integer up to 2^53, got", message(lm.fft_c2r, random(4, 2), 2 ^ 60), 1, true)
    assert.matches("c2r: n must be an integer, got nan", message(lm.fft_c2r, random(4, 2), 0 / 0))
  end)
end)

describe("windows", function()
  it("have their values, periodic or symmetric", function()
    near(lm.tensor { 0, 0.5, 1, 0.5 }, lm.hann_window(4), 1e-7)
    near(lm.tensor { 0, 0.75, 0.75, 0 }, lm.hann_window(4, false), 1e-7)
    near(lm.tensor { 0.08, 0.54, 1, 0.54 }, lm.hamming_window(4), 1e-7)
    near(lm.tensor { 0, 0.5, 1, 0.5 }, lm.hamming_window(4, { alpha = 0.5, beta = 0.5 }), 1e-7)
    near(lm.tensor { 0, 0.34, 1, 0.34 }, lm.blackman_window(4), 1e-7)
    near(lm.tensor { 0, 0.5, 1, 0.5 }, lm.bartlett_window(4), 1e-7)
    -- I0(12 sqrt(3 / 4)) / I0(12), I0(0) / I0(12): torch.kaiser_window(4, dtype=torch.float64)
    local kaiser = { 5.2773441320097665e-05, 0.2156727447589671, 1, 0.2156727447589671 }
    near(lm.tensor(kaiser, double), lm.kaiser_window(4, double), 1e-12)
    for _, name in ipairs { "hann", "hamming", "blackman", "bartlett", "kaiser" } do
      local window = lm[name .. "_window"]
      assert.same({ 1 }, window(1):totable())
      assert.same({ 0 }, window(0).shape)
      assert.equal("float64", window(3, { dtype = "float64" }).dtype)
      assert.matches("window_length must be an integer of at least 0, got %-1", message(window, -1))
      assert.matches("dtype must be floating, got int64", message(window, 3, { dtype = "int64" }))
    end
  end)
end)
