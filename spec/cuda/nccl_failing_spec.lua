-- Tests failures over NCCL, by way of its stand-in (support/nccl/), which hangs where NCCL does: ranks at different
-- calls, dead ones, errors of NCCL's. All others say so soon, are freed from what they wait in, and leave nothing.
local nccl_ranks = require "spec.support.nccl_ranks"
local ranks = require "spec.support.ranks"
local within = require("spec.support.time").within
if not nccl_ranks.are_there then return end
local run, start, succeeds = nccl_ranks.run, nccl_ranks.start, nccl_ranks.succeeds

-- First lines of scripts whose group fails: a first collective, then a barrier.
local warm = "dist.all_reduce(full({ 1 }, 1))\ndist.barrier()\n"
local function failed(f) -- as Lua source: f has to fail, within as many seconds; then the group goes
  return ([[
    local problem = message(function() %s end)
    print(problem)
    local begun = now()
    lm.cuda.synchronize()
    assert(now() - begun < 10, "the device is stuck")
    contains(message(dist.all_reduce, full({ 1 }, 1)), "all_reduce")
    pcall(dist.destroy_process_group)
    assert(until_true(function() return live "communicator" == 0 end), "communicators are left")
  ]]):format(f)
end

describe("registered memory of a group that failed", function()
  it("stays while the communicator is aborted, and is freed with the model", function()
    succeeds(2, [[
      local net = nn.parallel.DistributedDataParallel(nn.Linear(5, 8):to(device))
      for _ = 1, 2 do net(full({ 4, 5 }, 1)):sum():backward() end
      assert(live "registration" > 0)
      local other = nn.parallel.DistributedDataParallel(nn.Linear(5, 8):to(device))
      other(full({ 4, 5 }, 1)):sum():backward()
    ]] .. failed [[
        other = nil
        if rank == 0 then dist.all_reduce(full({ 4 }, 1)) else dist.broadcast(full({ 4 }, 1), 0) end
        collectgarbage() -- the device is stuck meanwhile
        collectgarbage()
        lm.cuda.synchronize()
        for _ = 1, 100 do
          dist.barrier()
          C.usleep(10000)
        end
      ]] .. [[
      net = nil
      collectgarbage()
      collectgarbage()
      assert(live "registration" == 0 and calls "ncclMemFree" >= 2) -- memory of the first pass is freed
    ]], { env = { LM_NCCL_REGISTER = "1" } })
  end)
end)

describe("ranks that come to different calls over NCCL", function()
  local calls = {
    sizes = { "dist.all_reduce(full({ 4 }, 1))", "dist.all_reduce(full({ 5 }, 1))", "float32 [4]", "float32 [5]" },
    dtypes = {
      "dist.all_reduce(full({ 4 }, 1, 'float32'))", "dist.all_reduce(full({ 4 }, 1, 'int32'))", "float32 [4]",
      "int32 [4]",
    },
    reductions = {
      "dist.all_reduce(full({ 4 }, 1))", "dist.all_reduce(full({ 4 }, 1), { op = 'max' })", "all_reduce sum",
      "all_reduce max",
    },
    collectives = {
      "dist.all_reduce(full({ 4 }, 1))", "dist.broadcast(full({ 4 }, 1), 0)", "all_reduce sum", "broadcast",
    },
    roots = { "dist.broadcast(full({ 4 }, 1), 0)", "dist.broadcast(full({ 4 }, 1), 1)", "from rank 0", "from rank 1" },
    devices = { "dist.all_reduce(full({ 4 }, 1))", "dist.all_reduce(lm.ones { 4 })", "on cuda", "float32 [4]" },
  }
  for what, call in pairs(calls) do
    local tag = what == "sizes" and "" or " #unsanitized" -- sanitizers would see the same six times
    it(("are told of their %s, and where they are%s"):format(what, tag), function()
      local script = warm .. failed(([[
        if rank == 0 then %s else %s end
        lm.cuda.synchronize()
        for _ = 1, 100 do -- calls are compared by a thread, which the device does not always stop
          dist.barrier()
          C.usleep(10000)
        end
      ]]):format(call[1], call[2]))
      local got = succeeds(2, script)
      for rank = 0, 1 do
        local text = got[rank].output
        assert(text:find "made a? ?different calls?", got.text)
        assert(text:find(call[3], 1, true) and text:find(call[4], 1, true), got.text)
        local _, lines = text:gsub("script.lua:%d+", "")
        assert(lines >= 2, got.text)
        within(got[rank].seconds, 5, got.text)
      end
    end)
  end

  it("hear of it behind a result that goes to the host, which does not wait for the call that never ends", function()
    local got = succeeds(2, warm .. failed [[
      if rank == 0 then C.usleep(200000) end -- rank 1 has enqueued both calls by then
      local first = dist.all_reduce(lm.ones { 8 }, { async_op = true })
      if rank == 0 then
        first:wait()
        print(until_true(function() return io.open(arg[0] .. ".first") end) and "at once" or "late")
        dist.barrier()
      end
      local second = dist.all_reduce(lm.ones { 4 }, { async_op = true })
      first:wait(10)
      if rank == 1 then io.open(arg[0] .. ".first", "w"):close() end
      second:wait(10)
    ]], { init = "backend = 'nccl', timeout = 20" }) -- nccl copies the CPU's tensors to the card
    assert(got[0].output:find("at once", 1, true), got.text)
    for rank = 0, 1 do assert(got[rank].output:find "made a? ?different calls?", got.text) end
  end)

  it("hear of it from a work, which was never completed", function()
    local got = succeeds(3, warm .. failed [[
      local t = full({ rank == 2 and 5 or 4 }, 1)
      local work = dist.all_reduce(t, { async_op = true })
      for _ = 1, 300 do
        local ok, completed = pcall(work.is_completed, work)
        assert(not (ok and completed) or not pcall(work.wait, work))
        C.usleep(1000)
      end
      work:wait(10)
    ]])
    for rank = 0, 2 do assert(got[rank].output:find "made a? ?different calls?", got.text) end
  end)
end)

