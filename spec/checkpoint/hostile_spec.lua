-- lm.checkpoint under odd input: deep tables, unsavable values, names of parts, ends of programs during a save.
local lm = require "luminary"
local core = require "luminary.core"
local message = require "spec.support.error_of"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local nn = lm.nn

local folder = temp.during(before_each, after_each)
local path = folder .. "/a.safetensors"

local function nested(depth, leaf)
  local t = {leaf = leaf or 1}
  for _ = 2, depth do t = {a = t} end
  return t
end

-- An object whose state is `state`.
local Part = {}
local function part(state, by_rank)
  Part.class = Part.class or nn.Module:extend "Part"
  local object = Part.class()
  object.state_dict = function() return state end
  object.load_state_dict = function(self, loaded) rawset(Part, self, loaded) end
  object.differs_by_rank = by_rank
  return object
end
after_each(function()
  for key in pairs(Part) do
    if key ~= "class" then Part[key] = nil end
  end
end)

local modes = {
  {"checkpoint.save", function(parts) return lm.checkpoint.save(path, parts) end},
  {"checkpoint.save", function(parts) return lm.checkpoint.save(path, parts, {async = true}) end},
  {"Manager:save", function(parts) return lm.checkpoint.Manager({dir = folder}):save(1, parts) end},
  {"Manager:save", function(parts) return lm.checkpoint.Manager({dir = folder, async = true}):save(1, parts) end},
}

describe("tables nested deep", function()
  it("are refused with their depth, everywhere", function()
    local shown = "^[^\n]-:%%d+: %s: [^\n]* is nested more than %d tables deep; [^\n]+$"
    for _, depth in ipairs {150, 1e5} do
      for _, mode in ipairs(modes) do
        for _, parts in ipairs {{x = nested(depth)}, {x = part(nested(depth))}, {x = part(nested(depth), true)}} do
          assert.matches(shown:format(mode[1], 100), message(mode[2], parts))
        end
      end
      lm.checkpoint.save(path, {a = 1})
      assert.matches(shown:format("checkpoint.load", 100), message(lm.checkpoint.load, path, nested(depth)))
      assert.matches(shown:format("Manager:load", 100), message(function()
        local manager = lm.checkpoint.Manager {dir = folder}
        manager:save(1, {a = 1})
        manager:load(nested(depth))
      end))
      for _, name in ipairs {"a.safetensors", "a.pt"} do
        assert.matches(shown:format("save", 100), message(lm.save, folder .. "/" .. name, nested(depth)))
      end
    end
  end)

  it("load again up to what can be saved", function()
    local saved = 0
    for depth = 90, 101 do
      for _, name in ipairs {"a.safetensors", "a.pt"} do
        if pcall(lm.save, folder .. "/" .. name, nested(depth)) then
          assert.same(nested(depth), lm.load(folder .. "/" .. name))
          saved = math.max(saved, depth)
        end
      end
      for _, parts in ipairs {{x = nested(depth)}, {x = part(nested(depth))}, {x = part(nested(depth), true)}} do
        if pcall(lm.checkpoint.save, path, parts) then lm.checkpoint.load(path, {}) end
      end
    end
    assert.equal(100, saved)
  end)

  it("that hold one another many times take no time for each way to them", function()
    local t = {net = nn.Linear(1, 1)}
    for _ = 1, 60 do t = {a = t, b = t} end
    local state = {1}
    for _ = 1, 60 do state = {a = state, b = state} end
    lm.checkpoint.save(path, {t = t, own = part(state, true)})
    lm.checkpoint.load(path, {t = t})
  end)
end)

