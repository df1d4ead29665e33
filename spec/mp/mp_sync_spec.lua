-- lm.mp.Lock, RLock, Event, Semaphore, Condition, Barrier, Value and Array, between processes and threads, and when
-- their holders are killed.
local lm = require "luminary"
local problem_of = require "spec.support.error_of"
local within = require("spec.support.time").within
local mp = lm.mp

describe("a Lock", function()
  for _, method in ipairs {"process", "thread"} do
    it("is held by one " .. method .. " at a time", function()
      local v, lock = lm.zeros(1), mp.Lock()
      mp.spawn(function(_, t, l)
        for _ = 1, 300 do
          l:with(function() t[1] = t[1] + 1 end)
        end
      end, {nprocs = 3, args = {v, lock}, method = method})
      assert.equal(900, v:item())
    end)

    it("is the next one's when its holder, a " .. method .. ", ends with it", function()
      local lock, event = mp.Lock(), mp.Event()
      local leaves = mp.spawn(function(_, l, e)
        l:acquire()
        e:set()
      end, {args = {lock, event}, method = method, join = false})
      assert.is_true(event:wait(20))
      local got, left = lock:acquire(20)
      assert.is_true(got and left)
      lock:release()
      leaves:join()
      got, left = lock:acquire()
      assert.is_true(got)
      assert.is_false(left)
      lock:release()
    end)
  end

  it("is the next one's when its holder is killed", function()
    local lock, event, told = mp.Lock(), mp.Event(), mp.Queue()
    local holder = mp.Process {target = function(l, e)
      l:acquire()
      e:set()
      while true do end
    end, args = {lock, event}}:start()
    assert.is_true(event:wait(20))
    assert.is_false(lock:acquire(0))
    local waits = mp.Process {target = function(l, q) l:with(function(left) q:put(left) end) end, args = {lock, told}}
    waits:start()
    assert.is_false(told:try_get(0.3))
    holder:kill()
    assert.is_true(told:get {timeout = 20})
    assert.is_true(waits:join(20) and holder:join(20))
    assert.is_false(lock:with(function(left) return left end))
  end)

  it("says what is wrong", function()
    local lock = mp.Lock()
    assert.matches("Lock:release: the lock is not held by this object", problem_of(lock.release, lock))
    lock:acquire()
    assert.matches("Lock:acquire: it is held here already; lm.mp.RLock", problem_of(lock.acquire, lock))
    assert.equal("Lock(held here)", tostring(lock))
    local q = mp.Queue()
    q:put(lock)
    local other = q:get()
    assert.matches("Lock:acquire: this thread already holds the lock through another object",
      problem_of(other.acquire, other, 0.1))
    assert.matches("the lock is not held by this object", problem_of(other.release, other))
    lock:release()
    assert.is_true((other:acquire()))
    other:release()
    assert.matches("mp_sync_spec.lua:%d+: inside", problem_of(lock.with, lock, function() error "inside" end))
    assert.same({1, nil, 3}, {lock:with(function() return 1, nil, 3 end)})
    assert.matches("Lock.acquire: call it with a colon: x:acquire%(…%)", problem_of(lock.acquire))
    assert.matches("timeout must be a number of at least 0, got string", problem_of(lock.acquire, lock, "soon"))
    local again = mp.RLock()
    again:acquire()
    again:acquire()
    again:release()
    assert.is_true((again:acquire(0)))
    again:release()
    again:release()
    assert.matches("the lock is not held by this object", problem_of(again.release, again))
  end)

  it("waits no longer than its timeout", function()
    local lock, event = mp.Lock(), mp.Event()
    local holder = mp.Process {target = function(l, e)
      l:acquire()
      e:set()
      while true do end
    end, args = {lock, event}}:start()
    assert.is_true(event:wait(20))
    local began = lm.time()
    assert.is_false(lock:acquire(0.25))
    local took = lm.time() - began
    assert.is_true(took >= 0.25)
      within(took, 5)
    holder:kill()
    holder:join(20)
  end)
end)

