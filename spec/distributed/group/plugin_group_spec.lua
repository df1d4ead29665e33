-- A process group built outside the tree: compiled against what an installation has, found by its name, and carrying
-- a DDP step.
local temp = require "spec.support.temp"
local ranks = require "spec.support.ranks"
local plugin = require "spec.support.plugin"
local ddp_equal = require "spec.support.ddp_equal"
local within = require("spec.support.time").within

describe("a group built elsewhere", function()
  local path
  local folder = temp.during(setup, teardown)

  it("compiles against the installed headers", function()
    if not plugin.build(folder, "group_relay") then return pending("the module does not come from a build") end
    path = folder
  end)

  local function run(script)
    if not path then return pending("there is no plug-in") end
    local env = { LM_GROUP_PATH = "/nowhere:" .. path, LM_TOKEN = "a token for specs" }
    return ranks.run { n = 2, script = script, env = env, timeout = 40 }
  end

  it("is found by its name and moves bytes", function()
    local got = run [[
      local lm = require "luminary"
      local dist = lm.dist
      dist.init_process_group("relay", {timeout = 20})
      assert(dist.get_backend() == "relay")
      local rank = dist.get_rank()
      local t = lm.tensor{1, 2} * (rank + 1)
      dist.all_reduce(t)
      local list = {lm.zeros{2}, lm.zeros{2}}
      dist.all_gather(list, lm.tensor{rank, 7})
      local b = lm.full({2, 3}, rank + 5):t()
      dist.broadcast(b, 1)
      local mean = lm.tensor({rank}, {dtype = "float64"})
      local work = dist.all_reduce(mean, {op = "mean", async_op = true})
      work:wait()
      dist.all_reduce(lm.zeros{0})
      dist.barrier()
      print(t[1], t[2], list[1][1], list[2][1], list[2][2], b:sum():item(), mean:item())
      local ok, message = pcall(dist.reduce_scatter, lm.zeros{2}, {lm.zeros{2}, lm.zeros{2}})
      print(ok, message)
      dist.destroy_process_group()
    ]]
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do
      assert.matches("^3\t6\t0\t1\t7\t36\t0.5\n", got[rank].output)
      assert.matches("reduce_scatter: not implemented for backend 'relay'", got[rank].output, 1, true)
    end
  end)

  it("tells a mismatch on both ranks", function()
    local got = run [[
      local lm = require "luminary"
      local dist = lm.dist
      dist.init_process_group("relay", {timeout = 20})
      local ok, message = pcall(dist.all_reduce, lm.zeros{dist.get_rank() + 2})
      print(ok, message)
    ]]
    if not got then return end
    for rank = 0, 1 do
      assert.matches("^false\t", got[rank].output)
      assert.matches("float32 [2]", got[rank].output, 1, true)
      assert.matches("float32 [3]", got[rank].output, 1, true)
      within(got[rank].seconds, 10, got.text)
    end
  end)

  it("carries DistributedDataParallel", function()
    local got = run(ddp_equal {backend = "relay", device = "cpu"})
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("equal\n", got[rank].output) end
  end)

  it("is not found without its path", function()
    if not path then return pending("there is no plug-in") end
    local got = ranks.run { n = 1, timeout = 20, script = [[
      print(pcall(require("luminary").dist.init_process_group, "relay"))
    ]] }
    assert(got.ok, got.text)
    assert.matches("unknown backend 'relay'", got[0].output, 1, true)
  end)
end)
