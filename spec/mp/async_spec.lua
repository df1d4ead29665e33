-- lm.async and lm.serve: results of worker threads without waiting for them.
local lm = require "luminary"
local ffi = require "ffi"
local near = require "spec.support.near"
local temp = require "spec.support.temp"

ffi.cdef [[
  struct async_pollfd { int fd; short events, revents; };
  int poll(struct async_pollfd *, unsigned long, int);
]]
local POLLIN = 1

local function is_readable(fd, seconds)
  local p = ffi.new("struct async_pollfd[1]", {{fd = fd, events = POLLIN}})
  return ffi.C.poll(p, 1, seconds * 1000) > 0
end

local function problem_of(f, ...)
  local ok, problem = pcall(f, ...)
  assert.is_false(ok)
  return problem
end

-- Runs until `gate` is set.
local function wait_for(gate) return gate:wait(30) end

-- Returns a future whose call has begun and runs until the returned gate is set.
local function running()
  local begun, gate = lm.mp.Event(), lm.mp.Event()
  local future = lm.async(function()
    begun:set()
    return gate:wait(30)
  end)
  assert.is_true(begun:wait(30))
  return future, gate
end

local folder = temp.during(setup, teardown)

-- Runs a program in another process; returns its exit code and output.
local function run(program, before)
  temp.write(folder .. "/program.lua", program)
  local _, output, code = temp.run(folder, ("%stimeout 60 luajit %s/program.lua"):format(before or "", folder))
  return code, output
end

