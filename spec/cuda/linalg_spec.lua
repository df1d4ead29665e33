-- Fourier transforms and linear algebra on CUDA, against the CPU's, on the fake libraries of support/cuda: plans,
-- workspaces, captures, errors, and what happens when a call fails or a library is missing.
local temp = require "spec.support.temp"

-- What every script begins with.
local preamble = [[
local lm = require "luminary"
local ffi = require "ffi"
ffi.cdef "void lm_fake_fail(const char *, long, int);"
ffi.cdef "long lm_fake_call_count(const char *); long lm_fake_live(const char *);"
local fake = ffi.C
local function live(what) return tonumber(fake.lm_fake_live(what)) end
local function calls(name) return tonumber(fake.lm_fake_call_count(name)) end
local function near(want, got, tolerance, what)
  assert(got.is_cuda and want.ndim == got.ndim and want.dtype == got.dtype, what)
  for d = 1, want.ndim do assert(want.shape[d] == got.shape[d], what) end
  if want:numel() == 0 then return end
  local worst = (want:double() - got:cpu():double()):abs():max():item()
  assert(worst <= tolerance, ("%s: differs by %g"):format(what, worst))
end
local function refused(words, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  assert(tostring(why):find(words, 1, true), tostring(why))
end
-- t on the device, `by` elements behind a boundary of 256 bytes.
local function off(t, by)
  local room = lm.zeros({t:numel() + by}, {dtype = t.dtype, device = "cuda"})
  return room:narrow(1, 1 + by, t:numel()):copy_(t:reshape{-1}):view(t.shape)
end
local tolerance = {float32 = 2e-4, float64 = 1e-10}
lm.manual_seed(3)
]]

describe("CUDA's transforms and linear algebra", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)
  local library = assert(package.searchpath("luminary.core", package.cpath)):gsub("core%.so$", "fake_cuda.so")

  local function script(name, text, environment)
    it(name, function()
      if not temp.exists(library) then return pending("it needs a build with CUDA") end
      local path = temp.write(folder .. "/script.lua", preamble .. text)
      local ok, output = temp.run(folder, ('%s LD_PRELOAD="$LD_PRELOAD %s" timeout 300 luajit %s'):format(
        environment or "", library, path))
      assert(ok, output)
    end)
  end

  script("transform lines by cuFFT: lengths, dims, strides, offsets, norms", [[
    for _, dtype in ipairs {"float32", "float64"} do
      local near = function(want, got, what) near(want, got, tolerance[dtype], what .. " in " .. dtype) end
      local function random(...) return lm.randn({...}):to(dtype) end
      for _, n in ipairs {1, 2, 3, 4, 9, 16, 17} do
        local x, real = random(3, n, 2), random(2, 3, n)
        local half = random(3, math.floor(n / 2) + 1, 2) -- with imaginary parts that do not count
        for by = 0, 3 do
          near(lm.fft_c2c(x), lm.fft_c2c(off(x, by)), "c2c")
          near(lm.fft_c2c(x, true, 1 / n), lm.fft_c2c(off(x, by), true, 1 / n), "inverse")
          near(lm.fft_r2c(real), lm.fft_r2c(off(real, by)), "r2c")
          local d = off(half, by)
          near(lm.fft_c2r(half, n, 0.5), lm.fft_c2r(d, n, 0.5), "c2r")
          near(half, d, "what it read")
        end
      end
      for _, size in ipairs {{2, 6, 3}, {1, 5, 4}, {4, 3, 1}, {3, 9, 40}} do
        local x = random(size[1], size[2], size[3], 2)
        for dim = 1, 3 do
          near(lm.fft_c2c(x, false, 2, dim), lm.fft_c2c(x:cuda(), false, 2, dim), "dim " .. dim)
          local t = x:cuda():transpose(1, 2)
          near(lm.fft_c2c(x:transpose(1, 2), false, 1, dim), lm.fft_c2c(t, false, 1, dim), "strided, dim " .. dim)
        end
      end
      local x = random(4, 6, 10)
      for _, norm in ipairs {"backward", "ortho", "forward"} do
        near(lm.fft.rfft(x, {norm = norm}), lm.fft.rfft(x:cuda(), {norm = norm}), norm)
        near(lm.fft.rfft2(x, {norm = norm}), lm.fft.rfft2(x:cuda(), {norm = norm}), "rfft2 " .. norm)
      end
      assert(lm.fft_c2c(lm.ones({4, 0, 2}, {device = "cuda", dtype = dtype}), false, 1, 1):numel() == 0)
    end
    for _, name in ipairs {"C2C", "R2C", "C2R", "Z2Z", "D2Z", "Z2D"} do assert(calls("cufftExec" .. name) > 0, name) end
  ]])

  script("keep plans by shape, as many as there may be, and those of graphs", [[
    local x = lm.randn({4, 12, 2})
    local want, d = lm.fft_c2c(x), x:cuda()
    lm.fft_c2c(d)
    local made = calls("cufftMakePlanMany64")
    for _ = 1, 3 do near(want, lm.fft_c2c(d), 1e-4, "again") end
    assert(calls("cufftMakePlanMany64") == made and live("plan") == 1)
    local room = lm.zeros({3, 20, 2}, {device = "cuda"})
    refused("warm up first", lm.cuda.graph, function() return lm.fft_c2c(room) end, {warmup = 0})
    local graph = lm.cuda.graph(function() return lm.fft_c2c(d) end, {warmup = 1})
    local kept = {} -- enqueued, and not done while their plans go
    for n = 20, 120 do kept[n] = lm.fft_c2c(lm.ones({n, 2}, {device = "cuda"})) end
    for n = 20, 120 do near(lm.fft_c2c(lm.ones({n, 2})), kept[n], 1e-3, n) end
    assert(live("plan") == 64 + 1, live("plan"))
    d:fill_(0)
    d:copy_(x * 2)
    graph:replay()
    near(want * 2, graph.results[1], 1e-4, "replayed")
  ]])

  script("say what cuFFT says", [[
    local d = lm.randn({4, 12, 2}):cuda()
    fake.lm_fake_fail("cufftExecC2C", 1, 6)
    refused("fft_c2c: cufftExecC2C: error 6 (CUFFT_EXEC_FAILED)", lm.fft_c2c, d)
    fake.lm_fake_fail("cufftMakePlanMany64", 1, 5)
    refused("cufftMakePlanMany64: error 5 (CUFFT_INTERNAL_ERROR)", lm.fft_r2c, d)
    assert(live("plan") == 1, "the plan of a failure is left")
    fake.lm_fake_fail("cufftMakePlanMany64", 1, 8) -- a size it does not take: the CPU does
    near(lm.fft_r2c(d:cpu()), lm.fft_r2c(d), 1e-4, "by the CPU")
    assert(calls("cufftExecR2C") == 0)
  ]])

  script("do without libraries", [[
    local x = lm.randn({4, 12, 2})
    near(lm.fft_c2c(x), lm.fft_c2c(x:cuda()), 1e-4, "by the CPU")
    assert(calls("cufftCreate") == 0)
  ]], "LM_CUDA_WITHOUT=cusolver,cufft")

  script("keep to their device", [[
    local x = lm.randn({4, 12, 2})
    for device = 0, 1 do
      lm.cuda.stream(lm.cuda.Stream {device = "cuda:" .. device}, function()
        near(lm.fft_c2c(x), lm.fft_c2c(x:to("cuda:" .. device)), 1e-4, "cuda:" .. device)
      end)
    end
    assert(live("plan") == 2)
  ]], "LM_FAKE_CUDA_DEVICES=2")
end)
