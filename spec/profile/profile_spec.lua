-- lm.profile, lm.record_function, lm.memory_snapshot, lm.graph
local lm = require "luminary"
local message = require "spec.support.error_of"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local nn, F, optim, core = lm.nn, lm.nn.functional, lm.optim, lm.core

local function row_of(rows, name)
  for _, row in ipairs(rows) do
    if row.name == name then return row end
  end
end

local function here() return debug.getinfo(2, "l").currentline end
local FILE = debug.getinfo(1, "S").short_src

describe("profile", function()
  it("counts calls, FLOPs and bytes of ops, and returns what f returns", function()
    local a, b = lm.randn(8, 16), lm.randn(16, 4)
    local x, w = lm.randn(2, 3, 8, 8), lm.randn(5, 3, 3, 3)
    local prof, result = lm.profile(function()
      F.conv2d(x, w, nil, {padding = 1})
      a:mm(b)
      return a:mm(b)
    end)
    assert.same({8, 4}, {unpack(result.shape)})
    local mm, conv = row_of(prof:rows(), "mm"), row_of(prof:rows(), "conv2d")
    assert.equal(2, mm.calls)
    assert.equal(2 * 2 * 8 * 16 * 4, mm.flops)
    assert.equal(2 * 8 * 4 * 4, mm.memory)
    assert.equal(2 * 2 * 5 * 3 * 9 * 64, conv.flops)
    assert.is_true(mm.time >= mm.self_time and mm.self_time > 0)
    assert.is_false(core.is_recording())
    assert.is_truthy(tostring(prof):find("mm", 1, true))
  end)

  it("counts the FLOPs of a convolution's backward as PyTorch does", function()
    local x, w = lm.randn({2, 3, 8, 8}, {requires_grad = true}), lm.randn({5, 3, 3, 3}, {requires_grad = true})
    local y = F.conv2d(x, w)
    local rows = lm.profile(function() y:sum():backward() end):rows()
    assert.equal(2 * 2 * 5 * 3 * 9 * 36, row_of(rows, "conv2d_input").flops)
    assert.equal(2 * 2 * 5 * 3 * 9 * 36, row_of(rows, "conv2d_weight").flops)
  end)

  it("puts backward to the line of forward", function()
    local a, w = lm.randn(8, 16), lm.randn({16, 4}, {requires_grad = true})
    local forward, backward
    local prof = lm.profile(function()
      local y = a:mm(w) forward = here()
      local loss = y:sum()
      loss:backward() backward = here()
    end)
    local rows = prof:rows {group_by = "line"}
    assert.equal(2 * 2 * 8 * 16 * 4, row_of(rows, FILE .. ":" .. forward).flops)
    assert.equal(0, row_of(rows, FILE .. ":" .. backward).flops)
    assert.is_truthy(row_of(prof:rows(), "mm backward"))
  end)

  it("separates shapes", function()
    local prof = lm.profile(function()
      lm.ones(2):exp()
      lm.ones(3):exp()
      lm.ones(3):exp()
    end, {shapes = true})
    local calls = {}
    for _, row in ipairs(prof:rows {group_by = "shapes"}) do
      if row.name == "exp" then calls[row.shapes] = row.calls end
    end
    assert.same({["float32 [2]"] = 1, ["float32 [3]"] = 2}, calls)
  end)

  it("can be used after a profiler that nothing refers to, as where a loop failed", function()
    pcall(function()
      local lost = lm.profile({modules = true}):start()
      error(lost)
    end)
    local prof = lm.profile(function() lm.ones(2) end)
    assert.equal("ones", prof:rows()[1].name)
    prof:start()
    assert.error_matches(function() lm.profile(function() end) end, "a profiler is running already, since .*; stop it")
    prof:stop()
  end)

  it("says how many rows are not shown", function()
    local x, kept = lm.ones(4), {}
    local prof = lm.profile(function() x:exp():log():abs() end)
    assert.matches("\n2 more; {limit = 3} shows all\n", prof:table {limit = 1}, 1, true)
    assert.not_matches(" more", prof:table(), 1, true)
    lm.record_memory_history()
    finally(function() lm.record_memory_history(false) end)
    for i = 1, 3 do kept[i] = lm.ones(2) end
    assert.matches("\n2 more; {limit = 3} shows all\n", lm.memory_snapshot():table {limit = 1, group_by = "none"}, 1,
      true)
    assert.equal(3, #kept)
  end)

  it("has hints for PyTorch's names", function()
    local prof = lm.profile(function() lm.ones(2) end)
    for words, f in pairs {
      ["key_averages'; profiler:table"] = function() prof:key_averages() end,
      ["option 'row_limit'; here it is limit"] = function() prof:table {row_limit = 3} end,
      ["option 'record_shapes'; here it is shapes = true"] = function() lm.profile {record_shapes = true} end,
      ["option 'profile_memory'; memory is always recorded"] = function() lm.profile {profile_memory = true} end,
    } do
      assert.error_matches(f, words)
    end
  end)

  it("has columns of any width", function()
    local name = ("a long name "):rep(20)
    local prof = lm.profile(function() lm.record_function(name, function() return lm.ones(2) end) end)
    assert.is_truthy(prof:table():find("\n" .. name .. " ", 1, true))
    lm.record_memory_history()
    local file = ("folder/"):rep(20) .. "script.lua"
    local kept = assert(loadstring("local kept = require('luminary').ones(1000) return kept", "@" .. file))()
    local text = lm.memory_snapshot():table()
    lm.record_memory_history(false)
    assert.is_truthy(text:find("script.lua:1 ", 1, true) and kept)
  end)

  it("shows ranges, modules, optimizer steps and the wait for data", function()
    local net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    local opt = optim.SGD(net:parameters(), {lr = 0.1})
    local loader = lm.data.DataLoader(lm.data.TensorDataset(lm.randn(8, 4)), {batch_size = 4})
    local prof = lm.profile(function()
      for x in loader:iter() do
        assert.same({1, "two"}, {lm.record_function("mine", function(...) return ... end, 1, "two")})
        net(x):sum():backward()
        opt:step()
      end
    end, {modules = true})
    local rows = prof:rows()
    assert.equal(2, row_of(rows, "mine").calls)
    assert.equal("module", row_of(rows, "Linear").kind)
    assert.equal(2, row_of(rows, "SGD.step").calls)
    assert.equal("optimizer", row_of(rows, "SGD").kind)
    assert.equal("wait", row_of(rows, "DataLoader: next batch").kind)
  end)

  it("stops where f fails, and passes the error on", function()
    local ok, problem = pcall(lm.profile, function()
      lm.record_function("open", function() error({"mine"}) end)
    end)
    assert.is_false(ok)
    assert.equal("mine", problem[1])
    assert.is_false(core.is_recording())
    assert.is_truthy(lm.profile(function() lm.ones(2) end):rows()[1])
  end)

  it("refuses a second one, and stops without a start", function()
    local text = message(function()
      lm.profile(function() lm.profile(function() end) end)
    end)
    assert.is_truthy(text:find("a profiler is running already, since", 1, true))
    assert.is_false(core.is_recording())
    assert.is_truthy(message(function() lm.profile {}:stop() end):find("is not running", 1, true))
    assert.is_truthy(message(function() lm.profile {}:rows() end):find("nothing was recorded", 1, true))
  end)

  it("is ended by an interrupt and by an error within any of its spans, and leaves nothing open", function()
    local net = nn.Sequential(nn.Linear(4, 4))
    local hooked = nn.Linear(4, 4)
    hooked:register_forward_hook(function() error "hook" end)
    local w = lm.ones({2}, {requires_grad = true})
    local opt = optim.SGD({w}, {lr = 0.1})
    local Failing = lm.autograd.Function:extend "Failing"
    function Failing.forward(_, x) return x * 2 end
    function Failing.backward() error "in backward" end
    for words, f in pairs {
      interrupted = function()
        debug.sethook(function() debug.sethook() error "interrupted" end, "", 1000)
        while true do net(lm.ones(1, 4)) end
      end,
      hook = function() hooked(lm.ones(1, 4)) end,
      ["in backward"] = function() Failing(w):sum():backward() end,
      closure = function() opt:step(function() error "closure" end) end,
      within = function()
        lm.record_function("a", function() lm.record_function("b", function() w:mm(w, "within") end) end)
      end,
      coroutine = function()
        local thread = coroutine.wrap(function() lm.record_function("c", function() error "coroutine" end) end)
        thread()
      end,
    } do
      local text = message(function() lm.profile(f, {modules = true}) end)
      if words ~= "within" then assert.is_truthy(text:find(words, 1, true), text) end
      assert.is_false(core.is_recording())
      assert.is_nil(require("luminary.nn.module_fields").call_in_range)
      local recording = lm.profile(function() lm.ones(2) end, {modules = true}).recording
      assert.equal(1, recording:count())
      assert.equal(0, (select(6, recording:span(1)))) -- nothing is around it
    end
  end)

  it("goes on if a second one within it is refused", function()
    local x, inner = lm.ones(2), lm.profile {}
    local prof = lm.profile(function()
      assert.is_truthy(message(function() inner:start() end):find("running already", 1, true))
      assert.is_truthy(message(function() inner:stop() end):find("not running", 1, true))
      x:exp()
    end)
    assert.equal(1, row_of(prof:rows(), "exp").calls)
    -- One whose schedule begins to record while another does: it may not end the other's.
    local late = lm.profile {schedule = {wait = 1, active = 1}}
    late:start()
    local outer = lm.profile {}:start()
    assert.is_truthy(message(function() late:step() end):find("running already", 1, true))
    late:stop()
    x:exp()
    outer:stop()
    assert.equal(1, row_of(outer:rows(), "exp").calls)
    assert.is_truthy(message(function() late:rows() end):find("nothing was recorded", 1, true))
  end)

  it("steps on after an error of on_trace_ready, which may also stop it", function()
    local cycles, x = 0, lm.ones(2)
    local prof = lm.profile {schedule = {active = 1}, on_trace_ready = function()
      cycles = cycles + 1
      if cycles == 1 then error "mine" end
    end}
    prof:start()
    assert.is_truthy(message(function() prof:step() end):find("mine", 1, true))
    for _ = 1, 2 do
      x:exp()
      prof:step()
    end
    prof:stop()
    assert.is_true(cycles >= 2)
    assert.is_false(core.is_recording())
    local once = lm.profile {schedule = {active = 1}, on_trace_ready = function(p)
      if p.is_started then p:stop() end
    end}
    once:start():step()
    assert.is_false(core.is_recording())
    assert.is_truthy(message(function() once:step() end):find("not running", 1, true))
  end)

  it("takes nvtx where there is no GPU, and refuses options it lacks", function()
    assert.equal(1, lm.profile(function() lm.ones(2):exp() end, {nvtx = true}).recording:count() - 1)
    assert.is_truthy(message(function() lm.profile {nvxt = true} end):find("did you mean 'nvtx'", 1, true))
    assert.is_truthy(message(function() lm.profile {max_events = 0} end):find("max_events", 1, true))
    assert.is_truthy(message(function() lm.profile(3) end):find("profile", 1, true))
    assert.is_truthy(message(function() lm.profile {schedule = {activ = 1}} end):find("activ", 1, true))
    assert.is_truthy(message(function() lm.profile {schedule = {1}} end):find("unknown option '1'", 1, true))
  end)

  it("has collectives, sends and the gradients of DistributedDataParallel, with their bytes and lines", function()
    local got = ranks.run {n = 2, script = [[
      local lm = require "luminary"
      local dist, nn = lm.dist, lm.nn
      dist.init_process_group "gloo"
      local rank = dist.get_rank()
      local net = nn.parallel.DistributedDataParallel(nn.Linear(50, 50))
      local x, t = lm.ones(4, 50), lm.ones(1000)
      local prof = lm.profile(function()
        net(x):sum():backward()
        dist.all_reduce(t, {async_op = true}):wait() local line = debug.getinfo(1, "l").currentline
        dist.broadcast(t, 0)
        dist.barrier()
        if rank == 0 then dist.send(t, 1) else dist.recv(t, 0) end
        dist.all_gather({lm.zeros(1000), lm.zeros(1000)}, t)
        return line
      end)
      local bytes, lines = {}, {}
      for i = 1, prof.recording:count() do
        local span = {prof.recording:span(i)}
        if span[2] == "collective" then
          bytes[span[1] ] = (bytes[span[1] ] or 0) + span[13]
          lines[span[1] ] = span[3]
        end
      end
      assert(bytes.all_reduce >= 4000 + 50 * 51 * 4, bytes.all_reduce) -- gradients' bytes, too
      assert(bytes.all_reduce <= 4000 + 50 * 51 * 4 + 256)
      assert(bytes[rank == 0 and "send" or "recv"] == 4000)
      assert(bytes.broadcast and bytes.barrier == 0 and bytes.all_gather)
      for name, line in pairs(lines) do assert(line:find ":%d+$", name) end
      local waits = 0
      for _, row in ipairs(prof:rows()) do waits = waits + (row.kind == "wait" and row.calls or 0) end
      assert(waits >= 1)
      dist.destroy_process_group()
      print "all right"
    ]]}
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.matches("all right", got[rank].output) end
  end)

  it("follows a schedule", function()
    local ready = {}
    local prof = lm.profile {
      schedule = {wait = 1, warmup = 1, active = 2, ["repeat"] = 2},
      on_trace_ready = function(p) ready[#ready + 1] = row_of(p:rows(), "exp").calls end,
    }
    local x = lm.ones(2)
    prof:start()
    for _ = 1, 10 do
      x:exp()
      prof:step()
    end
    prof:stop()
    assert.same({2, 2}, ready)
    assert.is_truthy(row_of(prof:rows(), "ProfilerStep#8"))
    assert.is_nil(row_of(prof:rows(), "ProfilerStep#6"))
  end)

  it("drops and counts what does not fit, also where there is no memory", function()
    local x = lm.ones(2)
    local prof = lm.profile(function()
      for _ = 1, 10 do x:exp() end
    end, {max_events = 4})
    assert.equal(6, prof.dropped)
    assert.is_truthy(tostring(prof):find("6 spans were dropped", 1, true))
    local running = core.recording_start {}
    for _ = 1, 2000 do
      core._fail_alloc_from(1)
      pcall(x.exp, x)
      core._fail_alloc_from(0)
    end
    local recording = running and core.recording_stop()
    assert.equal(0, recording:count())
    assert.equal(4000, recording:dropped()) -- each call repeats after a collection
  end)

  it("records the ops of other threads", function()
    local set = lm.data.TensorDataset(lm.randn(64, 4))
    local loader = lm.data.DataLoader(set, {batch_size = 4, num_workers = 2, worker_type = "thread"})
    local prof = lm.profile(function()
      for _ = 1, 3 do
        for x in loader:iter() do x:exp() end
      end
    end)
    assert.equal(48, row_of(prof:rows(), "exp").calls)
  end)

  it("has the wait for worker processes, whose own ops are theirs", function()
    local set = lm.data.TensorDataset(lm.randn(16, 4))
    local loader = lm.data.DataLoader(set, {batch_size = 4, num_workers = 1, worker_type = "process"})
    local prof = lm.profile(function()
      for x in loader:iter() do x:exp() end
    end)
    assert.equal(4, row_of(prof:rows(), "exp").calls)
    assert.is_truthy(row_of(prof:rows(), "DataLoader: next batch"))
  end)

  it("keeps a span in less than 200 bytes #unsanitized", function()
    local function resident()
      for line in io.lines "/proc/self/status" do
        local kilobytes = line:match "^VmRSS:%s*(%d+)"
        if kilobytes then return kilobytes * 1024 end
      end
    end
    local x, n = lm.ones(2), 100000
    local before = resident()
    local prof = lm.profile(function()
      for _ = 1, n do x:add_(1) end
    end, {max_events = n / 2})
    assert.equal(n / 2, prof.recording:count())
    assert.equal(n / 2, prof.dropped)
    assert.is_true(resident() - before < n / 2 * 200 + 16e6)
  end)

  it("records as many spans for a step, whose cost is bounded by them, as it has ops", function()
    local a = lm.ones(4)
    local recorded = lm.profile(function()
      for _ = 1, 1000 do a:add(a) end
    end).recording
    assert.equal(1000, recorded:count())
  end)

  it("writes a trace in which spans nest", function()
    local path = os.tmpname()
    local w = lm.randn({4, 4}, {requires_grad = true})
    local prof = lm.profile(function()
      lm.record_function('a "range"', function() w:mm(w):sum():backward() end)
    end)
    prof:export_chrome_trace(path)
    local file = io.open(path)
    local trace = core.json_decode(file:read "*a")
    file:close()
    os.remove(path)
    local events, names = {}, {}
    for _, event in ipairs(trace.traceEvents) do
      if event.ph == "X" then events[#events + 1], names[event.name] = event, event end
    end
    assert.equal(prof.recording:count(), #events)
    local range = names['a "range"']
    for i, a in ipairs(events) do
      assert.is_true(a.dur >= 0 and a.ts >= range.ts - 0.01 and a.ts + a.dur <= range.ts + range.dur + 0.01)
      for j = i + 1, #events do -- events follow or enclose one another
        local b = events[j]
        local apart = a.ts + a.dur <= b.ts + 0.01 or b.ts + b.dur <= a.ts + 0.01
        local nested = a.ts >= b.ts - 0.01 and a.ts + a.dur <= b.ts + b.dur + 0.01
        assert.is_true(apart or nested)
      end
    end
    local text = message(function() prof:export_chrome_trace "/nowhere/trace.json" end)
    assert.is_truthy(text:find("cannot write", 1, true))
  end)
end)

describe("a profiler", function()
  it("that a thread has left running stops with its Lua state", function()
    lm.mp.spawn(function()
      require("luminary").profile():start()
    end, {nprocs = 1, method = "thread"})
    local prof = lm.profile(function() lm.ones(2) end)
    assert.equal(1, #prof:rows())
  end)
end)

describe("a trace", function()
  local folder = temp.during(before_each, after_each)

  it("of each rank has processes of its own, so that traces can be joined", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 20}
      local rank = lm.dist.get_rank()
      local prof = lm.profile(function() lm.dist.barrier() end)
      lm.dist.destroy_process_group()
      prof:export_chrome_trace(%q .. rank)]]):format(folder .. "/trace")}
    assert(got.ok, got.text)
    local pids = {}
    for rank = 0, 1 do
      for _, event in ipairs(core.json_decode(temp.read(folder .. "/trace" .. rank)).traceEvents) do
        pids[event.pid] = pids[event.pid] or rank
        assert.equal(pids[event.pid], rank)
        if event.name == "process_name" then assert.equal(("rank %d: CPU"):format(rank), event.args.name) end
      end
    end
  end)

  it("is UTF-8, whatever the names of ranges", function()
    local prof = lm.profile(function() lm.record_function("a\255\195\169", function() end) end)
    prof:export_chrome_trace(folder .. "/trace")
    local text = temp.read(folder .. "/trace")
    assert.is_true(core.is_utf8_text(text))
    assert.matches('"name":"a\239\191\189\239\191\189\239\191\189"', text, 1, true)
  end)
end)

