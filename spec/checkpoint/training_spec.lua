-- A training that was killed and is resumed from its checkpoint ends in the bytes of one that never stopped, on any
-- number of ranks; the newest good checkpoint loads whenever its writer is killed. LM_TEST_LONG=1: 500 kills.
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local program, long = "spec/support/checkpoint_run.lua", lm.getenv "LM_TEST_LONG" ~= nil

local folder = temp.during(before_each, after_each)

-- Runs steps first + 1 to last with n ranks.
local function train(n, first, last, optimizer)
  local command = ("timeout 100 luminary run --nproc %d %s %s %d %d %s >%s/out 2>&1"):format(n, program, folder, first,
    last, optimizer, folder)
  local code = os.execute(command) / 256
  local output = temp.read(folder .. "/out")
  assert(code == (last < 30 and 137 or 0), ("exit code %s of %s:\n%s"):format(code, command, output))
end

describe("a killed training", function()
  for _, case in ipairs {{1, "adam"}, {1, "sgd"}, {2, "adam"}, {4, "sgd"}} do
    local n, optimizer = case[1], case[2]
    it(("resumes with the same bytes: %s, %d rank%s"):format(optimizer, n, n == 1 and "" or "s"), function()
      train(n, 0, 30, optimizer)
      train(n, 0, 13, optimizer)
      train(n, 13, 30, optimizer)
      for rank = 0, n - 1 do
        assert.equal(temp.read(("%s/end-0-%d.safetensors"):format(folder, rank)),
          temp.read(("%s/end-13-%d.safetensors"):format(folder, rank)))
      end
    end)
  end

  it("resumes with another number of ranks: ZeRO's shards of 2, with 4 and with 1", function()
    train(2, 0, 30, "zero")
    train(2, 0, 13, "zero")
    local whole = lm.load(folder .. "/end-0-0.safetensors").model
    for _, n in ipairs {4, 1} do
      train(n, 13, 30, "zero")
      local resumed = lm.load(folder .. "/end-13-0.safetensors").model
      for name, w in pairs(whole) do assert.is_true((w - resumed[name]):abs():max():item() <= 1e-6) end
    end
    local net = lm.nn.Sequential(lm.nn.Linear(16, 32), lm.nn.Tanh(), lm.nn.Linear(32, 4))
    local opt = lm.optim.Adam(net:parameters())
    lm.checkpoint.load(folder .. "/checkpoint.safetensors", {model = net, optimizer = opt}) -- the file is not sharded
    assert.same({32, 16}, {unpack(opt.state[net[1].weight].exp_avg.shape)})
  end)
end)

