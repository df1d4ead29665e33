-- Tests captures: waits, events, other streams, tensors that are read and written. Needs a CUDA device, or a fake one.
local ffi = require "ffi"
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end

local function fake(name)
  return pcall(ffi.cdef, "void lm_fake_fail(const char *, long, int); long lm_fake_call_count(const char *);") and
    pcall(function() return ffi.C[name] end) and ffi.C[name]
end

local function ones(...) return lm.ones({...}, {device = "cuda"}) end

describe("a capture", function()
  it("has no place for waits", function()
    local x, event = ones(4), lm.cuda.Event()
    event:record()
    for what, f in pairs {
      ["synchronize"] = lm.cuda.synchronize,
      ["event.synchronize"] = function() event:synchronize() end,
      ["event.query"] = function() event:query() end,
      ["query"] = function() lm.cuda.current_stream():query() end,
    } do
      local ok, message = pcall(lm.cuda.graph, function()
        x:add_(1)
        f()
      end, {warmup = 0})
      assert.is_false(ok)
      assert.matches("graph: cannot call " .. what .. " during capture", message, 1, true)
    end
    assert.equal(4, x:sum():item()) -- nothing of it has run
    lm.cuda.synchronize()
  end)

  it("takes in the streams it is given work on", function()
    local side, other, x = lm.cuda.Stream(), lm.cuda.Stream(), ones(256)
    lm.cuda.stream(other, function() x:mul_(3) end) -- before it: all of that is done
    local graph = lm.cuda.graph(function()
      local alone = lm.cuda.stream(other, function() return lm.full({256}, 5, {device = "cuda"}) end)
      local doubled = lm.cuda.stream(side, function() return x * 2 end)
      return doubled + 1, alone
    end, {warmup = 1})
    for k = 1, 3 do
      x:fill_(k)
      graph.results[2]:fill_(-1)
      graph:replay()
      assert.equal(256 * (2 * k + 1), graph.results[1]:sum():item())
      assert.equal(256 * 5, graph.results[2]:sum():item())
    end
    lm.cuda.stream(side, function() x:fill_(7) end) -- this fill is no longer part of the graph
    assert.equal(256 * 7, x:sum():item())
  end)

  it("keeps its events to itself", function()
    local event, x = lm.cuda.Event(), ones(3)
    lm.cuda.graph(function()
      x:add_(1)
      event:record()
      lm.cuda.current_stream():wait_event(event)
    end, {warmup = 0})
    for _, f in ipairs {event.query, event.synchronize, event.wait} do
      local ok, message = pcall(f, event)
      assert.is_false(ok)
      assert.matches("the event was recorded during a graph capture", message, 1, true)
    end
    event:record()
    event:synchronize()
    assert.is_true(event:query())
  end)

  it("holds no other graph", function()
    local x = ones(3)
    local graph = lm.cuda.graph(function() x:add_(1) end, {warmup = 0})
    local ok, message = pcall(lm.cuda.graph, function() graph:replay() end, {warmup = 0})
    assert.is_false(ok)
    assert.matches("graph: cannot replay during a capture of this thread", message, 1, true)
    graph:replay()
    assert.equal(6, x:sum():item())
  end)

  it("keeps alive what it changes", function()
    local graph
    do
      local x = ones(5000)
      graph = lm.cuda.graph(function() x:fill_(-1) end, {warmup = 0})
    end
    collectgarbage() collectgarbage()
    local others = {}
    for k = 1, 20 do others[k] = ones(5000) end
    graph:replay()
    for _, other in ipairs(others) do assert.equal(5000, other:sum():item()) end
  end)

  it("never hands on pinned memory that a replay reads", function()
    local x, y = lm.full({64}, 3):pin_memory(), ones(64)
    local graph = lm.cuda.graph(function() y:copy_(x, {non_blocking = true}) end, {warmup = 0})
    x:free()
    lm.cuda.synchronize()
    for _ = 1, 4 do lm.zeros({64}):pin_memory() end
    graph:replay()
    assert.equal(64 * 3, y:sum():item())
  end)

  it("is left alone by other threads, which go on with their work", function()
    lm.mp.spawn(function(rank)
      local cuda, device = require("luminary").cuda, "cuda:" .. rank % require("luminary").cuda.device_count()
      local x = require("luminary").ones({300}, {device = device})
      for k = 1, 6 do
        x:fill_(k)
        local graph = cuda.graph(function() return (x + 1) * 2 end, {warmup = 1, device = device})
        for j = 1, 4 do
          x:fill_(j)
          graph:replay()
          cuda.synchronize(device)
          assert(graph.results[1]:sum():item() == 600 * (j + 1))
        end
        collectgarbage()
        cuda.empty_cache(device)
      end
    end, {nprocs = 3, method = "thread"})
  end)

  it("counts its random numbers on after all of its streams", function()
    local side, x = lm.cuda.Stream(), ones(512)
    local function draw() return lm.cuda.stream(side, function() return lm.dropout(x, 0.5) end) end
    local want = {}
    lm.manual_seed(7)
    for k = 1, 3 do want[k] = draw():cpu() end
    lm.manual_seed(7)
    local graph = lm.cuda.graph(draw, {warmup = 0})
    for k = 1, 3 do
      graph:replay()
      assert.is_true(graph.results[1]:cpu():equal(want[k]), "replay " .. k)
    end
  end)

  it("may meet a product for the first time, or says to warm up", function()
    local x, fail = ones(5, 7), fake "lm_fake_fail"
    local graph = lm.cuda.graph(function() return x:mm(x:t()) end, {warmup = 0})
    graph:replay()
    assert.equal(5 * 5 * 7, graph.results[1]:sum():item())
    if not fail then return end
    fail("cublasLtMatmulAlgoGetHeuristic", 1, 14)
    local ok, message = pcall(lm.cuda.graph, function() return x:t():mm(x) end, {warmup = 0})
    fail(nil, 0, 0)
    assert.is_false(ok)
    assert.matches("error 14.*run the same once before the capture", message)
  end)

  -- Giving memory back and making handles wait for the whole card, which is the end of a capture there.
  it("is not broken by what another thread frees, or begins to use", function()
    local gate = os.tmpname()
    os.remove(gate)
    lm.mp.spawn(function(i, name)
      local there, own = require "luminary", require "ffi"
      pcall(own.cdef, "int usleep(unsigned);")
      local ready, over = name .. ".ready", name .. ".over"
      local function touch(path) io.open(path, "w"):close() end
      local function await(path)
        for _ = 1, 1000 do
          local file = io.open(path)
          if file then return file:close() end
          own.C.usleep(10000)
        end
        error("no " .. path)
      end
      local x = there.ones({64}, {device = "cuda"})
      if i == 0 then
        local graph = there.cuda.graph(function()
          local y = x + 1
          touch(ready)
          await(over)
          return y * 2
        end, {warmup = 0})
        x:fill_(2)
        graph:replay()
        assert(graph.results[1]:sum():item() == 6 * 64)
      else
        local large, pinned = there.ones({3e6}, {device = "cuda"}), there.ones({3000}):pin_memory()
        large:free()
        pinned:free()
        await(ready)
        there.cuda.empty_cache()
        local a = there.ones({1, 2, 5, 5}, {device = "cuda"})
        assert(there.conv2d(a, there.ones({3, 2, 3, 3}, {device = "cuda"})):sum():item() == 3 * 9 * 18)
        assert(a:view(5, 10):mm(a:view(10, 5)):sum():item() == 250)
        there.profile(function() return x * 3 end)
        touch(over)
      end
    end, {nprocs = 2, method = "thread", args = {gate}})
    os.remove(gate .. ".ready")
    os.remove(gate .. ".over")
  end)

  it("says what failed first", function()
    local fail = fake "lm_fake_fail"
    if not fail then return end
    local x, side = ones(3), lm.cuda.Stream()
    local ok, message = pcall(lm.cuda.graph, function()
      lm.cuda.stream(side, function() x:add_(1) end)
      fail("cudaEventRecord", 1, 800) -- the end joins the other stream
    end, {warmup = 0})
    fail(nil, 0, 0)
    assert.is_false(ok)
    assert.matches("cudaEventRecord: error 800", message, 1, true)
    assert.equal(3, x:sum():item())
  end)
end)

describe("a small copy to the device", function()
  it("waits for nothing, and may be followed by any change of its source", function()
    local calls = fake "lm_fake_call_count"
    local x, y = lm.ones {4096}, lm.zeros({4096}, {device = "cuda"})
    lm.cuda.synchronize()
    local function waits() return calls and tonumber(calls "cudaStreamSynchronize") end
    local before = waits()
    y:copy_(x)
    x:fill_(9)
    local z = x:to("cuda")
    x:fill_(11)
    assert.equal(before, waits())
    assert.equal(4096, y:sum():item())
    assert.equal(9 * 4096, z:sum():item())
    local pinned = lm.full({64}, 2):pin_memory()
    before = waits()
    local w = pinned:to("cuda") -- blocking, so it may change at once
    pinned:fill_(3)
    assert.equal(before, waits())
    assert.equal(128, w:sum():item())
  end)
end)
