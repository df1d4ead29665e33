-- A rank's side of the world: finding the store, and hearing how the others are.
require "luminary"
local within = require("spec.support.time").within
local ranks, temp = require "spec.support.ranks", require "spec.support.temp"

local prelude = [[
local lm = require "luminary"
local dist = lm.dist
io.stdout:setvbuf "no"
local function init(options)
  local ok, err = pcall(dist.init_process_group, options)
  if not ok then print(err) os.exit(7) end
  return dist.get_rank(), dist.get_world_size()
end
local function waits(f, ...)
  local ok, err = pcall(f, ...)
  print(ok and "no error" or err)
end
]]

local function start(n, script, options)
  options = options or {}
  options.n, options.script = n, prelude .. script
  options.env = options.env or { LM_TOKEN = "a token for specs", LM_HEARTBEAT_TIMEOUT = 2 }
  return ranks.start(options)
end

local function all_ready(job) for rank = 0, job.n - 1 do assert(job:wait_for(rank, "ready"), job:output(rank)) end end

describe("the store is found", function()
  local folder = temp.during(before_each, after_each)

  local meet = [[
    local options = { init_method = arg[1], timeout = tonumber(arg[2]) or 20 }
    for _ = 1, 2 do
      local me = init(options)
      print(dist.all_reduce(lm.ones(1)):item(), me)
      dist.destroy_process_group()
    end
  ]]

  it("by a file, whatever an earlier job left in it", function()
    local path = folder .. "/meet"
    for _, left in ipairs { "", "luminary 127.0.0.1:1 00\n",
      ("luminary 127.0.0.1:%d 0123456789abcdef\n"):format(ranks.free_port()) } do
      temp.write(path, left)
      local got = start(3, meet, { args = "file://" .. path }):wait()
      assert(got.ok, got.text)
      assert.equal("3\t1\n3\t1\n", got[1].output)
      assert.is_nil(io.open(path)) -- no file is left
    end
  end)

  it("by a file that is one job's at a time", function()
    local path = folder .. "/meet"
    local env = { LM_TOKEN = false, LM_JOB = false }
    local first = start(2, [[
      init { init_method = arg[1] }
      print "ready"
      if dist.get_rank() == 1 then
        waits(dist.barrier)
        os.exit()
      end
      require "ffi".cdef "int usleep(unsigned);"
      for _ = 1, 600 do require "ffi".C.usleep(100000) end
    ]], { args = "file://" .. path, env = env })
    all_ready(first)
    local got = start(2, meet, { args = "file://" .. path .. " 6", env = env }):wait()
    assert.matches("init_method file://" .. path .. ": rank 0 of another running job uses the file, "
      .. "with its store at [^\n]*; choose another path for this job",
      got[0].output)
    assert.matches("timed out after 6 s", got[1].output)
    first:kill(0) -- the world's file stays, and nobody holds it
    assert.matches("rank 0 on [^\n]* died", first:wait()[1].output)
    assert(io.open(path)):close()
    got = start(2, meet, { args = "file://" .. path, env = env }):wait()
    assert(got.ok, got.text)
    assert.is_nil(io.open(path))
  end)

  it("by a file at which several jobs begin together, and one at most of them meets", function()
    local jobs, met = {}, 0
    for i = 1, 4 do
      jobs[i] = start(2, [[
        init { init_method = arg[1], timeout = 6 }
        print "all there"
        while not io.open(arg[2]) do os.execute "sleep 0.1" end -- until the others do not look for it any more
      ]], { args = ("file://%s/meet %s/done"):format(folder, folder), env = { LM_TOKEN = false, LM_JOB = false } })
    end
    local meets = {}
    for i, job in ipairs(jobs) do meets[i] = job:wait_for(0, "all there", 50) end
    temp.write(folder .. "/done", "")
    for i, job in ipairs(jobs) do
      local got = job:wait()
      if meets[i] then
        met = met + 1
      else
        assert.matches("rank 0 of another running job uses the file", got[0].output)
      end
    end
    assert(met <= 1, met .. " jobs met at one file")
  end)

  it("by a file that this user wrote alone, where there is no token", function()
    local path = folder .. "/meet"
    local function rank1(token)
      temp.write(path, ("luminary 127.0.0.1:%d 0123456789abcdef\n"):format(ranks.free_port()))
      return function(change)
        assert(os.execute(change .. " " .. path) == 0)
        local script = temp.write(folder .. "/rank1.lua", [[
          local dist = require("luminary").dist
          local options = {init_method = "file://" .. arg[1], rank = 1, world_size = 2, timeout = 1}
          print(select(2, pcall(dist.init_process_group, options)))]])
        local set = token and "LM_TOKEN=secret" or "-u LM_TOKEN"
        return select(2, temp.run(folder, ("env -u LM_JOB %s timeout 30 luajit %s %s"):format(set, script, path)))
      end
    end
    local remedy = "; set LM_TOKEN to the same secret for all ranks, or choose a path in a folder of yours"
    assert.matches(path .. ": other users may write to the file (mode 0620)" .. remedy, rank1()("chmod 620"), 1, true)
    assert.matches(path .. ": other users may write to the file (mode 0602)" .. remedy, rank1()("chmod 602"), 1, true)
    assert.matches("timed out after 1 s", rank1()("chmod 600"))
    assert.matches("timed out after 1 s", rank1(true)("chmod 666"))
    if os.execute(("chown 1 %s 2>/dev/null"):format(path)) ~= 0 then return end -- chown is not allowed
    assert.matches(path .. ": the file belongs to user 1, but this rank runs as user 0" .. remedy,
      rank1()("chown 1"), 1,
      true)
    assert.matches("timed out after 1 s", rank1(true)("chown 1"))
  end)

  it("by a file whose folder exists", function()
    local got = start(2, meet, { args = "file://" .. folder .. "/none/meet" }):wait()
    for rank = 0, 1 do
      assert.matches("init_process_group: .*no folder '" .. folder .. "/none'", got[rank].output)
      within(got[rank].seconds, 5, got.text)
    end
  end)

  it("by torchrun's own store", function()
    local ok, text = temp.run(folder, ("env -u LD_PRELOAD cc -std=gnu11 -Wall -Wextra -o %s/agent spec/support/agent.c"
      .. " -lpthread"):format(folder))
    assert(ok, text)
    os.execute(("%s/agent %s/port >/dev/null 2>&1 &"):format(folder, folder))
    local port, pid
    for _ = 1, 500 do
      local file = io.open(folder .. "/port")
      if file then
        port, pid = file:read("*n", "*n")
        file:close()
        break
      end
      ranks.sleep(0.01)
    end
    local got = start(3, meet, { env = { TORCHELASTIC_USE_AGENT_STORE = "True", TORCHELASTIC_RUN_ID = "spec",
      TORCHELASTIC_RESTART_COUNT = 0, MASTER_PORT = port, LM_TOKEN = "t" } }):wait()
    os.execute("kill " .. pid)
    assert(got.ok, got.text)
    for rank = 0, 2 do assert.equal(("3\t%d\n3\t%d\n"):format(rank, rank), got[rank].output) end
  end)

  it("and those who wait hear who was turned away", function()
    local job = start(3, meet, { args = "env:// 3", env_of = function(rank) return { RANK = math.min(rank, 1) } end })
    local got = job:wait()
    assert.matches("rank 2 has not joined; refused: rank 1 has already joined from ", got[0].output)
  end)

  it("and all end at once if their world sizes differ", function()
    for _, last in ipairs { 1, 3 } do
      local job = start(2, meet, { args = "env:// 30", env_of = function(rank)
        return rank == 0 and { WORLD_SIZE = 2 } or { RANK = last, WORLD_SIZE = 5 }
      end })
      local got = job:wait()
      for rank = 0, 1 do
        assert.matches(("world_size must be the same on all ranks, got 5 on rank %d and 2 on rank 0; start `luminary "
          .. "run` with the same %%-%%-nnodes and %%-%%-nproc on all hosts"):format(last),
          got[rank].output)
        assert.not_matches("timed out", got[rank].output)
      end
    end
  end)

  it("or the reason is said, half way and in the end", function()
    local got = start(1, meet, { env = { WORLD_SIZE = 2, RANK = 1, LM_TOKEN = "t" }, args = "env:// 1" }):wait()
    assert.matches("luminary: rank 1 on [^\n]* has waited for [%d.]+ s[^\n]*cannot reach the store of rank 0 at "
      .. "127.0.0.1:%d+",
      got[0].output)
    assert.matches("init_process_group: timed out after 1 s: cannot reach the store of rank 0 at "
      .. "127.0.0.1:%d+[^\n]*refused",
      got[0].output)
  end)
end)