describe("ranks over NCCL whose peer", function()
  it("dies leave a collective and the device's synchronization within 1.5 s", function()
    for _, waits in ipairs {
      "lm.cuda.synchronize(); dist.barrier()", "dist.barrier()", "t:sum():item(); dist.barrier()",
      "dist.all_reduce(t, { async_op = true }):wait(20)",
    } do
      local job = start(3, warm .. [[
        if rank == 1 then
          print "ready"
          io.stdout:flush()
          C.usleep(20000000)
        end
      ]] .. failed([[
        local t = full({ 4 }, 1)
        dist.all_reduce(t)
        print "ready"
        io.stdout:flush()
        ]] .. waits) .. "print('at ' .. os.time())")
      for rank = 0, 2 do assert.is_true(job:wait_for(rank, "ready")) end
      ranks.sleep(0.2)
      job:kill(1)
      local begun = os.time()
      local got = job:wait()
      for _, rank in ipairs { 0, 2 } do
        assert.equal(0, got[rank].code, got.text)
        assert(got[rank].output:find("rank 1 on .- died") or got[rank].output:find("rank 1 on "), got.text)
        assert(got[rank].output:find("finished", 1, true), got.text)
        local at = tonumber(got[rank].output:match "at (%d+)")
        within(at - begun, 3, got.text)
      end
    end
  end)

  it("dies while the communicator is made are told too", function()
    local job = start(2, [[
      print "ready"
      io.stdout:flush()
      if rank == 1 then C.usleep(20000000) end
      print(message(dist.all_reduce, full({ 4 }, 1)))
      pcall(dist.destroy_process_group)
    ]])
    for rank = 0, 1 do assert.is_true(job:wait_for(rank, "ready")) end
    ranks.sleep(0.2)
    job:kill(1)
    local got = job:wait()
    assert.equal(0, got[0].code, got.text)
    assert(got[0].output:find("all_reduce: [^\n]*rank 1 on "), got.text)
    assert(got[0].output:find("finished", 1, true), got.text)
  end)

  it("fails by an error of its script are told which", function()
    local got = run(2, warm .. [[
      if rank == 1 then error "a mistake of rank 1's" end
      print(message(function()
        dist.all_reduce(full({ 4 }, 1))
        lm.cuda.synchronize()
        dist.barrier()
      end))
      pcall(dist.destroy_process_group)
    ]], { command = ranks.luminary })
    assert.equal(0, got[0].code, got.text)
    assert(got[0].output:find("a mistake of rank 1's", 1, true), got.text)
  end)

  it("does not come are warned at half time, with a word about the doctor, and end in time", function()
    local got = run(2, warm .. [[
      if rank == 1 then
        C.usleep(3500000)
        os.exit(0)
      end
      dist.all_reduce(full({ 4 }, 1), { timeout = 2 })
      print(message(function()
        lm.cuda.synchronize()
        dist.barrier()
      end))
      pcall(dist.destroy_process_group)
      assert(until_true(function() return live "communicator" == 0 end), "communicators are left")
    ]])
    local text = got[0].output
    assert.equal(0, got[0].code, got.text)
    assert(text:find "has waited for [%d.]+ s in all_reduce" and text:find("luminary doctor", 1, true), got.text)
    assert(text:find("not done after 2 s") or text:find("timeout") or text:find("2 s"), got.text)
  end)

  it("begins by sending too wait for it, and are given none of its memory", function()
    for _, first in ipairs { "", warm } do -- with a communicator for the two, and with one of all
      local got = run(2, first .. failed [[
        local mine, theirs = full({ 4 }, rank), full({ 4 }, -1)
        dist.isend(mine, 1 - rank)
        dist.irecv(theirs, 1 - rank):wait(20)
      ]], { init = "timeout = 4" })
      for rank = 0, 1 do
        assert.matches("finished\n", got[rank].output)
        assert(not got[rank].output:find("fake nccl:", 1, true), got.text)
      end
    end
  end)

  it("is stuck on its device bring the job to an end", function()
    local got = run(2, warm .. [[
      if rank == 1 then C.lm_fake_nccl("stuck", 1) end
      local work = dist.all_reduce(full({ 4 }, 1), { timeout = 1, async_op = true })
      for _ = 1, 300 do
        assert(not work:is_completed(), "completed, with the device at it")
        C.usleep(1000)
      end
    ]] .. failed "lm.cuda.synchronize(); dist.barrier()")
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      within(got[rank].seconds, 6, got.text)
    end
  end)
end)

