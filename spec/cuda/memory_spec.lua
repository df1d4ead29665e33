-- Device memory: cut as PyTorch publishes it, kept a stream, given back under pressure.
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end
local temp = require "spec.support.temp"
local cuda = lm.cuda
local MB = 2 ^ 20

local function bytes(n) return lm.empty({n}, {dtype = "uint8", device = "cuda"}) end

local function settle()
  for _ = 1, 2 do collectgarbage() end
  cuda.synchronize()
  cuda.empty_cache()
end

local function held() return cuda.memory_allocated(), cuda.memory_reserved() end

describe("blocks on a CUDA device", function()
  before_each(settle)

  it("are multiples of 512 bytes, from segments of 2 and 20 MiB or their own", function()
    local a0, r0 = held()
    local function grown()
      local a, r = held()
      return {a - a0, (r - r0) / MB}
    end
    local keep = {bytes(1), bytes(513)}
    assert.same({512 + 1024, 2}, grown())
    keep[3] = bytes(MB) -- the largest small one
    assert.same({1536 + MB, 2}, grown())
    keep[4] = bytes(MB + 1) -- large
    assert.same({1536 + 2 * MB + 512, 22}, grown())
    keep[5] = bytes(10 * MB - 1)
    assert.same({1536 + 12 * MB + 512, 22}, grown())
    keep[6] = bytes(11 * MB) -- on its own, in steps of 2 MiB; a rest of 1 MiB is not cut off
    assert.same({1536 + 24 * MB + 512, 34}, grown())
    for _, x in ipairs(keep) do x:free() end
    assert.same({0, 34}, grown())
    assert.is_true(cuda.max_memory_reserved() - r0 >= 34 * MB)
    cuda.empty_cache()
    assert.same({0, 0}, grown())
  end)

  it("of one stream are used again by it, and by another only when there is nothing else", function()
    local side = cuda.Stream()
    local a = bytes(30 * MB)
    local where = tostring(a:data_ptr())
    a:free()
    local b = cuda.stream(side, function() return bytes(30 * MB) end)
    assert.not_equal(where, tostring(b:data_ptr()))
    local c = bytes(30 * MB)
    assert.equal(where, tostring(c:data_ptr()))
    c:fill_(1)
    c:free()
    local _, reserved = held()
    local _, total = cuda.mem_get_info()
    cuda.set_per_process_memory_fraction((reserved + MB) / total)
    local d = cuda.stream(side, function() return bytes(30 * MB):fill_(2) end)
    cuda.set_per_process_memory_fraction(1)
    assert.equal(where, tostring(d:data_ptr()))
    assert.equal(2, d:max():item())
    b:free()
    d:free()
  end)

  it("make room for each other before an error with words", function()
    local _, total = cuda.mem_get_info()
    local a0, r0 = held()
    assert.is_true(r0 < 64 * MB)
    cuda.set_per_process_memory_fraction(96 * MB / total)
    finally(function() cuda.set_per_process_memory_fraction(1) end)
    bytes(40 * MB) -- garbage, found by the collector when memory is short
    bytes(20 * MB)
    local a = bytes(60 * MB)
    local ok, message = pcall(bytes, 50 * MB)
    assert.is_false(ok)
    assert.matches("cannot allocate 50.0 MiB on cuda:0: out of memory; [%d.]+ %w+ free of [%d.]+ %w+, [%d.]+ MiB " ..
      "reserved by this process, limited to 96.0 MiB, 60.%d MiB of them allocated", message)
    a:free()
    bytes(50 * MB):free()
    assert.equal(a0, (held()))
    assert.error_matches(function() cuda.set_per_process_memory_fraction(1.5) end,
      "set_per_process_memory_fraction: fraction must be from 0 to 1, got 1.5")
  end)
end)

describe("guarded blocks on a CUDA device", function()
  it("are as large as their tensor, and the driver's own #unsanitized", function() -- sanitizers poison blocks instead
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local script = temp.write(folder .. "/script.lua", [[
      local lm = require "luminary"
      local function bytes(n) return lm.empty({ n }, { dtype = "uint8", device = "cuda" }) end
      local function told() print(lm.cuda.memory_allocated(), lm.cuda.memory_reserved()) end
      local a, b = bytes(100), bytes(3 * 2 ^ 20 + 1)
      told()
      a:free()
      told()
      b:free()
      told()
      local graph = lm.cuda.graph(function() a = lm.zeros({ 100 }, { device = "cuda" }) + 1 end)
      graph:replay()
      print(a:sum():item())
    ]])
    local ok, text = temp.run(folder, "LM_GUARD_BLOCKS=1 luajit " .. script)
    assert(ok, text)
    assert.equal("3145856\t3145856\n3145744\t3145744\n0\t0\n100\n", text)
  end)
end)

describe("pinned memory", function()
  it("is kept and used again", function()
    local x = lm.rand {1000}
    local p = x:pin_memory()
    assert.is_true(p:is_pinned())
    assert.is_false(x:is_pinned())
    local part = p[{{2, 10}}]
    assert.is_true(part:is_pinned())
    part:free()
    assert.is_true(p:equal(x))
    local where = tostring(p:data_ptr())
    p:free()
    local q = lm.rand({900}):pin_memory() -- p's size rounds to the same power of two
    assert.equal(where, tostring(q:data_ptr()))
    local there = q:cuda(0, {non_blocking = true})
    q:free()
    local r = lm.zeros({1000}):pin_memory() -- q may still be read, unless the runtime does everything at once
    if not os.getenv "LM_FAKE_CUDA_EAGER" then assert.not_equal(where, tostring(r:data_ptr())) end
    cuda.synchronize()
    r:free()
    assert.is_true(there:sum():item() > 0)
    local back = lm.empty({900}):pin_memory()
    back:copy_(there, {non_blocking = true})
    cuda.current_stream():synchronize()
    assert.is_true(back:equal(there:cpu()))
  end)
end)

describe("what backward reads of a CUDA device", function()
  before_each(settle)

  -- Bytes that are allocated when f has returned, whose results live.
  local function kept(f)
    local before = held()
    local result = f()
    local bytes_now = held() - before
    return bytes_now, result
  end

  it("is a byte of each maximum and a bit of each element of a relu with an addend", function()
    local F = lm.nn.functional
    local function leaf(dtype)
      return lm.zeros({4, 16, 32, 32}, {device = "cuda", dtype = dtype}):requires_grad_()
    end
    for dtype, size in pairs {float64 = 8, float32 = 4, bfloat16 = 2} do
      local x, addend, n = leaf(dtype), leaf(dtype), 4 * 16 * 32 * 32
      local function pooled() return F.max_pool2d(x, 2) end
      assert.equal(n / 4 * (size + 1), kept(pooled))
      assert.equal(n / 4 * size, kept(function() return lm.no_grad(pooled) end))
      local function added() return F.batch_norm_relu(x, nil, nil, nil, nil, addend, {training = true}) end
      local statistics = 2 * 512
      assert.equal(n * size + n / (16 / size) + statistics, kept(added))
      assert.equal(n * size, kept(function() return lm.no_grad(added) end))
    end
  end)
end)
