-- Failures over NCCL that one rank alone sees, by way of its stand-in: the others are notified, and nothing that was
-- cut short looks as if it had been done.
local nccl_ranks = require "spec.support.nccl_ranks"
local within = require("spec.support.time").within
if not nccl_ranks.are_there then return end
local run, succeeds = nccl_ranks.run, nccl_ranks.succeeds

local warm = "dist.all_reduce(full({ 1 }, 1))\ndist.barrier()\n"

describe("a failure of one rank over NCCL", function()
  -- Calls that fail on rank 0, which catches the error and then does nothing more that could tell of it.
  for name, call in pairs {
    ncclAllReduce = { 2, "dist.all_reduce(full({ 4 }, 1))" },
    ncclBroadcast = { 3, "dist.broadcast(full({ 4 }, 1), 0)" },
    ncclGroupStart = { 3, "dist.gather(full({ 4 }, 1), { gather_list = rank == 0 and list or nil })" },
    ncclGroupEnd = { 3, "for _, w in ipairs(dist.batch_isend_irecv(ops)) do w:wait(20) end" },
    ncclCommSplit = { 3, "dist.new_group()" },
  } do
    it(("in %s is told to the others, though its script goes on"):format(name), function()
      local size = call[1]
      local got = run(size, warm .. ([[
        local list, ops = {}, {}
        for r = 0, size - 1 do
          list[r + 1] = full({ 4 }, 0)
          if r ~= rank then
            ops[#ops + 1] = dist.P2POp("isend", full({ 2 }, rank), r)
            ops[#ops + 1] = dist.P2POp("irecv", full({ 2 }, rank), r)
          end
        end
        if rank == 0 then C.lm_fake_fail(%q, 1, 3) end
        local problem = message(function()
          %s
          dist.barrier()
        end)
        if rank == 0 then C.usleep(3000000) end
        print(problem)
        pcall(dist.destroy_process_group)
      ]]):format(name, call[2]))
      for rank = 0, size - 1 do
        assert.equal(0, got[rank].code, got.text)
        assert(got[rank].output:find(name .. " was made to fail", 1, true), got.text)
        assert(rank == 0 or got[rank].output:find "rank 0 on [^\n]* failed", got.text) -- it has not "left"
      end
      assert.is_nil(got[0].output:find ": nccl: ", got.text)
    end)
  end

  it("to make the communicator is told to all", function()
    for _, name in ipairs { "ncclGetUniqueId", "ncclCommInitRankConfig" } do
      local got = run(3, ([[
        if rank == 0 then C.lm_fake_fail(%q, 1, 3) end
        local problem = message(function()
          dist.all_reduce(full({ 4 }, 1))
          dist.barrier()
        end)
        if rank == 0 then C.usleep(3000000) end
        print(problem)
        pcall(dist.destroy_process_group)
      ]]):format(name))
      for rank = 0, 2 do
        assert.equal(0, got[rank].code, got.text)
        assert(got[rank].output:find(name .. " was made to fail", 1, true), got.text)
      end
    end
  end)

  it("never lets a call look done that was cut short by it", function()
    for _ = 1, 4 do
      local got = run(2, warm .. [[
        if rank == 1 then C.lm_fake_nccl("stuck", 1) end
        local t = full({ 4 }, rank + 1)
        local work = dist.all_reduce(t, { async_op = true })
        C.usleep(200000)
        if rank == 0 then
          C.lm_fake_fail("ncclAllReduce", 1, 3)
          contains(message(dist.all_reduce, full({ 4 }, 1)), "made to fail")
          lm.cuda.synchronize() -- the call's events are over, though it was not done
        end
        print(message(work.wait, work, 15))
        pcall(dist.destroy_process_group)
      ]])
      for rank = 0, 1 do
        assert.equal(0, got[rank].code, got.text)
        assert(got[rank].output:find("made to fail", 1, true), got.text)
      end
    end
  end)

  it("that refuses a call alone does not let the others take its next one for that", function()
    local got = run(2, [[
      dist.all_reduce(full({ 1 }, 1))
      dist.barrier()
      if rank == 1 then
        local other = lm.full({ 4 }, 7, { device = "cuda:3" })
        contains(message(dist.all_reduce, other), "cuda:3")
      else
        dist.all_reduce(full({ 4 }, 7), { async_op = true })
      end
      print(message(function()
        dist.all_reduce(full({ 4 }, 100))
        dist.barrier()
      end))
      pcall(dist.destroy_process_group)
    ]], { env = { LM_FAKE_CUDA_DEVICES = 4 } })
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      assert(got[rank].output:find("(1 refused before)", 1, true), got.text)
      within(got[rank].seconds, 5, got.text)
    end
  end)
end)

describe("sends and receives in a batch over NCCL", function()
  it("end in time if the other rank never comes", function()
    local got = run(2, [[
      if rank == 1 then
        C.usleep(3500000)
        os.exit(0)
      end
      print(message(function()
        local works = dist.batch_isend_irecv({ dist.P2POp("isend", full({ 4 }, 1), 1) }, { timeout = 1 })
        works[1]:wait(20)
      end))
      pcall(dist.destroy_process_group)
    ]])
    assert.equal(0, got[0].code, got.text)
    assert(got[0].output:find("not done after 1 s", 1, true), got.text)
  end)

  it("wait for none of another backend", function()
    succeeds(2, [[
      local there, t, host = 1 - rank, full({ 4 }, 0), lm.zeros { 4 }
      if rank == 0 then
        local works = dist.batch_isend_irecv {
          dist.P2POp("isend", full({ 4 }, 3), there), dist.P2POp("isend", lm.full({ 4 }, 5), there),
        }
        for _, work in ipairs(works) do work:wait(10) end
      else
        dist.recv(host, there)
        dist.recv(t, there)
        same({ 5, 5, 5, 5 }, host)
        same({ 3, 3, 3, 3 }, t)
      end
    ]])
  end)

  it("fail under their own name", function()
    succeeds(2, [[
      contains(message(dist.batch_isend_irecv, { dist.P2POp("isend", full({ 4 }, 1), 1 - rank, { tag = 3 }) }),
        "batch_isend_irecv: ", "tag must be 0 with NCCL")
    ]])
  end)
end)

describe("a group of gloo and NCCL", function()
  it("finds out within a second that one rank is on the host and one on its card", function()
    local got = run(2, warm .. [[
      local begun = now()
      local problem = message(function()
        if rank == 0 then
          dist.all_reduce(lm.ones { 4 })
        else
          dist.all_reduce(full({ 4 }, 1), { async_op = true }):wait(20)
        end
      end)
      print(problem)
      print(("after %.2f s"):format(now() - begun))
      contains(problem, "float32 [4] on cuda at ", "float32 [4] at ", "rank 0 ", "rank 1 ")
      assert(now() - begun < 10) -- its time limit is 20 s
      require("spec.support.time").within(now() - begun, 1)
      pcall(dist.destroy_process_group)
    ]])
    for rank = 0, 1 do assert.equal(0, got[rank].code, got.text) end
  end)

  it("ends its barrier when what was called before is done, on the card too", function()
    local got = run(2, warm .. [[
      print(message(function()
        dist.all_reduce(full({ rank == 0 and 4 or 5 }, 1))
        dist.barrier()
      end))
      pcall(dist.destroy_process_group)
    ]])
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      assert(got[rank].output:find "made a? ?different calls?", got.text)
    end
    succeeds(2, warm .. [[
      for i = 1, 20 do
        if rank == 1 then C.usleep(20000) end
        local work = dist.all_reduce(full({ 4 }, 1), { async_op = true })
        dist.barrier()
        assert(work:is_completed())
      end
      -- A send that nobody has received yet holds up nothing.
      local t = full({ 4 }, rank)
      local sent = rank == 0 and dist.isend(t, 1)
      dist.barrier()
      if rank == 1 then dist.recv(t, 0) end
      same({ 0, 0, 0, 0 }, t)
    ]])
  end)
end)
