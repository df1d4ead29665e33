-- Convolutions, pooling, resizing and sampling as functions and layers: PyTorch's values
-- (spec/golden/_windows.safetensors).
local lm = require "luminary"
local golden = require "spec.support.golden"
local message = require "spec.support.error_of"
local nn, F = lm.nn, lm.nn.functional
local gradgradcheck = lm.autograd.gradgradcheck

local function close(a, b) return a:allclose(b, { rtol = 1e-4, atol = 1e-5 }) end
local function f64(...) return lm.randn({ ... }, { dtype = "float64" }):requires_grad_(true) end
local function channels_last(x) return x:contiguous { memory_format = "channels_last" } end

local function resize(opts) return function(x) return F.interpolate(x, opts) end end
local cases = {
  conv1d = function(x, w, b) return F.conv1d(x, w, b, 2, 1, 2, 2) end,
  conv3d = function(x, w, b)
    return F.conv3d(x, w, { bias = b, stride = { 2, 1, 1 }, padding = { 1, 0, 1 }, dilation = { 1, 2, 1 }, groups = 2 })
  end,
  conv3d_same = function(x, w) return F.conv3d(x, w, nil, 1, "same") end,
  conv_transpose1d = function(x, w, b) return F.conv_transpose1d(x, w, b, 2, 1, 1, 2, 2) end,
  conv_transpose2d = function(x, w, b) return F.conv_transpose2d(x, w, b, { 2, 1 }, 1, { 1, 0 }, 2) end,
  conv_transpose2d_wide = function(x, w) return F.conv_transpose2d(x, w, { output_padding = 1, dilation = 2 }) end,
  conv_transpose3d = function(x, w, b) return F.conv_transpose3d(x, w, b, 2, 1, { 1, 0, 1 }, 2) end,
  max_pool3d = function(x) return F.max_pool3d(x, { 2, 3, 2 }, { 1, 2, 2 }, { 1, 1, 0 }, { 1, 1, 2 }, true) end,
  avg_pool3d = function(x) return F.avg_pool3d(x, 2, { 1, 2, 2 }, 1, true, false) end,
  avg_pool3d_divisor = function(x) return F.avg_pool3d(x, 2, { divisor_override = 3 }) end,
  adaptive_avg_pool3d = function(x) return F.adaptive_avg_pool3d(x, { 2, nil, 3 }) end,
  adaptive_max_pool3d = function(x) return (F.adaptive_max_pool3d(x, { 2, 3, 2 })) end,
  lp_pool2d = function(x) return F.lp_pool2d(x:abs() + 0.1, 3, { 2, 3 }, 2, true) end,
  ["interpolate.linear.false"] = resize { size = 8, mode = "linear" },
  ["interpolate.linear.true"] = resize { size = { 3 }, mode = "linear", align_corners = true },
  ["interpolate.bilinear.false"] = resize { size = { 7, 3 }, mode = "bilinear", align_corners = false },
  ["interpolate.bilinear.true"] = function(x) return F.upsample_bilinear(x, { 7, 3 }) end,
  ["interpolate.bicubic.false"] = resize { size = { 7, 3 }, mode = "bicubic" },
  ["interpolate.trilinear.false"] = resize { size = { 3, 5, 2 }, mode = "trilinear" },
  ["interpolate.antialias.bilinear"] = resize { scale_factor = { 0.4, 1.3 }, mode = "bilinear", antialias = true },
  ["interpolate.antialias.bicubic"] = resize { scale_factor = { 0.4, 1.3 }, mode = "bicubic", antialias = true },
  ["interpolate.nearest"] = function(x) return F.interpolate(x, { 3, 8 }) end,
  ["interpolate.nearest-exact"] = resize { size = { 3, 8 }, mode = "nearest-exact" },
  ["interpolate.area"] = resize { size = { 3, 8 }, mode = "area" },
  ["grid_sample.volume"] = function(x, grid) return F.grid_sample(x, grid) end,
  affine_grid = function(theta) return F.affine_grid(theta, { 2, 1, 3, 4 }) end,
  affine_grid_volume = function(theta) return F.affine_grid(theta, { 1, 1, 2, 3, 2 }, true) end,
  unfold = function(x) return F.unfold(x, { 2, 3 }, 2, { 1, 0 }, { 1, 2 }) end,
  fold = function(x) return F.fold(x, { 4, 7 }, { 2, 3 }, { dilation = 2, padding = { 1, 0 }, stride = { 1, 2 } }) end,
  fractional_max_pool2d = function(x)
    return F.fractional_max_pool2d(x, { 2, 3 }, { 3, 2 },
      { _random_samples = lm.tensor { { { 0.3, 0.8 }, { 0.6, 0.1 } } } })
  end,
}
for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
  for _, padding in ipairs { "zeros", "border", "reflection" } do
    cases["grid_sample." .. mode .. "." .. padding] = function(x, grid)
      return F.grid_sample(x, grid, mode, padding, padding == "border")
    end
  end
end

describe("PyTorch's value and gradients:", function()
  local stored
  setup(function() stored = golden.load "_windows" end)
  teardown(function() stored = nil end)
  for name, f in pairs(cases) do
    it(name, function()
      local xs, i = {}, 1
      while stored[name .. ".in." .. i] do
        xs[i] = stored[name .. ".in." .. i]:clone():requires_grad_(true)
        i = i + 1
      end
      local y = f(unpack(xs))
      assert.is_true(close(y, stored[name .. ".out"]));
      (y * stored[name .. ".w"]):sum():backward()
      for k, x in ipairs(xs) do
        local want = stored[name .. ".grad." .. k]
        assert.is_true(x.grad and close(x.grad, want) or not x.grad and want:abs():max():item() == 0, "gradient " .. k)
      end
    end)
  end
end)