describe("memory_snapshot", function()
  after_each(function() lm.record_memory_history(false) end)

  it("has the live memory by line, op and bytes", function()
    assert.is_truthy(message(function() lm.memory_snapshot() end):find("nothing is recorded", 1, true))
    lm.record_memory_history()
    local kept, line = {}, nil
    for i = 1, 3 do
      kept[i] = lm.zeros(1000) line = here()
    end
    local gone = lm.ones(5000)
    gone:free()
    local snapshot = lm.memory_snapshot()
    local row = snapshot:rows()[1]
    assert.same({FILE .. ":" .. line, "zeros", "cpu", 12000, 3}, {row.line, row.op, row.device, row.bytes, row.count})
    assert.equal(1, #snapshot:rows())
    assert.equal(3, #snapshot:rows {group_by = "none"})
    assert.is_truthy(tostring(snapshot):find("12.0 kB in 3 tensors", 1, true))
    kept[1]:free()
    assert.equal(8000, lm.memory_snapshot().total)
  end)

  it("follows many tensors as they come and go", function()
    lm.record_memory_history()
    local live, bytes = {}, 0
    for i = 1, 5000 do
      local at = i * 7919 % 700 + 1
      if live[at] then
        bytes = bytes - live[at]:numel() * 4
        live[at]:free()
      end
      live[at] = lm.empty(i % 300 + 1)
      bytes = bytes + live[at]:numel() * 4
    end
    assert.equal(bytes, lm.memory_snapshot().total)
  end)
end)

describe("graph", function()
  it("is dot text of the nodes, with the names of parameters", function()
    local net = nn.Linear(3, 2)
    local text = lm.graph(net(lm.ones(4, 3)):relu():sum(), {params = net})
    for _, part in ipairs {"^digraph {", 'label="linear', 'label="relu', 'label="weight\\n%[2, 3%]"', 'label="bias',
      "n1 %-> x", "}\n$"} do
      assert.is_truthy(text:find(part), part)
    end
    local _, edges = text:gsub("%->", "")
    assert.equal(5, edges)
    assert.is_truthy(message(function() lm.graph(lm.ones(2)) end):find("must require grad", 1, true))
  end)
end)