describe("a Semaphore", function()
  for _, method in ipairs {"process", "thread"} do
    it("is held by no more than it has permits, by " .. method, function()
      local semaphore, inside, most = mp.Semaphore(2), mp.Value("int64"), mp.Value("int64")
      local function count(by)
        return inside:with(function(v)
          v.value = v.value + by
          most.value = math.max(most.value, v.value)
        end)
      end
      mp.spawn(function(_, sem, f, seen)
        require("ffi").cdef "int usleep(unsigned);"
        local deadline = require("luminary").time() + 20
        for _ = 1, 20 do
          sem:with(function()
            f(1)
            repeat require("ffi").C.usleep(500) until seen.value >= 2 or require("luminary").time() > deadline
            f(-1)
          end)
        end
      end, {nprocs = 4, args = {semaphore, count, most}, method = method})
      assert.equal(2, most.value)
      assert.equal(2, semaphore:get_value())
    end)
  end

  it("has the permits of one who was killed again, and tells so", function()
    local semaphore, event = mp.BoundedSemaphore(3), mp.Event()
    local holder = mp.Process {target = function(sem, e)
      sem:acquire()
      sem:acquire()
      e:set()
      while true do end
    end, args = {semaphore, event}}:start()
    assert.is_true(event:wait(20))
    assert.equal(1, semaphore:get_value())
    assert.same({true, false}, {semaphore:acquire(0)})
    assert.is_false((semaphore:acquire(0.1)))
    holder:kill()
    assert.same({true, true}, {semaphore:acquire(20)})
    assert.same({true, true}, {semaphore:acquire(20)})
    assert.is_false((semaphore:acquire(0)))
    for _ = 1, 3 do semaphore:release() end
    assert.equal(3, semaphore:get_value())
    assert.matches("BoundedSemaphore:release: called more often than acquire%(%)",
      problem_of(semaphore.release, semaphore))
    holder:join(20)
  end)

  it("is counted without a permit being taken", function()
    local semaphore, stop = mp.Semaphore(), mp.Event()
    local counts = mp.spawn(function(_, sem, e)
      while not e:is_set() do sem:get_value() end
    end, {method = "thread", args = {semaphore, stop}, join = false})
    local got = 0
    for _ = 1, 20000 do
      if not semaphore:acquire(0) then break end
      semaphore:release()
      got = got + 1
    end
    stop:set()
    counts:join()
    assert.equal(20000, got)
  end)

  it("is a signal, too: one releases what others acquire", function()
    local signal, done = mp.Semaphore(0), mp.Semaphore(0)
    local other = mp.Process {target = function(a, b)
      for _ = 1, 50 do
        a:acquire()
        b:release()
      end
    end, args = {signal, done}}:start()
    for _ = 1, 50 do
      signal:release()
      assert.is_true((done:acquire(20)))
    end
    other:join(20)
    assert.equal(0, signal:get_value() + done:get_value())
  end)

  it("says what is wrong", function()
    local semaphore = mp.Semaphore()
    assert.equal("Semaphore(1 available)", tostring(semaphore))
    assert.matches("Semaphore.acquire: call it with a colon: x:acquire%(…%)", problem_of(semaphore.acquire))
    assert.matches("the number of permits must be an integer from 0 to 65536, got %-1", problem_of(mp.Semaphore, -1))
    assert.matches("the number of permits must be an integer from 0 to 65536, got 70000",
      problem_of(mp.BoundedSemaphore, 7e4))
    assert.matches("timeout must be a number of at least 0, got", problem_of(semaphore.acquire, semaphore, "soon"))
    assert.matches("mp_sync_spec.lua:%d+: inside", problem_of(semaphore.with, semaphore, function() error "inside" end))
    assert.equal(1, semaphore:get_value())
  end)
end)

describe("a Condition", function()
  for _, method in ipairs {"process", "thread"} do
    it("wakes who waits for a change by " .. method, function()
      local condition, v = mp.Condition(), mp.Value("int64")
      local others = mp.spawn(function(_, c, n)
        c:with(function()
          c:wait_for(function() return n.value == 1 end)
          n.value = n.value + 1
          c:notify_all()
          c:wait_for(function() return n.value >= 2 end)
        end)
      end, {nprocs = 1, args = {condition, v}, method = method, join = false})
      condition:with(function()
        v.value = 1
        condition:notify()
        assert.is_true(condition:wait_for(function() return v.value == 2 end, 20))
      end)
      others:join()
    end)
  end

  it("goes on when one who waits, and one who holds it, is killed", function()
    local condition, ready, v = mp.Condition(mp.Lock()), mp.Queue(), mp.Value("int64")
    local function wait(c, q, n)
      c:with(function()
        q:put(true)
        c:wait_for(function() return n.value == 1 end)
        q:put "woken"
      end)
    end
    local dies = mp.Process {target = wait, args = {condition, ready, v}}:start()
    local lives = mp.Process {target = wait, args = {condition, ready, v}}:start()
    for _ = 1, 2 do assert.is_true(ready:get {timeout = 20}) end
    local holder = mp.Process {target = function(c, q)
      c:acquire()
      q:put "held"
      while true do end
    end, args = {condition, ready}}:start()
    assert.equal("held", ready:get {timeout = 20})
    dies:kill()
    holder:kill()
    condition:with(function()
      v.value = 1
      condition:notify(1)
    end)
    assert.equal("woken", ready:get {timeout = 20})
    for _, p in ipairs {dies, lives, holder} do assert.is_true(p:join(20)) end
  end)

  it("says what is wrong, and waits no longer than its timeout", function()
    local condition = mp.Condition()
    assert.matches("Condition:wait: the lock must be held", problem_of(condition.wait, condition))
    assert.matches("Condition:notify: the lock must be held", problem_of(condition.notify, condition))
    assert.matches("lock must be an lm%.mp%.Lock or RLock, got 3", problem_of(mp.Condition, 3))
    condition:with(function()
      condition:acquire() -- twice
      local began = lm.time()
      assert.is_false(condition:wait(0.1))
      assert.is_true(lm.time() - began >= 0.1)
      condition:release()
      assert.is_false(condition:wait_for(function() return false end, 0.05))
    end)
  end)
end)