describe("functions over windows", function()
  it("have gradients of gradients", function()
    assert(gradgradcheck(function(x, w, b) return F.conv3d(x, w, b, 2, 1) end,
      { f64(1, 2, 3, 3, 3), f64(2, 2, 2, 2, 2), f64(2) }))
    assert(gradgradcheck(function(x, w) return F.conv_transpose3d(x, w, nil, 2, 1, 1) end,
      { f64(1, 2, 2, 2, 2), f64(2, 1, 2, 2, 2) }))
    assert(gradgradcheck(function(x, w) return F.conv_transpose1d(x, w, nil, 2) end, { f64(1, 2, 3), f64(2, 2, 2) }))
    assert(gradgradcheck(function(x) return F.interpolate(x, { size = { 5, 2 }, mode = "bicubic" }):sin() end,
      { f64(1, 1, 3, 4) }))
    local grid = (lm.rand(1, 2, 2, 2, { dtype = "float64" }) * 1.6 - 0.8):requires_grad_(true)
    assert(gradgradcheck(function(x, g) return F.grid_sample(x, g, "bicubic") end, { f64(1, 1, 3, 4), grid }))
  end)

  it("take images that lie channels-last, and leave them so", function()
    local x = lm.randn(2, 5, 6, 7)
    local last = channels_last(x)
    local grid = lm.rand(2, 3, 4, 2) * 2.4 - 1.2
    for _, f in ipairs {
      function(v) return F.interpolate(v, { scale_factor = 1.7, mode = "bilinear" }) end,
      function(v) return F.interpolate(v, { scale_factor = 0.6, mode = "nearest" }) end,
      function(v) return F.grid_sample(v, grid) end,
    } do
      local got = f(last)
      assert.is_true(close(got, f(x)))
      assert.is_true(got:is_contiguous { memory_format = "channels_last" })
    end
    for _, f in ipairs { F.unfold, F.adaptive_max_pool2d } do assert.is_true(close(f(last, 2), f(x, 2))) end
    assert.is_true(close(F.lp_pool2d(last, 2, 2), F.lp_pool2d(x, 2, 2)))
  end)

  it("resize channels-last images of any number of channels as planes, by any number of threads", function()
    local threads = lm.get_num_threads()
    finally(function() lm.set_num_threads(threads) end)
    local options = {
      { scale_factor = 1.7 }, { scale_factor = 1.7, mode = "bilinear" }, { size = { 23, 5 }, mode = "bicubic" },
      { scale_factor = 0.4, mode = "bicubic", antialias = true },
    }
    for dtype, tolerance in pairs { float32 = 1e-5, float64 = 1e-12, bfloat16 = 3e-2, float16 = 4e-3 } do
      for _, channels in ipairs { 2, 3, 4, 7, 8, 13, 16, 63, 64 } do
        local x = lm.randn(3, channels, 9, 11):to(dtype)
        x[{ 1, 1, 2, 3 }], x[{ 1, channels, 9, 11 }], x[{ 2, 1, 1, 1 }] = 0 / 0, 1 / 0, -0.0
        for _, how in ipairs(options) do
          local near = { rtol = how.mode and tolerance or 0, atol = how.mode and tolerance or 0, equal_nan = true }
          local got, want = F.interpolate(channels_last(x), how), F.interpolate(x, how)
          assert.is_true(got:allclose(want, near))
          if not how.mode then assert.is_true((1 / got):allclose(1 / want, near)) end -- also the sign of 0
        end
        local large, first = channels_last(lm.randn(2, channels, 40, 41):to(dtype)), nil
        for _, n in ipairs { 1, 3 } do
          lm.set_num_threads(n)
          local got = F.interpolate(large, { scale_factor = 1.7, mode = "bilinear" })
          first = first or got
          assert.is_true(got:equal(first))
        end
        lm.set_num_threads(threads)
      end
    end
  end)

  it("leave out positions outside of images with any number of channels", function()
    local gather = require("luminary.core").ops.gather_weighted
    local indices = lm.tensor({ { { 0, 1, 0, 0, 8, 7 }, { 2, 0, 0, 0, 3, 7 }, { 0, -5, 4, 0, 0, 7 },
      { 6, 5, 99, 0, 1, 7 } } }, { dtype = "int64" })
    for _, channels in ipairs { 2, 3, 4, 9, 12, 65 } do
      local x, weight = lm.randn(2, 1, 7, channels), lm.randn(1, 4, 6)
      local planes = x:transpose(2, 4):contiguous()
      assert.is_true(close(gather(x, indices, weight), gather(planes, indices, weight):transpose(2, 4)))
      local one = indices:narrow(2, 3, 1):contiguous()
      assert.is_true(gather(x, one):equal(gather(planes, one):transpose(2, 4)))
    end
  end)

  it("convolve volumes of few channels, in either layout, as those of integers", function()
    for _, case in ipairs { { 1, 3, 1 }, { 3, 6, 3 }, { 2, 4, 1 }, { 3, 5, 1 }, { 4, 2, 2 }, { 9, 2, 1 } } do
      local channels, out, groups = unpack(case)
      local x = lm.randint(-4, 5, { 2, channels, 5, 7, 6 })
      local w = lm.randint(-4, 5, { out, channels / groups, 3, 2, 3 })
      local apart = { stride = { 2, 1, 1 }, padding = { 2, 0, 1 }, dilation = { 2, 1, 1 } }
      for _, how in ipairs { { padding = 1 }, apart } do
        how.groups = groups
        local want = F.conv3d(x, w, how):float()
        assert.is_true(F.conv3d(x:float(), w:float(), how):round():equal(want))
        local last = x:float():permute { 1, 3, 4, 5, 2 }:contiguous():permute { 1, 5, 2, 3, 4 }
        assert.is_true(F.conv3d(last, w:float(), how):round():equal(want))
      end
    end
  end)

  it("compute halves nearly as float32", function()
    local x, w = lm.randn(2, 3, 4, 5, 6), lm.randn(2, 3, 2, 2, 2)
    local image, grid = lm.randn(1, 2, 5, 6), lm.rand(1, 3, 3, 2) * 2 - 1
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local function near(f, ...)
        local halves, floats = {}, {}
        for i, t in ipairs { ... } do
          halves[i] = t:to(dtype):requires_grad_(true)
          floats[i] = halves[i]:detach():float():requires_grad_(true)
        end
        local got, want = f(unpack(halves)), f(unpack(floats))
        assert.equal(dtype, got.dtype)
        assert.is_true(got:float():allclose(want, { rtol = 2e-2, atol = 3e-2 }))
        got:float():sum():backward()
        want:sum():backward()
        assert.is_true(halves[1].grad:float():allclose(floats[1].grad, { rtol = 3e-2, atol = 6e-2 }))
      end
      near(function(a, b) return F.conv3d(a, b, nil, 1, 1) end, x, w)
      near(function(a) return F.interpolate(a, { size = { 9, 3 }, mode = "bilinear" }) end, image)
      near(function(a) return F.unfold(a, 2) end, image)
      near(F.grid_sample, image, lm.zeros(1, 3, 3, 2) + 0.25)
      near(function(a) return F.grid_sample(a, (grid * 0.9):to(a.dtype), "bicubic", "border") end, image)
    end
  end)

  it("copy dims that keep their size where PyTorch does", function()
    local x = lm.arange(1, 25):float():reshape(1, 1, 4, 6) ^ 1.5
    for _, case in ipairs { -- PyTorch's sums, elements [2, 3] and the last
      { "bilinear", { 1.1, 1.1 }, false, 1188.0995, 27.0000, 117.5755 },
      { "bilinear", { 1.1, 1.1 }, true, 1188.0995, 27, 117.5755 },
      { "bilinear", { 1.1, 1.4 }, false, 1563.2570, 23.8767, 116.5367 },
      { "bilinear", { 1.1, 1.4 }, true, 1563.2570, 23.8767, 116.5367 },
      { "bilinear", { 1.2, 0.9 }, false, 967.0745, 28.2841, 113.9398 },
      { "bilinear", { 1.2, 0.9 }, true, 970.9499, 28.4709, 113.9398 },
      { "bicubic", { 1.1, 1.1 }, false, 1002.5530, 20.9729, 104.2048 },
      { "bicubic", { 1.1, 1.1 }, true, 1188.0995, 27, 117.5755 },
      { "bicubic", { 1.1, 1.4 }, false, 1360.4377, 19.3676, 106.3171 },
      { "bicubic", { 1.1, 1.4 }, true, 1561.9438, 23.8501, 116.9498 },
      { "bicubic", { 1.2, 0.9 }, false, 749.9447, 20.0504, 94.0399 },
      { "bicubic", { 1.2, 0.9 }, true, 968.3430, 28.2157, 114.6095 },
    } do
      for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
        local y = F.interpolate(x:to(dtype), { mode = case[1], scale_factor = case[2], antialias = case[3] }):double()
        local near = dtype == "bfloat16" and 5e-3 or 1e-5
        for i, got in ipairs { y:sum():item(), y[{ 1, 1, 2, 3 }], y[{ 1, 1, -1, -1 }] } do
          assert.near(case[3 + i], got, near * case[3 + i], case[1])
        end
      end
    end
    local row, volume = lm.arange(10):float():view(1, 1, 10), lm.arange(1000):float():view(1, 1, 10, 10, 10)
    local cut, exact = { 0, 0, 1, 2, 3, 4, 5, 6, 7, 8 }, { 0, 1, 2, 3, 4, 5, 5, 6, 7, 8 }
    local function first(t, mode)
      return F.interpolate(t, { scale_factor = 1.09, mode = mode }):flatten():narrow(1, 1, 10):totable()
    end
    for _, dtype in ipairs { "float32", "bfloat16", "uint8" } do
      local square = lm.arange(100):view(1, 1, 10, 10):to(dtype)
      assert.same(row:flatten():totable(), first(square, "nearest"))
      assert.same(exact, first(square, "nearest-exact"))
      assert.same(cut, first(row:to(dtype), "nearest"))
      assert.same(exact, first(row:to(dtype), "nearest-exact"))
    end
    assert.same(cut, first(volume, "nearest"))
    assert.same(row:flatten():totable(), first(row, "linear"))
    assert.same(row:flatten():totable(), first(volume, "trilinear"))
  end)

  it("resize integers: the nearest of any, uint8 also by rounding", function()
    local x = lm.arange(6):view(1, 1, 2, 3)
    assert.same({ { { { 0, 0, 1, 1, 2, 2 }, { 3, 3, 4, 4, 5, 5 } } } }, F.interpolate(x, { 2, 6 }):totable())
    local bytes = lm.tensor({ { { 0, 100, 255 } } }, { dtype = "uint8" })
    assert.same({ { { 0, 25, 75, 139, 216, 255 } } }, F.interpolate(bytes, { size = 6, mode = "linear" }):totable())
  end)

  it("average integers, cutting off once", function()
    local x = lm.tensor({ { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, -9 } } } }, { dtype = "int64" })
    assert.same({ { { { 2 } } } }, F.avg_pool3d(x, 2):totable())
    assert.same({ { { { 9 } } } }, F.avg_pool3d(x, 2, { divisor_override = 2 }):totable())
    local y = F.avg_pool3d(-x, 2, 2, 1, { count_include_pad = false })
    assert.same({ { { { -1, -2 }, { -3, -4 } }, { { -5, -6 }, { -7, 9 } } } }, y:totable())
  end)

  it("take no samples and empty windows", function()
    assert.same({ 0, 4, 3, 4, 5 }, { unpack(F.conv3d(lm.ones(0, 2, 4, 5, 6), lm.ones(4, 2, 2, 2, 2)).shape) })
    assert.same({ 0, 4, 9 }, { unpack(F.conv_transpose1d(lm.ones(0, 2, 4), lm.ones(2, 4, 3), nil, 2).shape) })
    assert.same({ 0, 2, 4, 4 }, { unpack(F.interpolate(lm.ones(0, 2, 2, 2), 4).shape) })
    assert.same({ 0, 8, 1 }, { unpack(F.unfold(lm.ones(0, 2, 2, 2), 2).shape) })
    assert.same({ 0, 2, 3, 1 }, { unpack(F.grid_sample(lm.ones(0, 2, 2, 2), lm.ones(0, 3, 1, 2)).shape) })
  end)

  it("convolve integers as PyTorch", function()
    local function steps(shape, by, less)
      local n = 1
      for _, size in ipairs(shape) do n = n * size end
      return lm.arange(n):reshape(shape) % by - less
    end
    local function whole(values, dtype) return lm.tensor(values, { dtype = dtype or "int64" }) end
    local x, weight = steps({ 1, 4, 3, 4 }, 7, 3), steps({ 2, 2, 2, 2 }, 5, 2)
    local want = { { { { -2, -3, -3, 4, 3 }, { 0, -9, -5, -1, 12 } },
    { { 2, -5, -8, -11, -6 }, { -5, -12, -18, -10, 8 } } } }
    for _, dtype in ipairs { "int64", "int32", "int16", "int8" } do
      local y = F.conv2d(x:to(dtype), weight:to(dtype), whole({ 1, -2 }, dtype), { 2, 1 }, 1, 1, 2)
      assert.equal(dtype, y.dtype)
      assert.same(want, y:totable())
    end
    assert.same(want[1], F.conv2d(x[1], weight, whole { 1, -2 }, { 2, 1 }, 1, 1, 2):totable())
    local line, kernel = whole { { { 1, 2, 3, 4, 5 } } }, whole { { { 1, 0, -2 } } }
    assert.same({ { { -4, -5, -6, -7, 4 } } }, F.conv1d(line, kernel, { padding = "same" }):totable())
    assert.same({ { { 251, 250, 249 } } }, F.conv1d(line:byte(), kernel:byte()):totable()) -- sums wrap around
    local volume, cube = steps({ 1, 2, 3, 3, 3 }, 5, 2), steps({ 1, 2, 2, 2, 2 }, 3, 1)
    assert.same({ { { { { -3 } }, { { 2 } }, { { -2 } }, { { -1 } } } } },
      F.conv3d(volume, cube, nil, { 1, 2, 2 }, { 1, 0, 0 }):totable())
    assert.same({ { { 0, 0, 0, -1, 0, -2, 0, -3, 0, -10 } } },
      F.conv_transpose1d(line, kernel, nil, 2, 1, 1):totable())
    assert.same({ { { { 8, 7, 7, 8 }, { -4, -5, -6, -5 }, { -3, -3, -4, -2 }, { 2, 2, 0, 2 } },
      { { -6, 8, -4, 7 }, { 7, -4, 8, -6 }, { 2, -3, 4, -4 }, { -3, 2, -2, 0 } } } },
      F.conv_transpose2d(x[{ {}, { 1, 2 }, { 1, 2 }, { 1, 2 } }], weight, nil, 2):totable())
    assert.same({ { { { { 2, 0 }, { -2, 2 } }, { { 0, -2 }, { 2, 0 } }, { { -2, 0 }, { 2, -2 } },
    { { 0, 2 }, { -2, 0 } } } } },
      F.conv_transpose3d(volume[{ {}, { 1, 1 }, { 1, 2 }, { 1, 1 }, { 1, 1 } }], cube[{ { 1, 1 }, { 1, 1 } }], nil,
        { 2, 1, 1 }):totable())
    assert.same({ 0, 2, 2, 3 }, F.conv2d(lm.zeros({ 0, 2, 3, 4 }, { dtype = "int64" }), weight).shape)
    assert.error_matches(function() F.conv2d(x, weight:float()) end,
      "conv2d: dtype mismatch: x is int64, weight is float32")
    assert.error_matches(function() F.conv2d(x:bool(), weight:bool()) end, "conv2d: x must be floating point, got bool")
  end)

  it("name the function and both dtypes where x has another dtype than weight, and cast under autocast", function()
    for n = 1, 3 do
      local shape, kernel = { 2, 3, 5, 5, 5 }, { 3, 3, 2, 2, 2 }
      local x, weight = lm.randn { unpack(shape, 1, n + 2) }, lm.randn { unpack(kernel, 1, n + 2) }
      for _, name in ipairs { "conv%dd", "conv_transpose%dd" } do
        name = name:format(n)
        for _, dtypes in ipairs { { "float16", "float32" }, { "bfloat16", "float16" }, { "uint8", "bfloat16" } } do
          assert.error_matches(function() F[name](x:abs():to(dtypes[1]), weight:to(dtypes[2])) end,
            ("%s: dtype mismatch: x is %s, weight is %s; convert one with :to%%(%%)"):format(name, unpack(dtypes)))
        end
        local y = lm.autocast({ dtype = "bfloat16" }, function() return F[name](x:half(), weight) end)
        assert.equal("bfloat16", y.dtype)
      end
    end
  end)

  it("read far outside as PyTorch: coordinates beyond 2^24, which reflections leave between pixels", function()
    -- On a line of 4 pixels every step is exact, with and without FMA.
    local x = lm.arange(16):float():reshape(1, 1, 4, 4):requires_grad_()
    local grid = lm.tensor({ { { { 2 ^ 23 + 2, 0.25 }, { -2 ^ 23 - 3, 0.25 }, { 0.25, 2 ^ 23 + 1 }, { 2 ^ 24, -0.5 },
      { 2 ^ 25 + 8, 0.75 } } } }):requires_grad_()
    local y = F.grid_sample(x, grid, "bicubic", "reflection", { align_corners = false })
    assert.same({ 9, 11, 14, 1.625, 12 }, y:detach():view(-1):totable())
    y:sum():backward()
    assert.same({ { { { -4.5, 12 }, { 0, 12 }, { 3, 0 }, { 0, 7.5 }, { 0, 6 } } } }, grid.grad:totable())
  end)

  it("return one value unless indices are asked for", function()
    for n = 1, 3 do
      local x = lm.ones(1, 2, unpack({ 4, 4, 4 }, 1, n))
      assert.equal(1, select("#", F["max_pool" .. n .. "d"](x, 2)))
      assert.equal(1, select("#", nn["MaxPool" .. n .. "d"](2)(x)))
      assert.equal(2, select("#", nn["MaxPool" .. n .. "d"](2, { return_indices = true })(x)))
    end
  end)

  it("give places: pooling and back", function()
    for n, dims in ipairs { { 6 }, { 4, 6 }, { 4, 2, 6 } } do
      local x = lm.randperm(2 * 2 * 48):float()[{ { 1, 4 * ({ 6, 24, 48 })[n] } }]:view(2, 2, unpack(dims))
      local d = n .. "d"
      local y, places = F["max_pool" .. d](x, 2, { return_indices = true })
      local flat = x:reshape(2, 2, -1)
      assert.is_true(flat:gather(3, places:reshape(2, 2, -1)):view(y.shape):equal(y))
      local back = F["max_unpool" .. d](y, places, 2)
      assert.same({ unpack(x.shape) }, { unpack(back.shape) })
      assert.is_true(back:eq(x):sum():item() == y:numel())
      local z, at = F["adaptive_max_pool" .. d](x, 2, { return_indices = true })
      assert.is_true(flat:gather(3, at:reshape(2, 2, -1)):view(z.shape):equal(z))
    end
    local x = lm.randn(1, 1, 5, 5)
    local y, at = F.fractional_max_pool2d(x, 2, { output_ratio = 0.5, return_indices = true })
    assert.same({ 1, 1, 2, 2 }, { unpack(y.shape) })
    assert.is_true(x:view(-1)[at:view(-1)]:equal(y:view(-1)))
    -- PyTorch 2.15's rows of a cube of 0 to 124 with these samples.
    local cube, samples = lm.arange(0, 125):float():view(1, 5, 5, 5), lm.tensor { { { 0.1, 0.6, 0.9 } } }
    y, at = nn.FractionalMaxPool3d(2, { output_size = 3, return_indices = true, _random_samples = samples })(cube)
    assert.same({ 1, 3, 3, 3 }, { unpack(y.shape) })
    assert.is_true(cube:view(-1)[at:view(-1)]:equal(y:view(-1)))
    assert.same({ 31, 56, 106 }, y[{ 1, {}, 1, 1 }]:totable())
    assert.same({ 31, 41, 46 }, y[{ 1, 1, {}, 1 }]:totable())
    assert.same({ 31, 32, 34 }, y[{ 1, 1, 1 }]:totable())
    assert.matches("_random_samples to have shape %[1, 1, 3%], got %[1, 1, 2%]", select(2, pcall(function()
      return F.fractional_max_pool3d(cube, 2, { output_size = 3, _random_samples = lm.ones(1, 1, 2) })
    end)))
    y, at = F.max_pool2d(x, 2, 1, 0, 1, false, true) -- indices in x
    assert.is_true(x:view(-1)[at:view(-1)]:equal(y:view(-1)))
  end)

  it("are cast by autocast as conv2d is", function()
    lm.autocast({ dtype = "bfloat16" }, function()
      local x, w = lm.randn(1, 2, 3, 4, 4), lm.randn(2, 2, 2, 2, 2)
      assert.equal("bfloat16", F.conv3d(x, w, lm.ones(2)).dtype)
      assert.equal("bfloat16", F.conv_transpose3d(x, w, lm.ones(2)).dtype)
    end)
  end)

  -- A function calls where the name of the public function comes from its caller: that of an op within would show.
  for _, row in ipairs {
    { "conv1d: expected x to have shape %[N, C, L%] or %[C, L%], got %[2%]", F.conv1d, lm.ones(2), lm.ones(2, 2, 2) },
    { "conv1d: the window %(5%) must be at most the padded size of x %(4%)",
      F.conv1d, lm.ones(1, 1, 4), lm.ones(1, 1, 3), { dilation = 2 } },
    { "conv3d: x, a tensor %[1, 3, 4, 4, 4%], and weight, a tensor %[2, 2, 2, 2, 2%], do not match with",
      F.conv3d, lm.ones(1, 3, 4, 4, 4), lm.ones(2, 2, 2, 2, 2) },
    { "conv3d: padding = 'same' requires a stride of 1, got 2",
      F.conv3d, lm.ones(1, 2, 4, 4, 4), lm.ones(2, 2, 2, 2, 2), nil, 2, "same" },
    { "conv3d: expected weight to have shape %[out, C / groups, kD, kH, kW%], got %[2, 2, 2, 2%]",
      F.conv3d, lm.ones(1, 2, 4, 4, 4), lm.ones(2, 2, 2, 2) },
    { "conv3d: stride must be an integer of at least 1 or a list of 3, got a table",
      F.conv3d, lm.ones(1, 2, 4, 4, 4), lm.ones(2, 2, 2, 2, 2), nil, { 1, 2 } },
    { "conv_transpose2d: output_padding %(2%) must be less than the stride %(2%) or the dilation %(1%)",
      F.conv_transpose2d, lm.ones(1, 2, 3, 3), lm.ones(2, 2, 2, 2), nil, 2, 0, 2 },
    { "conv_transpose2d: bias is .*%[3%]", F.conv_transpose2d, lm.ones(1, 2, 3, 3), lm.ones(2, 2, 2, 2), lm.ones(3) },
    { "conv_transpose1d: x, a tensor %[1, 2, 1%], with padding 1 would have an empty result",
      F.conv_transpose1d, lm.ones(1, 2, 1), lm.ones(2, 2, 2), nil, 1, 1 },
    { "max_unpool1d: output_size has 9; it must be between 3 and 5",
      F.max_unpool1d, lm.ones(1, 2), lm.tensor({ { 1, 3 } }, { dtype = "int64" }), 2, { output_size = { 9 } } },
    { "max_unpool1d: .*index 9",
      function() F.max_unpool1d(lm.ones(1, 2), lm.tensor({ { 1, 9 } }, { dtype = "int64" }), 2) end },
    { "max_unpool1d: .*index %-1",
      function() F.max_unpool1d(lm.ones(1, 2), lm.tensor({ { 1, -1 } }, { dtype = "int64" }), 2) end },
    { "max_unpool2d: .*index %-1",
      function() F.max_unpool2d(lm.ones(1, 1, 1), lm.tensor({ { { -1 } } }, { dtype = "int64" }), 2) end },
    { "max_unpool1d: indices must be int64 with the", F.max_unpool1d, lm.ones(1, 2), lm.ones(1, 2), 2 },
    { "avg_pool3d: .*x .*int32", F.avg_pool3d, lm.ones({ 1, 2, 2, 2 }, { dtype = "int32" }), 2 },
    { "lp_pool1d: norm_type must not be 0", F.lp_pool1d, lm.ones(1, 2), 0, 2 },
    { "fractional_max_pool2d: 4 x 4 windows of 2 x 2 do not fit", F.fractional_max_pool2d, lm.ones(1, 4, 4), 2, 4 },
    { "interpolate: pass either size or scale_factor", F.interpolate, lm.ones(1, 1, 2) },
    { "interpolate: mode 'bilinear' requires x of 4 dims, got a tensor %[1, 1, 2%]",
      F.interpolate, lm.ones(1, 1, 2), { size = 2, mode = "bilinear" } },
    { "interpolate: align_corners does not apply to mode 'nearest'",
      F.interpolate, lm.ones(1, 1, 2), { size = 2, align_corners = true } },
    { "interpolate: size must have 2 entries, one for each spatial dim, got 3",
      F.interpolate, lm.ones(1, 1, 2, 2), { 1, 2, 3 } },
    { "interpolate: dim 3 of a tensor %[1, 1, 2%] would have the size 0",
      F.interpolate, lm.ones(1, 1, 2), { scale_factor = 0.1 } },
    { "interpolate: mode must be one of 'nearest', 'nearest%-exact', 'linear', 'bilinear', 'bicubic',",
      F.interpolate, lm.ones(1, 1, 2), { size = 2, mode = "cubic" } },
    { "grid_sample: expected grid to have shape %[1, H, W, 2%] for 4%-d x",
      F.grid_sample, lm.ones(1, 1, 2, 2), lm.ones(1, 2, 2, 3) },
    { "grid_sample: dtype mismatch: x is float32, grid is float64",
      F.grid_sample, lm.ones(1, 1, 2, 2), lm.ones({ 1, 2, 2, 2 }, { dtype = "float64" }) },
    { "affine_grid: expected theta to have shape", F.affine_grid, lm.ones(2, 3, 3), { 2, 1, 3, 3 } },
    { "unfold: the window %(3%) must be at most the padded size of x", F.unfold, lm.ones(1, 2, 2), 3 },
    { "fold: expected x to have shape %[N, C %* 4, 9%], got %[1, 4, 4%]", F.fold, lm.ones(1, 4, 4), 4, 2 },
    { "unfold: unknown option 'padings'; did you mean 'padding'%?",
      F.unfold, lm.ones(1, 2, 2), { kernel_size = 2, padings = 1 } },
    { "interpolate: unknown option 'sizes'; did you mean 'size'%?", F.interpolate, lm.ones(1, 1, 2), { sizes = 3 } },
    { "affine_grid: unknown option 'align'; options are theta, size, align_corners",
      F.affine_grid, lm.ones(1, 2, 3), { 1, 1, 2, 2 }, { align = true } },
    { "conv_transpose2d: unknown option 'strides'; did you mean 'stride'%?",
      F.conv_transpose2d, lm.ones(1, 1, 2, 2), lm.ones(1, 1, 2, 2), { strides = 2 } },
    { "grid_sample: unknown option 'padding'; options are grid, mode, padding_mode",
      F.grid_sample, lm.ones(1, 1, 2, 2), lm.ones(1, 2, 2, 2), { padding = "border" } },
    { "Upsample: unknown option 'scale'; options are size, scale_factor,", nn.Upsample, { scale = 2 } },
    { "interpolate: size .*a list with a field \'dim\'", F.interpolate, lm.ones(1, 1, 2), { 3, dim = 3 } },
    { "unfold: kernel_size .*a list with a field \'dim\'", F.unfold, lm.ones(1, 4, 4), { 2, 2, dim = 3 } },
    { "max_pool1d: kernel_size .*a list with a field \'dim\'", F.max_pool1d, lm.ones(1, 4), { 2, dim = 3 } },
    { "adaptive_avg_pool1d: output_size .*a list with a field \'dim\'",
      F.adaptive_avg_pool1d, lm.ones(1, 4), { 2, dim = 3 } },
    { "affine_grid: size .*a list with a field \'dim\'", F.affine_grid, lm.ones(1, 2, 3), { 1, 1, 2, 2, dim = 3 } },
    { "unfold: .*x .*int64", function() F.unfold(lm.ones({ 1, 4, 4 }, { dtype = "int64" }), 2) end },
    { "fold: .*grad .*int64", function() F.fold(lm.ones({ 4, 9 }, { dtype = "int64" }), 4, 2) end },
    { "conv1d: .*padding must be from 0 to 2%^31 %- 1, got 1099511627776",
      function() F.conv1d(lm.ones(1, 1, 4), lm.ones(1, 1, 2), { padding = 2 ^ 40 }) end },
    { "conv_transpose2d: x, a tensor %[1, 1, 1, 1%], with padding 1 would have an empty result",
      F.conv_transpose2d, lm.ones(1, 1, 1, 1), lm.ones(1, 1, 2, 2), { padding = 1 } },
  } do
    it("refuse with a reason: " .. row[1], function()
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end)
  end
