-- lm.profile and memory snapshots on a device: its time by events, ranges of NVTX, and failures of the driver.
local scripts = require "spec.support.cuda_scripts"

local test = scripts.tests(it, pending, [[
  ffi.cdef "const char *lm_fake_ranges(void);"
  local function row_of(prof, name, opts)
    for _, row in ipairs(prof:rows(opts)) do if row.name == name then return row end end
  end
  -- Returns device, stream, and seconds there, of the spans of a name.
  local function times_of(prof, name)
    local list = {}
    for i = 1, prof.recording:count() do
      local got = {prof.recording:span(i)}
      if got[1] == name then list[#list + 1] = {device = got[14], stream = got[15], start = got[16], time = got[17]} end
    end
    return list
  end
  local x = lm.ones({256, 256}, {device = "cuda"})
]])

describe("a profile on a device #fake", function()
  test("measures its time by events, without a wait, and leaves no event behind", [[
    x:exp() -- the first use of what ops need
    local events = live "event"
    local waits = calls "cudaEventSynchronize" + calls "cudaStreamSynchronize"
    local within
    local prof = lm.profile(function()
      for _ = 1, 10 do x:exp() end
      within = calls "cudaEventSynchronize" + calls "cudaStreamSynchronize"
    end)
    assert(within == waits)
    local row = row_of(prof, "exp")
    assert(row.calls == 10 and row.device == "cuda:0" and row.device_time > 0)
    assert(math.abs(row.device_time - row.self_device_time) < 1e-9)
    local spans = times_of(prof, "exp")
    for i = 2, 10 do assert(spans[i].start >= spans[i - 1].start + spans[i - 1].time - 1e-9) end
    assert(tostring(prof):find("Self device", 1, true) and tostring(prof):find("on devices", 1, true))
    prof = nil
    collectgarbage()
    assert(live "event" - events <= 32, live "event" - events) -- some are kept for later use
    for _ = 1, 20 do lm.profile(function() for _ = 1, 10 do x:exp() end end) end
    assert(live "event" - events <= 32, live "event" - events)
  ]])

  test("has the device's times on the host's clock, however long its queue was", [[
    x:exp()
    lm.cuda.synchronize()
    local prof, queued = lm.profile(function()
      for _ = 1, 10 do x:exp() end -- the stand-in begins work when somebody waits for it
      os.execute "sleep 0.2"
      return lm.time()
    end)
    local ended = lm.time()
    for _, span in ipairs(times_of(prof, "exp")) do
      assert(span.start >= queued - 1e-3 and span.start + span.time <= ended, span.start - queued)
    end
  ]], "LM_FAKE_CUDA_EAGER=0")

  test("keeps the digits of microseconds over minutes", [[
    local small, began, after = lm.ones({4}, {device = "cuda"}), lm.time(), 0
    local prof = lm.profile(function()
      repeat
        small:exp()
        if lm.time() > began + 0.15 then after = after + 1 end
      until lm.time() > began + 0.4 and after > 100 -- 400 s of the device
    end)
    local spans, late, lost = times_of(prof, "exp"), 0, 0
    local ulp = 2 ^ -6 * 1e-3 -- unit of floats of milliseconds, from 131 s on
    for i = 2, #spans do
      if spans[i - 1].start > spans[1].start + 132 then
        local steps = (spans[i].start - spans[i - 1].start) / ulp
        late = late + 1
        if math.abs(steps - math.floor(steps + 0.5)) < 1e-3 then lost = lost + 1 end
      end
    end
    assert(late > 50 and lost < late / 4, late .. " " .. lost)
  ]], "LM_FAKE_CUDA_CLOCK=1000 LM_FAKE_CUDA_EAGER=1")

  test("has copies to and from it, and what makes tensors there", [[
    local host = lm.ones(256, 256)
    local prof = lm.profile(function()
      local there = host:to "cuda"
      there:cpu()
      host:copy_(there)
      lm.zeros({4, 4}, {device = "cuda"})
      lm.randn({4, 4}, {device = "cuda"})
      lm.zeros(4, 4)
    end)
    for name, n in pairs {to_copy = 2, copy_ = 1, randn = 1} do
      local spans = times_of(prof, name)
      assert(#spans == n, name)
      for _, span in ipairs(spans) do assert(span.device == "cuda:0" and span.time, name) end
    end
    local zeros = times_of(prof, "zeros")
    assert(zeros[1].device == "cuda:0" and zeros[1].time and not zeros[2].time)
  ]])

  test("tells streams and devices apart, and subtracts what lies within", [[
    local other = lm.ones({64, 64}, {device = "cuda:1"})
    local side = lm.cuda.Stream()
    local w = lm.ones({256, 256}, {device = "cuda", requires_grad = true})
    local prof = lm.profile(function()
      x:exp()
      lm.cuda.stream(side, function() x:exp() end)
      other:exp()
      x:mm(w):sum():backward()
    end)
    local spans = times_of(prof, "exp")
    assert(spans[1].stream ~= spans[2].stream and spans[3].device == "cuda:1")
    local row, outer, inner = row_of(prof, "mm backward"), times_of(prof, "mm backward")[1], times_of(prof, "mm")[2]
    assert(inner.start >= outer.start - 1e-9 and inner.start + inner.time <= outer.start + outer.time + 1e-9)
    assert(row.self_device_time <= row.device_time - inner.time + 1e-9)
    local path = os.tmpname()
    prof:export_chrome_trace(path)
    local file = io.open(path)
    local trace = lm.core.json_decode(file:read "*a")
    file:close()
    os.remove(path)
    local names, rows = {}, {}
    for _, event in ipairs(trace.traceEvents) do
      if event.ph == "M" then names[event.args.name] = true end
      if event.ph == "X" and event.pid > 1 then rows[event.pid .. " " .. event.tid] = true end
    end
    assert(names["cuda:0"] and names["cuda:1"])
    local n = 0
    for _ in pairs(rows) do n = n + 1 end
    assert(n == 3, n)
  ]], "LM_FAKE_CUDA_DEVICES=2")

  test("has the replay of a graph", [[
    local graph = lm.cuda.graph(function() return x:exp() end)
    local prof = lm.profile(function() for _ = 1, 3 do graph:replay() end end)
    local row = row_of(prof, "graph replay")
    assert(row.calls == 3 and row.device_time > 0)
    prof = lm.profile(function() lm.cuda.graph(function() x:exp() end, {warmup = 0}) end)
    assert(row_of(prof, "exp").device_time == 0) -- captured, not run
  ]])

  test("leaves out what the driver does not measure", [[
    x:exp()
    for _, name in ipairs {"cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventElapsedTime"} do
      for nth = 1, 4 do
        local before = calls(name)
        local prof = lm.profile(function()
          fake.lm_fake_fail(name, nth, 2)
          for _ = 1, 3 do x:exp() end
        end)
        fake.lm_fake_fail(name, 0, 0)
        local row = row_of(prof, "exp")
        assert(row.calls == 3 and row.time > 0, name)
        assert(lm.equal(x:exp():cpu(), x:cpu():exp()))
      end
    end
  ]])

  test("drops spans with their events", [[
    x:exp()
    local prof = lm.profile(function()
      for _ = 1, 500 do x:exp() end
    end, {max_events = 5})
    assert(prof.dropped == 495 and prof.recording:count() == 5)
    assert(live "event" < 100, live "event")
  ]])

  test("shows its spans to a tool for NVTX", [[
    local text = function() return ffi.string(fake.lm_fake_ranges()) end
    assert(text() == "")
    lm.profile(function() lm.record_function("mine", function() x:exp() end) end)
    assert(text() == "", text()) -- without the option there are no ranges
    lm.profile(function()
      lm.record_function("mine", function() x:exp() end)
      pcall(lm.record_function, "failing", function() x:mm(lm.ones({3, 3}, {device = "cuda"})) end)
    end, {nvtx = true})
    assert(text():find("push mine,push exp,pop,pop,push failing", 1, true), text())
    local _, pushed = text():gsub("push", "")
    local _, popped = text():gsub("pop", "")
    assert(pushed == popped, text())
    lm.cuda.nvtx.range_push "a"
    lm.cuda.nvtx.mark "b"
    lm.cuda.nvtx.range_pop()
    assert(text():find("push a,mark b,pop$"), text())
  ]], "NVTX_INJECTION64_PATH='" .. scripts.library .. "'")

  test("costs no call of the driver once it is over", [[
    local function cost()
      local before = calls(nil)
      for _ = 1, 10 do x:add_(1) end
      return calls(nil) - before
    end
    cost()
    local before = cost()
    lm.profile(function() x:exp() end, {nvtx = true})
    assert(cost() == before)
  ]])
end)

describe("a memory snapshot #fake", function()
  test("has the memory of a device", [[
    lm.record_memory_history()
    local kept = lm.zeros({1000}, {device = "cuda"})
    local row = lm.memory_snapshot():rows()[1]
    assert(row.device == "cuda:0" and row.bytes == 4000 and row.op == "zeros" and row.line:find(":%d+$"), row.device)
    kept:free()
    assert(#lm.memory_snapshot():rows() == 0)
  ]])
end)
