-- Devices by name, streams and events where all work is done at once, and what is said where there is no device.
local lm = require "luminary"
local core = require "luminary.core"
local temp = require "spec.support.temp"

describe("a device's name", function()
  it("is checked against what there is", function()
    assert.equal("cpu", core.device "cpu")
    assert.equal("cpu", core.device "cpu:0")
    assert.equal("cpu:63", core.device "cpu:63")
    for name, message in pairs {
      ["cpu:64"] = "ones: unavailable device 'cpu:64': cpu devices are cpu:0 to cpu:63",
      ["cpu:"] = "ones: unknown device 'cpu:'; 'cpu:' must be followed by an integer of at least 0",
      ["cpu:-1"] = "'cpu:' must be followed by an integer of at least 0",
      ["cpu:1x"] = "'cpu:' must be followed by an integer of at least 0",
      ["cpu:99999999999999999999"] = "unavailable device 'cpu:99999999999999999999'",
      cpuu = "did you mean 'cpu'?",
      ["cdua:1"] = "did you mean 'cuda:1'?",
      gpu = "did you mean 'cpu'?",
      [""] = "ones: unknown device ''; devices are 'cpu', 'cpu:1' or 'cuda:0'",
      ["../x:0"] = "unknown device '../x:0'; devices are 'cpu'",
      [("x"):rep(200)] = "ones: unknown device '" .. ("x"):rep(60) .. "...'",
    } do
      local ok, err = pcall(lm.ones, {1}, {device = name})
      assert.is_false(ok, name)
      assert.matches(message, err, 1, true)
    end
  end)

  it("is told from a dtype's by to", function()
    local x = lm.ones {2}
    assert.equal("cpu:1", x:to("cpu:1").device)
    assert.error_matches(function() x:to "flaot32" end,
      "to: unknown device or dtype 'flaot32'; did you mean 'float32'?")
    assert.error_matches(function() x:to "tpu:0" end, "to: unknown device 'tpu:0'; ")
    assert.equal("float16", x:to("cpu:1", "float16").dtype)
  end)
end)

describe("a CPU device", function()
  it("takes non_blocking and copies at once", function()
    local x = lm.arange(6):view(2, 3)
    local y = x:t():to("cpu:1", {non_blocking = true})
    x:zero_()
    assert.equal(15, y:sum():item())
    local z = lm.zeros({3, 2}, {device = "cpu:1"})
    z:copy_(y, {non_blocking = true})
    assert.equal(15, z:sum():item())
  end)

  it("has the one stream, and events are times", function()
    local s = lm.cuda.Stream "cpu:1"
    assert.equal(0, s.id)
    assert.is_true(s:query())
    s:synchronize()
    s:wait_stream(lm.cuda.Stream "cpu:2")
    local a, b = core.event_new("cpu:1", true), core.event_new("cpu:1", true)
    assert.is_true(core.event_query(a))
    assert.error_matches(function() core.event_elapsed(a, b) end,
      "the first event must be recorded, got one that is not")
    local began = lm.time()
    core.event_record(a, "cpu:1", 0)
    local until_ = lm.time() + 0.01
    while lm.time() < until_ do end
    assert.error_matches(function() core.event_elapsed(a, b) end,
      "the second event must be recorded, got one that is not")
    core.event_record(b, "cpu:1", 0)
    core.event_wait(b, "cpu:1", 0)
    core.event_synchronize(b)
    local elapsed = core.event_elapsed(a, b)
    assert(elapsed >= 10 and elapsed <= (lm.time() - began) * 1000, elapsed)
    assert.error_matches(function() core.event_record(a, "cpu:2", 0) end,
      "event.record: the stream's device must be the event's device cpu:1, got cpu:2")
    local c = core.event_new("cpu:1", false)
    core.event_record(c, "cpu:1", 0)
    assert.error_matches(function() core.event_elapsed(a, c) end, "enable_timing = true")
    lm.synchronize "cpu:5"
  end)

  it("captures no graphs", function()
    assert.error_matches(function() core.graph_capture("cpu", 0, print) end, "graph: not implemented for cpu")
  end)
end)

describe("streams and events", function()
  it("are named where something else is given", function()
    local stream = lm.cuda.Stream "cpu"
    for _, wrong in ipairs { false, 5, "x", {}, lm.ones(1), lm.cuda.Event } do
      local value = wrong or nil
      for name, f in pairs {
        ["record_stream: expected a stream"] = function() lm.ones(2):record_stream(value) end,
        ["wait_stream: expected a stream"] = function() stream:wait_stream(value) end,
        ["wait_event: expected an event"] = function() stream:wait_event(value) end,
        ["elapsed_time: expected an event"] = function() lm.cuda.Event():elapsed_time(value) end,
        ["record_event: expected an event"] = value ~= nil and function() stream:record_event(value) end or nil,
      } do
        local ok, problem = pcall(f)
        assert.is_false(ok)
        assert.matches(name .. ", got ", problem, 1, true)
        assert.matches("device_spec.lua:", problem, 1, true)
      end
    end
  end)
end)

describe("a library without the CUDA backend", function()
  it("says so in one sentence, each time it is asked", function()
    local path = assert(package.searchpath("luminary.core", package.cpath))
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local library = path:gsub("/core%.so$", "")
    local copy = "unset LD_PRELOAD; mkdir %s/luminary && cp -L %s/core.so %s/libluminary.so.0 %s/luminary/"
    assert(os.execute(copy:format(folder, library, library, folder)) == 0)
    local script = temp.write(folder .. "/script.lua", [[
      local lm = require "luminary"
      print(lm.cuda.is_available(), lm.cuda.device_count())
      for _ = 1, 2 do print(pcall(lm.ones, {1}, {device = "cuda"})) end
      print(lm.ones({2}):sum():item())
    ]])
    local ok, text = temp.run(folder, ("LM_BACKEND_PATH= LUA_CPATH='%s/?.so;;' luajit %s"):format(folder, script))
    assert(ok, text)
    assert.matches("^false\t0\n", text)
    local said = "unavailable device 'cuda': this machine has no CUDA device (CUDA: the CUDA backend is not built here"
    local _, times = text:gsub(said:gsub("%p", "%%%0"), "")
    assert.equal(2, times)
    assert.matches("\n2\n$", text)
  end)

  it("tells a plug-in of another version, and one that is something else", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    temp.write(folder .. "/empty.c", "int nothing;\n")
    local compile = "unset LD_PRELOAD; gcc -shared -o %s/luminary_backend_empty.so %s/empty.c 2>/dev/null"
    if os.execute(compile:format(folder, folder)) ~= 0 then return pending("there is no compiler") end
    local script = temp.write(folder .. "/script.lua",
      [[ print(pcall(require("luminary").ones, {1}, {device = "empty:0"})) ]])
    local ok, text = temp.run(folder, ("LM_BACKEND_PATH=%s luajit %s"):format(folder, script))
    assert(ok, text)
    assert.matches("cannot load backend 'empty': '" .. folder
      .. "/luminary_backend_empty.so' has no function lm_backend_plugin", text, 1, true)
  end)
end)
