-- nn.parallel.comm between the cards of one process, by NCCL where it can be: over the stand-in, with three cards.
local nccl_ranks = require "spec.support.nccl_ranks"
if not nccl_ranks.are_there then return end

local function succeeds(text, env)
  env = env or {}
  env.LM_FAKE_CUDA_DEVICES = env.LM_FAKE_CUDA_DEVICES or 3
  return nccl_ranks.succeeds(1, [[
    local comm = require "luminary.nn.parallel.comm"
    local cards = { "cuda:0", "cuda:1", "cuda:2" }
    local function alike(list) -- i * (1, 2) on card i
      local made = {}
      for i, card in ipairs(cards) do made[i] = lm.tensor({ i, 2 * i }, { device = card }):float() end
      return made
    end
  ]] .. text .. [[
    for _ = 1, live "communicator" do C.lm_fake_count("communicator", -1) end -- kept for good, and no leak
  ]], { bare = true, env = env })
end

describe("cards of one process", function()
  it("get a tensor by one broadcast, in the order of the streams", function()
    succeeds [[
      local side = lm.cuda.Stream "cuda:1"
      local x = lm.cuda.stream(side, function() return lm.full({ 2, 3 }, 4, { device = "cuda:1" }) end)
      local copies = comm.broadcast(x, cards)
      assert(calls "ncclBroadcast" == 3 and calls "ncclCommInitAll" == 1)
      for i, copy in ipairs(copies) do
        assert(copy.device == cards[i])
        same({ 4, 4, 4, 4, 4, 4 }, copy)
      end
      assert(copies[2]:data_ptr() == x:data_ptr())
      x:add_(1)
      same({ 4, 4, 4, 4, 4, 4 }, copies[3])
    ]]
  end)

  it("add up by one reduction, and keep their own", function()
    succeeds [[
      local list = alike()
      same({ 6, 12 }, comm.reduce_add(list, "cuda:2"))
      assert(calls "ncclReduce" == 3)
      for i, t in ipairs(list) do same({ i, 2 * i }, t) end
      local two = { list[2], list[3] } -- to where none of them is
      local sum = comm.reduce_add(two, "cuda:0")
      assert(sum.device == "cuda:0" and calls "ncclReduce" == 6)
      same({ 5, 10 }, sum)
      local sums = comm.reduce_add_coalesced({ { list[1], list[1] }, { list[2], list[3]:to "cuda:1" } }, "cuda:0")
      same({ 3, 6 }, sums[1])
      same({ 4, 8 }, sums[2])
      for i, t in ipairs(list) do same({ i, 2 * i }, t) end
      same({ 1, 0 }, comm.reduce_add { lm.tensor({ true, false }, { dtype = "bool", device = "cuda:0" }):int(),
        lm.zeros({ 2 }, { dtype = "int32", device = "cuda:1" }) })
    ]]
  end)

  it("do so whatever the environment says of blocking", function()
    succeeds([[
      same({ 6, 12 }, comm.reduce_add(alike(), "cuda:2"))
      assert(calls "ncclReduce" == 3)
    ]], { NCCL_COMM_BLOCKING = "0" })
  end)

  it("leave what is recorded to ops with gradients", function()
    succeeds [[
      local x = lm.ones({ 2 }, { device = "cuda:0" }):requires_grad_()
      local copies = comm.broadcast(x, cards)
      assert(calls "ncclBroadcast" == 0)
      local sum = comm.reduce_add({ copies[1], copies[2] * 2, copies[3] * 3 }, "cuda:0")
      assert(calls "ncclReduce" == 0)
      sum:sum():backward()
      same({ 6, 6 }, x.grad)
      lm.no_grad(function() comm.broadcast(x, cards) end)
      assert(calls "ncclBroadcast" == 3)
    ]]
  end)

  it("do without where NCCL cannot: it is not asked again", function()
    succeeds([[
      for _ = 1, 2 do
        same({ 6, 12 }, comm.reduce_add(alike(), "cuda:0"))
        same({ 1, 2 }, comm.broadcast(alike()[1], cards)[3])
      end
      assert(calls "ncclCommInitAll" == 1 and calls "ncclReduce" == 0)
    ]], { LM_FAKE_CUDA_FAIL = "ncclCommInitAll:1:2" })
    succeeds([[
      same({ 6, 12 }, comm.reduce_add(alike(), "cuda:0"))
      assert(calls "ncclCommInitAll" == 0) -- two of them are one card
    ]], { LM_FAKE_CUDA_DEVICES = 2, LM_CUDA_VIRTUAL = 2 })
  end)

  it("are told of an error of NCCL's, and go on without it", function()
    succeeds [[
      C.lm_fake_fail("ncclReduce", 3, 3)
      contains(message(comm.reduce_add, alike(), "cuda:0"), "reduce_add: NCCL 2.", "internal error", "made to fail")
      assert(live "communicator" == 0)
      assert(lm.ones({ 3e6 }, { device = "cuda:0" }):sum():item() == 3e6) -- NCCL left the thread on another card
      same({ 6, 12 }, comm.reduce_add(alike(), "cuda:0"))
    ]]
  end)

  it("tell NCCL's version", function()
    succeeds [[
      local major, minor, patch = lm.cuda.nccl.version()
      assert(major == 2 and minor >= 18 and patch >= 0)
      assert(lm.cuda.nccl.is_available())
    ]]
  end)
end)