end)

-- PyTorch's value; its index is outside of the plane, here 0, and no gradient comes from there.
describe("max pooling with a window wholly in the padding", function()
  local inf = math.huge
  it("is -inf there", function()
    for n = 1, 3 do
      local pool = F[("max_pool%dd"):format(n)]
      local shape = {1, 1}
      for d = 1, n do shape[d + 2] = 2 end
      local x = lm.arange(1, 2 ^ n + 1, {dtype = "float32"}):view(shape):requires_grad_()
      local o = {padding = 1, dilation = 3, stride = 1} -- indices -1 and 2, of 0 and 1
      local y = pool(x, 2, o)
      assert.same(lm.full(y.shape, -inf):totable(), y:totable())
      y:sum():backward()
      assert.equal(0, x.grad:abs():sum():item())
      o.return_indices = true
      local z, indices = pool(x, 2, o)
      assert.same({y:totable(), 0}, {z:totable(), indices:abs():sum():item()})
      z:sum():backward()
      assert.equal(0, x.grad:abs():sum():item())
      o.ceil_mode, o.stride = true, 5
      assert.same(z.shape, pool(x, 2, o).shape)
    end
    local least = F.max_pool2d(lm.ones({1, 1, 1, 1}, {dtype = "int32"}), 2, {padding = 1, dilation = 2})
    assert.equal(-2 ^ 31, least:item())
  end)
end)

