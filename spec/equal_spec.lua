-- However many ranks share a batch, and whoever started them, training is the same: its losses are one process's.
-- In float64, since float32 drifts with the order of additions. LM_TEST_LONG=1 makes it an epoch, with 8 ranks,
-- float32 and accuracies; PYTHON (with torch) adds torchrun.
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"

local long = lm.getenv "LM_TEST_LONG" ~= nil
local script = "scripts/train_ddp.lua"
local steps = long and 235 or 4 -- 235: an epoch
local common = ("--model lenet --dtype float64 --epochs 1 --max-steps %d --seed 3"):format(steps)

-- The losses in a log, and its last test accuracy.
local function read_log(path)
  local losses, accuracy = {}, nil
  for line in temp.read(path):gmatch("[^\n]+") do
    local loss = line:match('"loss":([^,]+)')
    if loss then losses[#losses + 1] = tonumber(loss) end
    accuracy = tonumber(line:match('"test_accuracy":([^,]+)')) or accuracy
  end
  return losses, accuracy
end

-- Runs a command that writes a log to the path it is given; fails with its output.
local function train(command)
  local folder = temp.folder()
  local log, out = folder .. "/log", folder .. "/out"
  command = command:gsub("{LOG}", log):gsub("{FOLDER}", folder)
  local code = os.execute(("timeout %d %s >%s 2>&1 </dev/null"):format(long and 3000 or 100, command, out))
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

describe("training by several ranks", function()
  local reference

  lazy_setup(function()
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

  local python = lm.getenv "PYTHON"
  local torchrun = python and python:match("^(.*/)") .. "torchrun"
  if torchrun and os.execute("test -x " .. torchrun) == 0 then
    it("... under torchrun", function()
      same(("%s --no-python --nproc-per-node 2 --master-port %d %s %s %s --log-file {LOG}"):format(torchrun,
        ranks.free_port(), luajit, script, common))
    end)
  end

  -- Two hosts: network namespaces with a cable between them; root only.
  local a, b = "lmequala", "lmequalb"
  os.execute(("ip netns del %s 2>/dev/null; ip netns del %s 2>/dev/null"):format(a, b)) -- of a run that was stopped
  local made = os.execute(([[(ip netns add %s && ip netns add %s &&
    ip link add lmea netns %s type veth peer name lmeb netns %s &&
    ip -n %s addr add 10.98.0.1/24 dev lmea && ip -n %s addr add 10.98.0.2/24 dev lmeb &&
    ip -n %s link set lo up && ip -n %s link set lo up &&
    ip -n %s link set lmea up && ip -n %s link set lmeb up) >/dev/null 2>&1
  ]]):format(a, b, a, b, a, b, a, b, a, b)) == 0
  if made then
    it("... on two hosts with --nnodes 2", function()
      local job = " run --nnodes 2 --nproc 2 --master-addr 10.98.0.1 --master-port 29511 --node-rank "
      local function node(net, rank, extra)
        return ("ip netns exec %s %s %s %s%s"):format(net, luminary .. job .. rank, script, common, extra)
      end
      same(("env LM_TOKEN=secret sh -c '%s & %s; a=$?; wait $! && exit $a'"):format(node(b, 1, ""),
        node(a, 0, " --log {LOG}")))
    end)
  end
  lazy_teardown(function()
    if made then os.execute(("ip netns del %s; ip netns del %s"):format(a, b)) end
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
