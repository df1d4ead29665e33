-- lm.mp.Queue and lm.mp.Pipe: values between processes and threads, and what remains when one of them is killed.
local lm = require "luminary"
local core = require "luminary.core"
local open_files = require "spec.support.open_files"
local temp = require "spec.support.temp"
local mp, nn = lm.mp, lm.nn

local ffi = require "ffi"
local problem_of = require "spec.support.error_of"
ffi.cdef "int kill(int pid, int number); int usleep(unsigned microseconds); int getpid(void);"
ffi.cdef "int fcntl(int fd, int command, ...); long send(int fd, const void *data, size_t n, int flags);"

local function count_descriptors()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
  return open_files()
end

-- Starts a process or a thread that runs f(…); its join() waits for it.
local function begin(method, f, ...)
  return mp.spawn(function(_, g, ...) g(...) end, {method = method, join = false, args = {f, ...}})
end

it("a queue says what stands for Python's names, and where a value that cannot be sent is", function()
  local q, x = mp.Queue(), lm.ones(2, {requires_grad = true}) * 2
  assert.matches("no field 'get_nowait'; local got, value = queue:try_get%(%)", problem_of(function()
    return q:get_nowait()
  end))
  assert.matches("no field 'put_nowait'; local there_was_room =", problem_of(function() q:put_nowait(1) end))
  assert.matches("Queue:put: the value: a tensor that an op computed", problem_of(q.put, q, x))
  assert.matches("Queue:put: %[2%]: a tensor that an op computed", problem_of(q.put, q, {1, x}))
end)