describe("a killed writer", function()
  it("leaves the newest good checkpoint, and the next save removes what it left", function()
    temp.write(folder .. "/writer.lua", [[
      local lm = require "luminary"
      local ffi = require "ffi"
      ffi.cdef "int kill(int, int); int getpid(void); int usleep(unsigned);"
      local manager = lm.checkpoint.Manager {dir = arg[1], keep_last = 2}
      local saved = manager:load()
      local step = saved and saved.step or 0
      assert(not saved or saved.w:eq(step):all():item())
      local noted = io.open(arg[1] .. "/noted", "a")
      noted:setvbuf "no"
      local function ready() io.write "ready\n" io.flush() end
      if saved then ready() end
      while true do
        step = step + 1
        manager:save(step, {w = lm.full({arg[2] + 0}, step)})
        noted:write(step .. "\n") -- the step is saved; no kill leaves half of one write
        if step == 1 then ready() end -- whatever the disk's speed, one is saved
      end]])
    temp.write(folder .. "/kill.sh", [[
      i=0
      while [ $i -lt $1 ]; do
        mkfifo $2/fifo
        luajit $2/writer.lua $2/run $3 >$2/fifo 2>>$2/errors &
        child=$!
        read line <$2/fifo || exit 1
        sleep 0.0$((i * 7919 % 97 + 10))
        kill -9 $child
        wait $child
        rm $2/fifo
        i=$((i + 1))
      done]])
    assert(lm.paths.mkdir(folder .. "/run"))
    local kills = long and 500 or 6
    local code = os.execute(("timeout %d sh %s/kill.sh %d %s 300000 >/dev/null 2>&1"):format(120 + kills, folder, kills,
      folder))
    assert(code == 0, temp.read(folder .. "/errors"))
    assert.equal("", temp.read(folder .. "/errors")) -- nothing warns of a damaged file
    local manager = lm.checkpoint.Manager {dir = folder .. "/run", keep_last = 2}
    local noted = 0
    for line in io.lines(folder .. "/run/noted") do noted = math.max(noted, tonumber(line)) end
    local saved = manager:load()
    assert.is_true(saved.step >= noted and noted > 0, ("saved %d, noted %d"):format(saved.step, noted))
    manager:save(saved.step + 1, {w = lm.ones(1)})
    local names = {}
    for _, name in ipairs(lm.paths.dir(folder .. "/run")) do
      if name:find "^step" then names[#names + 1] = name:match "^step%-0*(%d+)%.safetensors$" or name end
    end
    assert.equal(2, #names, table.concat(names, " "))
  end)

  it("loses nothing where the disk is full, or the folder cannot be written", function()
    local manager = lm.checkpoint.Manager {dir = folder}
    manager:save(1, {w = lm.ones(1000)})
    temp.write(folder .. "/full.lua", [[
      local lm = require "luminary"
      local manager = lm.checkpoint.Manager {dir = arg[1]}
      local ok, why = pcall(manager.save, manager, 2, {w = lm.zeros(1e6)})
      assert(not ok and why:find("File too large"), why)
      assert(manager:load().step == 1)]])
    assert.equal(0, os.execute(("bash -c 'ulimit -f 100; timeout 60 luajit %s/full.lua %s'"):format(folder, folder)))
    assert.equal(1, manager:load().step)
    local names = table.concat(lm.paths.dir(folder), " ")
    assert.is_nil(names:find "tmp")
  end)
end)

describe("a killed rank", function()
  it("leaves the newest good checkpoint of shards that threads write", function()
    local dir, noted = folder .. "/run", 0
    local function kept()
      local names = {}
      for _, name in ipairs(lm.paths.dir(dir)) do
        if name:find "^step" then names[#names + 1] = name end
      end
      return names
    end
    for kill = 1, long and 100 or 4 do
      local job = ranks.start {n = 2, timeout = 60, script = ([[
        local lm = require "luminary"
        lm.dist.init_process_group {timeout = 20}
        local net = lm.nn.Linear(300, 200)
        local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
        local function update(step)
          lm.no_grad(function() for _, p in ipairs(net:parameters()) do p:fill_(step) end end)
          net(lm.ones(1, 300)):sum():backward()
          opt:step()
        end
        local manager = lm.checkpoint.Manager {dir = %q, keep_last = 2, async = true}
        update(1)
        local saved = manager:load {net = net, opt = opt, w = true}
        local step = saved and saved.step or 0
        assert(step >= %d and (step == 0 or saved.w[1] == step and saved.w[-1] == step), step)
        print "ready"
        io.flush()
        while true do
          step = step + 1
          update(step)
          manager:save(step, {net = net, opt = opt, w = lm.full({100000}, step)})
          print("saved " .. step - 1) -- since this has waited for it
          io.flush()
        end]]):format(dir, noted)}
      assert(job:wait_for(0, "ready") and job:wait_for(1, "ready"), job:output(0) .. job:output(1))
      ranks.sleep(0.02 + kill * 7919 % 97 / 300)
      job:kill(kill % 2)
      if kill % 3 == 0 then job:kill(1 - kill % 2) end
      local got = job:wait()
      assert(not got.text:find "left out" and not got.text:find "assert", got.text)
      for step in got.text:gmatch "saved (%d+)" do noted = math.max(noted, tonumber(step)) end
    end
    assert(noted > 0)
    local manager = lm.checkpoint.Manager {dir = dir, keep_last = 2}
    local saved = manager:load()
    assert.is_true(saved.step >= noted)
    manager:save(saved.step + 1, {w = lm.ones(1)})
    manager:save(saved.step + 2, {w = lm.ones(1)})
    assert.equal(2, #kept(), table.concat(kept(), " "))
  end)
end)

describe("a SIGTERM", function()
  local PROLOGUE = [[
    local lm = require "luminary"
    local ffi = require "ffi"
    ffi.cdef "int raise(int); void *signal(int, void *); int usleep(unsigned);"
    local rank = tonumber(os.getenv "RANK" or 0)
  ]]
  local function run(n, text)
    temp.write(folder .. "/script.lua", PROLOGUE .. text)
    local launch = n and "luminary run --nproc " .. n or "luajit"
    local _, output, code = temp.run(folder, ("FOLDER=%s OMP_NUM_THREADS=1 timeout 60 %s %s/script.lua; echo code $?")
      :format(folder, launch, folder))
    return output, code
  end

  it("is asked for by the script, and one a second later ends it", function()
    local output = run(nil, [[
      print(lm.checkpoint.is_preempted())
      ffi.C.raise(15)
      ffi.C.raise(15) -- signals of the system, and of a launcher that forwards its own
      print(lm.checkpoint.is_preempted(), lm.checkpoint.is_preempted())
      io.stdout:flush()
      ffi.C.usleep(1100000)
      ffi.C.raise(15)
      print "not reached"
    ]])
    assert.equal("false\ntrue\ttrue\ncode 143\n", (output:gsub("Terminated\n", "")))
  end)

  it("leaves a handler that was there before, and its own in a world", function()
    local output = run(nil, [[
      ffi.C.signal(15, ffi.cast("void *", 1)) -- SIG_IGN
      lm.checkpoint.is_preempted()
      ffi.C.raise(15)
      ffi.C.raise(15)
      print(lm.checkpoint.is_preempted())
    ]])
    assert.equal("true\ncode 0\n", output)
    output = run(2, [[
      lm.checkpoint.is_preempted() -- before the world, which then finds the handler
      lm.dist.init_process_group()
      if rank == 1 then ffi.C.raise(15) end
      print(lm.checkpoint.is_preempted())
      lm.dist.destroy_process_group()
      ffi.C.usleep(1100000)
      if rank == 1 then ffi.C.raise(15) end
      print "here"
    ]])
    assert.matches("%[rank 0%] true\n", output)
    assert.matches("%[rank 1%] true\n", output)
    assert.matches("%[rank 0%] here\n", output)
    assert.not_matches("%[rank 1%] here\n", output)
    assert.matches("rank 1 on %S+, pid %d+, was killed by SIGTERM\ncode 143\n$", output)
  end)

  it("to one rank makes all save at their next step, and end", function()
    local output = run(2, [[
      lm.dist.init_process_group()
      local manager = lm.checkpoint.Manager {dir = os.getenv "FOLDER" .. "/run", every = 100, on_sigterm = true}
      for step = 1, 200 do
        if rank == 1 and step == 7 then ffi.C.raise(15) end
        manager:save(step, {w = lm.full({2}, step)})
      end
    ]])
    assert.matches("warning: Manager:save: saved step 7 after SIGTERM; the job ends\n", output)
    assert.matches("the ranks saved a checkpoint after SIGTERM, and ended; start the job again to continue\ncode 75\n$",
      output)
    local manager = lm.checkpoint.Manager {dir = folder .. "/run"}
    assert.same({7}, manager:steps())
    assert.equal(7, manager:load().w[1])
  end)

  it("waits for a save in the background", function()
    local output = run(2, [[
      lm.dist.init_process_group()
      local manager = lm.checkpoint.Manager {dir = os.getenv "FOLDER" .. "/run", async = true, on_sigterm = true}
      for step = 1, 200 do
        if rank == 0 and step == 3 then ffi.C.raise(15) end
        manager:save(step, {w = lm.full({100000}, step)})
      end
    ]])
    assert.matches("code 75\n$", output)
    assert.equal(3, lm.checkpoint.Manager({dir = folder .. "/run"}):load().w[1])
  end)
end)

describe("a checkpoint of loaders at different batches", function()
  it("is refused by another number of ranks", function()
    temp.write(folder .. "/script.lua", [[
      local lm = require "luminary"
      lm.dist.init_process_group()
      local set = lm.data.TensorDataset(lm.arange(1, 41))
      local loader = lm.data.DataLoader(set, {batch_size = 2, sampler = lm.data.DistributedSampler(set)})
      local next_batch = loader:epoch(1)
      for _ = 0, lm.dist.get_rank() do next_batch() end
      lm.checkpoint.save(arg[1] .. "/c.safetensors", {loader = loader})
    ]])
    local ok, text = temp.run(folder, ("OMP_NUM_THREADS=1 timeout 60 luminary run --nproc 2 %s/script.lua %s")
      :format(folder, folder))
    assert(ok, text)
    local set = lm.data.TensorDataset(lm.arange(1, 41))
    local loader = lm.data.DataLoader(set, {batch_size = 2, sampler = lm.data.DistributedSampler(set)})
    assert.error_matches(function() lm.checkpoint.load(folder .. "/c.safetensors", {loader = loader}) end,
      "rank 0 was after batch 1, rank 1 after batch 2; such a state needs 2 ranks again")
  end)
end)
