-- lm.mp: functions in other processes and threads, the serializer that brings values there, shared tensors.
local lm = require "luminary"
local core = require "luminary.core"
local serializer = require "luminary.mp.serialization"
local open_files = require "spec.support.open_files"
local is_running = require "spec.support.is_running"
local temp = require "spec.support.temp"
local nn, optim, data, mp = lm.nn, lm.optim, lm.data, lm.mp

local ffi = require "ffi"
local within = require("spec.support.time").within
ffi.cdef "int kill(int pid, int number); int usleep(unsigned microseconds); int getpid(void);"

-- Returns what comes out of a channel, in this same state.
local function round_trip(value, options)
  options = options or {processes = false}
  local text, tensors = serializer.encode("send", value, options)
  local here, there = core.mp_pipe(not options.processes)
  core.mp_put(here, text, tensors, nil, 0)
  return serializer.decode(core.mp_get(there, 0))
end

local function refusal(value, options)
  local ok, problem = pcall(round_trip, value, options)
  assert.is_false(ok)
  return problem
end

local function settle()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
end

-- Counts descriptors; a handle that a stale stack slot still shows to the collector may keep one.
local function count_descriptors()
  settle()
  return open_files()
end

-- Processes that this one started and that have not been reaped.
local function count_children()
  local _, n = temp.read("/proc/self/task/" .. ffi.C.getpid() .. "/children"):gsub("%d+", "")
  return n
end

