-- The simulation of data-parallel training on more GPUs than are here.
local lm = require "luminary"
local scaling = dofile "scripts/scaling.lua"
local cost_model = require "luminary.distributed.cost_model"
local temp = require "spec.support.temp"
local long = lm.getenv "LM_TEST_LONG" ~= nil

local function run(arguments)
  local folder = temp.folder()
  local ok, text = temp.run(folder, "scripts/simulate_scale " .. arguments)
  temp.remove(folder)
  return ok, text
end

describe("the simulation of scaling #lua", function()
  local even, machine = scaling.even(50e6, 50), scaling.machines.p100

  it("is within a tenth of every published figure", function()
    local ok, text = run "--check"
    assert(ok, text)
    local rows = 0
    for published, simulated in text:gmatch("\n  %S+%s+%d+%s+([%d.]+)%s+([%d.]+)%s+[+-]") do
      rows = rows + 1
      local off = tonumber(simulated) / tonumber(published) - 1
      assert.is_true(math.abs(off) <= 0.1, text)
    end
    assert.equal(16 + 16 + 6, rows)
  end)

  it("is within a tenth of published steps of other layouts, except known misses", function()
    local ok, text = run "--check"
    assert(ok, text)
    local rows, misses = 0, 0
    for published, predicted, ratio, rest in text:gmatch
      "\n  %S[^\n]-%s+%d+%s+([%d.]+)%s+([%d.]+)%s+(%d%.%d%d%d)([^\n]*)" do
      local off = tonumber(predicted) / tonumber(published)
      assert.near(off, tonumber(ratio), 2e-3)
      if rest:find "known miss" then misses = misses + 1 else assert.is_true(math.abs(off - 1) <= 0.1005, text) end
      rows = rows + 1
    end
    assert.same({50, 11}, {rows, misses})
  end)

  it("takes as long as a ring in which every hop is played through", function()
    -- 2 (n - 1) rounds, in each of which every rank sends a part to the next: as slow as its slowest link.
    local gpus, bytes = 12, 36e6
    local seconds = 8.4e-6
    for _ = 1, 2 do
      for round = 1, gpus - 1 do
        local slowest = 0
        for rank = 0, gpus - 1 do
          local crosses = math.floor(rank / machine.node) ~= math.floor((rank + 1) % gpus / machine.node)
          slowest = math.max(slowest, bytes / gpus / (crosses and machine.outside or machine.inside))
        end
        seconds = seconds + slowest
        -- Latency follows one part on its way: of gpus - 1 hops, nodes - 1 lead out of a node.
        seconds = seconds + (round <= gpus / machine.node - 1 and machine.net or machine.hop)
      end
    end
    assert.near(seconds, (cost_model.all_reduce(machine, gpus, bytes, "ring")), 1e-12)
  end)

  it("knows when latency and when bandwidth counts", function()
    local function cost(bytes, algorithm, gpus) return (cost_model.all_reduce(machine, gpus, bytes, algorithm)) end
    assert.is_true(cost(4e3, "tree", 512) < cost(4e3, "ring", 512) / 5)
    assert.is_true(cost(400e6, "ring", 16) < cost(400e6, "tree", 16))
    for _, gpus in ipairs {2, 4, 8, 512} do
      local least, which = cost_model.all_reduce(machine, gpus, 1e6, "best")
      for _, name in ipairs {"ring", "tree", "hierarchical"} do
        assert.is_true(least <= cost(1e6, name, gpus))
        if name == which then assert.equal(least, cost(1e6, name, gpus)) end
      end
    end
    assert.equal(0, (cost_model.all_reduce(machine, 1, 1e6, "ring")))
  end)

  it("lays buckets out as the reducer does", function()
    local model = {layers = {{1000, 1}, {2e6, 1}, {3e6, 1}, {4e6, 2}, {10, 1}, {300e3, 1}}}
    local buckets = scaling.buckets(model, 16e6, 1e6)
    local bytes = {}
    for i, b in ipairs(buckets) do bytes[i] = b.bytes end
    assert.same({1.2e6, 16000040, 20e6, 4000}, bytes) -- a bucket is closed when it has reached its size
    assert.near(1 / 7, buckets[1].ready, 1e-12)
    assert.near(4 / 7, buckets[2].ready, 1e-12)
    assert.equal(1, buckets[4].ready)
  end)

  it("waits only for what backward does not hide", function()
    local base = {
      model = even, machine = machine, gpus = 8, alone = 1, jitter = 0, algorithm = "ring", optimizer = 0, launch = 0,
      cap = 25 * 2 ^ 20,
    }
    local function simulate(extra)
      local options = {}
      for k, v in pairs(base) do options[k] = v end
      for k, v in pairs(extra) do options[k] = v end
      return scaling.simulate(options)
    end
    local slow = simulate {}
    local last = scaling.buckets(even, 25 * 2 ^ 20, 2 ^ 20)
    local tail = cost_model.all_reduce(machine, 8, last[#last].bytes, "ring")
    assert.near(1 + tail, slow.step, 1e-9) -- all but the last is done before backward ends
    assert.near(tail, slow.exposed, 1e-9)
    local serial = simulate {overlap = 0}
    assert.near(1 + serial.traffic, serial.step, 1e-9)
    local fast = simulate {alone = 1e-3}
    assert.is_true(fast.step > fast.traffic and fast.efficiency < 0.05)
    assert.near(1, simulate({gpus = 1}).efficiency, 1e-12)
    assert.is_true(simulate({compress = 0.5}).traffic < 0.6 * slow.traffic)
  end)

  it("takes from backward what every bucket is measured to take", function()
    local text = select(2, run "--check")
    local micros = tonumber(text:match "A bucket more takes (%d+) us")
    assert.near(130, micros, 5)
    local function step(launch)
      return scaling.simulate({model = even, machine = scaling.machines.h200, gpus = 2, alone = 1, jitter = 0,
        launch = launch, optimizer = 0, cap = 1e6}).step
    end
    assert.near(50 * 130e-6, step(nil) - step(0), 130e-6)
  end)

  it("finds DistributedDataParallel's buckets on GPUs better than 25 MB on average, nowhere 3 % worse", function()
    local models = scaling.models
    local sum, count = 0, 0
    for _, name in ipairs {"dgx1v", "h200", "p100", "ethernet"} do
      for _, each in ipairs {{models.resnet50, 0.1}, {models.resnet50, 0.03}, {models.resnext101_32x8d, 0.4},
        {models.vgg16, 0.2}, {scaling.even(124e6, 150), 0.1}, {scaling.even(1e9, 300), 0.5},
        {scaling.even(3e9, 300), 1.5}} do
        for _, gpus in ipairs {2, 8, 64, 512} do
          local function step(cap)
            return scaling.simulate({model = each[1], machine = scaling.machines[name], gpus = gpus, alone = each[2],
              jitter = 0, steps = 2, cap = cap}).step
          end
          local gain = step(25 * 2 ^ 20) / step(nil) - 1
          assert.is_true(gain > -0.03, name .. " " .. gpus)
          sum, count = sum + gain, count + 1
        end
      end
    end
    assert.equal(112, count)
    assert.is_true(sum / count > 0.009, sum / count)
  end)

  it("waits for the slowest rank, the more of them the longer", function()
    local function step(gpus, jitter, seed)
      return scaling.simulate({model = even, machine = scaling.machines.h200, gpus = gpus, alone = 1, jitter = jitter,
        seed = seed, steps = 10}).step
    end
    assert.is_true(step(64, 0.02) > step(8, 0.02) + 0.01)
    -- The largest of 512 normals lies about 3 deviations out.
    assert.near(1 + 3.04 * 0.02, step(512, 0.02) / step(512, 0), 0.008)
    assert.equal(step(64, 0.02, 7), step(64, 0.02, 7))
    assert.are_not.equal(step(64, 0.02, 7), step(64, 0.02, 8))
  end)

  it("divides the optimizer's work and memory with ZeRO, and sends what was updated", function()
    local options = {model = even, machine = machine, gpus = 16, alone = 1, jitter = 0, optimizer = 0.5, zero = true}
    local zero = scaling.simulate(options)
    assert.near(8 * 50e6 / 16, zero.optimizer_bytes, 1)
    options.zero = false
    local plain = scaling.simulate(options)
    assert.near(8 * 50e6, plain.optimizer_bytes, 1)
    assert.near(plain.step - 0.5 + 0.5 / 16 + zero.spread, zero.step, 1e-9)
    assert.near(15 / 16 * 200e6 / machine.outside, zero.spread, 1e-3)
  end)

  it("goes by measured links between their points and beyond", function()
    local measured = {node = 2, measured = {{1e6, 1e-3}, {3e6, 2e-3}}}
    assert.near(1.5e-3, (scaling.all_reduce(measured, 2, 2e6)), 1e-12)
    assert.near(3e-3, (scaling.all_reduce(measured, 2, 5e6)), 1e-12)
    assert.equal(1e-3, (scaling.all_reduce(measured, 2, 10)))
  end)

  it("prints a table, JSON, and what is wrong with an option", function()
    local ok, text = run "--gpus 8,4096 --zero"
    assert(ok, text)
    local lines = select(2, text:gsub("\n", "\n"))
    assert.equal(2 + 2 * 6, lines)
    ok, text = run "--gpus 8,16 --algorithm best --json --model 70 --machine ethernet"
    assert(ok, text)
    for line in text:gmatch("[^\n]+") do
      local row = lm.core.json_decode(line)
      assert.is_true(row.step_ms > 100 and row.efficiency < 1)
    end
    ok, text = run "--gpus 8 --algorithm best --json --model 1000 --bucket best"
    assert(ok, text)
    local best = lm.core.json_decode(text)
    ok, text = run "--gpus 8 --algorithm best --json --model 1000 --bucket 25"
    assert(ok, text)
    assert.is_true(best.bucket_mb > 25 and best.step_ms < lm.core.json_decode(text).step_ms)
    for arguments, words in pairs {
      ["--model bert"] = "--model: 'bert' is none of", ["--machine cray"] = "--machine: 'cray' is none of",
      ["--gpus 0"] = "--gpus: '0'", ["--algorithm star"] = "--algorithm: no 'star'", ["--outside 0"] = "bandwidth of 0",
      ["--gpu 8"] = "did you mean '--gpus'", ["--gpus ,"] = "--gpus: ',' names none", ["--step 0"] = "--step 0",
      ["--compress 0"] = "--compress must be more than 0 and at most 1, got 0\n", ["--model inf"] = "--model: 'inf'",
      ["--bucket 0"] = "--bucket must be a number of MB above 0 or best, got '0'",
      ["--compress 2"] = "--compress must be more than 0 and at most 1, got 2\n",
      ["--measure --network no"] = "--network: there is no 'no'",
    } do
      ok, text = run(arguments)
      assert.is_false(ok)
      assert.matches(words, text, 1, true)
    end
  end)

  if long then
    it("is within a tenth of two ranks on this machine", function()
      local ok, text = run "--measure"
      assert(ok, text)
    end)
  end
end)