describe("an error of NCCL's", function()
  it("that comes later ends what is under way, on all ranks", function()
    local got = run(2, warm .. [[
      if rank == 1 then C.lm_fake_nccl("stuck", 1) end
      dist.all_reduce(full({ 4 }, 1))
      if rank == 0 then C.lm_fake_nccl("async", 1) end
    ]] .. failed "lm.cuda.synchronize(); dist.barrier()")
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      assert(got[rank].output:find("remote process exited or there was a network error", 1, true), got.text)
    end
    assert(got[0].output:find("NCCL 2%.%d+%.%d+"), got.text)
  end)

  local sequence = [[
    local t = full({ 6 }, rank + 1)
    dist.all_reduce(t)
    dist.all_reduce(t, { op = "mean" })
    dist.broadcast(t, 0)
    dist.reduce(t, 0)
    local list = { full({ 6 }, 0), full({ 6 }, 0) }
    dist.all_gather(list, t)
    dist.reduce_scatter(t, list)
    dist.all_gather_into_tensor(full({ 12 }, 0), t)
    for _, work in ipairs(dist.batch_isend_irecv {
      dist.P2POp(dist.isend, t, 1 - rank), dist.P2POp(dist.irecv, list[1], 1 - rank),
    }) do work:wait() end
    local net = nn.parallel.DistributedDataParallel(nn.Linear(2, 2):to(device))
    net(full({ 1, 2 }, 1)):sum():backward()
    local both = dist.new_group { 0, 1 }
    dist.barrier { group = both }
    dist.destroy_process_group(both)
    lm.cuda.synchronize()
    dist.barrier()
  ]]

  for name, opens in pairs {
    ncclGetUniqueId = true, ncclCommInitRankConfig = true, ncclCommGetAsyncError = true, ncclAllReduce = true,
    ncclBroadcast = false, ncclReduce = false, ncclAllGather = false, ncclReduceScatter = false, ncclSend = false,
    ncclRecv = false, ncclGroupStart = false, ncclGroupEnd = false, ncclCommSplit = false,
  } do
    it(("in %s is one of the call's, here and there, and leaves nothing"):format(name), function()
      local got = run(2, ([[
        if rank == 0 then C.lm_fake_fail(%q, 1, 3) end
        local ok, problem = pcall(function() %s end)
        if rank == 0 and calls(%q) == 0 then print "not called" end
        print(ok, problem)
        if not ok then
          lm.cuda.synchronize()
          local again
          assert(until_true(function()
            ok, again = pcall(dist.all_reduce, full({ 1 }, 1))
            return not ok
          end))
          contains(again, "all_reduce: ")
        end
        pcall(dist.destroy_process_group)
        assert(until_true(function() return live "communicator" == 0 end), "communicators are left")
      ]]):format(name, sequence, name))
      for rank = 0, 1 do assert.equal(0, got[rank].code, got.text) end
      if got[0].output:find "^not called" then return assert.is_false(opens) end
      assert(got[0].output:find("^false\t[^\n]*NCCL 2%.%d+%.%d+: internal error"), got.text)
      assert(name == "ncclGroupStart" or got[0].output:find("made to fail", 1, true), got.text)
      assert(got[1].output:find("^false\t[^\n]*rank 0 "), got.text)
      within(got[1].seconds, 8, got.text)
    end)
  end

  it("about two ranks on one GPU says what to do", function()
    local got = run(2, [[
      print(message(dist.all_reduce, full({ 4 }, 1)))
      pcall(dist.destroy_process_group)
    ]], { env = { LM_FAKE_CUDA_DEVICES = 1 }, init = "backend = 'nccl', timeout = 20" })
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      assert(got[rank].output:find("two ranks of the group use one GPU", 1, true), got.text)
      assert(got[rank].output:find("set_device", 1, true) and got[rank].output:find("'gloo'", 1, true), got.text)
    end
    got = run(2, [[
      print(message(dist.all_reduce, full({ 4 }, 1)))
      pcall(dist.destroy_process_group)
    ]], { env = { LM_FAKE_CUDA_DEVICES = 1, LM_FAKE_NCCL = "newer=1" }, init = "backend = 'nccl', timeout = 20" })
    for rank = 0, 1 do assert(got[rank].output:find("two ranks of the group use one GPU", 1, true), got.text) end
    -- The default is gloo then.
    for _, env in ipairs {
      { LM_FAKE_CUDA_DEVICES = 1 }, { LM_FAKE_CUDA_DEVICES = 1, LM_CUDA_VIRTUAL = "2" },
      { LM_FAKE_CUDA_DEVICES = 2, CUDA_VISIBLE_DEVICES = "0" },
    } do
      succeeds(2, [[
        assert(dist.get_backend() == "gloo", dist.get_backend())
        local t = full({ 2 }, 1)
        dist.all_reduce(t)
        same({ 2, 2 }, t)
      ]], { env = env })
    end
  end)

  it("does not hang in the death of a rank, whatever the environment says of blocking", function()
    local got = run(2, [[
      if rank == 1 then
        C.usleep(500000)
        os.exit(3)
      end
      print(message(dist.all_reduce, full({ 4 }, 1)))
      pcall(dist.destroy_process_group)
    ]], { env = { NCCL_COMM_BLOCKING = "1" }, timeout = 15 })
    assert.equal(0, got[0].code, got.text)
    assert(got[0].output:find("all_reduce: rank 1 ", 1, true), got.text)
    within(got[0].seconds, 10, got.text)
  end)
end)

describe("the group nccl refuses", function()
  it("a process without a GPU", function()
    local got = ranks.run {
      n = 2, timeout = 30, env = { LM_TOKEN = "a token for specs", LM_FAKE_CUDA_DEVICES = 0 }, script = [[
        local dist = require "luminary".dist
        print(pcall(dist.init_process_group, "nccl", { timeout = 10 }))
      ]],
    }
    assert(got.ok, got.text)
    for rank = 0, 1 do
      assert(got[rank].output:find("backend 'nccl' requires a GPU, and none is available", 1, true), got.text)
    end
  end)

  it("a second device, and a capture; the group goes on", function()
    succeeds(2, [[
      local t = full({ 2 }, 1)
      dist.all_reduce(t)
      local other = lm.full({ 2 }, 1, { device = "cuda:" .. (2 + rank) })
      contains(message(dist.all_reduce, other), "all_reduce: ", "cuda:" .. (2 + rank), device)
      contains(message(lm.cuda.graph, function() dist.all_reduce(t) end, { warmup = 0 }), "all_reduce: ",
        "cannot capture collectives of group 'nccl'")
    ]], { env = { LM_FAKE_CUDA_DEVICES = 4 } })
  end)
end)
