-- The group "mpi" under mpirun: every collective, what ranks do to each other when one goes wrong, what MPI cannot do,
-- and `luminary run --backend mpi`, which starts it all.
local lm = require "luminary"
local core = require "luminary.core"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local ddp_order = require "spec.support.ddp_order"
local needs = require "spec.support.needs"

local long = lm.getenv "LM_TEST_LONG" ~= nil
local has_mpi = lm.dist.is_mpi_available() and os.execute "mpirun --version >/dev/null 2>&1" == 0

local folder = temp.during(setup, teardown)

-- Runs a shell command for at most `seconds`; returns its exit code, standard output, standard error, and both of each
-- rank without mpirun's tags. MPI and mpirun leak of their own, where leaks are looked for.
local function run(command, seconds)
  local whole = "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 timeout -k 5 %d sh -c '%s' >%s/out 2>%s/err </dev/null"
  local code = os.execute(whole:format(seconds or 60, command:gsub("'", "'\\''"), folder, folder))
  local out, err = temp.read(folder .. "/out"), temp.read(folder .. "/err")
  local of = setmetatable({}, {__index = function() return "" end})
  for rank, line in (out .. err):gmatch "%[1,(%d+)%]<std%l+>: ?([^\n]*)" do -- 5 puts a space
    rank = tonumber(rank)
    -- Open MPI 5 says this where there is no network but the loopback, which it does not use.
    if not line:find("btl_tcp_proc.c", 1, true) then of[rank] = of[rank] .. line .. "\n" end
  end
  return code / 256, out, err, of
end

local function write(text) return temp.write(folder .. "/script.lua", text) end

local PROLOGUE = [[
local lm = require "luminary"
local dist, ffi = lm.dist, require "ffi"
ffi.cdef "int usleep(unsigned); int raise(int);"
local function sleep(seconds) ffi.C.usleep(seconds * 1e6) end
dist.init_process_group {timeout = 20}
local me, n = dist.get_rank(), dist.get_world_size()
]]

-- Starts n ranks of a script whose group is up, under `luminary run --backend mpi`.
local function start(n, text, options)
  options = options or {}
  local path = write((options.prologue or PROLOGUE):gsub("\n", " ") .. text)
  return run(("%s luajit %s run --backend mpi --nproc %d %s %s"):format(options.env or "", ranks.luminary, n,
    options.options or "", path), options.seconds)
end

local function all_well(n, text, options)
  local code, out, err, of = start(n, text, options)
  assert(code == 0, ("exit code %d\n%s\n%s"):format(code, out, err))
  return of
end