describe("a Queue", function()
  it("gives values in the order in which they were put", function()
    local q = mp.Queue()
    assert.is_true(q:empty())
    q:put(1):put {a = {1, 2}}:put(nil):put "x"
    assert.equal(4, q:qsize())
    assert.is_false(q:empty() or q:full())
    assert.equal(1, q:get())
    assert.same({a = {1, 2}}, q:get())
    assert.is_nil(q:get())
    local got, value = q:try_get()
    assert.is_true(got)
    assert.equal("x", value)
    assert.is_false(q:try_get())
    assert.equal("Queue(0)", tostring(q))
  end)

  it("takes any number of values that nobody gets yet, and of any size", function()
    local q = mp.Queue()
    for i = 1, 3000 do q:put(i) end
    assert.equal(3000, q:qsize())
    for i = 1, 3000 do assert.equal(i, q:get()) end
    local long = ("abc"):rep(200000)
    for _ = 1, 3 do q:put(long) end
    for _ = 1, 3 do assert.equal(long, q:get()) end
    for n = 32000, 33000, 50 do
      q:put(("y"):rep(n))
      assert.equal(n, #q:get())
    end
  end)

  it("waits for room, and says when there was none in time", function()
    local q = mp.Queue(2)
    q:put(1):put(2)
    assert.is_true(q:full())
    assert.equal("Queue(2 of 2)", tostring(q))
    assert.is_false(q:try_put(3))
    local began = lm.time()
    assert.matches("mp_queue_spec.lua:%d+: Queue:put: the queue was full for 0.1 s", problem_of(function()
      q:put(3, {timeout = 0.1})
    end))
    assert.is_true(lm.time() - began >= 0.1)
    assert.matches("Queue:put: the queue was full$", problem_of(q.put, q, 3, {block = false}))
    q:get()
    assert.is_true(q:try_put(3))
    assert.same({2, 3}, {q:get(), q:get()})
    began = lm.time()
    assert.matches("Queue:get: the queue was empty for 0.1 s", problem_of(q.get, q, {timeout = 0.1}))
    assert.is_true(lm.time() - began >= 0.1)
    assert.is_false(q:try_get(0.05))
    local large = mp.Queue(2000) -- more than the system's socket holds
    for i = 1, 2000 do large:put(i) end
    assert.is_false(large:try_put(0))
    assert.equal(1, large:get())
  end)

  it("says what is wrong with an argument", function()
    local q = mp.Queue()
    assert.matches("Queue: capacity must be an integer from 0 to 2%^40, got %-1", problem_of(mp.Queue, -1))
    assert.matches("capacity must be an integer from 0 to 2%^40, got", problem_of(mp.Queue, 1e13))
    assert.matches("Queue: unknown option 'capcity'; did you mean 'capacity'%?", problem_of(mp.Queue, {capcity = 2}))
    assert.matches("Queue.put: call it with a colon: x:put%(…%)", problem_of(q.put, 3))
    assert.matches("Queue:put: unknown option 'timeot'; did you mean", problem_of(q.put, q, 1, {timeot = 2}))
    assert.matches("Queue:put: x: a coroutine cannot be sent", problem_of(q.put, q, {x = coroutine.create(print)}))
    assert.matches("Queue:put: the value: a coroutine cannot be sent", problem_of(q.put, q, coroutine.create(print)))
    local whole = lm.zeros {4}
    local half = whole:narrow(1, 1, 2)
    assert.matches("Queue:put: the value: this tensor shares memory with another tensor in use",
      problem_of(q.put, q, half))
    assert.matches("Queue:put: a: this tensor shares memory with another tensor in use",
      problem_of(q.put, q, {a = half}))
    assert.equal(0, q:qsize())
    q:close()
    assert.matches("Queue:get: the queue is already closed in this process", problem_of(q.get, q))
    assert.matches("Queue:put: q: a closed object cannot be sent", problem_of(function()
      mp.Queue():put {q = q.handle}
    end))
  end)

  for _, method in ipairs {"process", "thread"} do
    it("goes to a " .. method .. " as an argument, an upvalue, or in another queue", function()
      local q, out = mp.Queue(), mp.Queue()
      local worker = begin(method, function(a, inner)
        for _ = 1, 2 do a:put(q:get() * 2) end
        inner:get():put "from inside"
      end, out, q)
      q:put(4):put(5)
      local third = mp.Queue(1)
      q:put(third)
      assert.same({8, 10}, {out:get {timeout = 20}, out:get {timeout = 20}})
      assert.equal("from inside", third:get {timeout = 20})
      worker:join()
    end)

    it("serves many readers and writers by " .. method, function()
      local q, out = mp.Queue(50), mp.Queue()
      local n, each = 3, 400
      local writers = mp.spawn(function(i, queue)
        for k = 1, each do queue:put(i * each + k) end
      end, {nprocs = n, args = {q}, join = false, method = method})
      local readers = mp.spawn(function(_, queue, sums)
        local sum, count = 0, 0
        for v in function() return queue:get() end do sum, count = sum + v, count + 1 end
        sums:put {sum, count}
      end, {nprocs = n, args = {q, out}, join = false, method = method})
      writers:join()
      for _ = 1, n do q:put(nil) end
      local sum, count = 0, 0
      for _ = 1, n do
        local part = out:get {timeout = 30}
        sum, count = sum + part[1], count + part[2]
      end
      readers:join()
      assert.equal(n * each, count)
      assert.equal(n * each * (n * each + 1) / 2, sum)
    end)

    it("shares the memory of tensors with a " .. method, function()
      local there, back = mp.Queue(), mp.Queue()
      local worker = begin(method, function(a, b)
        local got = a:get()
        got.x:fill_(7)
        require("luminary").no_grad(function() got.net.weight:fill_(3) end)
        b:put(got.x)
      end, there, back)
      local x, net = lm.zeros(1000), nn.Linear(2, 2)
      there:put {x = x, net = net}
      local again = back:get {timeout = 20}
      worker:join()
      assert.equal(7000, x:sum():item())
      assert.equal(12, net.weight:sum():item())
      again:fill_(1)
      assert.equal(1, x[1000])
    end)
  end

  it("carries more tensors than a message of the system's takes descriptors", function()
    local q, list = mp.Queue(), {}
    for i = 1, 300 do list[i] = lm.full({2}, i):share_memory_() end
    q:put(list)
    local got = q:get()
    assert.equal(300, #got)
    for i = 1, 300 do assert.equal(i, got[i][2]) end
  end)

  it("counts what is done", function()
    local q = mp.Queue()
    assert.is_true(q:join(0))
    for i = 1, 5 do q:put(i) end
    assert.is_false(q:join(0.05))
    local worker = begin("process", function(a)
      for _ = 1, 5 do
        a:get()
        a:task_done()
      end
    end, q)
    assert.is_true(q:join(20))
    worker:join()
    assert.matches("Queue:task_done: called more often than get%(%)", problem_of(q.task_done, q))
  end)

  it("holds a process at its end until what it put is taken", function()
    local q = mp.Queue()
    local p = mp.Process {target = function(a) for i = 1, 3000 do a:put(i) end end, args = {q}}:start()
    assert.equal(1, q:get {timeout = 20})
    assert.is_false(p:join(0.3))
    for i = 2, 3000 do assert.equal(i, q:get {timeout = 20}) end
    assert.is_true(p:join(20))
    local hasty = mp.Process {target = function(a)
      for i = 1, 3000 do a:put(i) end
      a:cancel_join_thread()
    end, args = {q}}:start()
    assert.is_true(hasty:join(20))
    assert.equal(0, hasty.exitcode)
    q:put(0)
    assert.is_true(q:join_thread(0) or q:qsize() > 0)
  end)

  it("ends a wait by Ctrl-C and by terminate", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local mp = require("luminary").mp
      local ready = mp.Queue()
      local waits = {
        function(q) q:get() end, function(q) mp.Queue(1):put(1):put(2) end, function() mp.Event():wait() end,
        function() mp.Pipe():recv() end,
        function(q, lock) lock:acquire() end, function(q) q:put(1) q:join() end,
      }
      local held = mp.Lock()
      held:acquire()
      for i, f in ipairs(waits) do
        local p = mp.Process {target = function(g, q, r, lock)
          local ok, problem = pcall(function()
            r:put("waits")
            g(q, lock)
          end)
          r:put(problem)
        end, args = {f, mp.Queue(), ready, held}}:start()
        assert(ready:get {timeout = 20} == "waits")
        require("ffi").cdef "int kill(int, int); int usleep(unsigned);"
        require("ffi").C.usleep(100000)
        require("ffi").C.kill(p.pid, 2)
        local problem = ready:get {timeout = 20}
        assert(problem:find "interrupted", problem)
        p:join()
      end
      for _, f in ipairs(waits) do
        local t = mp.spawn(function(_, g, q, lock) g(q, lock) end,
          {method = "thread", join = false, args = {f, mp.Queue(), held}})
        require("ffi").C.usleep(50000)
        t:terminate()
      end
      print "all were ended"]])
    local _, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.equal("all were ended\n", text)
  end)

  it("is given back with its descriptors, and what is in it", function()
    local function once()
      local q = mp.Queue()
      for _ = 1, 5 do q:put(lm.ones(10)) end
      local inner = mp.Queue(3)
      inner:put(q)
      q:put(inner)
      local a, b = mp.Pipe()
      a:send {b, q}
      mp.Lock():acquire()
    end
    once()
    local before = count_descriptors()
    for _ = 1, 10 do once() end
    assert.is_true(count_descriptors() <= before + 12)
  end)

  it("survives lack of memory and of descriptors", function()
    local q = mp.Queue()
    local x = lm.ones(4):share_memory_()
    for n = 1, 40 do
      core._fail_alloc_from(n)
      local put = pcall(function() q:put {x, "text", q} end)
      core._fail_alloc_from(0)
      if put then
        core._fail_alloc_from(n)
        pcall(function() q:get() end) -- the value may be lost
        core._fail_alloc_from(0)
      end
      while q:try_get() do end
    end
    q:put "fit"
    assert.equal("fit", q:get())
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      local q = lm.mp.Queue()
      local ok, problem = true
      local all = {}
      for i = 1, 60 do
        ok, problem = pcall(function() all[i] = lm.mp.Queue() end)
        if not ok then break end
      end
      print(ok, problem)
      all = nil
      collectgarbage() collectgarbage()
      q:put(5)
      print(q:get())]])
    local _, text = temp.run(folder, "ulimit -n 40; timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.matches("^false\t.*Too many open files\n5\n$", text)
  end)

  it("raises an error for a message that something else wrote into its socket, and goes on", function()
    local before, ends = {}, {}
    for fd = 3, 200 do before[fd] = ffi.C.fcntl(fd, 1) >= 0 end
    local q = mp.Queue()
    for fd = 3, 200 do
      if not before[fd] and ffi.C.fcntl(fd, 1) >= 0 then ends[#ends + 1] = fd end
    end
    for _, text in ipairs {"", "short", ("longer than a heading "):rep(3)} do
      local written
      for _, fd in ipairs(ends) do -- the end that the queue reads is one of them, its shared memory another
        if not written and ffi.C.send(fd, text, #text, 0x4000) == #text then
          written = q:qsize() == 1 -- otherwise the bytes went the other way
        end
      end
      assert.is_true(written)
      q:put(text)
      assert.equal(1, q:qsize())
      assert.matches("received a message that is not from lm.mp; does something else write to descriptor %d+%?",
        problem_of(q.get, q, {timeout = 5}))
      assert.equal(text, q:get {timeout = 5})
      assert.is_true(q:empty())
    end
    for _ = 1, 3 do q:task_done() end
    assert.is_true(q:join(5))
  end)

  it("keeps no list of what has a name for each queue", function()
    local queues = {mp.Queue()}
    queues[1]:put {nn}
    jit.flush()
    collectgarbage()
    collectgarbage()
    local before = collectgarbage "count"
    for i = 2, 20 do
      queues[i] = mp.Queue()
      queues[i]:put {nn}
    end
    collectgarbage()
    collectgarbage()
    assert(collectgarbage "count" - before < 20 * 50)
    package.loaded["spec.late"] = {f = function() return 1 end}
    queues[1]:get()
    queues[1]:put {nn, lm.data}
    assert.equal(nn, queues[1]:get()[1])
    package.loaded["spec.late"] = nil
  end)

  it("keeps nothing of a message in what was compiled, and neither does a Pipe or a Pool", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    temp.write(folder .. "/main.lua", [[
      jit.opt.start("hotloop=1", "hotexit=1")
      local lm = require "luminary"
      local full, queue, here, there = lm.mp.Queue(1), lm.mp.Queue(), lm.mp.Pipe()
      local pool = lm.mp.Pool(1)
      local function sum(list) return list[1]:sum() end
      full:put(1)
      local before = lm.live_tensors()
      for name, f in pairs {
        try_put = function(x) full:try_put({x}, 0.01) end,
        put = function(x)
          queue:put {x}
          queue:get()
        end,
        send = function(x)
          here:send {x}
          there:recv()
        end,
        map = function(x) pool:map(sum, {{x}, {x + 1}}, {chunksize = 2}) end,
        imap_unordered = function(x)
          for _, _ in pool:imap_unordered(sum, {{x}, {x + 1}}) do end
        end,
      } do
        for _ = 1, 4 do f(lm.zeros(4)) end
        collectgarbage()
        collectgarbage()
        local kept = lm.live_tensors() - before
        if kept > 0 then print(name, kept) end
      end
      pool:close()
      print(pool:join())]])
    local _, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    assert.equal("true\n", text)
  end)

  it("lets thousands of tensors pass with few descriptors", function()
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      local q, sums = lm.mp.Queue(), lm.mp.Queue()
      local p = lm.mp.Process {args = {q, sums}, target = function(a, b)
        local sum = 0
        for _ = 1, 4000 do sum = sum + a:get()[2] end
        b:put(sum)
      end}:start()
      for i = 1, 4000 do q:put(lm.full({5}, i)) end
      print(sums:get())]])
    local _, text = temp.run(folder, "ulimit -n 150; timeout 60 luajit " .. folder .. "/main.lua")
    temp.remove(folder)
    assert.equal("8002000\n", text)
  end)

  it("goes on when a reader or a writer is killed", function()
    local q, out = mp.Queue(20), mp.Queue()
    local function reader(a, b) while true do b:put(a:get()) end end
    local function writer(a, from) for i = from, math.huge do a:put(i) end end
    local last = mp.Process {target = reader, args = {q, out}}:start()
    for round = 1, 6 do
      local victims = {
        mp.Process {target = reader, args = {q, out}}:start(), mp.Process {target = writer, args = {q, round}}:start(),
        mp.Process {target = writer, args = {q, round}}:start(),
      }
      for _ = 1, 200 do out:get {timeout = 20} end
      for _, p in ipairs(victims) do p:kill() end
      for _, p in ipairs(victims) do assert.is_true(p:join(20)) end
    end
    while out:try_get(0.2) do end
    for i = 1, 100 do q:put(-i) end -- more than its capacity
    for i = 1, 100 do assert.equal(-i, out:get {timeout = 20}) end
    last:kill()
    assert.is_true(last:join(20))
  end)