describe("the serializer", function()
  it("carries plain values exactly", function()
    local values = {0, -1, 0.1, 1 / 3, 2 ^ 53, -2 ^ -1074, math.huge, -math.huge, "", "a;b:1\0\n\200", true, false}
    for _, v in ipairs(values) do assert.equal(v, round_trip(v)) end
    assert.is_nil(round_trip(nil))
    local nan = round_trip(0 / 0)
    assert.is_true(nan ~= nan)
    assert.equal(-math.huge, 1 / round_trip(-0.0))
  end)

  it("carries 64-bit integers exactly", function()
    for _, v in ipairs {0LL, 9223372036854775807LL, -9223372036854775807LL - 1LL, -7LL} do
      local got = round_trip {v}[1]
      assert.is_true(ffi.istype("int64_t", got) and got == v)
    end
    local got = round_trip {18446744073709551615ULL}[1]
    assert.is_true(ffi.istype("uint64_t", got) and got == 18446744073709551615ULL)
  end)

  it("carries tables with holes, cycles, shared parts and metatables", function()
    local shared = {1, 2, 3, n = "x"}
    local t = {shared, nil, shared, [10] = "ten", [0.5] = true, [false] = 0, deep = {shared}}
    t.self, t[t] = t, "itself"
    setmetatable(t, {__index = {inherited = 5}, __metatable = "locked"})
    local got = round_trip(t)
    assert.equal(got[1], got[3])
    assert.equal(got[1], got.deep[1])
    assert.same({1, 2, 3, n = "x"}, got[1])
    assert.equal("ten", got[10])
    assert.is_true(got[0.5])
    assert.equal(0, got[false])
    assert.equal(got, got.self)
    assert.equal("itself", got[got])
    assert.equal(5, got.inherited)
    assert.equal("locked", getmetatable(got))
  end)

  it("carries lists of any length and tables of any depth", function()
    local list, deep = {}, {}
    for i = 1, 20000 do list[i], deep = i, {deep} end
    assert.same(list, round_trip(list))
    local got, depth = round_trip(deep), 0
    while got do got, depth = got[1], depth + 1 end
    assert.equal(20001, depth)
  end)

  it("carries functions by bytecode, with upvalues that stay shared", function()
    local n = 10
    local function add(k) n = n + k end
    local function get() return n end
    local function fact(k) return k < 2 and 1 or k * fact(k - 1) end -- luacheck: ignore
    local rec
    rec = function(k) return k < 2 and 1 or k * rec(k - 1) end
    local got = round_trip {add = add, get = get, rec = rec}
    got.add(5)
    assert.equal(15, got.get())
    assert.equal(10, n)
    assert.equal(120, got.rec(5))
    assert.not_equal(rec, got.rec)
  end)

  it("carries the environment of functions that have one of their own", function()
    local function with(code, env) return setfenv(loadstring(code), env) end
    local env = setmetatable({factor = 3, count = 0}, {__index = _G})
    local times = with("return factor * math.abs(...)", env)
    local got = round_trip {
      times = times, count = with("count = count + 1 return count", env), both = function() return times(2) end,
    }
    assert.equal(12, got.times(-4))
    assert.equal(6, got.both())
    got.count()
    assert.equal(2, got.count())
    assert.equal(2, getfenv(got.times).count) -- both share one environment, not this one
    assert.equal(0, env.count)
    assert.equal(_G, getmetatable(getfenv(got.count)).__index)
    assert.equal(5, round_trip(with("return function() return factor end", {factor = 5}))()())
    local indifferent = with("return tostring(...)", {tostring = tostring, left = newproxy()})
    assert.equal(_G, getfenv(round_trip(indifferent)))
    assert.equal(nn.functional, getfenv(round_trip(with("return relu", nn.functional))))
  end)

  it("refuses a function whose environment cannot be sent", function()
    local dynamic = setmetatable({}, {__index = function(_, name) return name == "setting" and 5 or _G[name] end})
    assert.matches("the value's environment: its metatable cannot be sent to another thread, and the function uses "
      .. "'setting' of it", refusal(setfenv(loadstring "return setting", dynamic)))
    assert.matches("the value's environment.file: ", refusal(setfenv(loadstring "return file", {file = newproxy()})))
    assert.equal(2, round_trip(setfenv(function(x) return math.abs(x) end, dynamic))(-2))
    local strict = setmetatable({}, {__index = function(_, name) return _G[name] or error("no " .. name) end})
    assert.is_nil(round_trip(setfenv(loadstring "return nowhere", strict))())
  end)

  it("keeps the lines of functions for tracebacks", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local got = round_trip(function() error "here" end)
    local _, problem = pcall(got)
    assert.matches("mp_spec.lua:" .. line .. ": here", problem, 1, true)
  end)

  it("sends what modules have by name", function()
    local values = {
      print, string.format, math, io.stdout, _G, lm, nn, nn.Linear, nn.Module, optim.SGD, lm.relu, core, core.methods,
      package.loaded, ffi, ffi.new, getmetatable(nn.Linear).__call, nn.functional.relu,
    }
    local got = round_trip(values)
    for i, v in ipairs(values) do assert.equal(v, got[i]) end
  end)

  it("carries modules and classes", function()
    local Net = nn.Module:extend("Net")
    function Net:init(n)
      self.fc = nn.Linear(n, n)
      self.tied = self.fc
      self.body = nn.Sequential(nn.Linear(n, n), nn.BatchNorm1d(n), nn.ReLU())
      self.note = {n = n}
      self:register_buffer("steps", lm.zeros(1), {persistent = false})
    end
    function Net:forward(x) return self.body(self.fc(x)) end
    local net = Net(3)
    net:eval()
    local got = round_trip(net)
    assert.not_equal(net, got)
    assert.is_true(got:is(nn.Module))
    assert.is_true(got.fc:is(nn.Linear))
    assert.is_false(got:is(Net)) -- a class of the script's own is carried too
    assert.equal("Net", got.__name)
    assert.equal(tostring(net), tostring(got))
    assert.equal(got.fc, got.tied)
    assert.is_false(got.training)
    assert.equal(got.body[1], got.body[-3])
    assert.equal(3, got.note.n)
    local x = lm.randn(4, 3)
    assert.is_true(lm.equal(net(x), got(x)))
    local names = {}
    for name, p in got:named_parameters() do
      names[#names + 1] = name
      assert.is_true(p.requires_grad)
    end
    assert.same({"fc.weight", "fc.bias", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}, names)
    got.fc = nn.Linear(3, 3) -- assignments are seen as before
    got.extra = nn.Parameter(lm.zeros(2))
    assert.equal(9, #got:parameters()) -- the first one is still there as `tied`
    assert.is_nil(got:state_dict().steps)
  end)

  it("carries optimizers with their state, datasets and loaders", function()
    local net = nn.Linear(2, 2)
    local opt = optim.Adam(net:parameters(), {lr = 0.5})
    net(lm.ones(1, 2)):sum():backward()
    opt:step()
    local got = round_trip {net = net, opt = opt}
    assert.equal(got.net.weight, got.opt.param_groups[1].params[1])
    local state = got.opt.state[got.net.weight]
    assert.equal(1, state.step)
    assert.is_true(lm.equal(opt.state[net.weight].exp_avg, state.exp_avg))
    assert.is_nil(got.net.weight.grad)
    got.net(lm.ones(1, 2)):sum():backward()
    got.opt:step()
    assert.equal(2, got.opt.state[got.net.weight].step)

    local set = data.TensorDataset(lm.arange(10):view(10, 1), lm.arange(10))
    local parts = data.random_split(set, {6, 4}, {seed = 1})
    local loader = data.DataLoader(parts[2], {batch_size = 2, sampler = data.DistributedSampler(parts[2])})
    local other = round_trip(loader)
    local a, b = {}, {}
    for x in loader:epoch(3) do a[#a + 1] = x:totable() end
    for x in other:epoch(3) do b[#b + 1] = x:totable() end
    assert.same(a, b)
  end)

  it("keeps of a tensor what it is: strides, dtype, device, requires_grad, and what shares its memory", function()
    for _, processes in ipairs {false, true} do
      local base = lm.arange(24, {dtype = "float64"}):view(2, 3, 4)
      local cases = {
        base = base, transposed = base:transpose(1, 3), part = base[{{}, {2, 3}}], scalar = lm.tensor(7),
        empty = lm.zeros(0, 3), expanded = lm.ones(1, 2):expand(5, 2), bool = lm.tensor {true, false},
        half = lm.ones(3, {dtype = "bfloat16"}), there = lm.ones(2, {device = "cpu:1"}),
        asks = lm.randn(2):requires_grad_(), p = nn.Parameter(lm.zeros(2), false),
      }
      local want = {}
      for name, t in pairs(cases) do want[name] = t:detach():to("cpu"):tolist() end
      local got = round_trip(cases, {processes = processes})
      for _, t in pairs(got) do assert.equal(processes or t:numel() == 0, t:is_shared()) end
      for name, t in pairs(cases) do
        local g = got[name]
        assert.same(want[name], g:detach():to("cpu"):tolist())
        assert.same({t.shape, t.dtype, t.device, t.requires_grad}, {g.shape, g.dtype, g.device, g.requires_grad})
        assert.same(t:stride(), g:stride())
      end
      assert.is_true(require("luminary.nn.parameter").is(got.p))
      got.base:fill_(9)
      assert.equal(9, got.part[1][1][1])
      assert.equal(9, cases.transposed[1][1][1])
    end
  end)

  it("refuses the rest by its path", function()
    local co = coroutine.create(function() end)
    assert.matches("send: args[2].loss.hook: a coroutine cannot be sent to another process",
      refusal({args = {1, {loss = {hook = co}}}}, {processes = true}), 1, true)
    assert.matches('t["a b"]: a coroutine cannot be sent to another thread', refusal {t = {["a b"] = co}}, 1, true)
    assert.matches("x's key: a coroutine", refusal {x = {[co] = 1}}, 1, true)
    assert.matches("x's metatable.__gc: userdata", refusal {x = setmetatable({}, {__gc = newproxy()})}, 1, true)
    assert.matches("file: userdata", refusal {file = assert(io.open("/dev/null"))}, 1, true)
    assert.matches("f's co: a coroutine", refusal {f = function() return co end}, 1, true)
    local net = nn.Sequential(nn.Linear(1, 1))
    net[1].hook = {inner = co}
    assert.matches("net.*hook%.inner: a coroutine", refusal {net = net})
    assert.matches("c: cdata of type ctype<float> cannot be sent", refusal {c = ffi.new "float"}, 1, true)
    assert.matches("g: a C function that no module has as a field",
      refusal {g = string.gmatch("a", "a")}, 1, true)
    local x = lm.ones(2):requires_grad_()
    assert.matches("y: a tensor that an op computed from others with gradients .*; send x:detach%(%)",
      refusal {y = x * 2})
    local dead = lm.ones(1)
    dead:free()
    assert.matches("t: a tensor that was freed", refusal {t = dead}, 1, true)
  end)

  it("does not take objects in a module for code", function()
    local name = "spec_mp_module"
    local folder = temp.folder()
    temp.write(folder .. "/" .. name .. ".lua", [[
      local nn = require("luminary").nn
      local M = {limit = {1}, Net = nn.Module:extend("Net"), net = nn.Linear(1, 1)}
      function M.double(x) return 2 * x end
      return M]])
    local path = package.path
    package.path = folder .. "/?.lua;" .. path
    local M = require(name)
    M.limit[1] = 5
    M.hook = function() return "script" end
    local got = round_trip {M = M, double = M.double, Net = M.Net, net = M.net, limit = M.limit, hook = M.hook}
    package.path = path
    package.loaded[name] = nil
    temp.remove(folder)
    assert.equal(M, got.M)
    assert.equal(M.double, got.double)
    assert.equal(M.Net, got.Net)
    assert.not_equal(M.net, got.net)
    assert.not_equal(M.limit, got.limit)
    assert.equal(5, got.limit[1])
    assert.not_equal(M.hook, got.hook)
    assert.equal("script", got.hook())
  end)
end)

describe("shared memory", function()
  it("moves a tensor in place", function()
    local x = lm.arange(6):view(2, 3):t():clone()
    assert.is_false(x:is_shared())
    local before, version = x:tolist(), x.requires_grad
    assert.equal(x, x:share_memory_())
    assert.is_true(x:is_shared())
    assert.same(before, x:tolist())
    assert.equal(version, x.requires_grad)
    local view = x[1]
    assert.is_true(view:is_shared())
    view:fill_(5)
    assert.equal(5, x[1][2])
    assert.is_true(lm.zeros(0):is_shared())
  end)

  it("keeps gradients, hooks and history of what moves", function()
    local w = lm.ones(3):requires_grad_()
    local seen = 0
    w:register_hook(function() seen = seen + 1 end)
    w:share_memory_()
    w:mul(2):sum():backward()
    assert.same({2, 2, 2}, w.grad:tolist())
    assert.equal(1, seen)
    local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net(lm.ones(2, 2)):sum():backward()
    net:share_memory()
    for _, p in ipairs(net:parameters()) do
      assert.is_true(p:is_shared() and p.grad:is_shared() and p.requires_grad)
    end
    for _, b in ipairs(net:buffers()) do assert.is_true(b:is_shared()) end
  end)

  it("moves views together with what they are views of, and refuses to leave one behind", function()
    local base = lm.zeros(4, 4)
    local row = base[1]
    local ok, problem = pcall(row.share_memory_, row)
    assert.is_false(ok)
    assert.matches("share_memory_: this tensor shares memory with another tensor in use", problem, 1, true)
    assert.is_false(row:is_shared())
    local got = round_trip({row, base}, {processes = true})
    assert.is_true(row:is_shared() and base:is_shared())
    got[1]:fill_(3)
    assert.equal(3, base[1][4])
    local function make() return lm.zeros(3):view(3) end -- nobody holds what it is a view of
    assert.is_true(make():share_memory_():is_shared())
  end)

  it("is for threads what it is for processes: gradients, and who wrote, are each one's own", function()
    local w = lm.ones(3):requires_grad_():share_memory_()
    local there = round_trip {w, w:detach()}
    assert.is_true(there[1]:is_shared() and there[1].requires_grad)
    local loss = (w * w):sum()
    lm.no_grad(function() there[1]:mul_(2) end) -- as another thread's step
    loss:backward()
    assert.same({4, 4, 4}, w.grad:tolist())
    assert.is_nil(there[1].grad)
    loss = (there[1] * there[1]):sum()
    there[2]:mul_(2) -- there[2] has the same memory
    assert.matches("changed it in place", select(2, pcall(loss.backward, loss)), 1, true)
    local plain = lm.ones(3):requires_grad_()
    there, loss = round_trip(plain), (plain * plain):sum()
    lm.no_grad(function() there:mul_(2) end)
    assert.matches("changed it in place", select(2, pcall(loss.backward, loss)), 1, true)
  end)

  it("is given back", function()
    local before = count_descriptors()
    for _ = 1, 20 do lm.zeros(1000):share_memory_() end
    assert.is_true(count_descriptors() <= before + 2)
  end)

  it("survives lack of memory", function()
    for n = 1, 12 do
      local x, y = lm.ones(40), lm.ones(50)
      core._fail_alloc_from(n)
      local ok = pcall(function() core.mp_share {x, y} end)
      core._fail_alloc_from(0)
      assert.equal(ok, x:is_shared())
      assert.equal(ok, y:is_shared())
      assert.equal(40, x:sum():item())
    end
    local x, here, there = lm.ones(40):share_memory_(), core.mp_pipe(true)
    local list, sent = {x, x[{{1, 20}}], lm.ones(3)}, 0
    for n = 1, 30 do
      core._fail_alloc_from(n)
      local ok = pcall(core.mp_put, here, "text", list, nil, 0)
      core._fail_alloc_from(0)
      if ok then
        sent = sent + 1
        local _, got = core.mp_get(there, 0)
        assert.equal(20, got[2]:sum():item())
      end
    end
    assert(sent > 0 and sent < 30, sent)
  end)
end)

for _, method in ipairs {"process", "thread"} do
  describe("spawn by " .. method, function()
    it("calls the function with a number from 0 and the arguments, and shares tensors", function()
      local x, log = lm.zeros(3, 2), {}
      mp.spawn(function(i, t, a, nothing, b)
        assert(a == "a" and nothing == nil and b.n == 4)
        t[i + 1] = i + 1
        log[1] = i -- a copy
      end, {nprocs = 3, method = method, args = {x, "a", nil, {n = 4}}})
      assert.same({{1, 1}, {2, 2}, {3, 3}}, x:tolist())
      assert.same({}, log)
    end)

    it("carries lists of sizes that print and compare there", function()
      local x, out = lm.zeros(2, 3), lm.zeros {}
      mp.spawn(function(_, t, shape, result)
        assert(tostring(shape) == "{2, 3}" and shape == t.shape)
        result:fill_(shape[2])
      end, {method = method, args = {x, x.shape, out}})
      assert.equal(3, out:item())
    end)

    it("sets the place in the environment, the script's name and the share of the cores", function()
      local out = lm.zeros(2, 4)
      mp.spawn(function(i, t)
        local l = require "luminary"
        local e = l.getenv
        t[i + 1][1] = tonumber(e "LOCAL_RANK")
        t[i + 1][2] = tonumber(e "LOCAL_WORLD_SIZE")
        l.setenv("LM_SPEC_RANK", tostring(i + 10))
        t[i + 1][3] = tonumber(os.getenv "LM_SPEC_RANK" or e "LM_SPEC_RANK")
        t[i + 1][4] = #arg[0] > 0 and l.get_num_threads() or -1
      end, {nprocs = 2, method = method, args = {out}})
      local got = out:tolist()
      local share = math.max(1, math.floor(core.process_cores() / 2))
      assert.same({{0, 2, 10, share}, {1, 2, 11, share}}, got)
      assert.is_nil(core.getenv "LM_SPEC_RANK")
      assert.is_nil(core.getenv "LOCAL_RANK")
    end)

    it("gives each its own random state", function()
      local out = lm.zeros(2, 100)
      lm.manual_seed(1)
      mp.spawn(function(i, t)
        local l = require "luminary"
        l.manual_seed(7)
        for k = 1, 100 do t[i + 1][k] = l.randn(1) end
      end, {nprocs = 2, method = method, args = {out}})
      assert.is_true(lm.equal(out[1], out[2]))
    end)

    it("brings an error back with rank, message and traceback, and ends the others", function()
      local line = debug.getinfo(1, "l").currentline + 4
      local began = lm.time()
      local ok, problem = pcall(mp.spawn, function(i)
        local function inner()
          if i == 1 then error "boom" end
          while true do require("luminary").zeros(1) end
        end
        inner()
      end, {nprocs = 3, method = method})
      assert.is_false(ok)
      assert.matches("mp_spec.lua:%d+: spawn: rank 1 .*failed: .*mp_spec.lua:" .. line .. ": boom", problem)
      assert.matches("stack traceback of rank 1:.*in function 'inner'", problem)
      assert.is_nil(problem:find("luminary/mp", 1, true))
      within(lm.time() - began, 5)
    end)

    it("brings back errors that are no strings, and says what a missing global is", function()
      local function fails() error(setmetatable({}, {__tostring = function() return "obj" end})) end
      local _, problem = pcall(mp.spawn, fails, {method = method})
      assert.matches("rank 0 .*failed: obj", problem)
      _, problem = pcall(mp.spawn, function() some_helper() end, {method = method}) -- luacheck: ignore
      assert.matches("'some_helper' %(a nil value%); global variables are not sent", problem)
    end)

    it("refuses what cannot be sent before anything starts", function()
      local _, problem = pcall(mp.spawn, function() end, {method = method, args = {1, {x = coroutine.create(print)}}})
      assert.matches("spawn: args%[2%]%.x: a coroutine cannot be sent to another " .. method, problem)
      _, problem = pcall(mp.spawn, function() end, {}, 2)
      assert.is_nil(problem) -- PyTorch's spawn(fn, args, nprocs)
      _, problem = pcall(mp.spawn, function() end, {}, true)
      assert.matches("spawn: nprocs must be an integer from 1 to 4096, got true", problem)
      _, problem = pcall(mp.spawn, function() end, {method = method, args = {lr = 0.1}})
      assert.matches("spawn: args must be a plain list, but has a field 'lr'", problem)
      assert.equal(0, count_children())
    end)

    it("takes os.exit as the end of one", function()
      mp.spawn(function() os.exit(0, true) end, {method = method, nprocs = 2})
      local function leave(i) if i == 1 then os.exit(3, true) end end
      local _, problem = pcall(mp.spawn, leave, {method = method, nprocs = 2})
      assert.matches("spawn: rank 1.* ended with exit code 3", problem)
    end)

    it("gives a context with join = false", function()
      local t = lm.zeros(2)
      local context = mp.spawn(function(_, x)
        while x[1] == 0 do require("luminary").time() end
        x[2] = 5
      end, {method = method, join = false, args = {t}})
      assert.is_false(context:join(0))
      assert.is_false(context:join(0.2))
      assert.equal(method == "process" and 1 or 0, #context:pids())
      t[1] = 1
      assert.is_true(context:join(20))
      assert.is_true(context:join())
      assert.equal(5, t[2])
    end)

    it("can be terminated", function()
      local context = mp.spawn(function() while true do require("luminary").zeros(1) end end,
        {method = method, join = false, nprocs = 2})
      ffi.C.usleep(200000)
      local began = lm.time()
      context:terminate()
      within(lm.time() - began, 4)
      assert.is_false((pcall(context.join, context)))
    end)

    it("leaves no descriptors, children or memory", function()
      local function once()
        pcall(mp.spawn, function(i) if i == 1 then error "x" end end, {nprocs = 2, method = method})
      end
      once()
      local before = count_descriptors()
      for _ = 1, 4 do once() end
      assert.is_true(count_descriptors() <= before + 1)
      assert.equal(0, count_children())
    end)

    it("can spawn in turn", function()
      local t = lm.zeros(4)
      mp.spawn(function(i, x, how)
        require("luminary").mp.spawn(function(k, y) y[2 * i + k + 1] = 1 end, {nprocs = 2, args = {x}, method = how})
      end, {nprocs = 2, args = {t, method}, method = method})
      assert.equal(4, t:sum():item())
    end)
  end)
end

describe("spawn by process", function()
  it("tells of a signal, and of the first cause alone", function()
    local _, problem = pcall(mp.spawn, function(i)
      local f = require "ffi"
      f.cdef "int kill(int pid, int number); int getpid(void); int usleep(unsigned microseconds);"
      if i == 1 then f.C.kill(f.C.getpid(), 10) end
      f.C.usleep(3e7)
    end, {nprocs = 2})
    assert.matches("spawn: rank 1 %(process %d+%) was ended by SIGUSR1", problem)
  end)

  it("ends with the program that started it", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      local c = lm.mp.spawn(function() while true do end end, {nprocs = 2, join = false})
      local file = io.open(arg[1], "w")
      file:write(table.concat(c:pids(), " "))
      file:close()
      require("ffi").cdef "int kill(int, int); int getpid(void);"
      local C = require("ffi").C
      C.kill(C.getpid(), 9)]])
    temp.run(folder, ("timeout 60 luajit %s/main.lua %s/pids; true"):format(folder, folder))
    local pids = temp.read(folder .. "/pids")
    temp.remove(folder)
    local deadline, alive = lm.time() + 60, true
    while alive and lm.time() < deadline do
      alive = false
      for pid in pids:gmatch("%d+") do alive = alive or is_running(pid) end
    end
    assert.is_falsy(alive)
  end)

  it("passes a hundred tensors of shared memory back and forth without a descriptor for each", function()
    local list = {}
    for i = 1, 300 do list[i] = lm.full({10}, i) end
    local before = count_descriptors()
    mp.spawn(function(_, tensors)
      for _, t in ipairs(tensors) do t:add_(1) end
    end, {args = {list}})
    assert.is_true(count_descriptors() <= before + 3)
    assert.equal(301, list[300][1])
  end)

  it("names another interpreter", function()
    mp.set_executable "/nonexistent/luajit"
    local _, problem = pcall(mp.spawn, function() end)
    mp.set_executable(core.process_self())
    assert.matches("cannot start '/nonexistent/luajit': No such file or directory", problem, 1, true)
  end)
end)

describe("threads", function()
  it("have LuaJIT's compiler off if it is off where they are started", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      for _, method in ipairs {"process", "thread"} do
        local pool = lm.mp.Pool(1, {method = method})
        print(jit.status() == pool:apply(function() return (jit.status()) end), (jit.status()))
        pool:close()
        pool:join()
      end
    ]])
    local command = "timeout 60 luajit %s " .. folder .. "/main.lua"
    assert.equal("true\ttrue\ntrue\ttrue\n", select(2, temp.run(folder, command:format "")))
    assert.equal("true\tfalse\ntrue\tfalse\n", select(2, temp.run(folder, command:format "-joff")))
  end)

  it("are waited for when the program ends", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      lm.mp.spawn(function()
        local l = require "luminary"
        local stop = l.time() + 0.3
        while l.time() < stop do l.randn(100, 100):mm(l.randn(100, 100)) end
        if arg[0] then print "done" end
      end, {nprocs = 2, join = false, method = "thread"})]])
    local ok, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    assert.is_true(ok)
    assert.equal("done\ndone\n", text)
    temp.remove(folder)
  end)

  local endless = [[
    local lm = require "luminary"
    lm.mp.spawn(function()
      local l = require "luminary"
      while true do l.randn(100, 100):mm(l.randn(100, 100)) end
    end, {nprocs = 2, join = false, method = "thread", daemon = true})]]

  it("are asked to end if they are daemons", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", endless)
    assert.is_true((temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")))
    temp.remove(folder)
  end)

  -- The state is not closed then, and what is in it is not given back: no leak check.
  it("do not disturb os.exit #unsanitized", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", endless .. " os.exit(5)")
    for _ = 1, 5 do
      local _, _, code = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
      assert.equal(5, code)
    end
    temp.remove(folder)
  end)
end)

-- Scripts that end while others of their threads compute and cannot be interrupted: exit code and output are theirs,
-- and no library is taken apart under a thread that uses it. Here any handler of exit() ends the process by SIGABRT.
describe("the end of a program #unsanitized", function()
  local folder = temp.during(setup, teardown)

  local PROLOGUE = [[
    local lm, ffi = require "luminary", require "ffi"
    ffi.cdef "int on_exit(void *, void *); void abort(void);"
    ffi.C.on_exit(ffi.C.abort, nil)
    io.stdout:setvbuf("full", 4096)
    io.stdout:write "written"
  ]]

  local function ends_as(code, script)
    temp.write(folder .. "/script.lua", PROLOGUE .. script)
    local _, text, got = temp.run(folder, "env OMP_NUM_THREADS=1 timeout -k 1 30 luajit " .. folder .. "/script.lua")
    assert.equal(code, got, text)
    assert.matches("written", text)
    return text
  end

  for leave, code in pairs { ["os.exit(7)"] = 7, ["error 'boom'"] = 1 } do
    it("by " .. leave .. " where a thread swallows its interrupt", function()
      local text = ends_as(code, [[
        local count = lm.zeros(2)
        lm.mp.spawn(function(i, seen)
          local lm = require "luminary"
          local x, w = lm.randn {8, 16, 20, 20}, lm.randn {16, 16, 3, 3}
          local y = lm.randn({100, 100}, {dtype = "float64"})
          while true do
            pcall(function()
              while true do
                lm.nn.functional.conv2d(x, w)
                y:mm(y)
                seen[i + 1] = 1
              end
            end)
          end
        end, {nprocs = 2, method = "thread", join = false, daemon = true, args = {count}})
        while count:sum():item() < 2 do end
        ]] .. leave)
      if code == 1 then assert.matches("boom", text) end
    end)
  end

  for _, leave in ipairs { "os.exit(7)", "os.exit(7, true)" } do
    it("by " .. leave .. " in a hook of a backward pass over two devices", function()
      ends_as(7, [[
        local x = lm.randn({60, 60}, {requires_grad = true})
        local y = lm.randn({400, 400}, {device = "cpu:1", requires_grad = true}) -- computes for a while
        local a, b = x:tanh(), y
        for _ = 1, 50 do b = b:mm(y):tanh() end
        local function leave() ]] .. leave .. [[ end
        a:register_hook(leave)
        y:register_hook(leave) -- the other thread waits until this one's work is done
        local loss = a:sum() + b:sum():to("cpu")
        loss:backward()]])
    end)
  end

  it("by itself goes through what others have asked to be called", function()
    temp.write(folder .. "/script.lua", PROLOGUE .. [[
      local x = lm.randn({6, 6}, {requires_grad = true})
      ;(x:sum() + (x:to("cpu:1") * 2):sum():to("cpu")):backward()]])
    -- With a command after it the shell reports the signal where the output goes, and not among this file's results.
    local _, text, got = temp.run(folder, ("luajit %s/script.lua; exit $?"):format(folder))
    assert.equal(134, got, text)
  end)
end)

describe("Process", function()
  it("runs a function with its arguments", function()
    local t = lm.zeros(1)
    local p = mp.Process {target = function(x, v) x:fill_(v) end, args = {t, 3}, name = "worker"}
    assert.is_nil(p.exitcode)
    assert.is_nil(p.pid)
    assert.is_false(p:is_alive())
    assert.matches("not started", tostring(p))
    assert.matches("worker was not started", select(2, pcall(p.join, p)), 1, true)
    p:start()
    assert.is_true(p.pid > 0)
    assert.is_true(p:join(20))
    assert.equal(0, p.exitcode)
    assert.is_false(p:is_alive())
    assert.equal(3, t:item())
    assert.matches("worker was already started", select(2, pcall(p.start, p)), 1, true)
    assert.matches("Process: args must be a plain list, got a module",
      select(2, pcall(mp.Process, {target = print, args = lm.nn.Linear(1, 1)})), 1, true)
  end)

  it("has exit codes as Python's", function()
    local exits = mp.Process {target = function() os.exit(7, true) end}:start()
    local sleeps = mp.Process {target = function() while true do end end}:start()
    local killed = mp.Process {target = function() while true do end end}:start()
    assert.is_true(exits:join(20))
    assert.equal(7, exits.exitcode)
    assert.is_nil(sleeps.exitcode)
    assert.is_true(sleeps:is_alive())
    assert.is_false(sleeps:join(0))
    sleeps:terminate()
    killed:kill()
    assert.is_true(sleeps:join(20) and killed:join(20))
    assert.equal(-15, sleeps.exitcode)
    assert.equal(-9, killed.exitcode)
    sleeps:terminate() -- nothing happens
  end)

  it("writes an error with its traceback to standard error", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local p = require("luminary").mp.Process{target = function() error "oops" end, name = "trainer"}
      p:start()
      p:join()
      os.exit(p.exitcode + 10, true)]])
    local _, text, code = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.equal(11, code)
    assert.matches("^trainer: .*main.lua:1: oops\nstack traceback:\n.*main.lua:1", text)
  end)

  it("is waited for when the program ends, unless it is a daemon", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      lm.mp.Process{target = function()
        local stop = lm.time() + 0.2
        while lm.time() < stop do end
        print "waited" end}:start()
      lm.mp.Process{daemon = true, target = function() while true do end end}:start()]])
    local ok, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.is_true(ok)
    assert.equal("waited\n", text)
  end)
end)
