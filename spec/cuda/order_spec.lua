-- Work on many streams and devices happens in the order of the script, whatever streams it is given to, and memory is
-- not used again before all are through with it. The fake runtime works as late and as unfairly as CUDA may.
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end

local devices = {"cuda:0"}
if core.device_count("cuda") > 1 then devices[2] = "cuda:1" end

-- Runs a random program on streams of several devices and on the CPU; integers in float64 show the order exactly.
local function play(seed, steps)
  math.randomseed(seed)
  local streams = {}
  for _, device in ipairs(devices) do
    for k = 1, 3 do
      local stream = lm.cuda.Stream(device, {priority = k == 1 and -1 or 0})
      streams[#streams + 1] = {device = device, stream = stream}
    end
    streams[#streams + 1] = {device = device, stream = lm.cuda.default_stream(device)}
  end
  local n, size = 8, {64}
  local there, here = {}, {}
  local function fresh(device)
    local host = lm.randint(-5, 6, size, {dtype = "float64"})
    if math.random() < 0.5 then
      local pinned = host:pin_memory()
      local moved = pinned:to(device, {non_blocking = true})
      pinned:free() -- the copy must have read its memory before that is used again
      return moved, host
    end
    return host:to(device), host
  end
  for i = 1, n do there[i], here[i] = fresh(devices[1 + i % #devices]) end
  for _ = 1, steps do
    local at = streams[math.random(#streams)]
    local i, j, k = math.random(n), math.random(n), math.random(n)
    lm.cuda.stream(at.stream, function()
      local what = math.random(8)
      local a = there[i]:to(at.device)
      if what == 1 then
        there[k]:free()
        there[k], here[k] = fresh(at.device)
      elseif what == 2 then
        there[k], here[k] = a:clone(), here[i]:clone()
      elseif what == 3 then -- in place, where it lies
        local on = there[k].device
        local b = there[j]:to(on):clamp(-3, 3)
        there[k]:add_(b)
        here[k]:add_(here[j]:clamp(-3, 3))
      elseif what == 4 then
        there[k]:fill_(i)
        here[k]:fill_(i)
      elseif what == 5 then
        there[k]:copy_(there[j])
        here[k]:copy_(here[j])
      elseif what == 6 then -- intermediate results come and go
        local t = (a * 2):clamp(-9, 9)
        local u = t - there[j]:to(at.device)
        t:free()
        there[k], here[k] = u:clamp(-9, 9), ((here[i] * 2):clamp(-9, 9) - here[j]):clamp(-9, 9)
      elseif what == 7 then
        assert.equal(here[i]:sum():item(), a:sum():item())
      else
        there[k][{{1, 32}}] = a[{{33, 64}}]
        here[k][{{1, 32}}] = here[i]:clone()[{{33, 64}}]
      end
    end)
    there[k]:clamp_(-9, 9)
    here[k]:clamp_(-9, 9)
  end
  for i = 1, n do
    local got = there[i]:cpu()
    assert(got:equal(here[i]), ("seed %d: tensor %d differs"):format(seed, i))
  end
end

describe("streams", function()
  it("keep a script's order among tensors they share", function()
    local long = os.getenv "LM_TEST_LONG" == "1"
    for seed = 1, long and 200 or 12 do play(seed, 60) end
  end)

  it("do not wait for what they have waited for", function()
    local ffi = require "ffi"
    if not pcall(ffi.cdef, "long lm_fake_call_count(const char *name);") then return end
    if not pcall(function() return ffi.C.lm_fake_call_count end) then return end
    local function waits() return tonumber(ffi.C.lm_fake_call_count "cudaStreamWaitEvent") end
    local side = lm.cuda.Stream()
    collectgarbage()
    lm.cuda.empty_cache() -- memory that other streams have used is waited for, too
    local x = lm.ones({4}, {device = "cuda"})
    local before = waits()
    lm.cuda.stream(side, function() for _ = 1, 5 do local _ = x + 1 end end)
    assert.equal(1, waits() - before)
    local _ = x + 1 -- only x's own stream has written x
    assert.equal(1, waits() - before)
    x:add_(1) -- a write waits for the readers
    assert.equal(2, waits() - before)
    for _ = 1, 5 do x:add_(1) end
    assert.equal(2, waits() - before)
    lm.cuda.synchronize()
    lm.cuda.stream(side, function() local _ = x + 1 end) -- all is done
    assert.equal(2, waits() - before)
  end)

  it("hand freed memory on within a stream at once, and never across while it is used", function()
    local side = lm.cuda.Stream()
    lm.cuda.synchronize()
    local a = lm.ones({1000}, {device = "cuda"})
    local where = tostring(a:data_ptr())
    a:free()
    local b = lm.full({1000}, 2, {device = "cuda"})
    assert.equal(where, tostring(b:data_ptr()))
    local sum = lm.cuda.stream(side, function() return b:sum() end)
    b:free() -- read on `side`, which is not done
    local c = lm.full({1000}, 3, {device = "cuda"})
    assert.equal(2000, sum:item())
    assert.equal(3000, c:sum():item())
    lm.cuda.stream(side, function()
      local d = lm.full({1000}, 4, {device = "cuda"})
      assert.not_equal(where, tostring(d:data_ptr()))
    end)
  end)

  it("go on after errors of kernels", function()
    local side = lm.cuda.Stream()
    local x = lm.ones({3, 2}, {device = "cuda"})
    local bad = lm.tensor({9}, {dtype = "int64", device = "cuda"})
    lm.cuda.stream(side, function() x:index_select(1, bad) end)
    local ok, message = pcall(side.synchronize, side)
    assert.is_false(ok)
    assert.matches("index_select: index 9 at position 1 is out of range for 3 entries", message, 1, true)
    side:synchronize()
    lm.cuda.stream(side, function() x:index_select(1, lm.tensor({0}, {dtype = "int64", device = "cuda"})) end)
    ok, message = pcall(lm.cuda.synchronize)
    assert.is_false(ok)
    assert.matches("index 0 at position 1 is out of range for 3 entries (indices start at 1", message, 1, true)
    assert.equal(6, x:sum():item())
  end)
end)

describe("graphs and streams", function()
  it("a replay goes on after what wrote its inputs, and before what reads its results", function()
    local side, other = lm.cuda.Stream(), lm.cuda.Stream()
    local x, y = lm.zeros({512}, {device = "cuda"}), lm.zeros({512}, {device = "cuda"})
    local graph = lm.cuda.graph(function()
      y:copy_(x * 2)
      y:add_(1)
    end, {warmup = 1})
    for k = 1, 6 do
      lm.cuda.stream(side, function() x:fill_(k) end)
      if k % 2 == 0 then
        graph:replay()
      else
        lm.cuda.stream(other, function() graph:replay() end)
      end
      local sum = lm.cuda.stream(side, function() return y:sum() end)
      local again = y:sum()
      assert.equal(512 * (2 * k + 1), sum:item())
      assert.equal(512 * (2 * k + 1), again:item())
    end
  end)

  it("keeps its memory from others, and gives it back when it goes", function()
    lm.cuda.synchronize()
    collectgarbage() collectgarbage()
    lm.cuda.empty_cache()
    local before = lm.cuda.memory_reserved()
    local x = lm.ones({1000}, {device = "cuda"})
    local function use()
      local graph = lm.cuda.graph(function() return (x + 1) * 2 end, {warmup = 0})
      for _ = 1, 50 do local _ = lm.full({1000}, -1, {device = "cuda"}) end
      graph:replay()
      assert.equal(4000, graph.results[1]:sum():item())
    end
    use()
    x:free()
    collectgarbage() collectgarbage()
    lm.cuda.synchronize()
    lm.cuda.empty_cache()
    assert.is_true(lm.cuda.memory_reserved() <= before)
  end)

  it("says what cannot be captured, and works afterwards", function()
    local x = lm.ones({4}, {device = "cuda"})
    local ok, message = pcall(lm.cuda.graph, function() return x:sum():item() end, {warmup = 0})
    assert.is_false(ok)
    assert.matches("graph: cannot read a value on cuda:0 during capture", message, 1, true)
    ok, message = pcall(lm.cuda.graph, function() return x:cpu() end, {warmup = 0})
    assert.is_false(ok)
    assert.matches("graph: cannot copy between cuda:0 and cpu during capture", message, 1, true)
    ok, message = pcall(lm.cuda.graph, function() error "mine" end, {warmup = 0})
    assert.is_false(ok)
    assert.matches("mine", message, 1, true)
    assert.is_false(lm.cuda.is_current_stream_capturing())
    assert.equal(8, (x * 2):sum():item())
    local graph = lm.cuda.graph(function() x:mul_(2) end, {warmup = 0})
    graph:replay()
    assert.equal(8, x:sum():item())
  end)
end)
