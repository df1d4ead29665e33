-- However many ranks share a batch, and whoever started them, training is the same: its losses are one process's.
-- In float64, since float32 drifts with the order of additions. LM_TEST_LONG=1 makes it an epoch, with 8 ranks,
-- float32 and accuracies; PYTHON (with torch) adds torchrun; what needs root, Open MPI or Slurm is pending without.
local lm = require "luminary"
local core = require "luminary.core"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local netns = require "spec.support.netns"
local slurm = require "spec.support.slurm"
local images = require "spec.support.images"

local long = lm.getenv "LM_TEST_LONG" ~= nil
local script = "scripts/train_ddp.lua"
local steps = long and 235 or 4 -- 235: an epoch
local small = temp.folder() -- a small one, whose test takes no time, unless it is about accuracies
local common = ("--model lenet --dtype float64 --epochs 1 --max-steps %d --seed 3%s"):format(steps,
  long and "" or " --batch-size 64 --data " .. small)

-- Returns the losses in a log, and its last test accuracy.
local function read_log(path)
  local losses, accuracy = {}, nil
  for line in temp.read(path):gmatch("[^\n]+") do
    local loss = line:match('"loss":([^,]+)')
    if loss then losses[#losses + 1] = tonumber(loss) end
    accuracy = tonumber(line:match('"test_accuracy":([^,}]+)')) or accuracy
  end
  return losses, accuracy
end

-- Runs what a shell understands and writes a log to the path it is given; fails with its output.
local function train(command)
  local folder = temp.folder()
  local log, out = folder .. "/log", folder .. "/out"
  command = command:gsub("{LOG}", log):gsub("{FOLDER}", folder)
  temp.write(folder .. "/command", command .. "\n")
  local code = os.execute(("timeout %d sh %s/command >%s 2>&1 </dev/null"):format(long and 3000 or 100, folder, out))
  local text = temp.read(out)
  assert(code == 0, ("exit code %s of %s\n%s"):format(tostring(code), command, text))
  local losses, accuracy = read_log(log)
  temp.remove(folder)
  return losses, accuracy, text
end

local function worst(a, b)
  assert.equal(#a, #b)
  local most = 0
  for i = 1, #a do most = math.max(most, math.abs(a[i] - b[i])) end
  return most
end

local luajit, luminary = "luajit", "luajit " .. ranks.luminary

describe("training by several ranks #unsanitized", function()
  local reference

  teardown(function() temp.remove(small) end)
  lazy_setup(function()
    images.write(small, 512, 64)
    reference = train(("env -u WORLD_SIZE -u RANK %s %s %s --threads 2 --log {LOG}"):format(luajit, script, common))
    assert.equal(steps, #reference)
  end)

  local function same(command)
    local losses = train(command)
    local off = worst(reference, losses)
    assert(off <= 1e-9, ("off by %g: %s"):format(off, command))
  end

  for _, n in ipairs(long and { 2, 4, 8 } or { 2, 4 }) do
    it(("gives one process's losses with %d ranks under luminary run"):format(n), function()
      same(("%s run --nproc %d %s %s --log {LOG}"):format(luminary, n, script, common))
    end)
  end

  it("... and with memory not shared", function()
    same(("env LM_SHM=0 %s run --nproc 2 %s %s --log {LOG}"):format(luminary, script, common))
  end)

  for _, method in ipairs { "process", "thread" } do
    it("... spawned, by " .. method, function()
      same(("%s scripts/ddp_spawn.lua --method %s --devices 2 %s --log {LOG}"):format(luajit, method, common))
    end)
  end

  for name, url in pairs { tcp = "tcp://127.0.0.1:{PORT}", file = "file://{FOLDER}/meeting" } do
    it("... started by hand, meeting by " .. name, function()
      local address = url:gsub("{PORT}", tostring(ranks.free_port()))
      local one = ("OMP_NUM_THREADS=1 %s %s %s --init-method %s --world-size 2"):format(luajit, script, common, address)
      same(("sh -c '%s --rank 1 & %s --rank 0 --log {LOG}; a=$?; wait $! && exit $a'"):format(one, one))
    end)
  end

  -- Runs several commands at once. All have to end well; the last one's log counts.
  local function together(...)
    local lines, waits = {}, {}
    for i, command in ipairs { ... } do
      local last = i == select("#", ...)
      lines[i] = last and command .. " --log-file {LOG} || exit" or ("%s & p%d=$!"):format(command, i)
      waits[i] = last and "true" or "wait $p" .. i
    end
    same(table.concat(lines, "\n") .. "\n" .. table.concat(waits, " && "))
  end

  local has_mpirun = os.execute("command -v mpirun >/dev/null 2>&1") == 0
  local has_mpi = has_mpirun and ranks.ours == "" and pcall(core.dist_has, "mpi", "") -- MPI leaks
  local mpirun = ranks.others .. "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 "
    .. "mpirun --oversubscribe -np 2 " .. ranks.ours .. luajit
  for name, case in pairs {
    ["mpirun, over gloo"] = { has_mpirun, mpirun .. " %s %s --backend gloo --log {LOG}" },
    ["mpirun, over mpi"] = { has_mpi, mpirun .. " %s %s --backend mpi --log {LOG}" },
    ["luminary run --backend mpi"] = { has_mpi, luminary .. " run --backend mpi --nproc 2 %s %s --log {LOG}" },
  } do
    it("... under " .. name, function()
      if not case[1] then return pending("needs Open MPI") end
      same(case[2]:format(script, common))
    end)
  end

  it("... under srun", function()
    local cluster, why = slurm.start()
    if not cluster then return pending(why) end
    finally(function() cluster:stop() end)
    for _, mpi in ipairs { "none", "pmix" } do
      local there = os.execute(("%s srun --mpi=list 2>&1 | grep -qw %s"):format(cluster.env, mpi)) == 0
      if there then
        same(("%s OMP_NUM_THREADS=1 srun --mpi=%s -n 2 --overcommit %s %s %s --log {LOG}"):format(cluster.env, mpi,
          ranks.ours .. luajit, script, common))
      end
    end
  end)

  local python = lm.getenv "PYTHON"
  local torchrun = python and python:match("^(.*/)") .. "torchrun"
  if torchrun and os.execute("test -x " .. torchrun) ~= 0 then torchrun = nil end
  if torchrun then
    it("... under torchrun", function()
      same(("%s --no-python --nproc-per-node 2 --master-port %d %s %s %s --log-file {LOG}"):format(torchrun,
        ranks.free_port(), luajit, script, common))
    end)
  end

  describe("on several hosts", function()
    local hosts, why
    lazy_setup(function()
      hosts, why = netns.make("lmequal", {
        a = { eth0 = { "one", "10.98.1.1/24" }, eth1 = { "two", "10.98.2.1/24" } },
        b = { eth1 = { "two", "10.98.2.2/24" } },
        c = { eth7 = { "two", "10.98.2.3/24" } },
        v6 = { eth0 = { "three", "fd98::1/64" } },
        w6 = { eth0 = { "three", "fd98::2/64" } },
      })
    end)
    lazy_teardown(function() if hosts then hosts:remove() end end)

    local function case(text, f)
      it(text, function()
        if not hosts then return pending(why) end
        f()
      end)
    end
    local token = "env LM_TOKEN=secret OMP_NUM_THREADS=1 "

    case("gives the same with --nnodes 2", function()
      local node = " run --nnodes 2 --nproc 2 --master-addr 10.98.2.1 --master-port 29511 --node-rank %d %s %s"
      together(token .. hosts.b .. " " .. luminary .. node:format(1, script, common),
        token .. hosts.a .. " " .. luminary .. node:format(0, script, common))
    end)

    case("... meeting by a file, on the interface that is chosen on one of them", function()
      local node = " run --nnodes 2 --nproc 1 --rdzv file://{FOLDER}/meeting --node-rank %d %s %s"
      together("env OMP_NUM_THREADS=1 " .. hosts.b .. " " .. luminary .. node:format(1, script, common),
        "env OMP_NUM_THREADS=1 LM_SOCKET_IFNAME=eth1 " .. hosts.a .. " " .. luminary .. node:format(0, script, common))
    end)

    case("... three of them, started by hand", function()
      local one = token .. "%s " .. luajit .. " " .. script .. " " .. common
        .. " --init-method tcp://10.98.2.1:29512 --world-size 4 --rank %d"
      together(one:format(hosts.b, 1), one:format(hosts.c, 2), one:format(hosts.b, 3), one:format(hosts.a, 0))
    end)

    case("... that have no IPv4", function()
      local node = " run --nnodes 2 --nproc 1 --rdzv-endpoint [fd98::1]:29513 --node-rank %d %s %s"
      together(token .. hosts.w6 .. " " .. luminary .. node:format(1, script, common),
        token .. hosts.v6 .. " " .. luminary .. node:format(0, script, common))
    end)

    if torchrun then
      case("... under torchrun", function()
        local node = torchrun .. " --no-python --nnodes 2 --nproc-per-node 1 --master-addr 10.98.2.1 --node-rank %d "
          .. "--master-port 29514 " .. luajit .. " " .. script .. " " .. common
        together(token .. hosts.b .. " " .. node:format(1), token .. hosts.a .. " " .. node:format(0))
      end)
    end
  end)

  it("draws samples that are disjoint and together the single run's", function()
    local set = lm.data.TensorDataset(lm.arange(1001))
    local function drawn(world, rank)
      return lm.data.DistributedSampler(set, { num_replicas = world, rank = rank, seed = 3, shuffle = true })
        :indices():totable()
    end
    local whole = drawn(1, 0)
    for _, world in ipairs { 2, 4, 8 } do
      local seen, count = {}, 0
      for rank = 0, world - 1 do
        for k, i in ipairs(drawn(world, rank)) do
          assert.equal(whole[(k - 1) * world + rank + 1] or whole[(k - 1) * world + rank + 1 - #whole], i)
          count = count + (seen[i] and 0 or 1)
          seen[i] = true
        end
      end
      assert.equal(#whole, count)
    end
  end)

  if long then
    it("stays within 1e-4 in float32 for 50 steps, and within a point of accuracy", function()
      local single = ("%s %s --model lenet --seed 3 --threads 2"):format(luajit, script)
      local several = ("%s run --nproc %%d %s --model lenet --seed 3"):format(luminary, script)
      local short = " --lr 0.01 --max-steps 50 --log {LOG}"
      local losses = train("env -u WORLD_SIZE " .. single .. short)
      local _, accuracy = train("env -u WORLD_SIZE " .. single .. " --epochs 3 --log {LOG}")
      for _, n in ipairs { 2, 4, 8 } do
        assert.is_true(worst(losses, train(several:format(n) .. short)) <= 1e-4)
        local _, its = train(several:format(n) .. " --epochs 3 --log {LOG}")
        assert.is_true(math.abs(accuracy - its) <= 0.01, ("%d ranks: %g, one: %g"):format(n, its, accuracy))
      end
    end)
  end
end)
