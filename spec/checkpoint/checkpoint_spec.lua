-- lm.checkpoint.save and load on one process: parts, errors, damage, saving in the background.
local lm = require "luminary"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"
local nn, optim = lm.nn, lm.optim

local folder = temp.during(before_each, after_each)
local path = folder .. "/a.safetensors"

local function made(seed)
  lm.manual_seed(seed)
  local net = nn.Linear(3, 2)
  local opt = optim.Adam(net:parameters(), {lr = 0.1})
  net(lm.randn(4, 3)):square():mean():backward()
  opt:step()
  return net, opt
end

describe("checkpoint.save and load", function()
  it("restore objects, tables of objects, generators and plain values", function()
    local net, opt = made(1)
    local schedules = {optim.lr_scheduler.StepLR(opt, {step_size = 2}), optim.lr_scheduler.StepLR(opt, {step_size = 3})}
    for _ = 1, 3 do schedules[1]:step() end
    local g = lm.Generator():manual_seed(5)
    g:manual_seed(6)
    lm.checkpoint.save(path, {
      model = net, optimizer = opt, schedules = schedules, g = g, rng = true, epoch = 3,
      notes = {text = "a", list = {1, 2}},
    })
    local expected, drawn = lm.randn(3), lm.randn({2}, {generator = g})
    local other, other_opt = made(2)
    local others = {optim.lr_scheduler.StepLR(other_opt, {step_size = 2}),
      optim.lr_scheduler.StepLR(other_opt, {step_size = 3})}
    local g2 = lm.Generator():manual_seed(9)
    local saved = lm.checkpoint.load(path, {
      model = other, optimizer = other_opt, schedules = others, g = g2, rng = true,
    })
    assert.equal(3, saved.epoch)
    assert.same({text = "a", list = {1, 2}}, saved.notes)
    assert.is_true(rawequal(saved.model, other) and rawequal(saved.schedules[2], others[2]))
    assert.is_nil(saved.ranks)
    assert.is_true(saved.rng) -- the result can be saved again
    assert.is_true(other.weight:equal(net.weight))
    assert.is_true(other_opt.state[other.weight].exp_avg:equal(opt.state[net.weight].exp_avg))
    assert.equal(3, others[1]:state_dict().last_epoch)
    assert.is_true(lm.randn(3):equal(expected))
    assert.is_true(lm.randn({2}, {generator = g2}):equal(drawn))
  end)

  it("return the states of what is not asked for, and read files of lm.save", function()
    local net = made(1)
    lm.checkpoint.save(path, {model = net, step = 4})
    assert.is_true(lm.checkpoint.load(path).model.weight:equal(net.weight))
    lm.save(path, {model = net:state_dict(), step = 5})
    local other = made(2)
    assert.equal(5, lm.checkpoint.load(path, {model = other}).step)
    assert.is_true(other.weight:equal(net.weight))
  end)

  it("name what is absent, of another kind, or does not fit, and change nothing before that is known", function()
    local net, opt = made(1)
    lm.checkpoint.save(path, {model = net, step = 4})
    local other, other_opt = made(2)
    local before = other.weight:clone()
    assert.matches("checkpoint.load: '.*' has no 'optimizer'; it has model, step. Leave the part out, or pass "
      .. "{strict = false}", message(lm.checkpoint.load, path, {model = other, optimizer = other_opt}))
    assert.matches("step is 4, not the state of", message(lm.checkpoint.load, path, {model = other, step = opt}))
    assert.is_true(other.weight:equal(before))
    lm.checkpoint.load(path, {model = other, optimizer = other_opt}, {strict = false})
    assert.is_true(other.weight:equal(net.weight))
    assert.matches("a.safetensors': model: ", message(lm.checkpoint.load, path, {model = nn.Linear(5, 5)}))
    assert.matches("checkpoint.save: parts must be a table of objects", message(lm.checkpoint.save, path, net))
    assert.matches("'ranks'", message(lm.checkpoint.save, path, {ranks = 1}))
    assert.matches("strict is an option, after parts", message(lm.checkpoint.load, path, {model = net, strict = false}))
    assert.matches("path must not end in .pt", message(lm.checkpoint.save, "a.pt", {model = net}))
    assert.matches("rng must be true", message(lm.checkpoint.save, path, {rng = 3}))
    assert.matches("save: f is a function", message(lm.checkpoint.save, path, {f = print}))
    assert.equal(4, lm.checkpoint.load(path).step) -- the file of before
  end)

  it("take tables that contain themselves, and refuse two parts of one name", function()
    local net = made(1)
    lm.checkpoint.save(path, {model = net, step = 4})
    local parts = {model = net}
    parts.parts = parts
    assert.equal(4, lm.checkpoint.load(path, parts).step)
    assert.matches("contains itself", message(lm.checkpoint.save, path, parts))
    assert.matches("two parts are named 'a.b'",
      message(lm.checkpoint.save, path, {["a.b"] = net, a = {b = net}}))
  end)

  it("copy into tensors, also parameters and those of other dtypes, which the result then has", function()
    local w, p, ids = lm.full({3}, 2), nn.Parameter(lm.full({2, 2}, 3)), lm.arange(4):long()
    local function parts(a, b, c) return {w = a, list = {b, {p = c}}, n = 5, text = "a", large = 2LL ^ 60} end
    lm.checkpoint.save(path, parts(w, ids, p))
    w:zero_()
    ids:zero_()
    lm.no_grad(function() p:zero_() end)
    local saved = lm.checkpoint.load(path, parts(w, ids, p))
    assert.same({{2, 2, 2}, {0, 1, 2, 3}, {{3, 3}, {3, 3}}}, {w:totable(), ids:totable(), p:totable()})
    assert.is_true(rawequal(saved.w, w) and rawequal(saved.list[1], ids) and rawequal(saved.list[2].p, p))
    assert.is_true(p.requires_grad and p.is_leaf)
    local half, view = lm.zeros({3}, {dtype = "float16"}), lm.zeros {3, 2}
    lm.checkpoint.load(path, {w = half})
    lm.checkpoint.load(path, {w = view:select(2, 1)})
    assert.same({{2, 2, 2}, {{2, 0}, {2, 0}, {2, 0}}}, {half:totable(), view:totable()})
    lm.save(folder .. "/plain.pt", {w = lm.full({3}, 7)}) -- a file of lm.save
    lm.checkpoint.load(folder .. "/plain.pt", {w = w})
    assert.same({7, 7, 7}, w:totable())
    assert.is_nil(lm.checkpoint.load(path, {absent = w}, {strict = false}).absent)
    assert.same({7, 7, 7}, w:totable())
  end)

  it("refuse what cannot be updated, before anything is", function()
    local net = made(1)
    lm.checkpoint.save(path, {w = lm.ones(3), x = lm.ones(3), net = net, text = "a"})
    local x = lm.zeros(3)
    for pattern, part in pairs {
      ["expected w to have shape %[4%], got %[3%]$"] = {w = lm.ones(4), x = x},
      ["expected w to have shape %[%], got %[3%]$"] = {w = lm.ones {}, x = x},
      ["text is string 'a', not the state of a tensor %[2%]$"] = {text = lm.ones(2), x = x},
      ["net is a table, not the state of a tensor"] = {net = lm.ones(2), x = x},
      ["w is a tensor %[3%], not the state of a module"] = {w = net, x = x},
      ["has no 'absent'; it has net, text, w, x%. Leave the part out"] = {absent = lm.ones(2), x = x},
      ["load: w is a function, which cannot be updated: it has no load_state_dict; leave it out"] = {w = print, x = x},
      ["load: a%.b is a function, which cannot be"] = {a = {b = lm.save}, x = x},
      ["load: w is a table, which cannot be updated"] = {w = setmetatable({}, {}), x = x},
      ["load: w is the class ReLU itself .*, which cannot be updated"] = {w = nn.ReLU, x = x},
    } do
      assert.matches(pattern, message(lm.checkpoint.load, path, part))
    end
    assert.same({0, 0, 0}, x:totable())
    assert.matches("w: copy_: cannot write in place to a tensor of shape %[3%], whose elements share memory", message(
      lm.checkpoint.load, path, {w = lm.ones(1):expand(3)}))
  end)

  it("notice each changed byte", function()
    local net = made(1)
    lm.checkpoint.save(path, {model = net, step = 4, name = "abc", flags = lm.tensor {true, false}})
    local bytes = temp.read(path)
    for at = 9, #bytes do -- the first eight are the header's length
      local byte = bytes:byte(at)
      if string.char(byte):find "%S" then -- the header ends with spaces
        local other = string.char(byte == 49 and 50 or bit.bxor(byte, 1))
        temp.write(path, bytes:sub(1, at - 1) .. other .. bytes:sub(at + 1))
        local ok, value = pcall(lm.checkpoint.load, path)
        if ok then
          error(("byte %d, %q of %q, was changed, and loads as %s"):format(at, bytes:sub(at, at),
            bytes:sub(math.max(1, at - 30), at + 10), lm.repr(value)))
        end
      end
    end
  end)

  it("refuse a newer version", function()
    lm.checkpoint.save(path, {step = 4})
    local bytes = temp.read(path)
    local file = require "luminary.file_formats.checkpoint"
    local safetensors = require "luminary.file_formats.safetensors"
    local function save(value, about, is_checked)
      local d = file.describe("save", value)
      local write = is_checked and safetensors.write_checked or safetensors.write
      write(path, d.tensors, d:metadata {luminary_checkpoint = about}, d.names, {who = "save"})
    end
    save({step = 4, ranks = {{}}}, '{"version":2,"world_size":1,"shards":[]}', true)
    assert.matches("has version 2 of the format, this library reads up to 1", message(lm.checkpoint.load, path))
    save({step = 4}, "[1", false)
    assert.matches("malformed checkpoint", message(lm.checkpoint.load, path))
    assert.is_true(#bytes > 0)
  end)

  it("copy tensors of a device, and views, one after the other", function()
    local core = require "luminary.core"
    local device, parts = os.getenv "LM_SPEC_DEVICE" or "cpu", {list = {}}
    for i = 1, 16 do parts.list[i] = lm.full({500, 500}, i, {device = device}):t() end -- 1 MB
    parts.again = parts.list[1]
    collectgarbage()
    local function peak(save)
      local before = core.memory_allocated "cpu"
      core.reset_peak_memory_stats "cpu"
      save(path, parts)
      return core.max_memory_allocated "cpu" - before
    end
    assert.is_true(peak(lm.checkpoint.save) < 3e6, peak(lm.checkpoint.save))
    assert.is_true(peak(lm.save) < 3e6)
    lm.checkpoint.save(path, parts)
    local loaded = lm.checkpoint.load(path)
    assert.equal(16, loaded.list[16][7][9])
    assert.is_true(loaded.again:equal(parts.again:cpu()))
  end)

  it("leave plain files of lm.save without checksums", function()
    lm.save(path, {a = lm.zeros(2)})
    assert.is_nil(temp.read(path):find("crc32c", 1, true))
  end)
end)

describe("checkpoint.save in the background", function()
  it("writes what was there when it was called", function()
    local net = made(1)
    local before = net.weight:clone()
    local saving = lm.checkpoint.save(path, {model = net, rng = true}, {async = true})
    lm.no_grad(function() net.weight:zero_() end)
    saving:wait()
    assert.is_true(saving:is_done())
    local other = made(2)
    lm.checkpoint.load(path, {model = other})
    assert.is_true(other.weight:equal(before))
  end)

  it("copies views, shared and empty tensors of several dtypes", function()
    local x = lm.randn(10, 10)
    local state = {
      x = x, same = x, turned = x:t(), row = x[3], none = lm.zeros(0, 3), number = lm.tensor(3.5), ints = lm.arange(7),
      halves = lm.randn(5):to "bfloat16", bools = lm.tensor {true, false},
    }
    local expected = {}
    for key, t in pairs(state) do expected[key] = t:clone() end
    local saving = lm.checkpoint.save(path, {state = state}, {async = true})
    x:zero_()
    state.ints:zero_()
    saving:wait()
    local got = lm.checkpoint.load(path).state
    for key, t in pairs(expected) do assert.is_true(got[key]:equal(t), key) end
  end)

  it("raises its error at the next call", function()
    local net = made(1)
    os.execute("mkdir " .. path)
    lm.checkpoint.save(path, {model = net}, {async = true})
    assert.matches("checkpoint.save: the save of '.*' in the background failed: .*it is a folder",
      message(lm.checkpoint.save, folder .. "/b.safetensors", {model = net}))
    lm.checkpoint.save(folder .. "/b.safetensors", {model = net}) -- once
    lm.checkpoint.save(path, {model = net}, {async = true})
    assert.matches("in the background failed", message(lm.checkpoint.wait))
  end)

  it("is waited for when the program ends", function()
    temp.write(folder .. "/run.lua", ([[
      local lm = require "luminary"
      lm.checkpoint.save(%q, {w = lm.ones(1e6)}, {async = true})]]):format(path))
    assert.equal(0, os.execute(("timeout 60 luajit %s/run.lua"):format(folder)))
    assert.equal(1e6, lm.checkpoint.load(path).w:sum():item())
  end)
end)

describe("checkpoint.Manager", function()
  local net
  before_each(function() net = made(1) end)

  it("keeps the newest and the best, and finds them", function()
    local manager = lm.checkpoint.Manager {dir = folder .. "/run", keep_last = 2, keep_best = 1, metric = "loss"}
    assert.is_nil(manager:load {model = net})
    assert.is_nil(manager:latest())
    for step, loss in ipairs {0.5, 0.2, 0.4, 0.3, 0.6} do manager:save(step, {model = net}, {loss = loss}) end
    assert.same({2, 4, 5}, manager:steps())
    assert.equal(manager:path(5), manager:latest())
    local again = lm.checkpoint.Manager {dir = folder .. "/run", keep_best = 1, metric = "loss"} -- another process
    assert.equal(manager:path(2), again:best())
    local saved = again:load {model = net}
    assert.equal(5, saved.step)
    assert.same({loss = 0.6}, saved.metrics)
    local highest = lm.checkpoint.Manager {dir = folder .. "/run", keep_best = 1, metric = "loss", mode = "max"}
    assert.equal(manager:path(5), highest:best())
    assert.error_matches(function() manager:load(3) end, "parts must be a table, got 3")
  end)

  it("loads into tensors, also after a save in the background", function()
    for _, async in ipairs {false, true} do
      local manager = lm.checkpoint.Manager {dir = folder .. "/run" .. tostring(async), async = async}
      local w = lm.full({1000}, 3)
      for step = 1, 2 do manager:save(step, {w = w, net = net}) end
      w:zero_()
      local saved = manager:load {w = w, net = net}
      assert.is_true(w:eq(3):all():item() and rawequal(saved.w, w) and saved.step == 2)
      assert.matches("Manager:load: .*: expected w to have shape %[3%], got %[1000%]", message(manager.load, manager,
        {w = lm.ones(3)}))
      assert.matches("Manager:load: w is a function, which cannot be updated", message(manager.load, manager,
        {w = print}))
    end
  end)

  it("saves each n-th step", function()
    local manager = lm.checkpoint.Manager {dir = folder, every = 10, keep_last = 9, async = true}
    for step = 1, 25 do
      local there = manager:save(step, {model = net})
      assert.equal(step % 10 == 0, there ~= nil)
    end
    lm.checkpoint.wait()
    assert.same({10, 20}, manager:steps())
  end)

  it("leaves out what is damaged, with a warning", function()
    local manager = lm.checkpoint.Manager {dir = folder}
    for step = 1, 3 do manager:save(step, {model = net}) end
    local bytes = temp.read(manager:path(3))
    temp.write(manager:path(3), bytes:sub(1, -2) .. "x")
    temp.write(manager:path(2), "")
    assert.equal(1, manager:load({model = net}).step)
    temp.write(manager:path(1), "nothing")
    assert.matches("no checkpoint in .* is whole", message(manager.load, manager, {model = net}))
    assert.matches("has no 'other'", message(function()
      manager:save(4, {model = net})
      manager:load {other = net} -- the missing part is no damage
    end))
  end)

  it("removes what saves that did not end have left", function()
    local manager = lm.checkpoint.Manager {dir = folder, keep_last = 1}
    manager:save(1, {model = net})
    for _, name in ipairs {"step-0000000001.safetensors.shard-abc-0", "step-0000000001.safetensors.tmp-1-1",
      "step-0000000002.safetensors.tmp-99-1", "step-0000000002.safetensors.shard-abc-0"} do
      temp.write(folder .. "/" .. name, "left")
    end
    manager:save(1, {model = net})
    assert.same({".", "..", "step-0000000001.safetensors"}, lm.paths.dir(folder))
  end)

  it("checks its arguments", function()
    assert.matches("dir", message(lm.checkpoint.Manager, {}))
    assert.matches("keep_best requires metric", message(lm.checkpoint.Manager, {dir = folder, keep_best = 1}))
    temp.write(folder .. "/file", "")
    assert.matches("it is not a folder", message(lm.checkpoint.Manager, {dir = folder .. "/file"}))
    local manager = lm.checkpoint.Manager {dir = folder}
    assert.matches("metrics.loss must be a number", message(manager.save, manager, 1, {model = net}, {loss = "a"}))
  end)
end)