describe("values that cannot be saved", function()
  local ffi = require "ffi"
  local values = {
    {print, "a function"}, {coroutine.create(function() end), "a thread"}, {newproxy(), "a userdata"},
    {ffi.new "int[2]", "a cdata"}, {nn.Linear, "an object"},
  }

  it("are an error of the call, with the user's path", function()
    for _, mode in ipairs(modes) do
      for _, each in ipairs(values) do
        for _, by_rank in ipairs {false, true} do
          local state = {foo = {1, 2, each[1]}, ["odd name"] = 1}
          assert.matches(": " .. mode[1] .. ": optimizer%.foo%[3%] is " .. each[2], message(mode[2],
            {optimizer = part(state, by_rank)}))
        end
        assert.matches(": " .. mode[1] .. ": list%[2%]%[\"a b\"%] is " .. each[2], message(mode[2],
          {list = {1, {["a b"] = each[1]}}}))
        assert.matches(": " .. mode[1] .. ": a has a key of type", message(mode[2], {a = {[true] = 1}}))
        assert.matches(": " .. mode[1] .. ": parts has a key of type", message(mode[2], {[1.5] = 1}))
      end
    end
    assert.is_false(temp.exists(path))
    assert.matches("save: x%[1%]%.y is a function", message(lm.save, path, {x = {{y = print}}}))
  end)

  it("are an error of the call on every rank, where only one has them", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local Part = lm.nn.Module:extend "Part"
      for _, case in ipairs {{own = true, where = 1}, {own = false, where = 0}, {own = true, where = 0}} do
        for _, async in ipairs {false, true} do
          local part = Part()
          part.differs_by_rank = case.own
          part.state_dict = function() return {foo = {1, lm.dist.get_rank() == case.where and print or 2}} end
          local began = lm.time()
          local ok, why = pcall(lm.checkpoint.save, %q, {part = part}, {async = async})
          assert(not ok and why:find("checkpoint.save: ", 1, true)
            and why:find("part.foo[2] is a function", 1, true), tostring(why))
          assert(lm.time() - began < 30)
        end
      end
      local count = Part()
      count.differs_by_rank = true
      local state = {n = require "ffi".new("int64_t", 2^60), twice = {1}}
      state.again = state.twice
      count.state_dict = function() return state end
      count.load_state_dict = function(_, loaded) assert(loaded.n == state.n and loaded.again[1] == 1) end
      lm.checkpoint.save(%q, {count = count})
      lm.checkpoint.load(%q, {count = count})
      lm.dist.destroy_process_group()]]):format(path, path, path)}
    assert(got.ok, got.text)
  end)
end)

describe("tensors", function()
  it("are loaded on every rank, with shards and in the background, or are an error of all", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local rank = lm.dist.get_rank()
      local net, w = lm.nn.Linear(4, 3), lm.full({3}, 5)
      local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
      net(lm.ones(1, 4)):sum():backward()
      opt:step()
      local manager = lm.checkpoint.Manager {dir = %q}
      for step, async in ipairs {false, true} do
        manager.async = async
        manager:save(step, {w = w, opt = opt})
        w:zero_()
        local saved = manager:load {w = w, opt = opt}
        assert(saved.step == step and rawequal(saved.w, w) and w:eq(5):all():item())
        local ok, why = pcall(manager.load, manager, {w = lm.ones(3 + rank), opt = opt})
        assert(not ok and why:find("expected w to have shape [4], got [3]", 1, true), tostring(why))
        assert(rank == 1 or why:find("rank 1: ", 1, true), why)
      end
      lm.dist.destroy_process_group()]]):format(folder .. "/run")}
    assert(got.ok, got.text)
  end)
end)

describe("states of ranks", function()
  it("that no save writes are refused with the path", function()
    local file_format = require "luminary.file_formats.checkpoint"
    local safetensors = require "luminary.file_formats.safetensors"
    local function load(own)
      local described = file_format.describe("x", {ranks = own}, "parts")
      core.background_write_close(safetensors.write_checked(path, described.tensors, described:metadata {
        luminary_checkpoint = '{"version":1,"world_size":1,"shards":[]}'}, described.names, {who = "x"}))
      return message(lm.checkpoint.load, path, {rng = true, g = lm.Generator()}, {strict = false})
    end
    for _, own in ipairs {1, {1}, {"x"}, {lm.ones(2)}, lm.ones(2), {{}, {}}, {}, {a = {}}} do
      assert.matches("'" .. path .. "': malformed checkpoint", load(own), 1, true)
    end
    for _, states in ipairs {1, "x", lm.ones(2), {}, {cuda = lm.ones(2)}, {cpu = 1}, {cpu = lm.ones(2)}} do
      assert.matches("'" .. path .. "': rng: set_rng_state: ", load {{rng = states}}, 1, true)
    end
  end)
end)