describe("a Barrier", function()
  for _, method in ipairs {"process", "thread"} do
    it("holds each until all are there, by " .. method, function()
      local total = mp.Value("int64")
      local barrier = mp.Barrier(3, {action = function() total:with(function(v) v.value = v.value + 100 end) end})
      mp.spawn(function(_, b, v)
        for round = 1, 10 do
          v:with(function() v.value = v.value + 1 end)
          local index = b:wait(20)
          assert(index >= 0 and index < 3)
          assert(v.value >= 103 * round)
          b:wait(20)
        end
      end, {nprocs = 3, args = {barrier, total}, method = method})
      assert.equal(10 * 203, total.value)
      assert.equal(0, barrier.n_waiting)
      assert.is_false(barrier.broken)
    end)
  end

  it("does without one who was killed there", function()
    local barrier, q = mp.Barrier(2), mp.Queue()
    local function wait(b, to) to:put(b:wait(20)) end
    local dies = mp.Process {target = wait, args = {barrier, q}}:start()
    local deadline = lm.time() + 20
    repeat until barrier.n_waiting == 1 or lm.time() > deadline
    dies:kill()
    dies:join(20)
    assert.equal(0, barrier.n_waiting)
    local lives = mp.Process {target = wait, args = {barrier, q}}:start()
    local mine = barrier:wait(20)
    assert.equal(1, mine + q:get {timeout = 20})
    lives:join(20)
  end)

  it("breaks, and is mended", function()
    local barrier = mp.Barrier(2, {timeout = 0.1})
    assert.equal("Barrier(0 of 2 wait)", tostring(barrier))
    assert.matches("Barrier:wait: timed out waiting for the other parties; the barrier is now broken",
      problem_of(barrier.wait,
      barrier))
    assert.is_true(barrier.broken)
    assert.matches("Barrier:wait: the barrier is broken; call barrier:reset%(%)", problem_of(barrier.wait, barrier))
    barrier:reset()
    assert.is_false(barrier.broken)
    local one = mp.Barrier(1, {action = function() error "oh" end})
    assert.matches("oh", problem_of(one.wait, one))
    assert.is_true(one.broken)
    for method, said in pairs {reset = "the barrier was reset while this", abort = "the barrier was broken while"} do
      local q = mp.Queue()
      local waits = mp.Process {target = function(b, to)
        local _, problem = pcall(b.wait, b, 20)
        to:put(problem)
      end, args = {barrier, q}}:start()
      local deadline = lm.time() + 20
      repeat until barrier.n_waiting == 1 or lm.time() > deadline
      barrier[method](barrier)
      assert.matches(said, q:get {timeout = 20})
      waits:join(20)
      barrier:reset()
    end
    assert.matches("parties is missing or nil; expected an integer of at least 1", problem_of(mp.Barrier))
    assert.matches("Barrier.wait: call it with a colon: x:wait%(…%)", problem_of(barrier.wait))
  end)
end)

describe("an Event", function()
  for _, method in ipairs {"process", "thread"} do
    it("lets all who wait by " .. method .. " go on", function()
      local event, count = mp.Event(), mp.Queue()
      local waits = mp.spawn(function(_, e, q)
        q:put "waits"
        q:put(e:wait())
      end, {nprocs = 3, args = {event, count}, method = method, join = false})
      for _ = 1, 3 do assert.equal("waits", count:get {timeout = 20}) end
      assert.is_false(count:try_get(0.1))
      event:set()
      for _ = 1, 3 do assert.is_true(count:get {timeout = 20}) end
      waits:join()
    end)
  end

  it("is set until it is cleared", function()
    local event = mp.Event()
    assert.is_false(event:is_set())
    local began = lm.time()
    assert.is_false(event:wait(0.1))
    assert.is_true(lm.time() - began >= 0.1)
    event:set()
    event:set()
    assert.is_true(event:is_set() and event:wait() and event:wait(0))
    assert.equal("Event(set)", tostring(event))
    event:clear()
    assert.is_false(event:wait(0))
    assert.matches("Event.set: call it with a colon: x:set%(…%)", problem_of(event.set))
  end)
end)

