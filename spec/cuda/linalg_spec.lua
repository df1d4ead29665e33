-- Fourier transforms and linear algebra on CUDA, against the CPU's, on the fake libraries of support/cuda: plans,
-- workspaces, captures, errors, and what happens when a call fails or a library is missing.
local temp = require "spec.support.temp"
local scripts = require "spec.support.cuda_scripts"

-- First lines of every script, after those that cuda_scripts.lua returns.
local preamble = [[
local function near(want, got, tolerance, what)
  assert(got.is_cuda and want.ndim == got.ndim and want.dtype == got.dtype, what)
  for d = 1, want.ndim do assert(want.shape[d] == got.shape[d], what) end
  if want:numel() == 0 then return end
  local worst = (want:double() - got:cpu():double()):abs():max():item()
  assert(worst <= tolerance, ("%s: differs by %g"):format(what, worst))
end
local tolerance = {float32 = 2e-4, float64 = 1e-10}
lm.manual_seed(3)
]]

describe("CUDA's transforms and linear algebra #fake", function()
  local folder = temp.during(setup, teardown)

  local script = scripts.tests(it, pending, preamble)

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
    refused("fft_c2c: cannot make a cuFFT plan", lm.cuda.graph, function() return lm.fft_c2c(room) end, {warmup = 0})
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

  -- f(dtype, near, random) for both dtypes; near(what, want, got) knows how much they may differ.
  local each_dtype = [[
    local la = lm.linalg
    local function each_dtype(f)
      for _, dtype in ipairs {"float32", "float64"} do
        f(function(what, want, got) near(want, got, tolerance[dtype] * 10, what .. " in " .. dtype) end,
          function(...) return lm.randn({...}):to(dtype) end)
      end
    end
    local function turned(x) return x:transpose(-1, -2) end
    -- Sizes of each kind: one matrix that goes alone, and many of a size that goes at once.
    local squares = {{1, 1}, {4, 4}, {70, 70}, {3, 4, 4}, {2, 1, 5, 5}, {2, 70, 70}}
  ]]

  script("solve by LU and by triangles as the CPU does", each_dtype .. [[
    each_dtype(function(near, random)
      for _, shape in ipairs(squares) do
        local n = shape[#shape]
        local x = random(unpack(shape)) + n * lm.eye(n) -- far from singular
        local d, b = off(x, 1), random(n, 2)
        near("inverse", lm.inverse(x), lm.inverse(d))
        near("turned", lm.inverse(turned(x)), lm.inverse(turned(d)))
        near("det", lm.det(x / n), lm.det(d / n))
        near("sign", lm.slogdet(-x), lm.slogdet(-d))
        near("log", select(2, lm.slogdet(x)), (select(2, lm.slogdet(d))))
        local lu, pivots = la.lu_factor(x)
        local its, its_pivots = la.lu_factor(d)
        near("LU", lu, its)
        assert(pivots:eq(its_pivots:cpu()):all():item() and its_pivots.dtype == "int32")
        near("P", la.lu(x), la.lu(d))
        for _, left in ipairs {true, false} do
          local B = left and b or b:t()
          near("solve", la.solve(x, B, {left = left}), la.solve(d, B:cuda(), {left = left}))
          for _, other in ipairs {true, false} do
            local how = {left = left, adjoint = other}
            near("lu_solve", la.lu_solve(lu, pivots, B, how), la.lu_solve(its, its_pivots:long(), B:cuda(), how))
            for _, ones in ipairs {true, false} do
              how = {upper = other, left = left, unitriangular = ones}
              near("triangle", la.solve_triangular(x / n, B, how), la.solve_triangular(d / n, B:cuda(), how))
            end
          end
        end
        local positive = x:matmul(turned(x))
        for _, upper in ipairs {true, false} do
          near("cholesky", lm.cholesky(positive, upper), lm.cholesky(positive:cuda(), upper))
        end
      end
      for _, shape in ipairs {{3, 5}, {2, 5, 3}} do
        local x = random(unpack(shape))
        near("wide and tall", la.lu_factor(x), (la.lu_factor(x:cuda())))
      end
      near("broadcast", la.solve(random(1, 3, 3) * 0 + lm.eye(3), lm.ones(4, 3, 2):to(random(1).dtype)),
        la.solve((random(1, 3, 3) * 0 + lm.eye(3)):cuda(), lm.ones(4, 3, 2):to(random(1).dtype):cuda()))
      near("empty", lm.det(random(2, 0, 0)), lm.det(random(2, 0, 0):cuda()))
      near("of zeros", lm.det(random(2, 3, 3) * 0), lm.det((random(2, 3, 3) * 0):cuda()))
      local sign, log_of = lm.slogdet((random(3, 3) * 0):cuda())
      assert(sign:item() == 0 and log_of:item() == -math.huge)
    end)
    for _, name in ipairs {"getrf", "getrs", "potrf", "potrfBatched"} do
      assert(calls("cusolverDnS" .. name) > 0 and calls("cusolverDnD" .. name) > 0, name)
    end
    for _, name in ipairs {"getrfBatched", "getrsBatched", "trsmBatched", "trsm_v2"} do
      assert(calls("cublasS" .. name) > 0 and calls("cublasD" .. name) > 0, name)
    end
  ]])

  script("take matrices apart as the CPU does", each_dtype .. [[
    each_dtype(function(near, random)
      for _, shape in ipairs {{3, 3}, {5, 3}, {3, 5}, {2, 5, 3}, {2, 3, 5}, {1, 2, 4, 4}, {2, 40, 33}, {33, 40}} do
        local x = random(unpack(shape))
        local d = off(x, 1)
        for _, mode in ipairs {"reduced", "complete", "r"} do
          local q, r = la.qr(x, mode)
          local its, its_r = la.qr(d, mode)
          near("Q, " .. mode, q, its)
          near("R, " .. mode, r, its_r)
        end
        local values = la.svdvals(x)
        near("values", values, la.svdvals(d))
        for _, whole in ipairs {true, false} do
          local u, s, vh = la.svd(d, whole)
          local k = s.shape[s.ndim]
          near("s", values, s)
          assert(u.shape[u.ndim] == (whole and shape[#shape - 1] or k))
          assert(vh.shape[vh.ndim - 1] == (whole and shape[#shape] or k))
          near("U S Vh", x, (u:narrow(-1, 1, k) * s:unsqueeze(-2)):matmul(vh:narrow(-2, 1, k)))
          for _, square in ipairs {turned(u):matmul(u), vh:matmul(turned(vh))} do
            near("orthonormal", lm.eye(square.shape[square.ndim]):to(x.dtype):expand(square.shape), square)
          end
        end
        near("pinv", la.pinv(x), la.pinv(d))
        local cut = {atol = values:max():item() * 0.6}
        near("pinv, cut", la.pinv(x, cut), la.pinv(d, cut))
      end
      for _, shape in ipairs(squares) do
        local x = random(unpack(shape))
        x = x + turned(x)
        for _, part in ipairs {"L", "U"} do
          local half = part == "L" and x:tril() or x:triu() -- the other triangle is not read
          local w, v = la.eigh(half:cuda(), part)
          near("w", la.eigvalsh(x), w)
          near("w alone", la.eigvalsh(x), la.eigvalsh(half:cuda(), part))
          near("V w V^T", x, (v * w:unsqueeze(-2)):matmul(turned(v)))
        end
        near("pinv, hermitian", la.pinv(x, {hermitian = true}), la.pinv(x:tril():cuda(), {hermitian = true}))
      end
    end)
    for _, name in ipairs {"geqrf", "orgqr", "syevd", "syevjBatched", "gesvdj", "gesvdjBatched"} do
      assert(calls("cusolverDnS" .. name) > 0 and calls("cusolverDnD" .. name) > 0, name)
    end
  ]])

  script("find least squares as the CPU does", each_dtype .. [[
    each_dtype(function(near, random)
      for _, shape in ipairs {{5, 3}, {3, 3}, {3, 5}, {2, 6, 2}, {2, 40, 33}} do
        local x = random(unpack(shape))
        local right = lm.zeros(shape):narrow(-1, 1, 1).shape
        right[#right] = 2
        local b = random(unpack(right))
        for _, driver in ipairs {"gels", "gelsy", "gelsd", "gelss"} do
          local want, got = {la.lstsq(x, b, {driver = driver})}, {la.lstsq(x:cuda(), b:cuda(), {driver = driver})}
          for i = 1, 4 do near(driver .. ", result " .. i, want[i], got[i]) end
        end
      end
      local flat, b = random(4, 1):matmul(random(1, 3)), random(4, 2) -- flat has rank 1
      for _, driver in ipairs {"gelsy", "gelsd"} do
        local want, got = {la.lstsq(flat, b, {driver = driver})}, {la.lstsq(flat:cuda(), b:cuda(), {driver = driver})}
        near("X of rank 1", want[1], got[1])
        assert(got[3]:item() == 1 and want[3]:item() == 1)
      end
      local zero = flat * 0 -- R cannot divide by 0: the CPU's result counts
      near("X of zeros", la.lstsq(zero, b, {driver = "gels"}), (la.lstsq(zero:cuda(), b:cuda(), {driver = "gels"})))
    end)
    assert(calls("cusolverDnSormqr") > 0 and calls("cusolverDnDormqr") > 0)
  ]])

  script("refuse what the CPU refuses, in its words", each_dtype .. [[
    local made = lm.stack {lm.eye(2), lm.zeros(2, 2)}
    local bad = made + lm.tensor {{{0, 0}, {0, 0}}, {{0, 0}, {0 / 0, 0}}}
    local function same(f, ...)
      local words = {}
      for i, device in ipairs {"cpu", "cuda"} do
        local arguments = {}
        for k, t in ipairs {...} do arguments[k] = type(t) == "table" and t or t:to(device) end
        local ok, why = pcall(f, unpack(arguments))
        assert(not ok, "no error on " .. device)
        words[i] = tostring(why)
      end
      assert(words[1] == words[2], words[2])
      return words[1]
    end
    for _, count in ipairs {1, 2} do
      local x, y = made:narrow(1, 3 - count, count), bad:narrow(1, 3 - count, count)
      if count == 1 then x, y = x:select(1, 1), y:select(1, 1) end
      for _, f in ipairs {lm.inverse, la.lu_factor, lm.cholesky} do same(f, x) end
      same(la.solve, x, lm.ones(2, 1))
      for _, f in ipairs {la.eigh, la.eigvalsh, la.svd, la.svdvals, la.pinv} do same(f, y) end
      same(la.lstsq, y, lm.ones(y.shape), {driver = "gels"})
      same(la.lstsq, lm.ones(y.shape), y)
    end
    local pivots = lm.tensor({1, 7, 3}):int() -- found on the device, and raised by the next wait
    refused("linalg_lu_solve: pivots[2] must be from 1 to 3, got 7", la.lu_solve, lm.eye(3), pivots, lm.eye(3))
    local later = la.lu_solve(lm.eye(3):cuda(), pivots:cuda(), lm.eye(3):cuda())
    refused("linalg_lu_solve: pivots[2] must be from 1 to 3, got 7", later.cpu, later)
    lm.linalg_lu_factor(made:cuda(), {check = false})
    near(lm.eye(2):inverse(), lm.eye(2):cuda():inverse(), 0, "afterwards")
  ]])

  script("wait only where there is something to refuse", [[
    local x = (lm.randn(3, 4, 4) + 4 * lm.eye(4)):cuda()
    local la = lm.linalg
    local function waits(f)
      f()
      local before = calls("cudaStreamSynchronize") + calls("cudaMemcpy") + calls("cudaEventSynchronize")
      f()
      return calls("cudaStreamSynchronize") + calls("cudaMemcpy") + calls("cudaEventSynchronize") - before
    end
    local lu, pivots = la.lu_factor(x)
    for name, f in pairs {
      det = function() return lm.det(x) end, slogdet = function() return lm.slogdet(x) end,
      qr = function() return la.qr(x) end, triangle = function() return la.solve_triangular(x, x, {upper = true}) end,
      lu_solve = function() return la.lu_solve(lu, pivots, x) end, fft = function() return lm.fft_r2c(x) end,
      lu_factor = function() return lm.linalg_lu_factor(x, {check = false}) end,
    } do
      assert(waits(f) == 0, name)
    end
    assert(waits(function() return lm.inverse(x) end) > 0)
  ]])

  script("say what cuSOLVER and cuBLAS say, and go on", [[
    local x = (lm.randn(3, 4, 4) + 4 * lm.eye(4)):cuda()
    local want = lm.inverse(x:cpu())
    fake.lm_fake_fail("cusolverDnCreate", 1, 7)
    refused("inverse: cusolverDnCreate: error 7 (CUSOLVER_STATUS_INTERNAL_ERROR)", lm.inverse, x)
    fake.lm_fake_fail("cublasCreate_v2", 1, 1)
    refused("inverse: cublasCreate_v2: error 1 (CUBLAS_STATUS_NOT_INITIALIZED)", lm.inverse, x)
    near(want, lm.inverse(x), 1e-5, "then")
    fake.lm_fake_fail("cublasSgetrsBatched", 1, 14)
    refused("inverse: cublasSgetrsBatched: error 14 (CUBLAS_STATUS_INTERNAL_ERROR)", lm.inverse, x)
    fake.lm_fake_fail("cusolverDnSgeqrf", 1, 6)
    refused("linalg_qr: cusolverDnSgeqrf: error 6 (CUSOLVER_STATUS_EXECUTION_FAILED)", lm.linalg.qr, x)
    local handles = live("handle")
    for _ = 1, 3 do near(want, lm.inverse(x), 1e-5, "at last") end
    assert(live("handle") == handles)
    -- A graph cannot have what waits; other captures are possible afterwards.
    refused("during capture", lm.cuda.graph, function() return lm.inverse(x) end, {warmup = 0})
    refused("during capture", lm.cuda.graph, function() return lm.det(x) end, {warmup = 0})
    local graph = lm.cuda.graph(function() return x + 1 end)
    graph:replay()
    near(want, lm.inverse(x), 1e-5, "after the captures")
  ]])

  script("leave to the CPU what does not converge", [[
    for _, x in ipairs {lm.randn(4, 4), lm.randn(3, 5, 4), lm.randn(40, 33)} do
      local square = x:transpose(-1, -2):matmul(x)
      near(lm.linalg.svdvals(x), lm.linalg.svdvals(x:cuda()), 1e-4, "values")
      fake.lm_fake_diverge()
      near(lm.linalg.svdvals(x), lm.linalg.svdvals(x:cuda()), 1e-4, "values after all")
      fake.lm_fake_diverge()
      near(lm.linalg.eigvalsh(square), lm.linalg.eigvalsh(square:cuda()), 1e-3, "eigenvalues after all")
    end
  ]])

  script("take a handle to another stream once its work on the last one is done", [[
    local function waits_of(stream) -- waits of one op on tensors that no other stream has used
      return lm.cuda.stream(stream, function()
        local x = lm.eye(6, {device = "cuda"})
        lm.cuda.synchronize()
        local before = calls("cudaStreamWaitEvent")
        local y = lm.linalg.solve_triangular(x, x, {upper = true})
        local waits = calls("cudaStreamWaitEvent") - before
        near(lm.eye(6), y, 0, "a solution")
        return waits
      end)
    end
    local one, other = lm.cuda.Stream(), lm.cuda.Stream()
    local waits = {}
    for i, stream in ipairs {one, one, other, other, one} do waits[i] = waits_of(stream) end
    assert(table.concat(waits, " ") == "0 0 1 0 1", table.concat(waits, " "))
    assert(calls("cusolverDnCreate") == 1)
  ]])

  script("leave to the CPU what has no library", [[
    local x = lm.randn(3, 4, 4) + 4 * lm.eye(4)
    near(lm.inverse(x), lm.inverse(x:cuda()), 1e-5, "inverse")
    near(lm.linalg.svdvals(x), lm.linalg.svdvals(x:cuda()), 1e-4, "svdvals")
    assert(calls("cusolverDnCreate") == 0 and calls("cublasCreate_v2") == 0)
    lm.fft_r2c(x:cuda())
    assert(calls("cufftExecR2C") == 1)
  ]], "LM_CUDA_WITHOUT=cusolver")

  it("asks for functions that the real libraries have", function()
    local root = os.getenv "CUDA_HOME" or "/usr/local/cuda"
    local asked = 0
    for _, file in ipairs { "cufft", "cusolver" } do
      local text = temp.read(("src/backend/cuda/libraries/%s.c"):format(file))
      local names = {}
      for name in text:gmatch "%f[%w]X%((cu%w+_?v?2?)%)" do names[#names + 1] = name end
      for before, after in text:gmatch "BOTH%(X, (cu%w+), ([%w_]+)%)" do
        for _, letter in ipairs { "S", "D" } do names[#names + 1] = before .. letter .. after end
      end
      local program = { "local ffi = require 'ffi' local libraries = {}" }
      for _, name in ipairs(names) do
        local its = ("%s/lib64/lib%s.so"):format(root, name:match "^cufft" or name:match "^cublas" or "cusolver")
        if not temp.exists(its) then return pending("it needs " .. its) end
        program[#program + 1] = ("ffi.cdef 'int %s(void);' libraries[%q] = libraries[%q] or ffi.load(%q)"):format(name,
          its, its, its)
        program[#program + 1] = ("assert(libraries[%q].%s)"):format(its, name)
        asked = asked + 1
      end
      local ok, output = temp.run(folder, "LD_PRELOAD= luajit "
        .. temp.write(folder .. "/names.lua", table.concat(program, "\n")))
      assert(ok, output)
    end
    assert(asked > 60, "only " .. asked .. " names")
  end)
end)