describe("the others hear of", function()
  local work = [[
    local me, n = init()
    dist.barrier()
    print "ready"
    local who = tonumber(arg[1])
    if me == who then while true do end end
    waits(dist.all_reduce, lm.ones(1))
  ]]

  for who = 0, 2 do
    it("the death of rank " .. who, function()
      local job = start(3, work, { args = who })
      all_ready(job)
      job:kill(who)
      local got = job:wait()
      for rank = 0, 2 do
        if rank ~= who then
          assert.matches(("all_reduce: rank %d on [^\n]* died"):format(who), got[rank].output)
          within(got[rank].seconds, got[who].seconds + 1.5, got.text)
        end
      end
    end)
  end

  for who = 0, 1 do
    it("rank " .. who .. " that is stopped", function()
      local job = start(3, work, { args = who })
      all_ready(job)
      job:kill(who, "STOP")
      local others = who == 0 and { 1, 2 } or { 0, 2 }
      for _, rank in ipairs(others) do
        assert(job:wait_for(rank, ("all_reduce: rank %d on "):format(who)), job:output(rank))
        assert.matches("is frozen or unreachable: no heartbeat for", job:output(rank))
      end
      job:kill(who, "KILL")
      job:wait()
    end)
  end

  it("a rank that is stopped, where the call's timeout ends first", function()
    local job = start(3, [[
      local me = init()
      dist.barrier()
      print "ready"
      if me == 1 then while true do end end
      local t = lm.time()
      while lm.time() < t + 0.3 do end
      waits(dist.all_reduce, lm.zeros(2), {timeout = 4})
    ]], { env = { LM_TOKEN = "a token for specs", LM_HEARTBEAT_TIMEOUT = 60 } })
    job:wait_for(1, "ready")
    job:kill(1, "STOP")
    for _, rank in ipairs {0, 2} do
      assert(job:wait_for(rank, "all_reduce: rank 1 on "), job:output(rank))
      assert.matches("rank 1 on %S+ has sent no heartbeat for %d+ s", job:output(rank))
    end
    job:kill(1, "KILL")
    job:wait()
  end)

  it("rank 0 that is stopped before anybody has spoken to it", function()
    local job = start(2, [[
      local me = init()
      print "ready"
      if me == 0 then while true do end end
      local t = lm.time()
      while lm.time() < t + 0.3 do end
      waits(dist.reduce_scatter, lm.zeros(2), { lm.ones(2), lm.ones(2) })
    ]], { env = { LM_TOKEN = "t", LM_HEARTBEAT_TIMEOUT = 1 } })
    all_ready(job)
    job:kill(0, "STOP")
    assert(job:wait_for(1, "reduce_scatter: rank 0 on "), job:output(1))
    job:kill(0)
    assert.equal(0, job:wait()[1].code)
  end)

  it("one that leaves without a word, and do without it", function()
    local got = start(3, [[
      local me = init()
      if me == 0 then return end
      local t, x = lm.time(), lm.zeros(1)
      while lm.time() < t + 0.5 do end
      if me == 1 then
        dist.send(lm.ones(1), 2)
      else
        print(dist.recv(x), x:item())
      end
    ]]):wait()
    assert(got.ok, got.text)
    assert.equal("1\t1\n", got[2].output)
  end)

  it("nobody who is only busy, however short the time for a sign of life", function()
    local got = start(2, [[
      init()
      local t = lm.time()
      while lm.time() < t + 2.5 do end
      print(dist.all_reduce(lm.ones(1)):item())
    ]], { env = { LM_TOKEN = "t", LM_HEARTBEAT_TIMEOUT = 1 } }):wait()
    for rank = 0, 1 do assert.equal("2\n", got[rank].output) end
  end)

  it("one that leaves while the others make a group", function()
    local got = start(3, [[
      local me = init()
      if me == 1 then os.exit(0) end
      waits(function() dist.barrier{group = dist.new_group { 0, 1, 2 }} end)
    ]]):wait()
    for _, rank in ipairs { 0, 2 } do
      assert.matches("rank 1 on [^\n]* left", got[rank].output)
      within(got[rank].seconds, got[1].seconds + 2, got.text)
    end
  end)

  it("groups that differ", function()
    local got = start(3, [[
      local me = init()
      waits(function()
        dist.new_group(me == 2 and { 0, 2 } or { 0, 1 })
        dist.barrier()
      end)
    ]]):wait()
    for rank = 0, 2 do
      assert.matches("ranks 0, 1", got[rank].output)
      assert.matches("ranks 0, 2", got[rank].output)
    end
  end)

  it("who is missing, half way", function()
    local got = start(2, [[
      local me = init()
      dist.barrier()
      if me == 0 then
        waits(dist.all_reduce, lm.ones(1), { timeout = 2 })
      else
        local t = lm.time()
        while lm.time() < t + 3 do end
        waits(dist.barrier)
      end
    ]]):wait()
    assert.matches("luminary: rank 0 on [^\n]* has waited for [%d.]+ s[^\n]*all_reduce[^\n]*script.lua:%d+; rank 1 on "
      .. "[^\n]* last called barrier[^\n]*script.lua:%d+", got[0].output)
    assert.matches("all_reduce: rank 1 on [^\n]* did not reach the call: rank 0 [^\n]* waited for 2 s", got[0].output)
    assert.matches("barrier: rank 1 on [^\n]* did not reach the call", got[1].output)
  end)

  it("in fields too", function()
    local got = start(2, [[
      local me = init()
      print("before", dist.failure())
      if me == 0 then
        waits(dist.all_reduce, lm.ones(1), { timeout = 1 })
      else
        local t = lm.time()
        while lm.time() < t + 2 do end
        waits(dist.barrier)
      end
      local f = dist.failure()
      print(f.kind, f.rank, f.host == f.who.host, f.who.standing, f.who.call)
      print(f.other.rank, f.other.standing, f.other.seconds, f.other.call, f.other.where:match "script.lua:%d+$")
      print(f.text:match "^rank %d+")
    ]]):wait()
    for rank = 0, 1 do
      assert.matches("before\tnil\n", got[rank].output)
      assert.matches("absent\t1\ttrue\tnil\tnil\n0\twaits\t1\tall_reduce sum float32 %[1%]\tscript.lua:%d+\nrank 1",
        got[rank].output)
    end
  end)

  it("who is missing of many, as many as there is room for, each with its line", function()
    local got = start(6, [[
      local me = init()
      dist.barrier()
      if me == 0 then
        waits(dist.all_reduce, lm.ones(1), { timeout = 2 })
      else
        local t = lm.time()
        while lm.time() < t + 3 do lm.ones(1) end
        waits(dist.barrier)
      end
    ]]):wait()
    for rank = 0, 5 do
      local places = 0
      for place in got[rank].output:gmatch " at (/%S+)" do
        assert.matches("/script%.lua:%d+[,;:]?$", place)
        places = places + 1
      end
      assert.is_true(places >= 3, got.text)
      assert.matches("did not reach the call: [^\n]*, %d s ago; …", got[rank].output)
    end
  end)
end)

