-- Every collective over real ranks against plain arithmetic (support/collectives_rank.lua), and what the front door
-- refuses.
local lm = require "luminary"
local dist = lm.dist
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local ranks = require "ranks"

local long = os.getenv "LM_TEST_LONG" == "1"

describe("collectives of", function()
  local function sweep(n, large_dtypes, large_calls, env)
    local got = ranks.run {
      n = n, file = here .. "/support/collectives_rank.lua", args = large_dtypes .. " " .. large_calls, env = env,
      timeout = long and 900 or 120,
    }
    assert(got.ok, got.text)
    for rank = 0, n - 1 do assert.matches("all right %d%d%d", got[rank].output) end
  end
  local everything = "bool,uint8,int32,int64,float16,bfloat16,float32,float64"

  it("1 rank", function() sweep(1, "", "") end)
  it("2 ranks", function()
    sweep(2, long and everything or "float32", long and "all" or "all_reduce,broadcast,all_gather,send_recv")
  end)
  it("3 ranks", function() sweep(3, long and everything or "", "all") end)
  it("4 ranks", function() sweep(4, long and everything or "int64", long and "all" or "reduce_scatter") end)
  it("2 ranks that share no memory", function()
    sweep(2, long and everything or "float32", long and "all" or "all_reduce", { LM_SHM = "0" })
  end)
  it("3 ranks that share no memory", function() sweep(3, long and everything or "", "all", { LM_SHM = "0" }) end)
end)

describe("what is under way", function()
  local function run(script)
    local got = ranks.run {
      n = 2, timeout = 40, env = { LM_TOKEN = "a token for specs" }, script = [[
        local lm = require "luminary"
        local dist = lm.dist
        dist.init_process_group { timeout = 20 }
        local me = dist.get_rank()
        local go = function() os.execute "sleep 0.3" end -- the other rank is behind
      ]] .. script,
    }
    assert(got.ok, got.text)
    assert(got[0].seconds < 15, got.text)
  end

  it("can be waited for in vain, and again; calls after it keep their order", function()
    run [[
      local t, b = lm.full({ 3 }, me + 1), lm.full({ 2 }, me)
      if me == 1 then go() end
      local work = dist.all_reduce(t, { async_op = true })
      if me == 0 then
        assert(not work:is_completed())
        local ok, err = pcall(work.wait, work, 0.05)
        assert(not ok and err:match("wait: all_reduce sum float32 %[3%] is not done after 0.05 s"), err)
      end
      dist.broadcast(b, 1)
      assert(work:is_completed() and t[1] == 3 and b[1] == 1)
      work:wait()
      local got = lm.zeros { 2, 3 }
      if me == 0 then
        work = dist.irecv(got:t(), 1)
        local ok, err = pcall(work.wait, work, 0.05)
        assert(not ok and err:match("wait: recv float32 %[3, 2%] from rank 1 is not done after 0.05 s"), err)
        work:wait()
        assert(got[1][2] == 2 and work:source_rank() == 1)
      else
        go()
        dist.send(lm.tensor { { 1, 0 }, { 2, 0 }, { 3, 0 } }, 0)
      end
    ]]
  end)

  it("gets there if the script drops it, or waits elsewhere meanwhile", function()
    run [[
      local large, small, sum = lm.ones { 1000000 }, lm.ones { 10 }, lm.ones { 3 }
      if me == 0 then
        dist.isend(small, 1)
        dist.isend(large, 1, { tag = 3 })
        collectgarbage()
        collectgarbage()
        dist.all_reduce(sum)
      else
        go()
        local a, b = lm.zeros { 1000000 }, lm.zeros { 10 }
        dist.recv(a, 0, { tag = 3 })
        dist.recv(b, 0)
        assert(a:sum():item() == 1e6 and b:sum():item() == 10)
        dist.all_reduce(sum)
      end
      for _ = 1, 5 do dist.all_reduce(sum, { async_op = true }) end
      collectgarbage()
      local kept = dist.all_reduce(sum, { async_op = true })
      local never = me == 0 and dist.irecv(small, 1, { tag = 9 })
      dist.destroy_process_group()
      assert(sum[1] == 128 and kept:is_completed())
      kept:wait()
      if never then assert(not pcall(never.wait, never)) end
    ]]
  end)
end)

describe("a collective refuses", function()
  setup(function() dist.init_process_group() end)
  teardown(function() dist.destroy_process_group() end)

  local function message(f, ...)
    local ok, err = pcall(f, ...)
    assert(not ok, "no error")
    return tostring(err)
  end
  local ints = lm.tensor({ 1, 2 }, { dtype = "int64" })

  it("reductions that make no sense for a dtype", function()
    assert.matches("all_reduce: the mean of int64; floats are wanted", message(dist.all_reduce, ints, { op = "mean" }))
    local floats = lm.ones { 2 }
    assert.matches("all_reduce: band of float32; integers or bool", message(dist.all_reduce, floats, { op = "band" }))
    assert.matches("reduce_scatter: bor of float32",
      message(dist.reduce_scatter, floats, { lm.ones { 2 } }, { op = "bor" }))
  end)

  it("to write where elements share memory", function()
    assert.matches("all_reduce: elements of the tensor of sizes %[3, 2%] share memory",
      message(dist.all_reduce, lm.ones({ 3, 1 }):expand(3, 2)))
  end)

  it("lists that do not fit", function()
    assert.matches("all_gather: .*float32 %[3%].*float32 %[2%]",
      message(dist.all_gather, { lm.ones { 3 } }, lm.ones { 2 }))
    assert.matches("all_gather: .*int64 %[2%].*float32 %[2%]", message(dist.all_gather, { ints }, lm.ones { 2 }))
    assert.matches("scatter: .*cpu:1.*cpu ",
      message(dist.scatter, lm.ones { 2 }, { lm.ones({ 2 }, { device = "cpu:1" }) }, 0))
  end)

  it("to send to itself", function()
    assert.matches("send: ", message(dist.send, lm.ones { 2 }, 0))
  end)

  it("and leaves data alone with one rank, whatever the layout", function()
    local t = lm.arange(6, { dtype = "float32" }):view(2, 3):t()
    dist.all_reduce(t, { op = "mean" })
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, t:totable())
    local out = { lm.zeros { 3, 2 } }
    dist.all_gather(out, t)
    assert.same(t:totable(), out[1]:totable())
    local leaf = lm.ones({ 2 }, { requires_grad = true })
    dist.all_reduce(leaf) -- writes data, records nothing
    assert.is_true(leaf.is_leaf)
  end)

  it("and counts as a write to what a graph has saved", function()
    local x = lm.ones({ 2 }, { requires_grad = true })
    local y = x * 2
    local z = y * y
    dist.all_reduce(y)
    assert.matches("a collective changed it in place", message(function() z:sum():backward() end))
  end)
end)