describe("names of parts", function()
  it("with dots are distinct from tables", function()
    local net, other = nn.Linear(2, 1), nn.Linear(2, 1)
    lm.checkpoint.save(path, {["a.b"] = 5, a = {b = net}})
    local loaded = lm.checkpoint.load(path, {["a.b"] = 1, a = {b = other}})
    assert.is_true(other.weight:equal(net.weight))
    assert.equal(5, loaded["a.b"])
    assert.is_true(rawequal(loaded.a.b, other))
    lm.checkpoint.save(path, {["1"] = 5, {net}, a = {[2] = net}, ["a.2"] = "x"})
    other = nn.Linear(2, 1)
    loaded = lm.checkpoint.load(path, {{other}})
    assert.is_true(other.weight:equal(net.weight))
    assert.equal(5, loaded["1"])
    assert.is_true(rawequal(loaded[1][1], other))
    assert.matches("two parts are named 'a.b'", message(lm.checkpoint.save, path, {["a.b"] = net, a = {b = net}}))
  end)

  it("with control characters are shown on one line; NUL bytes are refused", function()
    for _, mode in ipairs(modes) do
      local text = message(mode[2], {["a\0b"] = 1})
      assert.matches(": " .. mode[1] .. ": parts has the key 'a\\0b', which contains a NUL byte$", text)
      text = message(mode[2], {["a\nb"] = {["c\27d"] = print}})
      assert.matches(": " .. mode[1] .. ': %["a%?b"%]%["c%?d"%] is a function[^\n]*$', text)
    end
    local net = nn.Linear(1, 1)
    lm.checkpoint.save(path, {["a\nb"] = net})
    lm.checkpoint.load(path, {["a\nb"] = net})
    lm.checkpoint.save(path, {a = 1})
    assert.matches("has no 'a%?b'[^\n]*$", message(lm.checkpoint.load, path, {["a\nb"] = net}))
  end)

  it("of the manager's own are not those of objects", function()
    local manager = lm.checkpoint.Manager {dir = folder}
    assert.matches("Manager:save: a part cannot be named 'metrics'", message(manager.save, manager, 1,
      {metrics = nn.Linear(1, 1)}))
  end)
end)

describe("errors begin with the called function:", function()
  it("of a path with a NUL byte", function()
    local bad = "a\0b"
    local why = " must be a string, got string 'a\\0b', which contains a NUL byte"
    assert.matches(": checkpoint%.save: path" .. why, message(lm.checkpoint.save, bad, {}))
    assert.matches(": checkpoint%.load: path" .. why, message(lm.checkpoint.load, bad))
    assert.matches(": checkpoint%.Manager: dir" .. why, message(lm.checkpoint.Manager, {dir = bad}))
    for _, name in ipairs {"a\0b", "a\0b.pt", "a\0b.npz"} do
      assert.matches(": save: path must be a string, got string '[^']*', which contains a NUL byte",
        message(lm.save, name, {a = lm.ones(1)}))
    end
    assert.matches(": load: path" .. why, message(lm.load, bad))
  end)

  it("of an empty path", function()
    local why = ": cannot write '': No such file or directory$"
    assert.matches(why, message(lm.checkpoint.save, "", {a = 1}))
    for _, value in ipairs {1, lm.ones(2)} do assert.matches(why, message(lm.save, "", value)) end
  end)

  it("of a save in the background", function()
    assert(lm.paths.mkdir(path))
    local function fails() return lm.checkpoint.save(path, {a = 1}, {async = true}) end
    local tail = ": the save of '[^']*a.safetensors' in the background failed: cannot write '[^']*': it is a folder"
    local function begins(who, f, ...)
      local text = message(f, ...)
      assert.matches("^%S+:%d+: " .. who .. tail, text)
    end
    local pending = fails()
    begins("PendingSave:wait", pending.wait, pending)
    assert.is_nil(pending:wait()) -- once
    fails()
    begins("checkpoint.wait", lm.checkpoint.wait)
    fails()
    begins("checkpoint.save", lm.checkpoint.save, folder .. "/b.safetensors", {a = 1})
    fails()
    begins("checkpoint.load", lm.checkpoint.load, folder .. "/b.safetensors")
    local manager = lm.checkpoint.Manager {dir = folder, keep_best = 1, metric = "m"}
    fails()
    begins("Manager:save", manager.save, manager, 1, {a = 1})
    fails()
    begins("Manager:load", manager.load, manager)
    fails()
    begins("Manager:best", manager.best, manager)
  end)
end)