describe("lm.async", function()
  setup(function() lm.async(math.abs, 1):get() end) -- its tensors are counted with the spec's
  teardown(function() lm.set_async {} end)

  it("returns the results of a function, nil among them", function()
    local n, a, b, c = lm.async(function(...) return select("#", ...), ... end, nil, 2, nil):get()
    assert.same({3, nil, 2, nil}, {n, a, b, c})
    assert.is_nil(lm.async(function() end):get())
  end)

  it("computes a module without gradients, over the same weights", function()
    local net, x = lm.nn.Linear(3, 2), lm.randn(4, 3)
    local y = lm.async(net, x):get()
    near(net(x), y)
    assert.is_false(y.requires_grad)
    lm.no_grad(function() net.weight:fill_(1) end)
    near(net(x), lm.async(net, x):get())
    lm.async(function(w) w:fill_(7) end, x):get()
    assert.equal(7, x[1][1])
  end)

  it("raises the function's error, with its traceback, in get alone", function()
    local future = lm.async(function() error "no such luck" end)
    assert.is_true(future:wait(30))
    local problem = problem_of(future.get, future)
    assert.matches("Future:get: .-async_spec.lua:%d+: no such luck\nstack traceback of the worker:\n", problem)
    assert.matches("no such luck", future:exception())
    assert.equal(4, lm.async(function() return 4 end):get())
  end)

  it("raises a copy of an error that is a table, or its text if it cannot be sent", function()
    local future = lm.async(function() error {code = 3, where = {"a", lm.ones(2)}} end)
    local problem = problem_of(future.get, future)
    assert.equal(3, problem.code)
    assert.equal(2, problem.where[2]:sum():item())
    assert.equal(3, future:exception().code)
    local unsent = lm.async(function() error {code = 3, thread = coroutine.create(print)} end)
    assert.matches("error object is a table value", problem_of(unsent.get, unsent))
    assert.equal(1, lm.async(function() return 1 end):get())
  end)

  it("names a result that cannot be sent", function()
    local future = lm.async(function() return coroutine.create(print) end)
    assert.matches("the result", problem_of(future.get, future))
    assert.matches("async: f must be a function or a module, got 3", problem_of(lm.async, 3))
    assert.matches("thread", problem_of(lm.async, print, coroutine.create(print)))
    assert.equal(1, lm.async(function() return 1 end):get())
  end)

  it("sends values of modules that are loaded after the first call", function()
    local path = os.tmpname()
    temp.write(path, [[
      local lm = require "luminary"
      lm.set_async {workers = 1}
      local first = lm.async(function(net) return net.weight.shape[1] end, lm.nn.Linear(1, 2)):get()
      local queue = lm.mp.Queue()
      print(first, lm.async(function(q) q:put "one" end, queue):get(), queue:get())
    ]])
    local pipe = io.popen("timeout 60 luajit " .. path .. " 2>&1")
    assert.equal("2\tnil\tone\n", pipe:read "*a")
    pipe:close()
    os.remove(path)
  end)

  it("survives a worker that exits", function()
    local future = lm.async(function() os.exit(3) end)
    assert.matches("the worker ended with exit code 3", problem_of(future.get, future))
    assert.equal(5, lm.async(function() return 5 end):get())
  end)

  it("runs calls and callbacks in their order, and poll raises a callback's error after all", function()
    local seen = {}
    for i = 1, 20 do
      lm.async(function(v) return v end, i):on_done(function(future)
        seen[#seen + 1] = future:get()
        if i == 7 then error "seven" end
      end)
    end
    local problems = 0
    while #seen < 20 do
      local ok, problem = pcall(lm.poll, 30)
      if not ok then problems = problems + 1; assert.matches("seven", problem) end
    end
    for i = 1, 20 do assert.equal(i, seen[i]) end
    assert.equal(1, problems)
    local late = lm.async(function() return 1 end)
    late:get()
    local called
    assert.equal(late, late:on_done(function(f) called = f end))
    assert.is_nil(called)
    assert.equal(1, lm.poll())
    assert.equal(late, called)
    assert.equal(0, lm.poll())
  end)

  it("bounds get, and cancels what has not begun", function()
    local future, gate = running()
    assert.is_false(future:done())
    assert.matches("timeout: no result within 0.01 s", problem_of(future.get, future, {timeout = 0.01}))
    assert.matches("has not ended", problem_of(future.exception, future))
    local second = lm.async(error, "it ran")
    assert.is_true(second:cancel())
    assert.is_true(second:done() and second:cancelled())
    assert.matches("canceled", problem_of(second.get, second))
    assert.is_false(future:cancel())
    gate:set()
    assert.is_true(future:get(30))
    assert.is_false(future:cancelled())
    assert.equal("canceled", second:exception():match "canceled")
    assert.equal(2, lm.async(function() return 2 end):get(30))
  end)

  it("runs callbacks of calls whose workers set_async ended", function()
    local seen = {}
    local future = lm.async(math.abs, -1)
    future:on_done(function(f) seen[#seen + 1] = f:get() end)
    lm.set_async {}
    assert.is_true(future:done())
    assert.equal(1, lm.poll(30))
    future:on_done(function(f) seen[#seen + 1] = -f:get() end)
    assert.equal(1, lm.poll())
    assert.same({1, -1}, seen)
  end)

  it("has a descriptor that is readable from the end on", function()
    local future, gate = running()
    assert.is_false(is_readable(future:fileno(), 0))
    gate:set()
    assert.is_true(is_readable(future:fileno(), 30))
    assert.is_true(future:done())
    assert.is_true(is_readable(future:fileno(), 0))
  end)

  it("has a socket whose connections end with the call", function()
    local future, gate = running()
    assert.matches("lm.set_async {socket_paths = true}", problem_of(future.socket_path, future), 1, true)
    gate:set()
    lm.set_async {socket_paths = true}
    future, gate = running()
    local path = future:socket_path()
    local waits = lm.async(wait_for, gate)
    assert.not_equal(path, waits:socket_path())
    local client = io.popen(("timeout 30 curl -s --unix-socket %s http://x/; echo ended with $?"):format(path))
    local stat = io.popen("ls -l " .. path)
    assert.matches("^s", stat:read "*a")
    stat:close()
    gate:set()
    assert.matches("ended with [1-9]", client:read "*a")
    client:close()
    assert.is_true(future:get(30) and waits:get(30))
    assert.is_nil((io.open(path)))
    lm.set_async {}
  end)

  it("limits the calls that are open", function()
    lm.set_async {max_queue = 3}
    local future, gate = running()
    local more = {lm.async(math.abs, -1), lm.async(math.abs, -2)}
    assert.matches("async: 3 calls are open, which is the limit", problem_of(lm.async, math.abs, 1))
    gate:set()
    assert.is_true(future:get(30))
    assert.same({1, 2}, {more[1]:get(30), more[2]:get(30)})
    assert.equal(3, lm.async(math.abs, -3):get(30))
    assert.matches("max_queue must be at most 1024 for 2 workers, got 1025",
      problem_of(lm.set_async, {workers = 2, max_queue = 1025}))
    lm.set_async {max_queue = 400}
    gate = select(2, running())
    local calls = {}
    for i = 1, 399 do calls[i] = lm.async(math.abs, -i) end
    gate:set()
    for i, each in ipairs(calls) do assert.equal(i, each:get(30)) end
    lm.set_async {}
  end)

  it("runs calls at the same time on several workers", function()
    lm.set_async {workers = 2, threads = 1}
    local one, gate = running()
    assert.equal(1, lm.async(lm.get_num_threads):get(30))
    local others = {}
    for i = 1, 10 do others[i] = lm.async(math.abs, -i) end -- half of them wait behind the first
    assert.is_false(one:done())
    gate:set()
    for i = 1, 10 do assert.equal(i, others[i]:get(30)) end
    lm.set_async {}
  end)

  it("runs workers with the niceness of set_async, and this thread with its own", function()
    local function niceness() -- the 19th field
      return tonumber(io.open("/proc/thread-self/stat"):read("*a"):match("%) " .. ("%S+ "):rep(16) .. "(%-?%d+)"))
    end
    local own = niceness()
    lm.set_async {nice = 7}
    assert.equal(math.min(own + 7, 19), lm.async(niceness):get(30))
    assert.equal(own, niceness())
    lm.set_async {}
    assert.equal(own, lm.async(niceness):get(30))
    assert.matches("set_async: nice must be an integer from 0 to 19, got 20", problem_of(lm.set_async, {nice = 20}))
    assert.matches("set_async: nice must be", problem_of(lm.set_async, {nice = -1}))
  end)

  it("names a module's function without a scan of all modules", function()
    local names = require "luminary.mp.module_references"
    local function scans(finder)
      for i = 1, 9 do
        local name, value = debug.getupvalue(finder, i)
        if name == "found" then return value ~= nil end
      end
      error "no upvalue 'found'"
    end
    local finder, temp_module = names.finder(), require "spec.support.temp"
    assert.same({"spec.support.temp", "field", "read"}, finder(temp_module.read))
    assert.same({"luminary.mp.module_references", "field", "resolve"}, finder(names.resolve))
    assert.equal(names.resolve, names.resolve(finder(names.resolve)))
    assert.is_nil(finder(loadstring "return 1"))
    assert.is_nil(finder {1, {"data"}})
    assert.is_false(scans(finder))
    assert.same({"math", "field", "abs"}, finder(math.abs))
    assert.is_true(scans(finder))
    assert.same({"spec.support.temp", "field", "read"}, finder(temp_module.read)) -- as a scan names it
  end)

  it("starts its workers without a scan of all modules", function()
    local path = os.tmpname()
    temp.write(path, [[
      local lm = require "luminary"
      local search, calls = package.searchpath, 0
      package.searchpath = function(...)
        calls = calls + 1
        return search(...)
      end
      local temp = require "spec.support.temp"
      print(lm.async(temp.exists, arg[0]):get(30), calls)
    ]])
    local pipe = io.popen("timeout 60 luajit " .. path)
    local result, calls = pipe:read("*a"):match "^(%S+)\t(%d+)\n$"
    pipe:close()
    os.remove(path)
    assert.equal("true", result)
    assert.is_true(tonumber(calls) < 10, calls) -- a scan searches for each of the modules that are loaded
  end)

  it("works in a child of a fork, where its parent's calls fail", function()
    local program = [[
      local lm, ffi = require "luminary", require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int);"
      local gate = lm.mp.Event()
      local future = lm.async(function() return gate:wait(30) end)
      local loader = lm.data.DataLoader(lm.data.TensorDataset(lm.ones(8, 2)), {batch_size = 2, num_workers = 1})
      for _ in loader:iter() do end
      if ffi.C.fork() == 0 then
        print(pcall(future.get, future))
        print(lm.async(function() return 2 end):get(30))
        os.exit(0)
      end
      local status = ffi.new "int[1]"
      ffi.C.waitpid(-1, status, 0)
      gate:set()
      print(status[0], future:get(30))
      local n = 0
      for _ in loader:iter() do n = n + 1 end
      print(n)
    ]]
    local path = os.tmpname()
    temp.write(path, program)
    -- The child never frees what the parent's threads hold.
    local pipe = io.popen('ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" timeout 60 luajit ' .. path .. " 2>&1")
    local text = pipe:read "*a"
    pipe:close()
    os.remove(path)
    local want = "^false\t.-Future:get: the call was made in process %d+, which forked this one; .-\n2\n0\ttrue\n4\n$"
    assert.matches(want, text)
  end)

  it("gives open calls time at the end of the program", function()
    local path = os.tmpname()
    temp.write(path, [[
      local lm = require "luminary"
      lm.async(function(path)
        local core = require "luminary.core"
        local begun = core.time()
        while core.time() < begun + 0.2 do end
        local file = io.open(path, "a")
        file:write "written"
        file:close()
      end, arg[1])
    ]])
    local out = os.tmpname()
    assert.equal(0, os.execute(("timeout 60 luajit %s %s"):format(path, out)))
    assert.equal("written", temp.read(out))
    os.remove(path)
    os.remove(out)
  end)

  it("ends open calls of several workers at the end of the program, as of one", function()
    local out = folder .. "/out"
    assert.same({0, ""}, {run(([[
      local lm = require "luminary"
      local function write(text)
        local begun = os.clock()
        while os.clock() < begun + 0.02 do end
        local file = io.open(%q, "a")
        file:write(text, "\n")
        file:close()
      end
      lm.set_async {workers = 3}
      for i = 1, 6 do lm.async(write, "async") end
      local batcher = lm.serve.Batcher(function(x)
        write "batch"
        return x
      end, {num_workers = 2, max_batch = 1})
      for _ = 1, 4 do batcher:submit(lm.ones(1, 2)) end
    ]]):format(out))})
    local counts = {}
    for line in io.lines(out) do counts[line] = (counts[line] or 0) + 1 end
    assert.same({async = 6, batch = 4}, counts)
  end)

  it("finishes objects before handles of workers that started later, the newest object first", function()
    local code, output = run [[
      require "luminary"
      local at_exit = require "luminary.mp.at_exit"
      local core = require "luminary.core"
      local handle
      for i = 1, 3 do
        at_exit.remember {finish = function() print(i, core.mp_is_open(handle)) end}
      end
      handle = core.mp_lock()
      at_exit.renew() -- as the start of a worker does
    ]]
    assert.same({0, "3\ttrue\n2\ttrue\n1\ttrue\n"}, {code, output})
  end)

  it("leaves calls that never end to themselves at the end of the program", function()
    local code, output = run [[
      local lm = require "luminary"
      local Worker = require "luminary.mp.worker"
      local at_exit = require "luminary.mp.at_exit"
      local stop, left = Worker.stop, at_exit.seconds_left
      function Worker.stop(workers, seconds)
        print("stop", seconds)
        return stop(workers, seconds)
      end
      function at_exit.seconds_left() return left() > 0 and 0.05 end -- in place of 2
      lm.set_async {workers = 2}
      for _ = 1, 2 do lm.async(function() while true do end end) end
    ]]
    assert.same({0, "stop\t0.1\n"}, {code, output})
  end)

  it("closes the sockets of ended calls, and collects those of dropped ones where no descriptor is free", function()
    local held = {}
    for i = 1, 20 do
      held[i] = lm.async(math.abs, -i)
      held[i]:get(30)
    end
    local count = require "spec.support.open_files"
    local files = count()
    for i = 21, 40 do
      held[i] = lm.async(math.abs, -i)
      assert.equal(i, held[i]:get(30))
    end
    assert.is_true(count() <= files + 1)
    assert.is_true(is_readable(held[1]:fileno(), 0)) -- a new one
    assert.equal(held[1]:fileno(), held[1]:fileno())
    assert.equal(1, held[1]:get())
    local watched = lm.async(math.abs, -2)
    local fd = watched:fileno()
    assert.equal(2, watched:get(30))
    assert.equal(fd, watched:fileno())
    assert.is_true(is_readable(fd, 0))
    local code, output = run([[
      local lm = require "luminary"
      collectgarbage "stop"
      for i = 1, 200 do
        local future = lm.async(math.abs, -i)
        future:fileno()
        assert(future:get() == i)
      end
      for i = 1, 60 do
        lm.mp.Queue()
        lm.mp.Lock()
        lm.mp.Semaphore(1)
      end
    ]], "ulimit -n 40; ")
    assert.same({0, ""}, {code, output})
  end)

  it("makes the descriptor readable before the end of a call shows, also of a canceled one", function()
    for i = 1, 3000 do -- the worker closes its end after the answer: late in 1 of 1500
      local future = lm.async(math.abs, -i)
      local fd = future:fileno()
      repeat until future:done()
      assert.is_true(is_readable(fd, 0), i)
    end
    local busy, gate = running()
    local canceled = lm.async(math.abs, -1)
    local fd = canceled:fileno()
    assert.is_false(is_readable(fd, 0))
    assert.is_true(canceled:cancel())
    assert.is_true(is_readable(fd, 0))
    gate:set()
    assert.is_true(busy:get(30))
    assert.equal(2, lm.async(math.abs, -2):get(30)) -- the worker answers after the canceled call
  end)

  it("says that a worker requires the module of a function that is its field", function()
    temp.write(folder .. "/plugin.lua", "local api = host.api\nreturn {f = function() return 1 end}\n")
    local code, output = run(([[
      package.path = %q .. "/?.lua;" .. package.path
      host = {api = {}}
      local lm = require "luminary"
      print((select(2, pcall(function() lm.async(require("plugin").f):get(30) end))))
    ]]):format(folder))
    assert.equal(0, code, output)
    assert.matches("plugin.lua:1: attempt to index global 'host' %(a nil value%); the worker requires the function's "
      .. "module: keep the function in a module that uses no globals of the host", output)
  end)

  it("names what is no future where a host waits for one", function()
    local nginx, neovim = require "luminary.serve.nginx", require "luminary.serve.neovim"
    rawset(_G, "ngx", {})
    rawset(_G, "vim", {loop = {}})
    for _, bad in ipairs {5, lm.ones(1), lm.nn.ReLU(), {}} do
      assert.matches("nginx.await: future must be a future of lm.async or lm.serve, got ", problem_of(nginx.await, bad))
      assert.matches("neovim.on_done: future must be a future of ", problem_of(neovim.on_done, bad, print))
    end
    assert.matches("nginx.await: timeout must be a number of at least 0, got nan",
      problem_of(nginx.await, lm.async(math.abs, 1), 0 / 0))
    rawset(_G, "ngx", nil)
    rawset(_G, "vim", nil)
  end)

  it("holds nothing of ended calls", function()
    lm.async(math.abs, 1):get()
    collectgarbage()
    collectgarbage()
    local before, files = lm.live_tensors(), require("spec.support.open_files")()
    for _ = 1, 200 do lm.async(function(x) return x + 1 end, lm.ones(10)):get() end
    lm.async(collectgarbage):get()
    collectgarbage()
    collectgarbage()
    assert.is_true(lm.live_tensors() <= before + 2)
    assert.is_true(require("spec.support.open_files")() <= files + 4)
  end)
end)

describe("lm.serve.Batcher", function()
  it("prints itself, and checks its options", function()
    local batcher = lm.serve.Batcher(function(x) return x end)
    assert.equal("Batcher", tostring(batcher))
    assert.equal("{\n  Batcher,\n}", lm.repr({batcher}, 1, 5))
    batcher:close()
    for _, bad in ipairs {-1, 0 / 0} do
      assert.matches("Batcher: max_wait_ms must be a number of at least 0, got",
        problem_of(lm.serve.Batcher, function(x) return x end, {max_wait_ms = bad}))
    end
  end)

  it("ends its worker when it is garbage, but no call that is open", function()
    local function threads() return tonumber(temp.read("/proc/self/status"):match "Threads:%s*(%d+)") end
    local before = threads()
    for _ = 1, 5 do
      lm.serve.Batcher(function(x) return x + 1 end):submit(lm.ones(1, 2)):get(30)
      local last = lm.serve.Batcher(function(x) return x + 1 end):submit(lm.ones(1, 2))
      collectgarbage()
      collectgarbage()
      assert.same({{2, 2}}, last:get(30):totable())
    end
    local seen
    lm.serve.Batcher(function(x) return x + 2 end):submit(lm.ones(1)):on_done(function(f) seen = f:get():item() end)
    collectgarbage()
    collectgarbage()
    assert.equal(1, lm.poll(30))
    assert.equal(3, seen)
    for _ = 1, 3 do collectgarbage() end
    for _ = 1, 200 do -- one that was joined is counted for a moment
      if threads() <= before then break end
      os.execute "sleep 0.05"
    end
    assert.is_true(threads() <= before)
  end)

  it("joins rows, and hands each call its own", function()
    local sizes = lm.zeros({100}, {dtype = "int64"})
    local count = lm.zeros({1}, {dtype = "int64"})
    local net = lm.nn.Linear(3, 2)
    local batcher = lm.serve.Batcher(function(x)
      count:add_(1)
      sizes[count:item()] = x.shape[1]
      return {y = net(x), x * 2}
    end, {max_batch = 8, max_wait_ms = 200})
    local inputs, futures = {}, {}
    for i = 1, 9 do
      inputs[i] = lm.randn(1 + i % 2, 3)
      futures[i] = batcher:submit(inputs[i])
    end
    for i = 1, 9 do
      local result = futures[i]:get(30)
      near(net(inputs[i]), result.y, 1e-5)
      near(inputs[i] * 2, result[1])
    end
    batcher:close()
    assert.equal(14, sizes:sum():item()) -- all rows once
    assert.is_true(count:item() <= 3)
    assert.is_true(sizes:max():item() <= 8)
  end)

  it("computes calls of other sizes and dtypes in their order", function()
    local batcher = lm.serve.Batcher(function(x) return x:sum(2) end, {max_wait_ms = 50})
    local list = {lm.ones(1, 3), lm.ones(1, 4), lm.ones({1, 4}, {dtype = "float64"}), lm.ones(2, 4), lm.ones(40, 4)}
    local futures = {}
    for i, x in ipairs(list) do futures[i] = batcher:submit(x) end
    for i, x in ipairs(list) do
      local y = futures[i]:get(30)
      near(x:sum(2), y)
      assert.equal(x.dtype, y.dtype)
    end
    batcher:close()
  end)

  it("keeps one call's error from the others", function()
    local batcher = lm.serve.Batcher(function(x)
      if x:max():item() > 1 then error "too large" end
      return x
    end, {max_wait_ms = 100})
    local good, bad, other = batcher:submit(lm.ones(1)), batcher:submit(lm.ones(1) * 2), batcher:submit(lm.zeros(2))
    assert.equal(1, good:get(30):item())
    assert.matches("too large", problem_of(bad.get, bad))
    assert.equal(0, other:get(30):sum():item())
    assert.matches("Batcher: x must be a tensor, got 3", problem_of(batcher.submit, batcher, 3))
    assert.matches("Batcher: expected x to have shape %[rows, ...%] with at least one row, got %[0, 3%]",
      problem_of(batcher.submit, batcher, lm.ones(0, 3)))
    batcher:close()
  end)

  it("computes on the caller's thread without workers, when a result is needed", function()
    local sizes = {}
    local batcher
    batcher = lm.serve.Batcher(function(x)
      if x:max():item() > 8 then error "too large" end
      if x:max():item() > 7 then return batcher:submit(x - 1):get() end
      sizes[#sizes + 1] = x.shape[1]
      return x * 2
    end, {num_workers = 0, max_batch = 4})
    local futures = {}
    for i, x in ipairs {lm.ones(1, 2), lm.ones(2, 2), lm.ones(1, 3), lm.ones(2, 2), lm.ones(1, 2) * 3} do
      futures[i] = batcher:submit(x)
    end
    assert.same({}, sizes)
    assert.is_false(futures[1]:done())
    assert.same({2, 2}, futures[2]:get().shape)
    assert.same({4}, sizes) -- 1, 2 and 1 rows of the same size
    assert.is_true(futures[1]:done() and futures[5]:done())
    assert.equal(12, futures[5]:get():sum():item())
    assert.is_true(futures[4]:cancel())
    assert.is_false(futures[1]:cancel())
    local seen
    futures[3]:on_done(function(f) seen = f:get().shape end)
    assert.equal(1, lm.poll())
    assert.same({1, 3}, seen)
    assert.matches("runs on this thread", problem_of(futures[3].fileno, futures[3]))
    local bad, good = batcher:submit(lm.ones(1, 2) * 9), batcher:submit(lm.ones(5, 2))
    assert.same({5, 2}, good:get().shape)
    assert.matches("too large", problem_of(bad.get, bad))
    assert.is_false(batcher:submit(lm.ones(1, 2, {requires_grad = true})):get().requires_grad)
    assert.equal(14, batcher:submit(lm.full({1, 1}, 8)):get():item()) -- a call within a call
    local last = batcher:submit(lm.ones(1, 2))
    batcher:close()
    assert.equal(4, last:get():sum():item())
  end)

  it("refuses a call beyond max_queue, with workers and without", function()
    for workers = 0, 1 do
      local gate = lm.mp.Event()
      local batcher = lm.serve.Batcher(function(x)
        gate:wait(30)
        return x
      end, {num_workers = workers, max_queue = 2, max_batch = 1})
      local first = batcher:submit(lm.ones(1, 2))
      batcher:submit(lm.ones(1, 2))
      local problem = problem_of(batcher.submit, batcher, lm.ones(1, 2))
      assert.matches("Batcher: 2 calls are open, which is the limit", problem)
      gate:set()
      assert.equal(2, first:get(30):sum():item())
      assert.equal(2, batcher:submit(lm.ones(1, 2)):get(30):sum():item())
      batcher:close()
    end
  end)

  it("refuses results without the input's rows, of one call as of several", function()
    for workers = 0, 1 do
      local opts = {num_workers = workers, max_wait_ms = 200}
      local sums = lm.serve.Batcher(function(x) return {x, sums = x:sum(1)} end, opts)
      local longer = lm.serve.Batcher(function(x) return lm.cat {x, x} end, opts)
      local one = sums:submit(lm.ones(3, 4))
      local text = problem_of(one.get, one)
      assert.matches("Batcher: expected the module's result to have shape %[3, ...%], got %[4%]", text)
      local a, b = longer:submit(lm.ones(1, 2)), longer:submit(lm.ones(2, 2))
      assert.matches("shape %[%d, ...%], got %[%d, 2%]", problem_of(a.get, a))
      assert.matches("shape %[%d, ...%], got %[%d, 2%]", problem_of(b.get, b))
      sums:close()
      longer:close()
    end
  end)

  it("runs the callbacks of calls before its close, and refuses calls after it", function()
    for workers = 0, 1 do
      local batcher = lm.serve.Batcher(lm.nn.ReLU(), {num_workers = workers})
      local seen
      batcher:submit(lm.ones(1, 2)):on_done(function(f) seen = f:get():sum():item() end)
      batcher:close()
      assert.equal(1, lm.poll(30))
      assert.equal(2, seen)
      assert.matches("Batcher: it is closed; make another one", problem_of(batcher.submit, batcher, lm.ones(1, 2)))
      batcher:close()
    end
  end)

  it("makes the module's input of any values with collate_fn", function()
    for workers = 0, 1 do
      local function collate(texts)
        return lm.frombuffer(table.concat(texts), "uint8"):view(#texts, 2)
      end
      local opts = {num_workers = workers, max_batch = 3, max_wait_ms = 50, collate_fn = collate}
      local rows = lm.serve.Batcher(function(x) return x * 2 end, opts)
      opts.results = "list"
      local lists = lm.serve.Batcher(function(x) return x:totable() end, opts)
      local futures = {}
      for i, text in ipairs {"ab", "cd", "e", "fg", "hi"} do
        futures[i] = {lists:submit(text), rows:submit(text), text:byte(1, -1)}
      end
      for i, each in ipairs(futures) do
        if i == 3 then
          assert.matches("view", problem_of(each[1].get, each[1]))
        else
          assert.same({each[3], each[4]}, each[1]:get(30))
          assert.same({{each[3] * 2 % 256, each[4] * 2 % 256}}, each[2]:get(30):totable())
        end
      end
      lists:close()
      rows:close()
    end
  end)

  it("takes several results, or a list with a value for each row, as the option says", function()
    local function both(x) return {x + 1, x * 2} end
    for workers = 0, 1 do
      local function batcher(f, results, collate)
        return lm.serve.Batcher(f, {num_workers = workers, max_wait_ms = 100, results = results, collate_fn = collate})
      end
      -- As many results as rows are results all the same.
      for _, collate in ipairs {false, function(list) return lm.cat(list) end} do
        local several = batcher(both, nil, collate or nil)
        local a, b = several:submit(lm.ones(1, 2)), several:submit(lm.zeros(1, 2))
        assert.same({{{2, 2}}, {{2, 2}}}, {a:get(30)[1]:totable(), a:get()[2]:totable()})
        assert.same({{{1, 1}}, {{0, 0}}}, {b:get(30)[1]:totable(), b:get()[2]:totable()})
        several:close()
      end
      local listed = batcher(function(x) return x:sum(2):totable() end, "list")
      local a, b = listed:submit(lm.ones(2, 3)), listed:submit(lm.zeros(1, 3))
      assert.same({3, 3}, a:get(30))
      assert.same({0}, b:get(30))
      listed:close()
      local short = batcher(function() return {1, 2} end, "list")
      local one = short:submit(lm.ones(3, 1))
      assert.matches('must be a list of 3 values %(results = "list"%), got 2', problem_of(one.get, one))
      assert.same({1, 2}, short:submit(lm.ones(2, 1)):get(30))
      short:close()
      local plain = batcher(function(x) return x:totable() end)
      one = plain:submit(lm.ones(1, 1))
      assert.matches('must be tensors, also in tables, got .-; results = "list" takes a list', problem_of(one.get, one))
      plain:close()
      assert.matches("results must be one of 'rows', 'list', got string 'row'", problem_of(batcher, both, "row"))
    end
  end)

  it("passes parts of a call while it runs, until it is canceled", function()
    local function count(n, seconds)
      for i = 1, n do
        if not lm.send_part {i = i, t = lm.full({2}, i)} then return "canceled" end
        local ends = lm.time() + seconds
        repeat until lm.time() >= ends
      end
      return "done"
    end
    local seen, done = {}, 0
    local function note(part) seen[#seen + 1] = part.i + part.t[2] end
    lm.async(count, 4, 0.02):on_part(note):on_done(function() done = #seen end)
    local second = lm.async(count, 3, 0) -- nobody gets its parts
    while done == 0 do lm.poll(1) end
    assert.same({2, 4, 6, 8}, seen)
    assert.equal(4, done)
    assert.equal("done", second:get(30))
    local stopped = lm.async(count, 1e6, 1e-4):on_part(function(part) return part.i < 3 end)
    assert.equal("canceled", stopped:get(30))
    local canceled = lm.async(count, 1e6, 1e-4)
    while not (canceled:done() or canceled.executor.begun[1]:item() >= canceled.number) do lm.poll(0.01) end
    assert.is_false(canceled:cancel())
    assert.equal("canceled", canceled:get(30))
    local failed = lm.async(count, 1e6, 1e-4):on_part(function() error "on purpose" end)
    assert.matches("on purpose", select(2, pcall(failed.get, failed, 30)))
    assert.matches("send_part: there is no call", select(2, pcall(lm.send_part, 1)))
    assert.matches("fn must be a function", select(2, pcall(failed.on_part, failed, 1)))
    assert.equal(3, lm.async(function() return 3 end):get(30))
    lm.set_async {}
  end)

  it("waits with parts while the script does not read them, as long as that takes #full", function()
    local sent, count = lm.zeros({1}, {dtype = "int64"}), 0
    local future = lm.async(function(counter)
      for _ = 1, 20000 do
        lm.send_part "x"
        counter:add_(1)
      end
      return "done"
    end, sent):on_part(function() count = count + 1 end)
    os.execute "sleep 11"
    assert.is_true(sent:item() < 5000, sent:item())
    assert.equal("done", future:get(30))
    assert.equal(20000, count)
    assert.equal("ended", temp.output_of [[timeout 20 luajit -e '
      local lm = require "luminary"
      lm.async(function() while true do lm.send_part "x" end end)
      os.execute "sleep 0.5"
      print "ended"']])
    lm.set_async {}
  end)

  it("runs recordings of the library's modules on its workers", function()
    local Own = lm.nn.Module:extend("Own")
    function Own:init() self.net = lm.nn.Conv2d(2, 3, 1) end
    function Own:forward(x)
      local before = self.last or x:select(2, 1):unsqueeze(2) * 0
      self.last = self.net(x):sum(2, true) -- stays, although the library frees what its own modules make
      return self.net(x):relu() + before * 0
    end
    local function sequence() return lm.nn.Sequential(lm.nn.Conv2d(2, 3, 1), lm.nn.ReLU()) end
    local hooked = sequence():eval()
    hooked[2]:register_forward_hook(function() end)
    local x = lm.randn(2, 2, 4, 4)
    for net, expected in pairs {
      [sequence():eval()] = 2, [hooked] = 0, [sequence()] = 0, [Own():eval()] = 0,
      [function(v) return v * 2 end] = 0,
    } do
      local batcher, calls = lm.serve.Batcher(net), 0
      local profile = lm.profile(function()
        for _ = 1, 3 do
          near(lm.no_grad(function() return net(x) end), batcher:submit(x):get(30), 1e-6)
        end
      end)
      for _, row in ipairs(profile:rows()) do
        if row.name == "conv2d_with_epilogue" then calls = row.calls end
      end
      assert.equal(expected, calls)
      batcher:close()
    end
  end)

  it("joins rows on several workers, and works in a child of a fork", function()
    local batcher = lm.serve.Batcher(function(x) return x + 1 end, {num_workers = 2, threads = 1, max_wait_ms = 0})
    local futures = {}
    for i = 1, 40 do futures[i] = batcher:submit(lm.full({1}, i)) end
    for i = 1, 40 do assert.equal(i + 1, futures[i]:get(30):item()) end
    batcher:close()
    local path = os.tmpname()
    temp.write(path, [[
      local lm, ffi = require "luminary", require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int);"
      local workers, inline = lm.serve.Batcher(lm.nn.ReLU()), lm.serve.Batcher(lm.nn.ReLU(), {num_workers = 0})
      local first, second = workers:submit(lm.ones(1)), inline:submit(lm.ones(1))
      if ffi.C.fork() == 0 then
        print(pcall(first.get, first), (pcall(second.get, second)))
        print(workers:submit(-lm.ones(1)):get(30):item(), inline:submit(-lm.ones(1)):get():item())
        os.exit(0)
      end
      ffi.C.waitpid(-1, ffi.new "int[1]", 0)
      print(first:get(30):item(), second:get():item())
    ]])
    local pipe = io.popen('ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" timeout 60 luajit ' .. path .. " 2>&1")
    assert.equal("false\tfalse\n0\t0\n1\t1\n", pipe:read "*a")
    pipe:close()
    os.remove(path)
  end)
end)