describe("errors of pooling", function()
  it("have the name and the sizes of the call, and say how to pad by more", function()
    for _, row in ipairs {
      { "max_pool3d: x must be a number dtype, got bool", F.max_pool3d, lm.ones({1, 2, 2, 2}, {dtype = "bool"}), 2 },
      { "max_pool3d: padding must be at most half of kernel_size {2, 2, 2}, got {0, 2, 1}; pad x before: "
        .. "F.pad%(x, {1, 1, 2, 2, 0, 0}, {value = %-math.huge}%)$",
        F.max_pool3d, lm.ones(1, 4, 4, 4), 2, {padding = {0, 2, 1}} },
      { "avg_pool1d: padding must be at most half of kernel_size {3}, got {2}; pad x before: F.pad%(x, {2, 2}%)$",
        F.avg_pool1d, lm.ones(1, 4), 3, {padding = 2} },
      { "avg_pool2d: padding must be at most half of kernel_size {3, 3}, got {2, 0}; pad x before: "
        .. "F.pad%(x, {0, 0, 2, 2}%)$", F.avg_pool2d, lm.ones(1, 4, 4), 3, {padding = {2, 0}} },
      { "max_pool3d: the window must be at most the padded input's 4 in dim 3, got 5",
        F.max_pool3d, lm.ones(1, 5, 4, 5), 5 },
      { "lp_pool3d: the window must be at most the padded input's 4 in dim 2, got 5",
        F.lp_pool3d, lm.ones(1, 4, 5, 5), 2, 5 },
      { "adaptive_max_pool3d: x must be floating point, got int32; convert it with :float%(%)",
        F.adaptive_max_pool3d, lm.ones({1, 2, 2, 2}, {dtype = "int32"}), 1 },
      { "max_pool1d: expected x to have shape", F.max_pool1d, lm.ones(1, 0), 1 },
    } do
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end
    local x = lm.randn(1, 1, 4, 4)
    assert.same({1, 1, 6, 6}, F.max_pool2d(F.pad(x, {2, 2, 2, 2}, {value = -math.huge}), 3, {stride = 1}).shape)
  end)
end)

