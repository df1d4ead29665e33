-- The group "nccl" over the stand-in for NCCL (support/nccl/): what it does, and in which order. That shows how NCCL is
-- called, and nothing about NCCL. What goes wrong is in nccl_failing_spec.lua.
local lm = require "luminary"
local ddp_order = require "spec.support.ddp_order"
local nccl_ranks = require "spec.support.nccl_ranks"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
if not nccl_ranks.are_there then return end
local succeeds = nccl_ranks.succeeds

describe("over the stand-in for NCCL", function()
  it("the group finds each function it calls", function()
    local core = assert(package.searchpath("luminary.core", package.cpath))
    local missing, seen = nccl_ranks.unknown_symbols((core:gsub("core%.so$", "luminary_group_nccl.so")))
    assert.same({}, missing)
    assert.is_true(seen > 15)
  end)

  for n = 1, 4 do
    local tag = n == 4 and " #unsanitized" or ""
    it(("every collective of %d ranks gives what arithmetic says%s"):format(n, tag), function()
      local got = ranks.run {
        n = n, timeout = 100, file = "spec/support/collectives_rank.lua",
        env = {
          LM_TOKEN = "a token for specs", LM_SPEC_KIND = "cuda", LM_FAKE_CUDA_DEVICES = n, LM_CUDA_VIRTUAL = false,
          LM_FAKE_CUDA_EAGER = false, LM_GUARD_BLOCKS = false, LM_FAKE_NCCL = n == 3 and "polls=0" or false,
        },
      }
      assert(got.ok, got.text)
      for rank = 0, n - 1 do assert.matches("all right %d%d%d", got[rank].output) end
    end)
  end

  it("lists may lie in memory as each rank likes", function()
    succeeds(3, [[
      local function list_of(apart, make)
        if apart then return { make(), make(), make() } end
        local all = lm.zeros({ 3, 2 }, { device = device })
        return { all[1], all[2], all[3] }
      end
      for _, apart in ipairs { rank == 1, rank ~= 1, true, false } do
        local list = list_of(apart, function() return full({ 2 }, 0) end)
        dist.all_gather(list, full({ 2 }, rank + 1))
        for r = 1, 3 do same({ r, r }, list[r]) end
        for r = 1, 3 do list[r]:fill_(10 * r + rank) end
        local out = full({ 2 }, 0)
        dist.reduce_scatter(out, list)
        same({ 30 * (rank + 1) + 3, 30 * (rank + 1) + 3 }, out)
      end
    ]])
  end)

  it("an all_gather takes its input as it is if that is this rank's part of the result, and else copies it", function()
    succeeds(3, [[
      for shift = 0, 2 do
        local whole = full({ 3, 50000 }, 0)
        local own = whole[(rank + shift) % 3 + 1]:fill_(rank + 1)
        lm.reset_peak_memory_stats(device)
        local before = lm.memory_allocated(device)
        dist.all_gather_into_tensor(whole, own)
        local copied = lm.max_memory_allocated(device) - before >= 4 * 50000
        assert(copied == (shift > 0), "the input was " .. (copied and "copied" or "not copied"))
        for r = 1, 3 do same({ r, r }, whole[r]:index_select(1, on({ 1, 50000 }, { dtype = "int64" }))) end
      end
    ]])
  end)
end)

