-- lm.mp.Pool: workers that take tasks, errors with their traceback and argument, and workers that are killed.
local lm = require "luminary"
local mp = lm.mp

local ffi = require "ffi"
local problem_of = require "spec.support.error_of"
local within = require("spec.support.time").within
ffi.cdef "int kill(int pid, int number); int getpid(void);"

local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

local function end_itself(number)
  local f = require "ffi"
  f.cdef "int kill(int pid, int number); int getpid(void);"
  f.C.kill(f.C.getpid(), number)
  while true do end
end

for _, method in ipairs {"process", "thread"} do
  describe("a Pool of the kind " .. method, function()
    local pool
    setup(function()
      local begun = mp.Queue()
      pool = mp.Pool(2, {method = method, initargs = {10, begun}, initializer = function(n, q)
        _G.base = n
        q:put(true)
      end})
      for _ = 1, 2 do assert.is_true(begun:get {timeout = 60}) end -- threads' tensors are counted with the spec's
    end)
    teardown(function()
      pool:close()
      assert.is_true(pool:join(20))
      assert.matches("the pool was terminated", problem_of(pool.map, pool, print, {}))
    end)

    it("maps a function over a list", function()
      local squares = pool:map(function(x) return x * x end, numbers(200))
      for i = 1, 200 do assert.equal(i * i, squares[i]) end
      assert.same({11, 12, 13}, pool:map(function(x) return _G.base + x end, {1, 2, 3}, {chunksize = 2}))
      assert.same({}, pool:map(print, {}))
      assert.same({3, 7}, pool:starmap(function(a, b) return a + b end, {{1, 2}, {3, 4}}))
      local later = pool:map_async(function(x) return -x end, {1, 2})
      assert.same({-1, -2}, later:get(20))
      assert.is_true(later:ready() and later:successful())
    end)

    it("keeps all results of a function, as a list", function()
      local function three(x) return x, x > 1 and "more" or nil, -x end
      local want = {{1, nil, -1, n = 3}, {2, "more", -2}}
      assert.same(want, pool:map(three, {1, 2}))
      assert.same(want, pool:map_async(three, {1, 2}):get())
      assert.same(want, pool:map(three, {1, 2}, {chunksize = 2}))
      assert.same({{1, 2}, {3, 4}}, pool:starmap(function(a, b) return a, b end, {{1, 2}, {3, 4}}))
      for _, name in ipairs {"imap", "imap_unordered"} do
        local seen = {}
        for i, v in pool[name](pool, three, {1, 2}) do seen[i] = v end
        assert.same(want, seen)
      end
      assert.same({nil, "why", n = 2}, pool:map(function() return nil, "why" end, {1})[1])
      assert.same({1, n = 2}, pool:map(function() return 1, nil end, {1})[1])
      local none = pool:map(function(x) if x == 2 then return "two" end end, {1, 2, 3})
      assert.same({nil, "two", nil}, none)
      assert.same({4, nil, 5}, {pool:apply(function() return 4, nil, 5 end)}) -- apply returns a call's results
      assert.same({4, 5}, {pool:apply_async(function() return 4, 5 end):get()})
    end)

    it("gives results one by one, in order or as they come", function()
      local seen = {}
      for i, v in pool:imap(function(x) return x + 0.5 end, {1, 2, 3}) do seen[#seen + 1] = {i, v} end
      assert.same({{1, 1.5}, {2, 2.5}, {3, 3.5}}, seen)
      local first, count = nil, 0
      for i, v in pool:imap_unordered(function(x)
        local l = require "luminary"
        local stop = l.time() + (x == 1 and 0.5 or 0)
        while l.time() < stop do end
        return x * 2
      end, numbers(6)) do
        first, count = first or i, count + 1
        assert.equal(2 * i, v)
      end
      assert.equal(6, count)
      assert.not_equal(1, first)
    end)

    it("applies a function", function()
      local function both(a, b, c) return b, c, a end
      assert.same({2, 3, 1}, {pool:apply(both, {1, 2, 3})})
      local result = pool:apply_async(function(seconds)
        local l = require "luminary"
        local stop = l.time() + seconds
        while l.time() < stop do end
        return "done"
      end, {0.3})
      assert.is_false(result:ready())
      assert.matches("Result:successful: the result is not ready; call result:wait%(%) first",
        problem_of(result.successful, result))
      assert.matches("Result:get: timeout: no result within 0%.05 s", problem_of(result.get, result, 0.05))
      assert.is_true(result:wait(20))
      assert.equal("done", result:get())
    end)

    it("shares tensors both ways", function()
      local x, own = lm.zeros(3, 4), mp.Pool(2, {method = method})
      local doubled = own:map(function(v)
        v:add_(1)
        return v * 2
      end, {x})
      assert.equal(12, x:sum():item())
      assert.equal(24, doubled[1]:sum():item())
      local parts = own:map(function(i) return require("luminary").full({2}, i) end, numbers(5))
      for i = 1, 5 do assert.equal(i, parts[i][1]) end
      own:terminate()
    end)

    it("brings an error back with the worker, the argument and the traceback", function()
      local line = debug.getinfo(1, "l").currentline + 1
      local function inner(x) if x == 3 then error "boom" end end
      local problem = problem_of(function()
        pool:map(function(x) inner(x) return x end, numbers(9), {chunksize = 4})
      end)
      assert.matches("mp_pool_spec.lua:%d+: Pool:map: argument 3: worker %d.* failed: .*mp_pool_spec.lua:" .. line
        .. ": boom\nstack traceback of the worker:.*in function 'inner'", problem)
      assert.is_nil(problem:find("luminary/mp", 1, true))
      assert.matches("Pool:apply: worker %d.* failed: .*boom", problem_of(pool.apply, pool, inner, {3}))
      local seen = 0
      problem = problem_of(function()
        for _ in pool:imap(function(x) inner(x) return x end, numbers(9), {chunksize = 9}) do seen = seen + 1 end
      end)
      assert.matches("Pool:imap: argument 3: ", problem)
      assert.equal(2, seen)
      local result = pool:apply_async(inner, {3})
      assert.is_true(result:wait(20))
      assert.is_false(result:successful())
      assert.same({1}, pool:map(function(x) return x end, {1}))
    end)

    it("takes more tensors than there is room for on their way, both ways", function()
      local n, own = 600, mp.Pool(2, {method = method})
      local rows, text, list = lm.arange(n):view(n, 1):share_memory_(), ("x"):rep(20000), {}
      for i = 1, n do list[i] = {rows[i], text} end
      local came = own:map(function(pair) return pair end, list, {chunksize = 1})
      for i = 1, n do assert.equal(i - 1, came[i][1]:item()) end
      own:close()
      assert.is_true(own:join(20))
    end)

    it("ends by close when one worker has ended and another is still at work", function()
      local own = mp.Pool(2, {method = method})
      local results = own:map_async(function(seconds)
        local l = require "luminary"
        local stop = l.time() + seconds
        while l.time() < stop do end
        return seconds
      end, {1, 0, 0, 0})
      own:close()
      assert.is_true(own:join(20))
      assert.same({1, 0, 0, 0}, results:get())
    end)

    it("says what cannot be sent there, or back", function()
      local co = coroutine.create(print)
      assert.matches("Pool:map: args%[2%]%.x: a coroutine cannot be sent", problem_of(pool.map, pool, print,
        {1, {x = co}}, {chunksize = 2}))
      assert.matches("argument 1: worker.* failed: the result: .*: a coroutine cannot be sent", problem_of(pool.map,
        pool, function() return coroutine.create(print) end, {1}))
      assert.same({2}, pool:map(function(x) return x end, {2}))
    end)

    it("replaces a worker that leaves", function()
      local problem = problem_of(pool.map, pool, function(x) if x == 2 then os.exit(3, true) end return x end,
        numbers(6), {chunksize = 2})
      assert.matches("Pool:map: argument 2: worker %d.* ended with exit code 3", problem)
      assert.same(numbers(20), pool:map(function(x) return x end, numbers(20)))
    end)
  end)
end

describe("a Pool", function()
  it("tells of a worker that was killed at its task, and goes on", function()
    local pool = mp.Pool(2)
    local function work(x, number, kill)
      if x == number then kill(9) end
      return x
    end
    local args = {}
    for i = 1, 12 do args[i] = {i, 5, end_itself} end
    local problem = problem_of(pool.starmap, pool, work, args, {chunksize = 3})
    assert.matches("Pool:starmap: argument 5: worker %d %(process %d+%) was ended by SIGKILL", problem)
    assert.equal(2, #pool:pids())
    assert.same(numbers(12), pool:map(function(x) return x end, numbers(12)))
    local seen, failed = {}, {}
    local results = {}
    for i = 1, 8 do results[i] = pool:apply_async(work, {i, i % 3 == 0 and i or 0, end_itself}) end
    for i = 1, 8 do
      local ok = pcall(results[i].get, results[i], 20)
      table.insert(ok and seen or failed, i)
    end
    assert.same({1, 2, 4, 5, 7, 8}, seen)
    assert.same({3, 6}, failed)
    for _, pid in ipairs(pool:pids()) do ffi.C.kill(pid, 9) end -- the workers have nothing to do
    assert.same(numbers(4), pool:map(function(x) return x end, numbers(4)))
    pool:close()
    assert.is_true(pool:join(20))
  end)

  it("is broken where its workers cannot begin", function()
    local pool = mp.Pool(2, {initializer = function() error "no weights" end})
    local problem = problem_of(pool.map, pool, print, {1, 2})
    assert.matches("worker %d %(process %d+%) failed before it took any task: .*_spec.lua:%d+: no weights", problem)
    assert.matches("Pool:map: the pool is broken: worker", problem_of(pool.map, pool, print, {1}))
    pool:terminate()
    local leaves = mp.Pool(2, {initializer = function() os.exit(0, true) end})
    assert.matches("ended with exit code 0 before it took any task", problem_of(leaves.apply, leaves, print))
    leaves:close()
    assert.is_true(leaves:join(20))
  end)

  it("ends by close and join, by terminate, and with the program", function()
    local pool = mp.Pool(2)
    local result = pool:map_async(function(x) return x end, numbers(100))
    assert.matches("Pool:join: close%(%) or terminate%(%) comes first", problem_of(pool.join, pool))
    pool:close()
    assert.matches("the pool is closed and takes no more tasks", problem_of(pool.map, pool, print, {}))
    assert.is_true(pool:join(20))
    assert.same(numbers(100), result:get())
    local uneven, nobody = mp.Pool(2), mp.Event() -- one worker ends while the other still works
    local slow = uneven:map_async(function(event) return event:wait(0.3) end, {nobody})
    uneven:close()
    assert.is_true(uneven:join(10))
    assert.same({false}, slow:get())
    local busy = mp.Pool(2)
    local never = busy:map_async(function() while true do end end, {1, 2})
    local began = lm.time()
    busy:terminate()
    within(lm.time() - began, 8)
    assert.matches("the pool was terminated", problem_of(never.get, never))
    assert.is_true(busy:join())
    local temp = require "spec.support.temp"
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local pool = require("luminary").mp.Pool(2)
      pool:map_async(function() while true do end end, {1, 2})
      print(pool:apply_async(print):ready())]])
    local ok, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.is_true(ok)
    assert.equal("false\n", text)
  end)

  it("says what is wrong with an argument", function()
    assert.matches("Pool: processes must be an integer from 1 to 4096, got 0", problem_of(mp.Pool, 0))
    assert.matches("Pool: unknown option 'initialiser'; did you mean 'initializer'%?", problem_of(mp.Pool, 1,
      {initialiser = print}))
    assert.matches("Pool: method must be one of 'process', 'thread',", problem_of(mp.Pool, 1, {method = "threads"}))
    local pool = mp.Pool(1)
    assert.matches("Pool:map: list must be a list of arguments, got a tensor %[3%]", problem_of(pool.map,
      pool, print, lm.ones(3)))
    assert.matches("Pool:map: list must be a list of arguments, got a table with a field 'a'$",
      problem_of(pool.map, pool, print, {a = 1}))
    assert.matches(
      "Pool:apply: the second argument: list must be a list that starts at 1, got one with an entry at 0",
      problem_of(pool.apply, pool, print, {[0] = 1}))
    assert.matches("Pool:map: the first argument is missing or nil; expected a function",
      problem_of(pool.map, pool, nil, {}))
    for _, case in ipairs {
      {"apply", "Pool:apply: the second argument must be a plain list, got 3; write pool:apply(f, {a, b})", 3},
      {"apply_async", "Pool:apply_async: the second argument must be a plain list, but has a field 'x'; "
        .. "write pool:apply_async(f, {a, b})", {x = 3}},
      {"starmap", "Pool:starmap: entry 2 must be a plain list, got 3; write pool:starmap(f, {{a, b}, {c, d}})",
        {{1}, 3}},
    } do
      assert.matches(case[2], problem_of(pool[case[1]], pool, print, case[3]), 1, true)
    end
    assert.matches("Pool.map: call it with a colon: x:map%(…%)", problem_of(pool.map, print, {}))
    pool:terminate()
  end)
end)