describe("checkpoint.Manager", function()
  it("takes metrics that are tensors of one element", function()
    local manager = lm.checkpoint.Manager {dir = folder, keep_last = 1, keep_best = 1, metric = "loss"}
    manager:save(1, {a = 1}, {loss = lm.tensor(0.25), n = lm.tensor({3}, {dtype = "int64"})})
    manager:save(2, {a = 1}, {loss = lm.tensor {0.5}})
    manager:save(3, {a = 1}, {loss = 0.75})
    assert.same({1, 3}, manager:steps())
    assert.same({loss = 0.25, n = 3}, lm.checkpoint.load(manager:path(1)).metrics)
    assert.equal(manager:path(1), lm.checkpoint.Manager({dir = folder, metric = "loss"}):best())
    for _, bad in ipairs {lm.ones(2), "x", lm.tensor {true}, {}} do
      assert.matches("Manager:save: metrics.loss must be a number", message(manager.save, manager, 4, {a = 1},
        {loss = bad}))
    end
  end)

  it("knows the names that it writes, and no others", function()
    local manager = lm.checkpoint.Manager {dir = folder}
    manager:save(12, {a = 1})
    for _, name in ipairs {"step-13.safetensors", "step-00000000000000000014.safetensors",
      "step-99999999999999999999999.safetensors", "step-0000000015.safetensors.bak", "xstep-0000000016.safetensors",
      "step-0000000017.safetensors\n", "step-+000000018.safetensors"} do
      temp.write(folder .. "/" .. name, "x")
    end
    assert.same({12}, manager:steps())
    assert.equal(12, manager:load().step)
    manager:save(12345678901, {a = 1})
    assert.same({12, 12345678901}, manager:steps())
  end)

  it("keeps its best beside a second manager that rewrites a step", function()
    local first = lm.checkpoint.Manager {dir = folder, keep_last = 1, keep_best = 1, metric = "loss"}
    local second = lm.checkpoint.Manager {dir = folder, keep_last = 9, metric = "loss"}
    first:save(1, {a = 1}, {loss = 0.9})
    first:save(2, {a = 1}, {loss = 0.5})
    assert.equal(first:path(2), first:best())
    second:save(1, {a = 1}, {loss = 0.1})
    assert.equal(first:path(1), first:best())
    first:save(3, {a = 1}, {loss = 0.7})
    assert.same({1, 3}, first:steps())
  end)

  it("leaves the temporary files and shards of savers that run", function()
    local manager = lm.checkpoint.Manager {dir = folder, keep_last = 1}
    local held = {}
    for i, name in ipairs {"step-0000000001.safetensors.tmp-99-1", "step-0000000001.safetensors.shard-abc-0"} do
      temp.write(folder .. "/" .. name, "held")
      held[i] = io.popen(("exec flock %s/%s -c 'echo held; read x'"):format(folder, name), "w") -- until it is closed
    end
    temp.execute("sleep 0.5")
    manager:save(2, {a = 1})
    assert.equal(5, #lm.paths.dir(folder)) -- with . and ..
    for _, pipe in ipairs(held) do pipe:close() end
    manager:save(3, {a = 1})
    assert.same({".", "..", "step-0000000003.safetensors"}, lm.paths.dir(folder))
  end)

  it("does not take Ctrl-C or a lack of memory for damage", function()
    local files = require "luminary.checkpoint.files"
    local manager = lm.checkpoint.Manager {dir = folder}
    manager:save(1, {a = 1})
    manager:save(2, {a = 1})
    local read = files.read
    finally(function() files.read = read end)
    for _, problem in ipairs {"x.lua:1: interrupted!", "not enough memory",
      "load: cannot allocate 1 GiB on cpu: out of memory; 0 bytes"} do
      files.read = function() error(problem, 0) end
      assert.equal(problem, message(manager.load, manager))
    end
  end)

  it("says that its folder vanished", function()
    for _, async in ipairs {false, true} do
      local manager = lm.checkpoint.Manager {dir = folder .. "/run", async = async}
      manager:save(1, {a = 1})
      lm.checkpoint.wait()
      temp.remove(folder .. "/run")
      local text = message(function()
        manager:save(2, {a = 1})
        lm.checkpoint.wait()
      end)
      assert.matches("cannot write '[^']*': No such file or directory", text)
      assert.same({}, manager:steps())
      assert.is_nil(manager:load())
    end
  end)

  it("raises on all ranks what fails on the first", function()
    local got = ranks.run {n = 3, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local rank = lm.dist.get_rank()
      local manager = lm.checkpoint.Manager {dir = %q}
      local of_first = require "luminary.checkpoint.ranks".of_first
      local began = lm.time()
      local ok, why = pcall(of_first, "Manager:load", function() error "no list" end)
      assert(not ok and why:find "no list", why)
      assert(rank == 0 or why:find("Manager:load: rank 0: no list", 1, true), why)
      assert(of_first("x", function() return nil end) == nil)
      assert(of_first("x", function() return false end) == false)
      if rank == 0 then manager.dir = 3 end -- steps() then fails on rank 0 alone
      ok, why = pcall(manager.load, manager)
      assert(not ok, "no error")
      assert(lm.time() - began < 30)
      lm.dist.destroy_process_group()]]):format(folder)}
    assert(got.ok, got.text)
  end)
