-- Groups over several hosts, network namespaces here: all_reduce sums within each host first, so that few bytes leave
-- it; failures of any rank are named as they are on one host.
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local netns = require "spec.support.netns"
local within = require("spec.support.time").within

local prelude = [[
  local lm = require "luminary"
  local dist, nn = lm.dist, lm.nn
  dist.init_process_group("gloo", { timeout = 40 })
  local me, size = dist.get_rank(), dist.get_world_size()
  local function sent() -- bytes that have left this host
    for line in io.lines "/proc/self/net/dev" do
      local numbers = line:match "eth0:%s*(.*)"
      if numbers then return tonumber((numbers:match(("%d+%s+"):rep(8) .. "(%d+)"))) end
    end
  end
  local function of(rank, count, dtype)
    lm.manual_seed(rank + 7)
    if dtype:find "int" then return lm.randint(-2, 4, { count }):to(dtype) end
    return lm.randn({ count }):to(dtype)
  end
]]

describe("a group over several hosts #unsanitized", function()
  local folder, hosts, why = temp.folder()
  lazy_setup(function()
    hosts, why = netns.make("lmhosts", {
      a = { eth0 = { "one", "10.94.1.1/24" } }, b = { eth0 = { "one", "10.94.1.2/24" } },
    })
  end)
  lazy_teardown(function()
    if hosts then hosts:remove() end
    temp.remove(folder)
  end)

  -- Starts a rank for each letter of `layout`, on that host.
  local function start(layout, script, env)
    local lines = {}
    for rank = 0, #layout - 1 do
      local enter = hosts[layout:sub(rank + 1, rank + 1)]
      lines[#lines + 1] = ("[ $RANK = %d ] && exec %s luajit \"$@\"\n"):format(rank, enter)
    end
    local path = temp.write(folder .. "/enter.sh", table.concat(lines))
    env = env or {}
    env.MASTER_ADDR, env.LM_TOKEN, env.LOCAL_WORLD_SIZE, env.LOCAL_RANK = "10.94.1.1", "t", false, false
    return ranks.start { n = #layout, script = prelude .. script, command = "sh " .. path, env = env }
  end
  local function case(text, f)
    it(text, function()
      if not hosts then return pending(why) end
      f()
    end)
  end

  -- Hosts of 3 and 2 ranks, not in the order of the ranks, and one of a single rank.
  local sums = [[
    local whole = 40000
    for _, count in ipairs { 1, 3, 4097, 16385, whole, 3 * 2 ^ 20 } do
      local dtypes = count == whole and { "float32", "float64", "bfloat16", "int64" } or { "float32" }
      for _, dtype in ipairs(dtypes) do
        for _, op in ipairs(count == whole and { "sum", "mean", "max", "product" } or { "sum" }) do
          if not (dtype == "int64" and op == "mean") then
            local wide = dtype == "int64" and dtype or "float64"
            local right
            for r = 0, size - 1 do
              local t = of(r, count, dtype):to(wide)
              right = right == nil and t or op == "max" and lm.maximum(right, t) or op == "product" and right * t
                or right + t
            end
            if op == "mean" then right = right / size end
            local got, again = of(me, count, dtype), of(me, count, dtype)
            dist.all_reduce(got, { op = op })
            local off = ((got:to(wide) - right):abs() / (right:abs() + size)):max():item()
            assert(off <= (dtype == "bfloat16" and size * 2 ^ -8 or 1e-6), ("%s of %d %s: off by %g"):format(op, count,
              dtype, off))
            dist.all_reduce(again, { op = op, async_op = true }):wait()
            assert(got:equal(again), "other bits the second time")
            local first = got:clone()
            dist.broadcast(first, 0)
            assert(got:equal(first), "other bits on another rank")
          end
        end
      end
    end
    -- Three blocks, whose steps in shared memory end where a turn among messages does.
    local long = lm.arange(5625000):float()
    for _ = 1, 8 do assert(dist.all_reduce(long:clone()):equal(long * size), "steps among messages lost count") end
    -- Subgroups: on one host, of one rank a host, and over both.
    for _, members in ipairs { { 0, 1 }, { 0, 2 }, { 0, 1, 2 } } do
      local group = dist.new_group(members)
      if group ~= dist.NON_MEMBER then
        local t = dist.all_reduce(lm.full({ 100000 }, me + 1), { group = group })
        local right = 0
        for _, r in ipairs(members) do right = right + r + 1 end
        assert(t:eq(right):all():item())
      end
    end
    -- Other collectives between two of these, which use sockets alone.
    local all = lm.zeros(size)
    dist.all_gather_into_tensor(all, lm.full({ 1 }, me))
    assert(all:equal(lm.arange(size):float()))
    local net = nn.parallel.DistributedDataParallel(nn.Linear(300, 40):double())
    local x = of(me, 600, "float64"):view(2, 300)
    net(x):sum():backward()
    local g = x:sum(1)
    dist.all_reduce(g)
    assert((net.module.weight.grad[1] - g / size):abs():max():item() < 1e-9, "DistributedDataParallel")
    local large = lm.ones(4e6)
    dist.barrier()
    local before = sent()
    dist.all_reduce(large)
    dist.barrier()
    print("sent " .. (sent() - before) .. ";")
    dist.destroy_process_group()
  ]]

  for _, layout in ipairs { "aababb", "aaab" } do
    case("sums in bits that do not depend on chance, and sends the tensor once: " .. layout, function()
      local got = start(layout, sums):wait()
      assert(got.ok, got.text)
      for rank = 0, #layout - 1 do
        local bytes = tonumber(got[rank].output:match "sent (%d+);")
        assert(bytes and bytes > 15.9e6 and bytes < 18e6, got[rank].output)
      end
    end)
  end

  case("sends more by the ring, without shared memory", function()
    local got = start("abab", [[
      local t = lm.ones(4e6)
      dist.barrier()
      local before = sent()
      dist.all_reduce(t)
      dist.barrier()
      assert(t:eq(4):all():item())
      print("sent " .. (sent() - before) .. ";")
    ]], { LM_SHM = "0" }):wait()
    assert(got.ok, got.text)
    assert(tonumber(got[0].output:match "sent (%d+);") > 40e6, got.text)
  end)

  -- Rank 3 of the host a is there only for shared memory, since b has two ranks.
  local waits = [[
    local t = lm.ones(100000)
    dist.all_reduce(t)
    print "ready" io.flush()
    local ok, problem
    repeat ok, problem = pcall(dist.all_reduce, t:fill_(1)) until not ok
    print(problem)
  ]]
  for _, fault in ipairs { { "KILL", 3, 2 }, { "STOP", 1, 4 } } do
    local signal, victim, most = unpack(fault)
    case(("names rank %d after %s"):format(victim, signal), function()
      local job = start("aabab", waits, { LM_HEARTBEAT_TIMEOUT = "2" })
      for rank = 0, 4 do assert(job:wait_for(rank, "ready"), job:output(rank)) end
      job:kill(victim, signal)
      local others, names = {}, 0
      for rank = 0, 4 do
        if rank ~= victim then
          assert(job:wait_for(rank, "all_reduce: ", most + 10), job:output(rank))
          others[rank] = job:output(rank)
        end
      end
      if signal == "STOP" then job:kill(victim) end
      local got = job:wait()
      for rank, text in pairs(others) do
        names = names + 1
        assert.matches(("all_reduce: [^\n]*rank %d on [ab]"):format(victim), got[rank].output)
        assert.equal(0, got[rank].code, text)
      end
      assert.equal(4, names)
      if signal == "KILL" then within(got[0].seconds, got[victim].seconds + most, got.text) end
    end)
  end

  case("names ranks of another host, or of the own one, that are in another call", function()
    for _, odd in ipairs { 1, 3 } do
      local got = start("aabb", ([[
        local t = lm.ones(100000)
        dist.all_reduce(t)
        print(pcall(dist.all_reduce, me == %d and lm.ones(50000) or t))
      ]]):format(odd)):wait()
      for rank = 0, 3 do
        assert.matches(("false\t[^\n]*all_reduce: [^\n]*rank %d on [ab]"):format(odd), got[rank].output)
        within(got[rank].seconds, 10, got.text)
      end
    end
  end)
end)