describe("a Value and an Array", function()
  it("are shared, with a lock", function()
    local v, a = mp.Value("int64", 5), mp.Array("float32", {1, 2, 3})
    local flag, zeros = mp.Value("bool", true), mp.Array("float64", 4)
    mp.spawn(function(i, value, array)
      for _ = 1, 100 do value:with(function(x) x.value = x.value + 1 end) end
      array[i + 1] = array[i + 1] * 10
    end, {nprocs = 2, args = {v, a}})
    assert.equal(205, v.value)
    assert.same({10, 20, 3}, {a[1], a[2], a[3]})
    assert.same({10, 20, 3}, a.tensor:tolist())
    assert.is_true(a.tensor:is_shared() and flag.value)
    assert.equal(4, zeros:with(function(x) return x.tensor:numel() end))
    assert.is_true((v:get_lock():acquire(0)))
    v:get_lock():release()
    assert.equal("Value(205)", tostring(v))
    assert.equal(0, mp.Value("float64").value)
  end)

  it("have a length, also elsewhere, and are no tables to walk", function()
    local a, lengths = mp.Array("int32", 3), mp.Queue()
    mp.spawn(function(_, array, q) q:put(#array) end, {nprocs = 1, args = {a, lengths}})
    assert.equal(3, #a)
    assert.equal(3, lengths:get())
    assert.is_false((pcall(ipairs, a)))
    assert.equal("Array(tensor([0, 0, 0], dtype=int32))", tostring(a))
  end)

  it("say what is wrong", function()
    assert.matches("Value: value must be a number or a boolean, got string 'x'", problem_of(mp.Value,
      "float32", "x"))
    assert.matches("Array: size_or_values must be a size or a list of numbers,", problem_of(mp.Array, "float32", "x"))
    assert.matches("Array: the size must be an integer of at least 1, got 0", problem_of(mp.Array, "float32", 0))
    assert.matches("dtype", problem_of(mp.Value, "flot32", 1))
    assert.matches("Value: unknown dtype 'i'", problem_of(mp.Value, "i", 1))
    assert.matches("Array: unknown dtype 'd'", problem_of(mp.Array, "d", 1))
    local v = mp.Value("float32", 1)
    assert.matches("Value: cannot set 'valu'", problem_of(function() v.valu = 2 end))
  end)
end)

it("waits take their timeout by name, too", function()
  local event, lock, a = mp.Event(), mp.Lock(), mp.Pipe()
  assert.is_false(event:wait {timeout = 0.01})
  assert.is_false(event:wait {block = false})
  assert.is_false(a:poll {timeout = 0.01})
  assert.same({false}, {mp.Queue():try_get {timeout = 0.01}})
  assert.is_true(lock:acquire {timeout = 1})
  local q = mp.Queue()
  mp.spawn(function(_, l, out) out:put((l:acquire {block = false})) end, {nprocs = 1, args = {lock, q}})
  assert.is_false(q:get())
  lock:release()
  for _, wrong in ipairs {false, "1", -1} do -- Python's acquire(False): it would wait for ever
    assert.matches("Lock:acquire: timeout must be a number of at least 0, got", problem_of(lock.acquire, lock, wrong))
  end
  assert.matches("unknown option 'timout'; did you mean 'timeout'%?", problem_of(event.wait, event, {timout = 1}))
end)

describe("share_memory", function()
  it("is there for tensors, modules and optimizers' states", function()
    local net = lm.nn.Linear(3, 2)
    local opt = lm.optim.Adam(net:parameters(), {lr = 0.1})
    net(lm.ones(1, 3)):sum():backward()
    opt:step()
    net:share_memory()
    opt:share_memory()
    local q = mp.Queue()
    q:put {net, opt}
    local got = q:get()
    got[2]:step()
    assert.is_false(lm.equal(got[2].state[got[1].weight].exp_avg, lm.zeros(2, 3)))
    assert.is_true(lm.equal(opt.state[net.weight].exp_avg, got[2].state[got[1].weight].exp_avg))
    for _, p in ipairs(net:parameters()) do
      assert.is_true(p:is_shared() and opt.state[p].exp_avg:is_shared() and opt.state[p].exp_avg_sq:is_shared())
    end
  end)
end)
