-- lm.async on a device: each worker computes on a stream of its own, and a future's end is that of its work there.
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
if core.device_count("cuda") == 0 then return end
ffi.cdef [[
long lm_fake_stream_launches(void *stream); long lm_fake_stream_waits(void *stream, void *on);
]]
local is_fake = pcall(function() return ffi.C.lm_fake_stream_launches end)
local device = "cuda:0"

local function native(id) return core.stream_native(device, id) end
local function launches(id) return tonumber(ffi.C.lm_fake_stream_launches(native(id))) end
local function waits(id, on) return tonumber(ffi.C.lm_fake_stream_waits(native(id), native(on))) end

-- Calls f(...) on each of two workers; returns both results. Neither ends before both have begun.
local function on_both(f, ...)
  local both = lm.mp.Barrier(2)
  local futures = {}
  for i = 1, 2 do
    futures[i] = lm.async(function(barrier, fn, ...)
      barrier:wait(30)
      return fn(...)
    end, both, f, ...)
  end
  return futures[1]:get(30), futures[2]:get(30)
end

local function current() return require("luminary.core").stream_current("cuda:0") end

describe("lm.async on a device", function()
  local function start()
    lm.set_async {workers = 2, threads = 1}
    on_both(current)
  end
  setup(start) -- its tensors are counted with the specs'
  teardown(function() lm.set_async {} end)

  it("computes on a stream of each worker, which is not the owner's", function()
    if not is_fake then pending("the stand-in alone counts launches of a stream") end
    local net = lm.nn.Linear(4, 4):to(device)
    local x = lm.ones({2, 4}, {device = device})
    local a, b = on_both(current)
    assert.is_true(a > 0 and b > 0 and a ~= b)
    local before = {[0] = launches(0), [a] = launches(a), [b] = launches(b)}
    on_both(function(m, input) m(input):relu() end, net, x)
    assert.equal(before[0], launches(0))
    assert.is_true(launches(a) > before[a])
    assert.is_true(launches(b) > before[b])
    assert.same({a, b}, {on_both(current)})
  end)

  it("reads shared weights on all workers at once, behind what the owner wrote", function()
    if not is_fake then pending("the stand-in alone counts waits of a stream") end
    local net, x = lm.nn.Linear(4, 4):to(device), lm.ones({2, 4}, {device = device})
    local a, b = on_both(current)
    local of_owner, between = waits(a, 0) + waits(b, 0), waits(a, b) + waits(b, a)
    for step = 1, 3 do
      lm.no_grad(function() net.weight:fill_(step) net.bias:fill_(0) end)
      local y, z = on_both(function(m, input) return m(input):detach() end, net, x)
      assert.equal(4 * step * 8, y:sum():item())
      assert.equal(4 * step * 8, z:sum():item())
    end
    assert.is_true(waits(a, 0) + waits(b, 0) > of_owner)
    assert.equal(between, waits(a, b) + waits(b, a))
  end)

  it("is received from a queue without a wait of one thread for another", function()
    if not is_fake then pending("the stand-in alone counts waits of a stream") end
    local a, b = on_both(current)
    local between = waits(a, b) + waits(b, a)
    local queue, w = lm.mp.Queue(), lm.ones({64}, {device = device})
    local total = 0
    for _ = 1, 3 do
      queue:put(w)
      queue:put(w)
      local y, z = on_both(function(q) return (q:get {timeout = 30} * 2):sum():item() end, queue)
      total = total + y + z
    end
    assert.equal(6 * 128, total)
    assert.equal(between, waits(a, b) + waits(b, a))
    queue:close()
  end)

  it("orders results, arguments and freed memory between the owner and the workers", function()
    local sums, expected = {}, {}
    for i = 1, 40 do
      local x = lm.full({1000}, i, {device = device})
      x:add_(1)
      local future = lm.async(function(t) return (t * 2):add_(1), t end, x)
      x:free() -- the worker may not have read it yet
      local other = lm.zeros({1000}, {device = device}) -- would take its memory
      local y, same = future:get(30)
      sums[i], expected[i] = y:sum():item() + other:sum():item() + same:sum():item(), 1000 * (2 * (i + 1) + 1 + i + 1)
    end
    assert.same(expected, sums)
    local x = lm.zeros({1000}, {device = device})
    for i = 1, 10 do
      x:add_(1)
      lm.async(function(t, s) require("luminary").cuda.stream(require("luminary").cuda.Stream(), function()
        t:add_(s)
      end) end, x, i):get(30)
    end
    assert.equal(1000 * 65, x:sum():item())
  end)

  it("has done its work when its future ends, and gives a kernel's error to the call that caused it", function()
    local x = lm.ones({3, 2}, {device = device})
    local function take(t, i)
      return t:index_select(1, require("luminary").tensor({i}, {dtype = "int64", device = "cuda:0"}))
    end
    local futures = {}
    for i = 1, 6 do futures[i] = lm.async(take, x, i) end
    for i = 1, 6 do
      if i <= 3 then
        assert.equal(2, futures[i]:get(30):sum():item())
      else
        assert.matches(("index_select: index %d at position 1 is out of range"):format(i),
          select(2, pcall(futures[i].get, futures[i], 30)), 1, true)
      end
    end
    lm.cuda.synchronize()
    local batcher = lm.serve.Batcher(function(rows) return x:index_select(1, rows) end, {max_wait_ms = 50})
    local function row(i) return batcher:submit(lm.tensor({i}, {dtype = "int64", device = device})) end
    local good, bad = row(2), row(9)
    assert.same({{1, 1}}, good:get(30):totable())
    assert.matches("index 9 at position", select(2, pcall(bad.get, bad, 30)), 1, true)
    batcher:close()
    if not is_fake then return end
    local net = lm.nn.Linear(4, 4):to(device)
    local y = lm.async(net, lm.ones({1, 4}, {device = device})):get(30)
    local owner, first, second = core.stream_current(device), on_both(current)
    local before = waits(owner, first) + waits(owner, second)
    local _ = y + 1
    assert.equal(before, waits(owner, first) + waits(owner, second))
  end)

  it("leaves a worker's stream to the next one", function()
    local seen, count = {}, 0
    for _ = 1, 80 do
      lm.set_async {workers = 1, threads = 1}
      local id = lm.async(function() return require("luminary.core").stream_current("cuda:0") end):get(30)
      if not seen[id] then seen[id], count = true, count + 1 end
    end
    start()
    assert.is_true(count <= 3, count .. " streams")
  end)
end)