end)

describe("the end of a program with a save in the background", function()
  local SAVE = [[
    local lm = require "luminary"
    local w = lm.full({1e7}, 3) -- 40 MB
    lm.checkpoint.save(arg[1], {w = w}, {async = true})
  ]]
  local function run(text)
    temp.write(folder .. "/run.lua", SAVE .. text)
    local command = "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 timeout 60 luajit %s/run.lua %s"
    local _, output, code = temp.run(folder, command:format(folder, path))
    return output, code
  end

  for name, ending in pairs {
    ["os.exit(0)"] = {"os.exit(0)", 0}, ["os.exit(0, true)"] = {"os.exit(0, true)", 0}, ["the last line"] = {"", 0},
    ["os.exit(3)"] = {"os.exit(3)", 3}, ["an error"] = {"error 'x'", 1},
    ["os.exit beside a thread that computes"] = {[[
      lm.mp.spawn(function() while true do end end, {nprocs = 1, join = false, method = "thread", daemon = true})
      os.exit(0)]], 0},
  } do
    it("by " .. name .. " waits for it", function()
      local output, code = run(ending[1])
      assert.equal(ending[2], code, output)
      assert.equal(3e7, lm.checkpoint.load(path).w:sum():item())
    end)

    it("by " .. name .. " shows an error that no call has raised", function()
      assert(lm.paths.mkdir(path))
      local output, code = run(ending[1])
      assert.matches("a save in the background failed: cannot write '[^']*a.safetensors': it is a folder", output)
      assert.equal(ending[2] == 0 and 1 or ending[2], code)
    end)
  end

  it("is quiet about an error that was raised", function()
    assert(lm.paths.mkdir(path))
    local output, code = run "assert(not pcall(lm.checkpoint.wait))\nos.exit(0)"
    assert.equal("", output)
    assert.equal(0, code)
  end)
end)

describe("1,000 saves and loads", function()
  it("keep no memory and no descriptors #unsanitized", function()
    local open_files = require "spec.support.open_files"
    local net = nn.Linear(20, 20)
    local opt = lm.optim.Adam(net:parameters())
    net(lm.ones(1, 20)):sum():backward()
    opt:step()
    local function resident()
      return tonumber(temp.read "/proc/self/status":match "VmRSS:%s*(%d+)")
    end
    local function round(n)
      for i = 1, n do
        lm.checkpoint.save(path, {net = net, opt = opt, rng = true}, {async = i % 2 == 0})
        lm.checkpoint.load(path, {net = net, opt = opt, rng = true})
      end
      collectgarbage()
      collectgarbage()
      local files, names = open_files()
      return {files = files, names = names, lua = collectgarbage "count", resident = resident(),
        tensors = core.live_tensors()}
    end
    local half = os.getenv "LM_TEST_LONG" and 500 or 100
    round(half)
    local before = round(half)
    local after = round(half)
    assert.equal(before.files, after.files, after.names)
    assert.is_true(after.lua - before.lua < 500, ("%g KiB of Lua, then %g"):format(before.lua, after.lua))
    assert.is_true(after.resident - before.resident < 4000, ("%d KiB, then %d"):format(before.resident, after.resident))
    assert.equal(before.tensors, after.tensors)
  end)
end)