describe("layers over windows", function()
  local printed = {
    ["Conv1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), dilation=(2,), groups=2, bias=False, "
      .. "padding_mode=circular)"] = nn.Conv1d(4, 6, 3,
      { stride = 2, padding = 1, dilation = 2, groups = 2, bias = false, padding_mode = "circular" }),
    ["Conv3d(4, 6, kernel_size=(1, 2, 3), stride=(1, 2, 1))"] = nn.Conv3d(4, 6, { 1, 2, 3 }, { stride = { 1, 2, 1 } }),
    ["ConvTranspose2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(2, 2), output_padding=(1, 1), "
      .. "groups=2, bias=False)"] = nn.ConvTranspose2d(4, 6, 3,
      { stride = 2, padding = 1, output_padding = 1, groups = 2, bias = false, dilation = 2 }),
    ["MaxPool3d(kernel_size=(1, 2, 2), stride=2, padding=0, dilation=1, ceil_mode=False)"]
      = nn.MaxPool3d({ 1, 2, 2 }, { stride = 2 }),
    ["AvgPool1d(kernel_size=(3,), stride=(3,), padding=(0,))"] = nn.AvgPool1d(3),
    ["AvgPool3d(kernel_size=3, stride=2, padding=1)"] = nn.AvgPool3d(3, { stride = 2, padding = 1 }),
    ["MaxUnpool1d(kernel_size=(2,), stride=(2,), padding=(0,))"] = nn.MaxUnpool1d(2),
    ["LPPool2d(norm_type=1.5, kernel_size=3, stride=2, ceil_mode=False)"] = nn.LPPool2d(1.5, 3, { stride = 2 }),
    ["LPPool1d(norm_type=2, kernel_size=3, stride=None, ceil_mode=False)"] = nn.LPPool1d(2, 3),
    ["AdaptiveMaxPool3d(output_size=(5, None, 3))"] = nn.AdaptiveMaxPool3d { 5, nil, 3 },
    ["AdaptiveAvgPool1d(output_size=5)"] = nn.AdaptiveAvgPool1d(5),
    ["FractionalMaxPool2d()"] = nn.FractionalMaxPool2d(2, { output_size = 3 }),
    ["Upsample(scale_factor=2.0, mode='nearest')"] = nn.Upsample { scale_factor = 2 },
    ["Upsample(size=(3, 4), mode='bilinear')"] = nn.Upsample { size = { 3, 4 }, mode = "bilinear" },
    ["UpsamplingBilinear2d(size=5, mode='bilinear')"] = nn.UpsamplingBilinear2d { size = 5 },
    ["Unfold(kernel_size=3, dilation=1, padding=0, stride=1)"] = nn.Unfold(3),
    ["Fold(output_size=(4, 5), kernel_size=(2, 3), dilation=1, padding=1, stride=1)"]
      = nn.Fold({ 4, 5 }, { 2, 3 }, { padding = 1 }),
  }
  it("print as PyTorch's", function()
    for text, net in pairs(printed) do assert.equal(text, tostring(net)) end
  end)

  it("are their functions", function()
    local line, image, volume = lm.randn(2, 4, 8), lm.randn(2, 4, 6, 7), lm.randn(2, 4, 4, 6, 5)
    local function same(net, x, want) assert.is_true(net(x):equal(want)) end
    for n, x in ipairs { line, image, volume } do
      local d = n .. "d"
      local conv = nn["Conv" .. d](4, 6, 3, { stride = 2, padding = 1, groups = 2 })
      same(conv, x, F["conv" .. d](x, conv.weight, conv.bias, 2, 1, 1, 2))
      local back = nn["ConvTranspose" .. d](4, 6, 3, { stride = 2, groups = 2 })
      same(back, x, F["conv_transpose" .. d](x, back.weight, back.bias, 2, 0, 0, 2))
      assert.same({ 4, 3 }, { back.weight.shape[1], back.weight.shape[2] })
      same(nn["MaxPool" .. d](2, { stride = 1, ceil_mode = true }), x, F["max_pool" .. d](x, 2, 1, 0, 1, true))
      same(nn["AvgPool" .. d](2, { padding = 1, count_include_pad = false }), x,
        F["avg_pool" .. d](x, 2, 2, 1, false, false))
      same(nn["LPPool" .. d](2, 2), x, F["lp_pool" .. d](x, 2, 2))
      same(nn["AdaptiveAvgPool" .. d](3), x, F["adaptive_avg_pool" .. d](x, 3))
      same(nn["AdaptiveMaxPool" .. d](3), x, (F["adaptive_max_pool" .. d](x, 3)))
      local y, places = nn["MaxPool" .. d](2, { return_indices = true })(x)
      assert.is_true(nn["MaxUnpool" .. d](2)(y, places, x.shape):equal(F["max_unpool" .. d](y, places, 2,
        { output_size = { unpack(x.shape) } })))
      same(nn.Upsample { scale_factor = 2 }, x, F.interpolate(x, { scale_factor = 2 }))
    end
    same(nn.UpsamplingNearest2d(9), image, F.interpolate(image, 9))
    same(nn.Unfold(2, 1, 1), image, F.unfold(image, 2, 1, 1))
    same(nn.Fold(5, 2), F.unfold(lm.ones(1, 3, 5, 5), 2), F.fold(F.unfold(lm.ones(1, 3, 5, 5), 2), 5, 2))
    assert.equal(3, nn.FractionalMaxPool2d(2, { output_size = 3 })(image).shape[4])
  end)

  it("that transpose a convolution take the size of their result", function()
    local net = nn.ConvTranspose2d(2, 3, 3, { stride = 2 })
    assert.same({ 1, 3, 10, 9 }, { unpack(net(lm.ones(1, 2, 4, 4), { 10, 9 }).shape) })
    assert.matches("output_size has 12; for this x it must be from 9 to 10",
      message(net, lm.ones(1, 2, 4, 4), { 12, 9 }))
    assert.matches("ConvTranspose2d: output_size must have 2 or 4 entries, got a table$",
      message(net, lm.ones(1, 2, 4, 4), { 9 }))
  end)

  it("pad lines and volumes as padding_mode says", function()
    for n, x in ipairs { lm.randn(1, 2, 6), false, lm.randn(1, 2, 4, 5, 6) } do
      if x then
        local net = nn["Conv" .. n .. "d"](2, 3, 3, { padding = 1, padding_mode = "circular" })
        local around = {}
        for i = 1, 2 * n do around[i] = 1 end
        local padded = F.pad(x, around, { mode = "circular" })
        assert.is_true(net(x):equal(F["conv" .. n .. "d"](padded, net.weight, net.bias)))
      end
    end
  end)

  for _, row in ipairs {
    { "ConvTranspose1d: padding_mode must be one of 'zeros', got string 'reflect'",
      nn.ConvTranspose1d, 2, 2, 2, { padding_mode = "reflect" } },
    { "Conv3d: kernel_size must be an integer of at least 1 or a list of 3, got a table", nn.Conv3d, 2, 2, { 1, 2 } },
    { "Conv2d: kernel_size must be an integer of at least 1 or a list of 2, got a list with a field",
      nn.Conv2d, 1, 1, { 3, 3, padding = 1 } },
    { "MaxPool2d: kernel_size must be an integer of at least 1 or a list of 2, got a list with a field",
      nn.MaxPool2d, { 2, 2, stride = 1 } },
    { "mode 'bilinear' requires a floating or uint8 x, got int64; convert it with :float%(%) or use mode",
      F.interpolate, lm.ones(1, 1, 2, 2):long(), { scale_factor = 2, mode = "bilinear" } },
    { "Conv1d: unknown option 'output_padding'", nn.Conv1d, 2, 2, 2, { output_padding = 1 } },
    { "AdaptiveAvgPool3d: output_size", nn.AdaptiveAvgPool3d, { 1, 2, 3, 4 } },
    { "FractionalMaxPool2d: pass either output_size or output_ratio", nn.FractionalMaxPool2d, 2 },
  } do
    it("refuse with a reason: " .. row[1], function()
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end)
  end
end)