describe("a collective over NCCL", function()
  it("is in a profile with its bytes, its line and its time on the stream of the group", function()
    succeeds(2, [[
      local x = full({ 1000 }, 1)
      dist.all_reduce(x)
      local prof = lm.profile(function()
        x:exp()
        dist.all_reduce(x)
        dist.all_reduce(x, { async_op = true }):wait()
        if rank == 0 then dist.send(x, 1) else dist.recv(x, 0) end
      end)
      local n, own = 0, nil
      for i = 1, prof.recording:count() do
        local name, kind, line, _, _, _, _, _, _, _, _, _, bytes, on, stream, start, seconds = prof.recording:span(i)
        if name == "exp" then own = stream end
        if kind == "collective" then
          n = n + 1
          assert(bytes == 4000 and on == device and seconds >= 0 and start > 0 and line:find ":%d+$", name)
          assert(stream ~= own, "on the stream of the script")
        end
      end
      assert(n == 3 and own, n)
    ]])
  end)

  it("of full buckets is enqueued beside the rest of backward, on a stream of its own", function()
    succeeds(2, [[
      local layers = {}
      for k = 1, 4 do layers[k] = nn.Linear(64, 64, { bias = false }) end
      local all = nn.Sequential(unpack(layers)):to(device)
      local net = nn.parallel.DistributedDataParallel(all, { bucket_cap_mb = 0.015 })
      local x = full({ 8, 64 }, rank + 1)
      local function step() net(x):sum():backward() end
      step() -- the first step finds the order of the gradients
      step()
      local prof = lm.profile(step)
      -- g: gradients of a layer, r: a bucket is enqueued on the group's stream, w: the script's waits for one
      local order, own = {}, nil
      for i = 1, prof.recording:count() do
        local name, kind, _, _, _, _, _, _, _, _, _, _, _, _, stream = prof.recording:span(i)
        if name == "linear" then own = stream end
        if name == "mm" then order[#order + 1] = stream == own and "g" or "?" end
        if name == "all_reduce" then order[#order + 1] = stream ~= own and kind == "collective" and "r" or "?" end
        if name == "all_reduce: wait" then order[#order + 1] = "w" end
      end
      local text = table.concat(order)
      assert(text == "grgrgrgrwwww", text)
    ]])
  end)

  it("of buckets as bfloat16 with sums in float32 sends each part once and the sums once, beside backward", function()
    succeeds(2, [[
      local layers = {}
      for k = 1, 3 do layers[k] = nn.Linear(64, 64, { bias = false }) end
      local all = nn.Sequential(unpack(layers)):to(device)
      local net = nn.parallel.DistributedDataParallel(all, { bucket_cap_mb = 0.015 })
      net:register_comm_hook(nil, "bf16_compress_fp32_sum")
      local x = full({ 8, 64 }, rank + 1)
      local function step()
        net:zero_grad()
        net(x):sum():backward()
      end
      step()
      step()
      local names = { "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "ncclAllReduce" }
      local before = {}
      for i, name in ipairs(names) do before[i] = calls(name) end
      step()
      for i, name in ipairs(names) do assert(calls(name) == before[i], name) end
      local prof = lm.profile(step)
      local order, own = {}, nil
      for i = 1, prof.recording:count() do
        local name, kind, _, _, _, _, _, _, _, _, _, _, bytes, _, stream = prof.recording:span(i)
        if name == "linear" then own = stream end
        if name == "mm" and stream == own then order[#order + 1] = "g" end
        if name == "sum" and own and stream ~= own then order[#order + 1] = "s" end
        if kind == "collective" and (name == "all_to_all" or name == "all_gather" and order[#order] == "s") then
          order[#order + 1] = name == "all_to_all" and "a" or "r"
          local want = name == "all_to_all" and 64 * 64 * 2 or 64 * 64 -- all, or this rank's half, in 2 bytes each
          assert(bytes == want, name .. " " .. bytes)
        end
      end
      assert(table.concat(order) == "gasrgasrgasr", table.concat(order))
      local got = layers[1].weight.grad:clone()
      all:zero_grad()
      net:no_sync(function() net(x):sum():backward() end)
      local want = dist.all_reduce(layers[1].weight.grad:clone()) / 2
      assert((got - want):abs():max():item() <= 2 ^ -7 * want:abs():max():item())
    ]])
  end)

  it("comes after what wrote its tensor, before what reads it, on whatever streams, and nobody waits", function()
    succeeds(2, [[
      local side, other = lm.cuda.Stream(), lm.cuda.Stream()
      local x = full({ 1000 }, 0)
      lm.cuda.stream(side, function() x:fill_(rank + 1) end)
      local waits = calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize"
      local y
      for _ = 1, 3 do
        dist.all_reduce(x)
        y = lm.cuda.stream(other, function() return x * 1 end)
        lm.cuda.stream(side, function() x:sub_(1) end)
      end
      local work = dist.all_reduce(x, { async_op = true })
      work:wait()
      local z = x + 0
      assert(waits == calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize")
      assert(y:eq(6):all():item() and z:eq(10):all():item()) -- 3, 4, 6, 10: doubled each time, less one
    ]])
  end)

  it("holds up the current stream from work:wait() on, also for ops that use none of its tensors", function()
    local folder = temp.folder()
    succeeds(2, [[
      local t, path = full({ 4 }, rank + 1), os.getenv "SEEN"
      dist.all_reduce(t)
      if rank == 0 then dist.send(t, 1) else dist.recv(t, 0) end
      local function passes(work) -- an event that the current stream records, once it has waited for the work, ends
        if work then work:wait() end
        local event = lm.cuda.Event()
        event:record()
        return until_true(function() return event:query() end, 0.1)
      end
      local function start(kind)
        if kind == "all_reduce" then return dist.all_reduce(t, { async_op = true }) end
        return rank == 0 and dist.irecv(t, 1) or dist.isend(t, 0)
      end
      for _, kind in ipairs { "all_reduce", "irecv" } do
        if rank == 0 then
          local work = start(kind)
          assert(passes())
          assert(not passes(work), kind)
          assert(io.open(path .. kind, "w")):close()
        else
          assert(until_true(function() return io.open(path .. kind) end))
          start(kind):wait()
        end
        lm.cuda.synchronize()
        assert(passes())
      end
    ]], { env = { SEEN = folder .. "/" } })
    temp.remove(folder)
  end)

  it("needs its memory no longer than it runs", function()
    succeeds(2, [[
      local function round(i)
        local t = full({ 5000 }, i)
        if rank == 1 and i % 3 == 0 then C.usleep(20000) end
        local work = dist.all_reduce(t, { async_op = true })
        local sum = t:sum()
        t = nil
        collectgarbage()
        full({ 5000 }, -1) -- wants the block
        return sum, work
      end
      for i = 1, 12 do
        local sum = round(i)
        assert(sum:item() == 10000 * i)
      end
    ]])
  end)

  it("is completed when the device has done it and the ticket of the rank before agrees", function()
    succeeds(2, [[
      dist.all_reduce(full({ 1 }, 1)) -- makes the communicator
      if rank == 1 then C.usleep(1500000) end
      local t = full({ 4 }, rank + 1)
      local work = dist.all_reduce(t, { async_op = true })
      if rank == 0 then
        assert(not work:is_completed())
        local problem = message(work.wait, work, 0.05)
        contains(problem, "wait: all_reduce sum float32 [4]", "is not done after 0.05 s and continues")
      end
      work:wait(10)
      assert(work:is_completed())
      same({ 3, 3, 3, 3 }, t)
      local empty = dist.all_reduce(full({ 0, 3 }, 1), { async_op = true })
      empty:wait(10)
      assert(empty:is_completed())
      work = dist.all_reduce(t, { async_op = true })
      assert(until_true(function() return work:is_completed() end), "nobody waits, and it never ends")
    ]])
  end)

  it("has the host wait in a barrier", function()
    local got = succeeds(2, [[
      dist.barrier()
      if rank == 1 then
        C.usleep(400000)
        io.open(arg[0] .. ".late", "w"):close()
      end
      dist.barrier()
      assert(io.open(arg[0] .. ".late"), "nobody waited")
      dist.barrier { async_op = true }:wait(10)
    ]])
    assert.is_true(got[0].seconds > 0.4)
  end)

  it("sends and receives, singly and as a unit", function()
    succeeds(3, [[
      local behind, before = (rank + 1) % 3, (rank + 2) % 3
      local mine, from_before, from_behind = full({ 2, 2 }, rank), full({ 2, 2 }, -1):t(), full({ 2, 2 }, -1)
      local list = {
        dist.P2POp(dist.isend, mine, behind), dist.P2POp(dist.isend, mine * 10, before),
        dist.P2POp(dist.irecv, from_before, before), { op = "irecv", tensor = from_behind, peer = behind },
      }
      for _, work in ipairs(dist.batch_isend_irecv(list)) do work:wait() end
      same({ before, before, before, before }, from_before)
      same({ 10 * behind, 10 * behind, 10 * behind, 10 * behind }, from_behind)
      dist.all_reduce(full({ 1 }, 1)) -- from now on there is a communicator of all
      for _, work in ipairs(dist.batch_isend_irecv(list)) do work:wait() end
      same({ before, before, before, before }, from_before)
      if rank == 0 then
        dist.send(full({ 3 }, 7), 2)
        local work = dist.isend(full({ 3 }, 8), 2)
        work:wait(10)
      elseif rank == 2 then
        local x, y = full({ 3 }, 0), full({ 3 }, 0)
        assert(dist.recv(x, 0) == 0)
        local work = dist.irecv(y, 0)
        work:wait(10)
        assert(work:is_completed() and work:source_rank() == 0)
        same({ 7, 7, 7 }, x)
        same({ 8, 8, 8 }, y)
      end
      contains(message(dist.recv, full({ 1 }, 0)), "recv: ",
        "src is required; backend 'nccl' cannot receive from any rank")
      contains(message(dist.send, full({ 1 }, 0), behind, { tag = 3 }), "send: ", "tag must be 0 with NCCL")
      contains(message(dist.all_reduce, full({ 2 }, 1, "int64"), { op = "band" }), "all_reduce: ", "bitwise")
      dist.barrier()
    ]])
  end)

  it("loses no message that its sender has sent and its receiver not yet received, when the sender leaves", function()
    for _, first in ipairs { "", "dist.all_reduce(full({ 1 }, 1))" } do
      local folder = temp.folder()
      succeeds(3, first .. [[

        local t, path = full({ 4 }, 0), os.getenv "SENT"
        local function is_sent() return io.open(path) ~= nil end
        if rank == 0 then
          dist.isend(full({ 4 }, 9), 2)
          local work
          for i = 1, 3 do work = dist.isend(full({ 4 }, i), 1) end
          assert(until_true(function() return work:is_completed() end), "the messages were not buffered")
          assert(io.open(path, "w")):close()
        elseif rank == 1 then
          dist.recv(t, 0) -- makes the connection
          assert(until_true(is_sent))
          C.usleep(300000) -- rank 0 leaves
          for i = 2, 3 do
            dist.recv(t, 0)
            same({ i, i, i, i }, t)
          end
        else
          dist.recv(t, 0)
          same({ 9, 9, 9, 9 }, t)
        end
      ]], { env = { LM_FAKE_NCCL = "eager=100", SENT = folder .. "/sent" } })
      temp.remove(folder)
    end
  end)

  it("runs in groups of some ranks, cut out of the world's communicator or made anew", function()
    for _, first in ipairs { "dist.all_reduce(full({ 1 }, 1))", "" } do
      succeeds(4, first .. [=[

        local low, high, odd = dist.new_group { 0, 1, 2 }, dist.new_group { 2, 3 }, dist.new_group { 3, 1 }
        local t, works = {}, {}
        for name, group in pairs { low = low, high = high, odd = odd } do
          t[name] = full({ 2 }, rank + 1)
          if dist.get_rank(group) >= 0 then
            works[#works + 1] = { name, group }
          end
        end
        table.sort(works, function(a, b) return a[1] < b[1] end)
        for _, one in ipairs(works) do one[3] = dist.all_reduce(t[one[1]], { group = one[2], async_op = true }) end
        for _, one in ipairs(works) do one[3]:wait() end
        local want = { low = rank < 3 and 6, high = rank > 1 and 7, odd = rank % 2 == 1 and 6 }
        for name, sum in pairs(t) do
          local value = want[name] or rank + 1
          same({ value, value }, sum)
        end
        if rank % 2 == 1 then
          local b = full({ 1 }, rank)
          dist.broadcast(b, 3, { group = odd })
          same({ 3 }, b)
        end
        assert(calls "ncclCommSplit" == ]=] .. (first == "" and "0" or "3") .. [=[)
        dist.barrier()
        if rank < 3 then dist.destroy_process_group(low) end
        dist.all_reduce(full({ 1 }, 1))
      ]=])
    end
  end)

  it("splits the world's communicator once for each dim of a mesh, however many groups that has", function()
    succeeds(4, [[
      dist.all_reduce(full({ 1 }, 1))
      lm.cuda.set_device(0) -- the default, with which a mesh takes the card of the rank
      local mesh = dist.init_device_mesh("cuda", { 2, 2 }, { names = { "a", "b" } })
      assert(calls "ncclCommSplit" == 2, calls "ncclCommSplit")
      for _, dim in ipairs { { "a", 2 * (rank % 2) + 4 }, { "b", rank < 2 and 3 or 7 } } do
        local t = full({ 2 }, rank + 1)
        dist.all_reduce(t, { group = mesh:get_group(dim[1]) })
        same({ dim[2], dim[2] }, t)
      end
    ]])
  end)

  it("makes the card of each rank current for a mesh, and one communicator for all of its dims of one rank", function()
    succeeds(4, [[
      lm.cuda.set_device(0) -- as at the start of a process
      local mesh = dist.init_device_mesh("cuda", { 1, 4, 1, 1 })
      assert(lm.cuda.current_device() == rank and calls "ncclCommSplit" <= 1, calls "ncclCommSplit")
      local t = lm.full({ 2 }, 1, { device = "cuda" })
      dist.all_reduce(t, { group = mesh:get_group(2) })
      assert(tostring(t.device) == "cuda:" .. rank)
      same({ 4, 4 }, t)
    ]])
  end)

  it("goes with those of gloo in one group", function()
    succeeds(2, [[
      assert(dist.get_backend() == "cpu:gloo,cuda:nccl")
      local a, b = full({ 3 }, rank + 1), lm.full({ 3 }, rank + 1)
      local one = dist.all_reduce(a, { async_op = true })
      local two = dist.all_reduce(b, { async_op = true })
      local three = dist.broadcast(a, 1, { async_op = true })
      for _, work in ipairs { three, two, one } do work:wait() end
      same({ 3, 3, 3 }, a)
      same({ 3, 3, 3 }, b)
      local list = { lm.zeros { 1 }, lm.zeros { 1 } }
      dist.all_gather(list, lm.full({ 1 }, rank))
      assert(list[1][1] == 0 and list[2][1] == 1)
      local only = dist.new_group({ 0, 1 }, { backend = "nccl" })
      assert(dist.get_backend(only) == "nccl")
      local reductions = calls "ncclAllReduce"
      dist.all_reduce(b, { group = only }) -- over gloo, which it brings for the CPU
      same({ 6, 6, 6 }, b)
      assert(calls "ncclAllReduce" == reductions)
      dist.all_reduce(a, { group = only })
      same({ 6, 6, 6 }, a)
      assert(calls "ncclAllReduce" == reductions + 1)
      local by_host = dist.new_group({ 0, 1 }, { backend = "gloo" })
      dist.all_reduce(a, { group = by_host })
      same({ 12, 12, 12 }, a)
      local objects = {}
      if dist.all_gather_object then
        dist.all_gather_object(objects, { from = rank })
        assert(objects[1].from == 0 and objects[2].from == 1)
      end
    ]])
  end)

  it("is cut out of the world's communicator when that has come to rest", function()
    succeeds(2, [[
      dist.all_reduce(full({ 1 }, 1))
      local slow = full({ 300, 300 }, 0)
      local t = (slow:mm(slow):sum() + rank + 1):view(1)
      local work = dist.all_reduce(t, { async_op = true })
      local both = dist.new_group { 0, 1 }
      assert(calls "ncclCommSplit" == 1 and work:is_completed())
      dist.all_reduce(t, { group = both })
      same({ 6 }, t)
    ]])
  end)

  it("opens no other card", function()
    succeeds(2, [[
      dist.all_reduce(full({ 1 }, 1))
      local both = dist.new_group { 0, 1 }
      dist.all_reduce(full({ 1 }, 1), { group = both })
      dist.destroy_process_group()
      assert(live "communicator" == 0)
      assert(live "context" == 1, live "context" .. " cards are open")
    ]])
  end)

  it("looks again and again, and does not rest, for as long as NCCL takes to enqueue #time", function()
    succeeds(2, [[
      dist.all_reduce(full({ 1 }, 1))
      ffi.cdef "int getrusage(int, long *);"
      local function rests() -- voluntary switches of this thread so far
        local usage = ffi.new "long[18]"
        assert(C.getrusage(1, usage) == 0)
        return tonumber(usage[16])
      end
      local t, fewest = full({ 1 }, 1), math.huge
      C.lm_fake_nccl("polls", 150)
      for _ = 1, 10 do -- a busy machine makes it rest, too
        for _ = 1, 20 do
          local before = rests()
          dist.all_reduce(t, { async_op = true })
          fewest = math.min(fewest, rests() - before)
        end
        local every = full({ 1 }, fewest)
        dist.all_reduce(every, { op = "max" })
        if every:item() < 75 then break end
      end
      assert(fewest < 75, fewest) -- over 100 if it rests
    ]])
  end)

  it("scales each rank's elements before it adds them up by a plain sum", function()
    succeeds(2, [[
      local t, half = on({ 1, 2 }), full({ 2 }, 60000, "float16") -- whose sum float16 cannot hold
      same({ 4, 8 }, dist.all_reduce(t, { scale = 2 * rank + 1 }))
      same({ 30000, 30000 }, dist.all_reduce(half, { scale = 0.25 }))
      same({ 5, 5 }, dist.all_reduce(full({ 2 }, rank == 0 and 5 or 0 / 0), { scale = 1 - rank }))
      assert(message(dist.all_reduce, full({ 2 }, 1, "int64"), { scale = 2 }):find "float")
    ]])
  end)

  it("is there again after the group was closed", function()
    succeeds(2, [[
      for i = 1, 3 do
        if i > 1 then dist.init_process_group { timeout = 20 } end
        local t = full({ 2 }, i)
        dist.all_reduce(t)
        if i == 2 then dist.all_reduce(t, { async_op = true }) end
        dist.destroy_process_group()
        same(i == 2 and { 8, 8 } or { 2 * i, 2 * i }, t)
        assert(live "communicator" == 0)
      end
    ]])
  end)
end)

describe("ranks that are threads", function()
  local folder
  setup(function()
    folder = temp.folder()
    lm.setenv("LM_TOKEN", "a token for specs")
  end)
  teardown(function()
    temp.remove(folder)
    lm.setenv("LM_TOKEN", nil)
  end)

  local function run(script)
    local path = temp.write(folder .. "/threads.lua", 'local lm = require "luminary"\n' .. script .. [[

      local ffi = require "ffi"
      ffi.cdef "long lm_fake_live(const char *what); int usleep(unsigned);"
      for _ = 1, 1000 do
        if ffi.C.lm_fake_live "communicator" == 0 then break end
        ffi.C.usleep(1000)
      end
      assert(ffi.C.lm_fake_live "communicator" == 0)
      print "finished"
    ]])
    local ok, text = temp.run(folder, ("unset LM_CUDA_VIRTUAL LM_FAKE_CUDA_EAGER LM_GUARD_BLOCKS; " ..
      "LM_FAKE_CUDA_DEVICES=3 timeout 60 luajit %s"):format(path))
    assert(ok, text)
    return text
  end

  it("have their cards, streams and communicators each", function()
    local text = run([[
      local out = lm.zeros({ 3, 4 }, { dtype = "float64" }):share_memory_()
      lm.mp.spawn(function(i, n, results, store)
        local l = require "luminary"
        local dist = l.dist
        dist.init_process_group { init_method = "file://" .. store, rank = i, world_size = n, timeout = 20 }
        assert(dist.get_backend() == "cpu:gloo,cuda:nccl", dist.get_backend())
        l.cuda.set_device(i)
        local t = l.full({ 1000 }, i + 1, { device = "cuda", dtype = "float64" })
        for step = 1, 4 do
          dist.all_reduce(t, { op = "mean" })
          if step == 3 then t:add_(i) end
          results[i + 1][step] = t:sum():item()
        end
        if i > 0 then dist.broadcast(t, 1, { group = dist.new_group { 1, 2 } }) else dist.new_group { 1, 2 } end
        dist.destroy_process_group()
      end, { nprocs = 3, method = "thread", args = { 3, out, "]] .. folder .. [[/store" } })
      for i = 0, 2 do
        for step, value in ipairs { 2000, 2000, 2000 + 1000 * i, 3000 } do
          assert(out[i + 1][step] == value, ("rank %d, step %d: %g"):format(i, step, out[i + 1][step]))
        end
      end
    ]])
    assert.equal("finished\n", text)
  end)

  it("are freed from what they wait in when one of them fails", function()
    local text = run([[
      local ok, problem = pcall(lm.mp.spawn, function(i, store)
        local l = require "luminary"
        local dist = l.dist
        dist.init_process_group { init_method = "file://" .. store, rank = i, world_size = 3, timeout = 20 }
        l.cuda.set_device(i)
        local t = l.full({ 10 }, i, { device = "cuda" })
        dist.all_reduce(t)
        dist.barrier()
        if i == 1 then error "a mistake of thread 1's" end
        dist.all_reduce(t)
        l.cuda.synchronize(i)
        dist.barrier()
      end, { nprocs = 3, method = "thread", args = { "]] .. folder .. [[/failing" } })
      assert(not ok)
      print(problem)
    ]])
    assert.matches("a mistake of thread 1's", text, 1, true)
    assert.matches("finished\n$", text)
  end)
end)

describe("training over NCCL", function()
  it("equals one process, in float64, with uneven batches", function()
    for _, n in ipairs { 2, 3 } do
      local got = succeeds(n, [[
        local f64 = { dtype = "float64" }
        local function model()
          lm.manual_seed(3)
          return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)):double():to(device)
        end
        local alone, net = model(), nn.parallel.DistributedDataParallel(model(), { bucket_cap_mb = 1e-4 })
        local steps = {
          lm.optim.SGD(alone:parameters(), { lr = 0.1 }), lm.optim.SGD(net:parameters(), { lr = 0.1 }),
        }
        for step = 1, 4 do
          lm.manual_seed(10 + step)
          local from, upto, all = 0, 0, 0
          for r = 0, size - 1 do -- rank r has another number of samples in each step
            local mine = 1 + (r + step) % 3
            if r == rank then from, upto = all + 1, all + mine end
            all = all + mine
          end
          local x, y = lm.randn({ all, 5 }, f64):to(device), lm.randint(1, 4, { all }):to(device)
          for _, opt in ipairs(steps) do opt:zero_grad() end
          F.cross_entropy(alone(x), y):backward()
          F.cross_entropy(net(x[{ { from, upto } }]), y[{ { from, upto } }]):backward()
          for _, opt in ipairs(steps) do opt:step() end
        end
        local worst, theirs = 0, net:parameters()
        for i, p in ipairs(alone:parameters()) do
          worst = math.max(worst, (p:detach() - theirs[i]:detach()):abs():max():item())
        end
        assert(worst < 1e-9, "differs by " .. worst)
        print(calls "ncclAllReduce" > 4)
      ]])
      assert.matches("^true\n", got[0].output)
    end
  end)

  it("takes nothing from a rank without samples, whose gradients are NaN, with a hook as without", function()
    succeeds(2, [[
      for _, hook in ipairs { false, "bf16_compress" } do
        local net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1):to(device))
        if hook then net:register_comm_hook(nil, hook) end
        local loss = net(full({ rank == 0 and 4 or 0, 2 }, 1)):mean()
        assert(loss:isnan():item() == (rank == 1))
        if rank == 1 then net.module.bias:register_hook(function(grad) return grad * (0 / 0) end) end
        loss:backward()
        same({ 1, 1 }, net.module.weight.grad)
        same({ 1 }, net.module.bias.grad)
      end
    ]])
  end)

  it("registers the buckets' memory if asked to, and deregisters it before it or the communicator ends", function()
    local script = [[
      local function train()
        lm.manual_seed(1)
        local net = nn.parallel.DistributedDataParallel(
          nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)):to(device), { bucket_cap_mb = 1e-4 })
        for step = 1, 3 do
          net:zero_grad()
          net(full({ 4, 5 }, rank + step)):square():sum():backward()
        end
        for _, p in ipairs(net:parameters()) do
          local most = dist.all_reduce(p.grad:clone(), { op = "max" })
          assert(most:equal(p.grad), "the ranks' gradients differ")
        end
        return net, net:parameters()[1].grad:clone()
      end
    ]]
    local plain = script .. [[
      local net, grad = train()
      assert(calls "ncclMemAlloc" == 0 and calls "ncclCommRegister" == 0)
      net = nil
      collectgarbage()
      if rank == 0 then print("sum " .. grad:double():sum():item()) end
    ]]
    local want = succeeds(2, plain)[0].output:match "sum (%S+)"
    local got = succeeds(2, script .. [[
      local grad
      for model = 1, 4 do -- the collector may leave the last one or two
        local net
        net, grad = train()
        local buckets, shared = core.reducer_buckets(net.reducer)
        assert(buckets > 1 and calls "ncclCommRegister" >= model * buckets)
        for _ = 1, 20 do -- a thread frees, between two calls
          collectgarbage()
          C.usleep(5000)
          dist.barrier()
        end
        assert(live "registration" >= buckets and live "registration" <= 3 * buckets, live "registration")
        local left = calls "ncclMemAlloc" - calls "ncclMemFree"
        assert(left == live "registration", "the memory of the first pass's buckets is left: " .. left)
      end
      if rank == 0 then print("sum " .. grad:double():sum():item()) end
      local net = train()
      local view = net:parameters()[1].grad
      dist.destroy_process_group()
      assert(live "registration" == 0 and live "communicator" == 0)
      assert(view:isfinite():all():item(), "memory outlives the group")
    ]], { env = { LM_NCCL_REGISTER = "1" } })
    assert.equal(want, got[0].output:match "sum (%S+)")
  end)

  it("has buckets of common memory where NCCL has none to register, or refuses it", function()
    for _, failing in ipairs { "ncclMemAlloc", "ncclCommRegister" } do
      succeeds(2, [[
        local net = nn.parallel.DistributedDataParallel(nn.Linear(5, 8):to(device))
        for step = 1, 2 do net(full({ 4, 5 }, rank + step)):square():sum():backward() end
        local grad = net:parameters()[1].grad
        assert(dist.all_reduce(grad:clone(), { op = "max" }):equal(grad))
        assert(live "registration" < calls "ncclMemAlloc" and calls(os.getenv "FAILING") > 0)
      ]], { env = { LM_NCCL_REGISTER = "1", LM_FAKE_CUDA_FAIL = failing .. ":1:2", FAILING = failing } })
    end
  end)

  it("has larger buckets for larger models", function()
    succeeds(1, [[
      local function cap(n, opts)
        local module = nn.Module()
        module.weight = nn.Parameter(full({ n }, 0))
        return nn.parallel.DistributedDataParallel(module, opts).reduced.options.cap_bytes
      end
      local MB = 2 ^ 20
      assert(cap(1000) == 25 * MB, "25 MB at least")
      local bytes = require("luminary.distributed.cost_model").bucket_size(160 * MB)
      assert(cap(40 * MB) == math.ceil(bytes) and math.abs(bytes - 40 * MB) < MB, "those of cost_model")
      assert(cap(40 * MB, { bucket_cap_mb = 3 }) == 3 * MB)
    ]])
  end)

  it("sends what backward sends in the order of the graph, by ranks that are late at random #unsanitized", function()
    local long = os.getenv "LM_TEST_LONG" == "1"
    for _, n in ipairs { 2, 3 } do
      for _, backend in ipairs { "nccl", "cpu:gloo,cuda:nccl" } do
        succeeds(n, ddp_order { device = "cuda", trials = long and 250 or 4, seed = n }, {
          init = ("backend = %q, timeout = 20"):format(backend), timeout = long and 1500 or 60,
        })
      end
    end
  end)

  it("alone lets backward of DistributedDataParallel wait for no device", function()
    succeeds(2, [[
      ffi.cdef "char *getenv(const char *);"
      local function waits()
        return calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize"
      end
      local net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)):to(device))
      for step = 1, 4 do
        local loss = net(full({ 3 + rank, 4 }, rank)):sum() -- unequal batches, so that the ranks exchange their sizes
        local before = waits()
        loss:backward()
        assert(step == 1 or waits() == before, waits() - before)
      end
      assert(ffi.string(C.getenv "NCCL_LAUNCH_ORDER_IMPLICIT") == "1")
      assert(ffi.string(C.getenv "CUDA_DEVICE_MAX_CONNECTIONS") == (rank == 0 and "32" or "1"))
    ]], {
      init = [[backend = "nccl", timeout = 20]],
      env_of = function(r) return { CUDA_DEVICE_MAX_CONNECTIONS = r == 1 and "1" or false } end,
    })
  end)

  it("equals the module itself under DataParallel, whose devices talk by NCCL", function()
    succeeds(1, [[
      local function lenet()
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(100, 10))
          :double():to("cuda:0")
      end
      local one, two = lenet(), lenet()
      two:load_state_dict(one:state_dict())
      local net = nn.DataParallel(two, { device_ids = { 0, 1, 2 } })
      for _ = 1, 2 do
        lm.manual_seed(4)
        local x = lm.randn({ 7, 1, 12, 12 }, { dtype = "float64" }):to("cuda:0")
        local y = lm.randint(1, 11, { 7 }):to("cuda:0")
        F.cross_entropy(one(x), y):backward()
        F.cross_entropy(net(x), y):backward()
        local list = two:parameters()
        for i, p in ipairs(one:parameters()) do
          assert(lm.allclose(p.grad:cpu(), list[i].grad:cpu(), { rtol = 1e-10, atol = 1e-11 }))
        end
      end
      assert(calls "ncclCommInitAll" == 1)
      assert(calls "ncclReduce" > 0 and calls "ncclBroadcast" > 0)
      for i = 1, live "communicator" do C.lm_fake_count("communicator", -1) end -- kept for good, and no leak
    ]], { bare = true, env = { LM_FAKE_CUDA_DEVICES = 3 } })
  end)

  it("equals one process with a ZeroRedundancyOptimizer and batch statistics of all ranks", function()
    succeeds(2, [[
      local f64 = { dtype = "float64" }
      local function model()
        lm.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)):double():to(device)
      end
      local alone = model()
      local net = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model()))
      local mine = lm.optim.Adam(alone:parameters(), { lr = 0.01 })
      local parted = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {
        optimizer_class = lm.optim.Adam, lr = 0.01,
      })
      for step = 1, 3 do
        lm.manual_seed(10 + step)
        local x, y = lm.randn({ 8, 5 }, f64):to(device), lm.randint(1, 4, { 8 }):to(device)
        mine:zero_grad()
        parted:zero_grad()
        F.cross_entropy(alone(x), y):backward()
        local part = { { rank * 4 + 1, rank * 4 + 4 } }
        F.cross_entropy(net(x[part]), y[part]):backward()
        mine:step()
        parted:step()
      end
      local worst, theirs = 0, net:parameters()
      for i, p in ipairs(alone:parameters()) do
        worst = math.max(worst, (p:detach() - theirs[i]:detach()):abs():max():item())
      end
      assert(worst < 1e-9, "differs by " .. worst)
    ]])
  end)
end)

describe("lm.checkpoint.is_preempted over NCCL", function()
  it("waits for no device, and knows on all ranks what came to one", function()
    succeeds(2, [[
      local function waits()
        return calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize"
      end
      for _ = 1, 2 do
        assert(not lm.checkpoint.is_preempted())
        local before, reductions = waits(), calls "ncclAllReduce"
        local x = full({ 4 }, rank)
        for _ = 1, 3 do
          x:add_(1)
          assert(not lm.checkpoint.is_preempted())
        end
        assert(waits() == before and calls "ncclAllReduce" == reductions, waits() - before)
        dist.destroy_process_group()
        dist.init_process_group { backend = "nccl", timeout = 20 }
      end
      ffi.cdef "int raise(int);"
      if rank == 1 then C.raise(15) end
      assert(lm.checkpoint.is_preempted())
    ]], { init = [[backend = "nccl", timeout = 20]] })
  end)
end)
