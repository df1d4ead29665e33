-- lm.cuda on a device: facts, the current device, memory, streams, events. Runs where there is one (or a fake one).
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end

local count = lm.cuda.device_count()

describe("devices", function()
  it("tell what they are", function()
    assert.is_true(lm.cuda.is_available())
    local p = lm.cuda.get_device_properties(0)
    assert.equal(lm.cuda.get_device_name(0), p.name)
    local major, minor = lm.cuda.get_device_capability()
    assert.equal(p.major, major)
    assert.equal(p.minor, minor)
    for _, name in ipairs {"totalGlobalMem", "multiProcessorCount", "warpSize", "physicalIndex"} do
      assert.is_number(p[name], name)
    end
    assert.is_string(p.uuid)
    assert.matches("^%x+:%x+:%x+", p.pciBusId)
    local free, total = lm.cuda.mem_get_info()
    assert.is_true(free > 0 and free <= total)
  end)

  it("print as a table", function()
    local list = lm.cuda.devices()
    assert.equal(count, #list)
    assert.equal("cuda:0", list[1].device)
    local text = tostring(list)
    assert.matches("device%s+name%s+capability%s+memory", text)
    assert.matches(list[1].uuid, text, 1, true)
  end)

  it("one of them is current", function()
    assert.equal(0, lm.cuda.current_device())
    assert.equal("cuda:0", lm.ones({1}):cuda().device)
    assert.error_matches(function() lm.cuda.set_device(count) end, "cuda:" .. count)
    assert.error_matches(function() lm.cuda.set_device("cpu") end, "device must be a CUDA device, got cpu")
    if count > 1 then
      local inside = lm.cuda.device(1, function(a) return lm.ones({1}):cuda().device .. a end, "!")
      assert.equal("cuda:1!", inside)
      assert.equal(0, lm.cuda.current_device())
      assert.error_matches(function() lm.cuda.device(1, function() error("out") end) end, "out")
      assert.equal(0, lm.cuda.current_device())
      assert.error_matches(function() return lm.ones({1}):cuda(0) + lm.ones({1}):cuda(1) end, "cuda:0.*cuda:1")
    end
  end)

  it("are chosen before they are first asked for", function()
    assert.error_matches(function() lm.setenv("CUDA_VISIBLE_DEVICES", "0") end, "CUDA_VISIBLE_DEVICES")
    assert.error_matches(function() lm.setenv("LM_CUDA_VIRTUAL", "2") end, "LM_CUDA_VIRTUAL")
  end)

  it("are found by try_gpu", function()
    assert.equal("cuda:0", lm.try_gpu())
    assert.equal("cpu:" .. count, lm.try_gpu(count))
    assert.equal(count, #lm.try_all_gpus())
  end)
end)

describe("tensors on a device", function()
  it("go there and back", function()
    local x = lm.tensor {{1, 2}, {3, 4}}
    local y = x:cuda()
    assert.is_true(y.is_cuda)
    assert.equal(0, y:get_device())
    assert.same({{2, 3}, {4, 5}}, (y + 1):totable())
    assert.same({{1, 2}, {3, 4}}, y:cpu():totable())
    assert.matches("cuda:0", tostring(y))
    assert.equal(3, y[2][1])
    y[{2, 1}] = 7
    assert.equal(7, y:max():item())
    assert.equal("cuda:0", lm.cuda.FloatTensor {1}.device)
  end)

  it("are copied from pinned memory beside other work", function()
    local x = lm.rand({1000}):pin_memory()
    assert.is_true(x:is_pinned())
    local y = x:cuda(0, {non_blocking = true})
    assert.is_true(y:cpu():equal(x))
    local back = y:to("cpu", {non_blocking = true})
    lm.cuda.synchronize()
    assert.is_true(back:equal(x))
  end)

  it("come pinned from a loader that is asked to", function()
    local set = lm.data.TensorDataset(lm.rand({8, 3}), lm.arange(8))
    local x, y = lm.data.DataLoader(set, {batch_size = 4, pin_memory = true}):iter()()
    assert.is_true(x:is_pinned() and y:is_pinned())
    assert.is_true(x:cuda(0, {non_blocking = true}):cpu():equal(x))
    assert.is_false((lm.data.DataLoader(set, {batch_size = 4}):iter()()):is_pinned())
  end)

  it("refuse bad labels at the next wait, and go on", function()
    local F = lm.nn.functional
    local x, y = lm.randn({4, 3}, {device = "cuda"}), lm.tensor({1, 2, 9, 3}, {dtype = "int64", device = "cuda"})
    local ok, err = pcall(function() return F.cross_entropy(x, y):item() end)
    assert.is_false(ok)
    assert.matches("9", err)
    assert.matches("position 3", err)
    assert.matches("out of range for 3 classes", err)
    assert.is_number(F.cross_entropy(x, lm.tensor({1, 2, 3, 3}, {dtype = "int64", device = "cuda"})):item())
  end)
end)

describe("memory", function()
  it("is counted", function()
    collectgarbage()
    collectgarbage()
    local before = lm.cuda.memory_allocated()
    local x = lm.empty({1024, 1024}, {device = "cuda"})
    assert.equal(before + 2 ^ 22, lm.cuda.memory_allocated())
    assert.is_true(lm.cuda.memory_reserved() >= 20 * 2 ^ 20)
    assert.equal(lm.cuda.memory_reserved(), lm.cuda.memory_cached())
    assert.is_true(lm.cuda.max_memory_allocated() >= before + 2 ^ 22)
    assert.equal(4, x.dtype == "float32" and 4)
  end)

  it("runs out with a message that says what was asked", function()
    local _, total = lm.cuda.mem_get_info()
    local ok, err = pcall(lm.empty, {math.floor(total / 2)}, {device = "cuda"})
    assert.is_false(ok)
    assert.matches("cannot allocate .* on cuda:0: out of memory", err)
    assert.matches("reserved", err)
    assert.matches("allocated", err)
    assert.is_number(lm.ones({3}, {device = "cuda"}):sum():item())
  end)

  it("is limited by a fraction", function()
    lm.cuda.set_per_process_memory_fraction(0.001)
    local ok, err = pcall(lm.empty, {2 ^ 28}, {device = "cuda"})
    lm.cuda.set_per_process_memory_fraction(1)
    assert.is_false(ok)
    assert.matches("out of memory", err)
    assert.error_matches(function() lm.cuda.set_per_process_memory_fraction(2) end,
      "set_per_process_memory_fraction: fraction must be from 0 to 1, got 2")
  end)

  it("stays flat over a loop", function()
    local function loop()
      for _ = 1, 20 do
        local x = lm.rand({256, 256}, {device = "cuda"})
        local _ = (x * 2 + 1):sum()
      end
      collectgarbage()
      collectgarbage()
      return lm.cuda.memory_allocated()
    end
    assert.equal(loop(), loop())
  end)
end)

describe("streams", function()
  it("wait for one another's tensors by themselves", function()
    local side = lm.cuda.Stream()
    for round = 1, 5 do
      local a = lm.full({3000}, round, {device = "cuda"})
      local b = lm.cuda.stream(side, function() return a * 2 end)
      a:fill_(-1) -- after b has read it
      assert.equal(6000 * round, b:sum():item())
    end
  end)

  it("do not hand memory on that another still uses", function()
    local side = lm.cuda.Stream {priority = -1}
    local sums = {}
    for round = 1, 8 do
      local a = lm.full({5000}, round, {device = "cuda"})
      sums[round] = lm.cuda.stream(side, function() return a:sum() end)
      a = nil -- luacheck: ignore
      collectgarbage()
      local _ = lm.full({5000}, 1000, {device = "cuda"}) -- may lie in a's memory
    end
    for round = 1, 8 do assert.equal(5000 * round, sums[round]:item()) end
  end)

  it("are current within a function", function()
    local side = lm.cuda.Stream()
    local inside = lm.cuda.stream(side, lm.cuda.current_stream)
    assert.equal(side.id, inside.id)
    assert.equal(0, lm.cuda.current_stream().id)
    assert.error_matches(function() lm.cuda.stream(side, function() error("gone") end) end, "gone")
    assert.equal(0, lm.cuda.current_stream().id)
    side:synchronize()
    assert.is_true(side:query())
    assert.error_matches(function() lm.cuda.stream(1, print) end, "stream")
  end)

  it("are timed by events", function()
    local a, b = lm.cuda.Event {enable_timing = true}, lm.cuda.Event {enable_timing = true}
    a:record()
    lm.rand({100}, {device = "cuda"})
    b:record()
    b:synchronize()
    assert.is_true(b:query())
    assert.is_true(a:elapsed_time(b) >= 0)
    assert.error_matches(function() lm.cuda.Event():elapsed_time(b) end, "enable_timing")
    local side = lm.cuda.Stream()
    side:wait_event(b)
    side:wait_stream(lm.cuda.current_stream())
    local x = lm.ones({2}, {device = "cuda"})
    x:record_stream(side)
    assert.equal(2, x:sum():item())
  end)
end)