describe("max_pool2d of wide rows", function()
  it("finds the same in either layout", function()
    lm.manual_seed(4)
    local x = lm.randint(1, 9, { 2, 3, 5, 700 }):to("float32") -- with ties
    x[{ 1, 1, 2, 300 }] = 0 / 0
    for _, how in ipairs {
      { { 3, 2 }, {} }, { { 2, 3 }, { stride = { 1, 1 }, padding = 1 } },
      { { 2, 5 }, { stride = { 2, 3 }, padding = { 0, 2 } } },
      { { 1, 3 }, { stride = 2, dilation = { 1, 4 } } }, { 3, { stride = { 1, 7 }, ceil_mode = true } },
      { { 1, 2 }, {} }, { { 1, 2 }, { padding = { 0, 1 }, ceil_mode = true } },
    } do
      local size, options = how[1], how[2]
      local without = F.max_pool2d(x, size, options)
      options.return_indices = true
      local y, places = F.max_pool2d(x, size, options)
      local other, other_places = F.max_pool2d(x:contiguous { memory_format = "channels_last" }, size, options)
      assert(y:equal(other) or y:nan_to_num(-1):equal(other:nan_to_num(-1)))
      assert(places:equal(other_places))
      assert(without:nan_to_num(-1):equal(y:nan_to_num(-1)), "without places")
    end
    local zeros = lm.tensor { { { -0.0, 0, 0, -0.0, 0 / 0, 1, 1, 0 / 0, -math.huge, -math.huge } } }
    local words = table.concat(F.max_pool1d(zeros, 2):totable()[1][1], ","):gsub("-nan", "nan")
    assert.equal("-0,0,nan,nan,-inf", words)
  end)
  it("keeps places for a gradient, and none without", function()
    local x = lm.randn { 4, 64, 512 }
    local function fetched(f)
      lm.reset_peak_memory_stats()
      local before = lm.memory_allocated()
      f()
      return lm.max_memory_allocated() - before
    end
    local bytes = 4 * 64 * 256 * 4
    assert.is_true(fetched(function() return F.max_pool1d(x, 2) end) < 1.5 * bytes)
    local leaf = x:clone():requires_grad_()
    local y = F.max_pool1d(leaf, 2)
    y:sum():backward()
    assert.equal(y:numel(), leaf.grad:sum():item())
    assert.is_true((leaf:detach() * leaf.grad):sum():allclose(y:detach():sum(), { rtol = 1e-4, atol = 1e-2 }))
  end)
end)