-- Lists MPI's files that no process uses, in shared memory and in folders, except those in `before`.
local function litter(before)
  local pipe = io.popen [[
    for f in /dev/shm/vader_segment*; do
      [ ! -e "$f" ] || grep -qsF "$f" /proc/[0-9]*/maps || echo "$f"
    done
    for f in /tmp/ompi.*/pid.*; do
      [ ! -e "$f" ] || [ -e "/proc/${f##*.}" ] || echo "$f"
    done
  ]]
  local left = {}
  for name in pipe:lines() do
    if not (before and before[name]) then
      left[#left + 1] = name
      left[name] = true
    end
  end
  pipe:close()
  return left
end

if not has_mpi then
  describe("the group mpi #mpi", function() pending "Open MPI is not here" end)
  return
end

describe("collectives of the group mpi, with", function()
  local function sweep(n, large_dtypes, large_calls)
    local script = "spec/support/collectives_rank.lua"
    local code, out, err, of = run(("luajit %s run --backend mpi --nproc %d %s %s %s"):format(ranks.luminary, n, script,
      large_dtypes, large_calls), long and 900 or 120)
    assert(code == 0, out .. err)
    for rank = 0, n - 1 do assert.matches("all right %d%d%d", of[rank]) end
  end
  local everything = "bool,uint8,int32,int64,float16,bfloat16,float32,float64"

  it("2 ranks", function() sweep(2, long and everything or "float32", "all") end)
  it("3 ranks", function() sweep(3, long and everything or "none", "all") end)
  if long then it("4 ranks", function() sweep(4, everything, "all") end) end
end)

describe("the group mpi", function()
  it("is the default under luminary run --backend mpi, and runs asynchronously", function()
    local of = all_well(2, [[
      print(dist.get_backend())
      local t, b = lm.full({ 3 }, me + 1), lm.full({ 2 }, me)
      if me == 1 then sleep(1.5) end
      local work = dist.all_reduce(t, { async_op = true })
      if me == 0 then
        assert(not work:is_completed())
        local ok, err = pcall(work.wait, work, 0.05)
        assert(not ok and err:match("wait: all_reduce sum float32 %[3%] is not done after 0.05 s"), err)
      end
      dist.broadcast(b, 1)
      assert(work:is_completed() and t[1] == 3 and b[1] == 1)
      work:wait()
    ]])
    assert.equal("mpi\n", of[0])
  end)

  it("gets what backward sends in the order of the graph, by ranks that are late at random", function()
    local names = "local nn, F, rank, size = lm.nn, lm.nn.functional, me, n "
    for _, count in ipairs { 2, 3 } do
      local script = ddp_order { trials = long and 500 or 5, seed = count }
      local of = all_well(count, names .. script, { seconds = long and 1500 or 60 })
      assert.equal("in order\n", of[0])
    end
  end)

  for _, count in ipairs { 2, 4 } do
    it(("trains as one process does, with ZeRO's states and with shards, over %d ranks"):format(count), function()
      all_well(count, ([[
        local nn, optim = lm.nn, lm.optim
        lm.set_default_dtype "float64"
        local function make()
          lm.manual_seed(1)
          return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
        end
        local nets, opts = { make(), nn.parallel.DistributedDataParallel(make()), make() }, {}
        local mesh = n == 4 and dist.init_device_mesh("cpu", { 2, 2 }) or nil
        nn.parallel.fully_shard(nets[3][1], { mesh = mesh })
        nn.parallel.fully_shard(nets[3], { mesh = mesh, reshard_after_backward = false })
        local parts = { zero = nets[2], shards = nets[3] }
        for i, net in ipairs(nets) do
          local own = i == 2 and { optimizer_class = optim.AdamW, lr = 0.01 } or { lr = 0.01 }
          opts[i] = (i == 2 and optim.ZeroRedundancyOptimizer or optim.AdamW)(net:parameters(), own)
        end
        parts.zero_opt, parts.shards_opt = opts[2], opts[3]
        for step = 1, 4 do
          lm.manual_seed(step)
          local x, y = lm.randn(4 * n, 6), lm.randn(4 * n, 5)
          for i, net in ipairs(nets) do
            local function own(t) return i == 1 and t or t:narrow(1, 4 * me + 1, 4) end
            opts[i]:zero_grad()
            nn.functional.mse_loss(net(own(x)), own(y)):backward()
            nn.utils.clip_grad_norm_(net:parameters(), 0.5)
            opts[i]:step()
          end
          if step == 2 then
            lm.checkpoint.save("%s/mpi", parts)
            for _, opt in ipairs { opts[2], opts[3] } do opt.param_groups[1].lr = 5 end
            for i = 2, 3 do lm.no_grad(function() for _, p in ipairs(nets[i]:parameters()) do p:zero_() end end) end
            lm.checkpoint.load("%s/mpi", parts)
          end
          local full = nn.parallel.full_state_dict(nets[3])
          for name, t in pairs(nets[1]:state_dict()) do
            for _, got in ipairs { full[name], nets[2].module:state_dict()[name] } do
              assert((got - t):abs():max():item() < 1e-12, name .. " differs")
            end
          end
        end
        opts[2]:consolidate_state_dict()
      ]]):format(folder, folder))
    end)
  end

  it("delivers messages whose receiver looks elsewhere, and forgets receives that nothing comes for", function()
    all_well(2, [[
      local large, small, sum = lm.ones { 3000000 }, lm.ones { 10 }, lm.ones { 3 }
      if me == 0 then
        dist.send(large, 1, { tag = 3 }) -- goes only once rank 1 has met it
        dist.isend(small, 1)
        collectgarbage()
        dist.all_reduce(sum)
      else
        local never = dist.irecv(lm.zeros { 5 }, 0, { tag = 8 })
        local a, b = lm.zeros { 3000000 }, lm.zeros { 10 }
        local first = dist.irecv(a, 0, { tag = 3 })
        dist.all_reduce(sum)
        dist.recv(b, 0)
        first:wait()
        assert(a:sum():item() == 3e6 and b:sum():item() == 10)
        assert(not never:is_completed())
      end
      for i = 1, 20 do dist.isend(lm.full({ i }, i), 1 - me, { tag = i % 2 }) end -- two rows, each in order
      for i = 1, 20, 2 do
        local t, u = lm.zeros { i }, lm.zeros { i + 1 }
        dist.recv(u:narrow(1, 1, i + 1), { src = 1 - me, tag = 0 })
        local from = dist.recv(t, { tag = 1 })
        assert(from == 1 - me and t[1] == i and u[i + 1] == i + 1)
      end
      dist.destroy_process_group()
    ]])
  end)

  it("takes pieces of large tensors in the right order", function()
    all_well(3, [[
      local count = 1500007 -- neither a whole number of blocks nor of pieces
      local t = lm.arange(count, { dtype = "float64" }) * (me + 1)
      dist.all_reduce(t)
      assert(t:eq(lm.arange(count, { dtype = "float64" }) * 6):all():item())
    ]])
  end)

  it("may be left and joined again, or not left at all", function()
    local of = all_well(2, [[
      dist.destroy_process_group()
      dist.init_process_group {timeout = 20}
      local pair = dist.new_group {0, 1}
      dist.barrier {group = pair}
      print("well")
      if me == 0 then os.exit(0) end
    ]])
    assert.equal("well\n", of[0])
    assert.equal("well\n", of[1])
  end)

  it("maps ranks that are not MPI's", function()
    local path = write(PROLOGUE:gsub("{timeout = 20}", "(\"mpi\", {timeout = 20})") .. [[
      assert(me == n - 1 - tonumber(os.getenv "OMPI_COMM_WORLD_RANK"))
      local t = lm.full({2}, me)
      dist.broadcast(t, 0)
      assert(t[1] == 0)
      local some = dist.new_group {1, 2}
      if me > 0 then
        local list = {lm.zeros {1}, lm.zeros {1}}
        dist.all_gather(list, lm.full({1}, me), {group = some})
        assert(list[1][1] == 1 and list[2][1] == 2)
      end
      dist.barrier()
      print "well"
    ]])
    local code, out, err = run(([[OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=%d WORLD_SIZE=3 LM_TOKEN=x mpirun -np 3 --oversubscribe --bind-to none \
      sh -c 'RANK=$((2 - OMPI_COMM_WORLD_RANK)) exec luajit %s']]):format(ranks.free_port(), path))
    assert(code == 0, out .. err)
    assert.equal("well\nwell\nwell\n", out)
  end)

  it("leaves nothing behind", function()
    local before = litter()
    all_well(2, "dist.barrier()")
    start(2, "if me == 0 then error 'stop' end dist.barrier()")
    for _ = 1, 50 do
      if #litter(before) == 0 then break end
      ranks.sleep(0.1)
    end
    assert.same({}, litter(before))
  end)
end)

describe("when a rank of the group mpi goes wrong, the others say so:", function()
  -- Runs 3 ranks of which rank 1 does `fault`; the others' words have to match.
  local function goes_wrong(fault, words, code)
    local text = [[
      for i = 1, 30 do
        local t, done = lm.ones {1000}, false
        if me == 1 and i == 20 then %s end
        if not done then dist.all_reduce(t) end
      end
    ]]
    local got, out, err, of = start(3, text:format(fault), {env = "LM_HEARTBEAT_TIMEOUT=2", seconds = 30})
    assert(got == (code or 1), ("exit code %d\n%s%s"):format(got, out, err))
    for _, rank in ipairs {0, 2} do
      assert(of[rank]:find(words), ("rank %d does not say '%s':\n%s%s"):format(rank, words, out, err))
      assert.matches("script.lua:%d+: ", of[rank])
    end
    return of
  end

  it("its error", function()
    local of = goes_wrong("error 'chance'", "all_reduce: rank 1 on %S+ failed at .*: chance")
    assert.matches("^luminary: .*chance\n", of[1])
  end)
  it("its death", function() goes_wrong("ffi.C.raise(9)", "all_reduce: rank 1 on %S+ died", 137) end)
  it("its leaving", function() goes_wrong("os.exit(0)", "all_reduce: rank 1 on %S+ left") end)
  it("that it froze", function() goes_wrong("ffi.C.raise(19)", "all_reduce: rank 1 on %S+ is frozen") end)
  for what, fault in pairs {
    ["another size"] = "t = lm.ones {1001}", ["another dtype"] = "t = lm.ones({1000}, {dtype = 'float64'})",
    ["another call"] = "dist.barrier()", ["another reduction"] = "dist.all_reduce(t, {op = 'max'}) done = true",
  } do
    it(what, function()
      local of = goes_wrong(fault, "all_reduce: rank 1 on %S+ made a different call")
      assert.matches("rank %d on %S+ waits in .* at .*script.lua:%d+", of[0]) -- whichever came first
    end)
  end

  it("another size of a message", function()
    local _, _, _, of = start(2, [[
      if me == 0 then dist.send(lm.ones {4}, 1) else dist.recv(lm.zeros {5}, 0) end
      dist.barrier()
    ]])
    for rank = 0, 1 do
      assert.matches("ranks 0 and 1 made different calls: .* send float32 %[4%] to rank 1 .*recv float32 %[5%] "
        .. "from rank 0", of[rank])
    end
  end)

  it("another size within all_to_all", function()
    local _, _, _, of = start(2, [[
      local rows = me == 0 and {1, 1} or {2, 1}
      dist.all_to_all({lm.zeros {1}, lm.zeros {1}}, {lm.ones {rows[1]}, lm.ones {rows[2]}})
    ]])
    assert.matches("made different calls: .*all_to_all of 8 bytes instead of 4", of[0])
  end)

  it("that a rank does not come in time", function()
    local _, _, _, of = start(2, [[
      if me == 1 then sleep(90) end
      dist.barrier()
    ]], {seconds = 90})
    assert.matches("barrier: rank 1 on %S+ did not reach the call", of[0])
  end)
end)

describe("the group mpi refuses", function()
  it("ranks that mpirun did not start", function()
    local got = ranks.run {n = 2, command = "luajit " .. ranks.luminary,
      script = [[require("luminary").dist.init_process_group("mpi", {timeout = 20})]]}
    for rank = 0, 1 do
      assert.not_matches("dist_cause", got[rank].output, 1, true) -- nothing after the error itself
      assert.equal(1, got[rank].code)
      assert.matches("backend mpi: rank 0 on %S+ was not started by mpirun; .*run %-%-backend mpi %-%-nproc 2",
        got[rank].output)
    end
  end)

  it("a first group of some processes only", function()
    local _, _, _, of = start(2, [[
      print(select(2, pcall(dist.new_group, {0}, {backend = "mpi"})))
    ]], {prologue = PROLOGUE:gsub("{timeout = 20}", "(\"gloo\", {timeout = 20})")})
    assert.matches("backend mpi: the first group must have all 2 processes that mpirun started, got 1: MPI", of[0])
  end)

  it("ranks of two mpiruns", function()
    local path = write [[require("luminary").dist.init_process_group("mpi", {timeout = 20})]]
    local one = ("RANK=%%d mpirun -np 1 luajit %s"):format(path)
    local command = [[export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LM_TOKEN=x WORLD_SIZE=2
      export MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; %s & sleep 1; %s; wait]] -- two at once trip over their own folder
    local _, out, err = run(command:format(ranks.free_port(), one:format(0), one:format(1)))
    local _, count = (out .. err):gsub("backend mpi: mpirun started 1 process with rank 0 ", "")
    assert(count == 2, out .. err)
  end)

  it("two ranks that are one process for MPI", function()
    local path = write [[require("luminary").dist.init_process_group("mpi", {timeout = 20})]]
    local _, out, err = run(([[OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LM_TOKEN=x WORLD_SIZE=2 \
      MASTER_ADDR=127.0.0.1 MASTER_PORT=%d mpirun -np 2 --oversubscribe sh -c \
      '[ $OMPI_COMM_WORLD_RANK = 0 ] || exit 0; (RANK=0 luajit %s) & RANK=1 luajit %s; wait']]):format(
      ranks.free_port(), path, path))
    local _, count = (out .. err):gsub("backend mpi: rank 0 .* and rank 1 .* are one process for MPI", "")
    assert(count >= 1, out .. err)
  end)
end)

describe("luminary run --backend mpi", function()
  local function refused(options, words, env)
    local path = write "print 'ran'"
    local command = ("%s luajit %s run --backend mpi %s %s"):format(env or "", ranks.luminary, options, path)
    local code, out, err = run(command)
    assert.equal(2, code)
    assert.matches(words, err)
    assert.equal("", out)
  end

  it("gives exit codes, arguments and shares of the cores", function()
    local code, out, _, of = start(2, [[
      print(#arg, os.getenv "OMP_NUM_THREADS", #os.getenv "LM_TOKEN")
      io.stdout:flush()
      os.exit(3)
    ]], {prologue = "", env = "env -u OMP_NUM_THREADS -u LM_TOKEN"})
    assert.equal(3, code)
    local threads = math.max(1, math.floor(core.process_cores() / 2))
    assert(of[0] .. of[1] ~= "", out)
    assert.matches(("0\t%d\t32"):format(threads), of[0] .. of[1])
    local path = write "print(table.concat(arg, '|'))"
    code, out = run(("luajit %s run --backend=mpi --nproc 1 %s --lr 0.1 \"two words\""):format(ranks.luminary, path))
    assert.equal(0, code)
    assert.matches("^%[1,0%]<stdout>: ?%-%-lr|0%.1|two words\n$", out)
  end)

  it("--dry-run shows the command", function()
    local path = write "print 'ran'"
    local options = "--backend mpi --hosts a:2,b --nproc 3 --dry-run"
    local code, out = run(("env -u LM_TOKEN luajit %s run %s %s 1"):format(ranks.luminary, options, path))
    assert.equal(0, code)
    assert.matches("^LM_BACKEND=%S+ LM_JOB=%x+ LM_TOKEN=%x+ .*mpirun %-np 5 %-%-host a:2,b:3 ", out)
    assert.matches("%-x LM_TOKEN .*script.lua 1\n$", out)
  end)

  it("starts ranks on hosts that are named", function()
    local why = needs.names()
    if why then return pending(why) end
    local of = all_well(1, "print(n) dist.barrier()", {options = "--hosts localhost:2"})
    assert.equal("2\n", of[1])
  end)

  it("refuses what mpirun does not do, and what is misspelt", function()
    refused("--max-restarts 2", "%-%-max%-restarts cannot be used with %-%-backend mpi: mpirun ends the job")
    refused("--nnodes 2", "%-%-nnodes cannot be used with %-%-backend mpi: .*%-%-hosts a:2,b:2")
    refused("--rdzv tcp://a:1", "%-%-rdzv cannot be used with %-%-backend mpi: mpirun passes")
    refused("--hosts a:x", "%-%-hosts must be names with numbers of ranks, such as a:2,b:2, got 'a:x'")
    refused("--backend gloo --hosts a:2", "%-%-hosts is for %-%-backend mpi")
    refused("--backend mpu", "%-%-backend must be gloo, nccl or mpi, got 'mpu'; did you mean mpi%?")
  end)

  it("says what to install where there is no mpirun, or another MPI's", function()
    local tools = temp.folder()
    os.execute(("ln -s $(command -v luajit) $(command -v sh) %s/"):format(tools))
    refused("--nproc 2", "cannot find mpirun; install Open MPI .*openmpi%-bin", "PATH=" .. tools)
    temp.write(tools .. "/mpirun", "#!/bin/sh\necho HYDRA build details:\n")
    os.execute(("chmod +x %s/mpirun"):format(tools))
    refused("--nproc 2", "mpirun must be Open MPI's, got 'HYDRA build details:'", "PATH=" .. tools)
    temp.remove(tools)
  end)

  it("makes another backend the default of init_process_group too", function()
    local path = write [[
      local dist = require("luminary").dist
      dist.init_process_group()
      print(dist.get_backend())
    ]]
    local code, out = run(("luajit %s run --backend gloo --nproc 2 %s"):format(ranks.luminary, path))
    assert.equal(0, code)
    assert.matches("%[rank 1%] gloo\n", out)
  end)
end)
