-- Every collective over real ranks against plain arithmetic (support/collectives_rank.lua), and which arguments the
-- public functions refuse.
local lm = require "luminary"
local dist = lm.dist
local ranks = require "spec.support.ranks"
local within = require("spec.support.time").within

local long = os.getenv "LM_TEST_LONG" == "1"

describe("collectives of", function()
  local function sweep(n, large_dtypes, large_calls, env)
    local got = ranks.run {
      n = n, file = "spec/support/collectives_rank.lua", args = large_dtypes .. " " .. large_calls, env = env,
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
  it("4 ranks", function() sweep(4, long and everything or "int64", long and "all" or "reduce_scatter,reduce") end)
  it("2 ranks that share no memory", function()
    sweep(2, long and everything or "float32", long and "all" or "all_reduce", { LM_SHM = "0" })
  end)
  it("3 ranks that share no memory", function() sweep(3, long and everything or "", "all", { LM_SHM = "0" }) end)
  it("5 ranks that share no memory", function() sweep(5, long and everything or "", "all", { LM_SHM = "0" }) end)

  it("many ranks gather small tensors in log2 rounds, each over a link of its own", function()
    local got = ranks.run { n = 8, timeout = 60, script = [[
      local lm = require "luminary"
      local dist = lm.dist
      dist.init_process_group { timeout = 50 }
      local rank = dist.get_rank()
      local function sockets()
        local pipe = io.popen(("ls -l /proc/%d/fd"):format(require("ffi").C.getpid()))
        local _, n = pipe:read("*a"):gsub("socket:", "")
        pipe:close()
        return n
      end
      require("ffi").cdef "int getpid(void);"
      dist.barrier() -- makes its links
      for size = 8, 2, -1 do
        local ids = {}
        for r = 0, size - 1 do ids[r + 1] = r end
        local before, list = sockets(), {}
        dist.barrier()
        local group = dist.new_group(ids)
        if rank < size then
          for r = 1, size do list[r] = lm.zeros { 3 } end
          for step = 1, 3 do
            local whole = lm.zeros { size, 1000 }
            dist.all_gather_into_tensor(whole, lm.full({ 1000 }, rank + step), { group = group })
            dist.all_gather(list, lm.full({ 3 }, 10 * rank + step), { group = group })
            for r = 1, size do
              assert(list[r]:eq(10 * r - 10 + step):all():item() and whole[r]:eq(r - 1 + step):all():item())
            end
          end
          if size == 8 then print("links", sockets() - before) end -- to ranks 1, 2 and 4 away, both ways
        end
        dist.barrier()
      end
    ]] }
    assert(got.ok, got.text)
    for rank = 0, 7 do assert.matches("links\t5\n", got[rank].output) end
  end)

  -- Rounded sums depend on the order: by pairs of ranks, whole and by halves, and around the ring, in several segments.
  it("ranks that all get the same bits, without shared memory", function()
    for _, n in ipairs { 4, 5 } do
      local got = ranks.run { n = n, timeout = 60, env = { LM_SHM = "0" }, script = [[
        local lm = require "luminary"
        local dist = lm.dist
        dist.init_process_group { timeout = 50 }
        lm.manual_seed(1 + dist.get_rank())
        for _, dtype in ipairs {"float16", "float32"} do
          local is_long = dtype == "float32" and dist.get_world_size() == 4 -- a block is of more segments than lanes
          for _, count in ipairs {1, 3, 4000, 9001, 50001, 140001, is_long and 3300001 or nil} do
            local mine = lm.randn({count}):to(dtype)
            local sum = mine:clone()
            dist.all_reduce(sum)
            local all, sums = {}, {}
            for r = 1, dist.get_world_size() do
              all[r], sums[r] = lm.empty({count}, {dtype = dtype}), lm.empty({count}, {dtype = dtype})
            end
            dist.all_gather(all, mine)
            dist.all_gather(sums, sum)
            local right = all[1]:to "float64"
            for r = 2, #all do right = right + all[r]:to "float64" end
            local off = (sum:to "float64" - right):abs():max():item()
            assert(off < (dtype == "float16" and 0.05 or 1e-5), dtype .. " of " .. count .. " is off by " .. off)
            for r = 1, #sums do
              assert(lm.equal(sums[r], sums[1]), dtype .. " of " .. count .. " on rank " .. r - 1)
            end
          end
        end
      ]] }
      assert(got.ok, got.text)
    end
  end)
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
    within(got[0].seconds, 15, got.text)
  end

  it("is told by the end of a line's name, cut between characters", function()
    run [[
      local name = ("é"):rep(29)
      local f = loadstring("local f, t = ... f(t)", "=" .. name)
      local ok, err = pcall(f, dist.all_reduce, lm.ones(me + 2))
      local places, whole = 0, err:gsub("é", "")
      for place in err:gmatch(" at ([\195\169]+):1") do places = places + #place / #name end
      assert(not ok and places > 1.4 and not whole:find "[\128-\255]", err)
      os.exit(0, true)
    ]]
  end)

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

describe("what is under way", function()
  -- Another tensor's memory, sizes and dtype for t, which has been given to a call. Returns what it was.
  local prelude = [[
    local lm = require "luminary"
    local dist, nn = lm.dist, lm.nn
    dist.init_process_group { timeout = 20 }
    local me = dist.get_rank()
    local big = 300000
    local function full(value, shape) return lm.full(shape or { big }, value) end
    local function strided(value) return full(value, { 1000, 300 }):t() end
    local function all(t, value) return t:eq(value):all():item() end
    local calls, works, kept = {}, {}, {}
    local function swapped(...)
      for _, t in ipairs { ... } do
        table.insert(kept, t:detach())
        t.data = lm.ones({ 7 }, { dtype = "int64" })
        t:add_(1)
      end
      collectgarbage()
    end
    -- Delays the other rank, so that all calls are under way when tensors change.
    local function late() if me == 1 then os.execute "sleep 0.2" end end
    local function done()
      for _, work in ipairs(works) do work:wait() end
      local list = kept
      works, kept = {}, {}
      return unpack(list)
    end
    local function start(name, args, op)
      args[#args + 1] = { async_op = true, op = op }
      table.insert(works, (dist[name](unpack(args))))
    end
    late()
  ]]
  local function run(script, env)
    local got = ranks.run { n = 2, timeout = 40, env = env, script = prelude .. script .. [[
      dist.destroy_process_group()
      print "finished"
    ]] }
    assert(got.ok, got.text)
    assert.matches("finished", got[0].output)
  end

  for _, shared in ipairs { "1", "0" } do
    it("keeps the memory that its tensors had, LM_SHM=" .. shared, function()
      run([[
        for _, make in ipairs { full, strided } do
          local a, b, c, d = make(me + 1), make(me + 1), make(me + 1), make(me + 1)
          start("all_reduce", { a })
          start("broadcast", { b, 1 })
          start("reduce", { c, 0 })
          start("all_reduce", { d }, "max")
          swapped(a, b, c, d)
          local sum, sent, reduced, most = done()
          assert(all(sum, 3) and all(sent, 2) and all(reduced, me == 0 and 3 or 2) and all(most, 2))
          assert(all(a, 2) and a.dtype == "int64" and a:numel() == 7)

          a, b, c = make(0), make(0), make(me + 1)
          start("all_gather", { { a, b }, c })
          swapped(a, b, c)
          sum, sent, c = done()
          assert(all(sum, 1) and all(sent, 2) and all(c, me + 1))

          a, b, c = make(me + 1), make(10 * (me + 1)), make(0)
          start("reduce_scatter", { c, { a, b } })
          swapped(a, b, c)
          a, b, c = done()
          assert(all(c, me == 0 and 3 or 30))

          a, b, c, d = make(me + 1), make(10 * (me + 1)), make(0), make(0)
          start("all_to_all", { { c, d }, { a, b } })
          swapped(a, b, c, d)
          a, b, c, d = done()
          assert(all(c, me == 0 and 1 or 10) and all(d, me == 0 and 2 or 20))

          a, b, c, d = make(me + 1), make(5), make(6), make(0)
          start("gather", me == 0 and { a, { c, d } } or { a })
          start("scatter", me == 0 and { b, { make(7), make(8) } } or { b })
          swapped(a, b, c, d)
          a, b, c, d = done()
          assert(all(b, 7 + me) and (me == 1 or all(c, 1) and all(d, 2)))

          a, b = make(me + 1), make(0)
          works = { dist.isend(a, 1 - me), (dist.irecv(b, 1 - me)) }
          swapped(a, b)
          a, b = done()
          assert(all(a, me + 1) and all(b, 2 - me))
          c, d = make(me + 3), make(0)
          works = dist.batch_isend_irecv { dist.P2POp(dist.isend, c, 1 - me), dist.P2POp(dist.irecv, d, 1 - me) }
          swapped(c, d)
          c, d = done()
          assert(all(c, me + 3) and all(d, 4 - me))
        end
      ]], { LM_SHM = shared })
    end)

    it("is not left behind by share_memory_, nor converted with its module, LM_SHM=" .. shared, function()
      run([[
        local t = full(me + 1)
        start("all_reduce", { t })
        local ok, problem = pcall(t.share_memory_, t)
        local shares = "share_memory_: this tensor shares memory with another tensor in use"
        if not ok then assert(problem:find(shares, 1, true), problem) end
        done()
        assert(all(t, 3) and t:share_memory_():is_shared() and all(t, 3))

        local net = nn.Linear(500, 400)
        for _, p in ipairs(net:parameters()) do p:detach():fill_(me + 1) end
        for _, p in ipairs(net:parameters()) do
          start("all_reduce", { p })
          table.insert(kept, p:detach())
        end
        if me == 0 then net:double() end
        for _, t in ipairs { done() } do assert(all(t, 3) and t.dtype == "float32") end
      ]], { LM_SHM = shared })
    end)
  end
end)

describe("a collective refuses", function()
  setup(function() dist.init_process_group() end)
  teardown(function() dist.destroy_process_group() end)

  local message = require "spec.support.error_of"
  local ints = lm.tensor({ 1, 2 }, { dtype = "int64" })

  it("reductions that make no sense for a dtype", function()
    assert.matches("all_reduce: tensor must be float for op = 'mean', got int64; convert it with :float()",
      message(dist.all_reduce, ints, { op = "mean" }))
    local floats = lm.ones { 2 }
    assert.matches("all_reduce: tensor must be integer or bool for op = 'band', got float32; "
      .. "convert it with :long()", message(dist.all_reduce, floats, { op = "band" }))
    assert.matches("reduce_scatter: tensor must be integer or bool for op = 'bor', got float32; "
      .. "convert it with :long()",
      message(dist.reduce_scatter, floats, { lm.ones { 2 } }, { op = "bor" }))
  end)

  it("to write where elements share memory", function()
    assert.matches("all_reduce: tensor must be without elements that share memory, got shape %[3, 2%]; "
      .. "pass x:clone%(%); parameters of init_empty_weights need values first",
      message(dist.all_reduce, lm.ones({ 3, 1 }):expand(3, 2)))
  end)

  it("lists that do not fit", function()
    assert.matches("all_gather: one tensor for all ranks must be 1 times float32 %[2%] on cpu, "
      .. "got float32 %[3%] on cpu",
      message(dist.all_gather, { lm.ones { 3 } }, lm.ones { 2 }))
    assert.matches("all_gather: tensor 1 of the list must be float32 %[2%] on cpu, got int64 %[2%] on cpu",
      message(dist.all_gather, { ints }, lm.ones { 2 }))
    assert.matches("scatter: tensor 1 of the list must be float32 %[2%] on cpu, got float32 %[2%] on cpu:1",
      message(dist.scatter, lm.ones { 2 }, { lm.ones({ 2 }, { device = "cpu:1" }) }, 0))
  end)

  it("to send to itself", function()
    assert.matches("send: not implemented for backend 'solo'", message(dist.send, lm.ones { 2 }, 0))
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