describe("pooling row by row", function()
  local nan, inf = 0 / 0, math.huge
  -- Returns what `of` makes of the values and positions of each of the windows of x [planes, H, W], which row and
  -- column lists {first, last} delimit.
  local function by_hand(x, rows, columns, of)
    local y, list = {}, x:totable()
    for p = 1, x.shape[1] do
      for _, r in ipairs(rows) do
        for _, c in ipairs(columns) do
          local values, places = {}, {}
          for i = r[1], r[2] do
            for j = c[1], c[2] do
              values[#values + 1], places[#places + 1] = list[p][i][j], (i - 1) * x.shape[3] + j
            end
          end
          y[#y + 1] = of(values, places)
        end
      end
    end
    return y
  end
  local function shared_evenly(size, out)
    local list = {}
    for o = 0, out - 1 do list[o + 1] = { math.floor(o * size / out) + 1, math.ceil((o + 1) * size / out) } end
    return list
  end
  local function place_of_largest(values, places)
    local best
    for i, v in ipairs(values) do
      if not best or v > values[best] or v ~= v then best = i end
    end
    return places[best]
  end
  local function mean(values)
    local sum = 0
    for _, v in ipairs(values) do sum = sum + v end
    return sum / #values
  end

  it("finds the largest in dilated windows, of which one may begin behind the next", function()
    for width = 3, 7 do
      for kernel = 2, 4 do
        for dilation = 2, 3 do
          for stride = 1, 2 do
            local pad, x = math.floor(kernel / 2), -lm.rand(1, 1, 1, width) - 1
            local out = math.floor((width + 2 * pad - dilation * (kernel - 1) - 1) / stride) + 1
            local want, where = {}, {}
            for o = 1, out do
              for k = 0, kernel - 1 do
                local at = (o - 1) * stride - pad + k * dilation + 1
                local v = at >= 1 and at <= width and x[{ 1, 1, 1, at }]
                if v and (not want[o] or v > want[o]) then want[o], where[o] = v, at end
              end
            end
            if out > 0 and #want == out then
              local y, places = lm.nn.functional.max_pool2d(x, { 1, kernel },
                { stride = { 1, stride }, padding = { 0, pad }, dilation = { 1, dilation }, return_indices = true })
              assert.same({ want, where }, { y:flatten():totable(), places:flatten():totable() })
            end
          end
        end
      end
    end
  end)

  it("finds the first of equals and the last NaN in windows of any widths", function()
    lm.manual_seed(5)
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
      for _, out in ipairs { { 3, 7 }, { 1, 1 }, { 5, 30 }, { 2, 4 }, { 4, 64 } } do
        local x = lm.randint(1, 6, { 3, 9, 30 }):to(dtype)
        x[{ 1, 2, 3 }], x[{ 1, 4, 3 }], x[{ 1, 3, 20 }], x[{ 1, 3, 19 }] = nan, nan, nan, nan
        x[{ 2 }] = -inf
        local y, places = F.adaptive_max_pool2d(x, out, { return_indices = true })
        local want = by_hand(x:float(), shared_evenly(9, out[1]), shared_evenly(30, out[2]), place_of_largest)
        assert.same(want, lm.reshape(places, { -1 }):totable())
        local picked = x:view(3, -1):gather(2, places:view(3, -1))
        assert.is_true(picked:float():nan_to_num(-7):equal(y:view(3, -1):float():nan_to_num(-7)))
      end
    end
  end)

  it("averages windows side by side and cut off, and gives their shares back", function()
    lm.manual_seed(6)
    for _, how in ipairs { { 3, 2, 1 }, { 2, 1, 0 }, { 2, 2, 1 }, { 5, 3, 2 }, { 4, 4, 0 } } do
      local x = lm.randn({ 2, 11, 700 }, { dtype = "float64" })
      local function windows(size)
        local list = {}
        for o = 0, math.floor((size + 2 * how[3] - how[1]) / how[2]) do
          local first = o * how[2] - how[3] + 1
          list[o + 1] = { math.max(first, 1), math.min(first + how[1] - 1, size) }
        end
        return list
      end
      local pool = { stride = how[2], padding = how[3], count_include_pad = false }
      local want = lm.tensor(by_hand(x, windows(11), windows(700), mean), { dtype = "float64" })
      local y = F.avg_pool2d(x, how[1], pool)
      assert.is_true(lm.reshape(y, { -1 }):allclose(want))
      assert.is_true(F.avg_pool2d(x:float(), how[1], pool):double():allclose(y, { atol = 1e-5 }))
      local small = x[{ {}, {}, { 1, 8 } }]:clone():requires_grad_()
      assert.is_true(lm.autograd.gradcheck(function(t) return F.avg_pool2d(t, how[1], pool) end, { small }))
    end
    local x = f64(2, 9, 13)
    for _, out in ipairs { { 4, 5 }, { 12, 20 }, { 1, 3 } } do
      local want = by_hand(x:detach(), shared_evenly(9, out[1]), shared_evenly(13, out[2]), mean)
      assert.is_true(lm.reshape(F.adaptive_avg_pool2d(x, out), { -1 }):allclose(lm.tensor(want, { dtype = "float64" })))
      assert.is_true(lm.autograd.gradcheck(function(t) return F.adaptive_avg_pool2d(t, out) end, { x }))
    end
  end)
end)

describe("ReLU and a pooling after it in a Sequential", function()
  local options = { { 2 }, { { 3, 2 }, { stride = 2, padding = 1 } }, { 2, { ceil_mode = true } } }
  local averages = { { 3, { stride = 1, padding = 1, count_include_pad = false } }, { 2, { divisor_override = 3 } } }

  -- Returns result and gradient of the two for x; seen: run apart, for a hook of the first.
  local function run(pool, x, seen)
    local net = nn.Sequential(nn.Identity(), nn.ReLU(), pool)
    if seen then net[2]:register_forward_hook(function() end) end
    x = x:clone():requires_grad_()
    local y = net(x)
    local square = y * y:detach()
    square:sum():backward()
    return y, x.grad
  end

  -- Expects that a and b are near each other; tol: nil for the same bits.
  local function equal(what, a, b, tol)
    assert.is_true(a:isnan():equal(b:isnan()), what)
    a, b = a:nan_to_num(7), b:nan_to_num(7)
    assert.is_true(tol and a:allclose(b, { rtol = tol, atol = 0 }) or a:equal(b), what)
  end

  for _, name in ipairs { "MaxPool2d", "AvgPool2d" } do
    it("are one op: " .. name, function()
      local list = { unpack(options) }
      if name == "AvgPool2d" then for _, more in ipairs(averages) do list[#list + 1] = more end end
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
        for _, format in ipairs { "contiguous", "channels_last" } do
          for _, shape in ipairs { { 2, 3, 7, 6 }, { 1, 20, 26, 25 }, { 2, 70, 5, 9 }, { 3, 1, 9, 9 } } do
            local x = lm.randn(shape):to(dtype):contiguous { memory_format = format }
            x[{ 1, 1, 1, 1 }], x[{ 1, 1, 2, 2 }] = 0 / 0, -0.0
            x[{ 1, 1, 3, 3 }], x[{ 1, 1, 4, 1 }] = math.huge, -math.huge
            for k, with in ipairs(list) do
              local pool = nn[name](unpack(with))
              local what = ("%s %s %s, options %d"):format(dtype, format, table.concat(shape, "x"), k)
              local y, grad = run(pool, x)
              local want, wanted = run(pool, x, true)
              assert.equal(name == "MaxPool2d" and "threshold" or "relu_avg_pool2d", y.grad_fn, what)
              assert.equal(name == "MaxPool2d" and "max_pool2d" or "avg_pool2d", want.grad_fn, what)
              equal(what, y, want)
              -- Planes keep their layout; the gradient of a pooling alone is channels-last, and divides otherwise.
              local planes = name == "AvgPool2d" and format == "contiguous" and shape[2] > 1
              equal(what .. ", gradient", grad, wanted, planes and 4 * lm.finfo(dtype).eps or nil)
            end
          end
        end
      end
    end)
  end

  it("let what comes before and after change in place", function()
    local x = lm.randn { 1, 2, 6, 6 }
    local how = { stride = 1, padding = 1 }
    for _, pool in ipairs { nn.MaxPool2d(3, how), nn.AvgPool2d(3, how) } do
      local function plain(t) return pool(t:relu()) end
      local function same(what, net, change)
        local grads = {}
        for i, f in ipairs { net, plain } do
          local leaf = x:clone():requires_grad_()
          change(leaf * 1, f):sum():backward()
          grads[i] = leaf.grad
        end
        equal(what, grads[1], grads[2], 1e-6)
      end
      local relu = nn.Sequential(nn.Identity(), nn.ReLU(), pool)
      same("before", nn.Sequential(nn.ReLU(), pool), function(t, f) return t:add_(f(t)) end)
      same("after", relu, function(t, f) return f(t):mul_(-1) end)
      relu:append(nn.LeakyReLU(0.1, { inplace = true }))
      same("a layer after", relu, function(t, f) return f(t) end)
    end
  end)

  it("stay two for integers, indices, and a ReLU in place", function()
    local whole = lm.tensor({ { { -3, 2 }, { 1, -4 } } }, { dtype = "int64" })
    assert.equal(2, nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))(whole):item())
    assert.equal(0, nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))(whole):item())
    assert.matches("relu: x must be a tensor, got nil", message(nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))), 1, true)
    local x = lm.tensor { { { -3, 2 }, { 1, -4 } } }
    nn.Sequential(nn.ReLU { inplace = true }, nn.AvgPool2d(2))(x)
    assert.equal(0, x:min():item())
    local indices = nn.MaxPool2d(2, { return_indices = true })
    assert.equal("max_pool2d_with_indices", nn.Sequential(nn.ReLU(), indices)(x:clone():requires_grad_()).grad_fn)
  end)
end)