end)

describe("a Pipe", function()
  for _, method in ipairs {"process", "thread"} do
    it("carries values both ways, to a " .. method, function()
      local a, b = mp.Pipe()
      local worker = begin(method, function(c)
        while true do
          local v = c:recv()
          if v == "stop" then return end
          c:send {v, v * 2}
        end
      end, b)
      assert.is_false(a:poll())
      for i = 1, 50 do
        a:send(lm.full({2}, i))
        local got = a:recv {timeout = 20}
        assert.equal(2 * i, got[2][1])
      end
      a:send "stop"
      worker:join()
    end)
  end

  it("tells of the end of the other side", function()
    local a, b = mp.Pipe()
    local p = mp.Process {target = function(c) c:send "last words" end, args = {b}}:start()
    b:close()
    assert.is_true(p:join(20))
    assert.is_true(a:poll())
    assert.equal("last words", a:recv())
    assert.is_true(a:poll())
    assert.matches("mp_queue_spec.lua:%d+: Connection:recv: no more messages: the other end was closed, or its "
      .. "process has ended", problem_of(function() a:recv() end))
    assert.matches("Connection:send: the other end was closed", problem_of(a.send, a, 1))
    local c, d = mp.Pipe()
    local killed = mp.Process {target = function(e) e:recv() while true do end end, args = {d}}:start()
    d:close()
    c:send(1)
    c:send(2) -- stays unread
    killed:kill()
    killed:join(20)
    assert.matches("no more messages", problem_of(c.recv, c, {timeout = 20}))
    c:close()
    assert.matches("Connection:recv: the connection is already closed in this process", problem_of(c.recv, c))
  end)

  it("has a side for each way with duplex = false, and timeouts", function()
    local from, into = mp.Pipe {duplex = false}
    into:send(3)
    assert.equal(3, from:recv())
    assert.matches("this end only receives", problem_of(from.send, from, 1))
    assert.matches("this end only sends", problem_of(into.recv, into))
    assert.matches("Connection:recv: timeout: no message within 0%.1 s", problem_of(from.recv, from, {timeout = 0.1}))
    local began = lm.time()
    assert.is_false(from:poll(0.1))
    assert.is_true(lm.time() - began >= 0.1)
    local sent = 0
    local full = problem_of(function()
      while true do
        into:send("x", {timeout = 0.1})
        sent = sent + 1
      end
    end)
    assert.matches("timeout: the previous message was not received within 0%.1 s", full)
    for _ = 1, sent do assert.equal("x", from:recv {timeout = 1}) end
    assert.matches("Pipe: unknown option 'duplx'; did you mean 'duplex'%?", problem_of(mp.Pipe, {duplx = true}))
  end)
end)