describe("SIGTERM", function()
  local TERM = 128 + 15

  it("ends who waits for nobody at once", function()
    local job = start(2, "local me = init()\ndist.barrier()\nprint 'ready'\nif me == 1 then while true do end end\n"
      .. "waits(dist.barrier)")
    all_ready(job)
    job:kill(1, "TERM")
    local got = job:wait()
    assert.equal(TERM, got[1].code)
    assert.matches("barrier: rank 1 on [^\n]* died", got[0].output)
  end)

  it("lets who waits learn why", function()
    local job = start(3, "local me = init()\ndist.barrier()\nprint 'ready'\nif me == 1 then while true do end end\n"
      .. "waits(dist.barrier)\nprint 'said'\nwhile true do end")
    all_ready(job)
    job:kill(1, "KILL")
    for _, rank in ipairs { 0, 2 } do job:kill(rank, "TERM") end
    local got = job:wait()
    for _, rank in ipairs { 0, 2 } do
      assert.matches("barrier: rank 1 on [^\n]* died[^\n]*\nsaid\n", got[rank].output)
      assert.equal(TERM, got[rank].code) -- in the end it is a SIGTERM
      within(got[rank].seconds, got[1].seconds + 2.5, got.text)
    end
  end)

  it("ends a wait in which nothing is wrong after a second", function()
    local job = start(2, "local me = init()\ndist.barrier()\nprint 'ready'\nif me == 1 then while true do end end\n"
      .. "waits(dist.barrier)")
    all_ready(job)
    local began = os.time()
    job:kill(0, "TERM")
    while not io.open(job.folder .. "/0.end") and os.time() < began + 60 do ranks.sleep(0.01) end
    assert(temp.exists(job.folder .. "/0.end"))
      within(os.time() - began, 4)
    job:kill(1)
    assert.equal(TERM, job:wait()[0].code)
  end)

  it("says who was missing at the start", function()
    local job = start(2, "print 'ready'\nif os.getenv 'RANK' == '1' then while true do end end\ninit()")
    all_ready(job)
    ranks.sleep(0.3)
    job:kill(0, "TERM")
    job:wait_for(0, "SIGTERM", 3)
    job:kill(1)
    assert.matches("stopped by SIGTERM while waiting for the other ranks: rank 1 has not joined", job:wait()[0].output)
  end)
end)

describe("backends", function()
  it("that do not exist name the nearest", function()
    local dist = require "luminary.distributed"
    local function message(name)
      local ok, err = pcall(dist.init_process_group, { backend = name, init_method = "tcp://127.0.0.1:1", rank = 0,
        world_size = 2, timeout = 1 })
      assert.is_false(ok)
      return tostring(err)
    end
    assert.matches("did you mean 'gloo'", message "glo")
    assert.matches("did you mean 'nccl'", message "ncll")
  end)
end)
