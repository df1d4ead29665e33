-- What backward sends goes out in an order that follows from the graph, on whichever rank and however late: buckets of
-- one and several DistributedDataParallels, sums of SyncBatchNorm, all_reduces in hooks (support/ddp_order.lua). The same
-- over MPI is in mpi_spec, over NCCL's stand-in in cuda/nccl_spec.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local several = require "several"
local ddp_order = require "ddp_order"

local long = os.getenv "LM_TEST_LONG" == "1"
local on = several("", long and 1500 or 60)

describe("what backward sends, by ranks that are late at random,", function()
  for _, case in ipairs { { 2, 10, 400 }, { 3, 5, 350 }, { 4, 5, 250 } } do
    local n, few, many = unpack(case)
    for way, shared in pairs { ["over sockets"] = "0", ["and in shared memory"] = "1" } do
      it(("is in order and right, with %d %s"):format(n, way), function()
        local got = on.succeeds(n, ddp_order { trials = long and many or few, seed = n }, { LM_SHM = shared })
        assert.matches("in order", got[0].output)
      end)
    end
  end
end)

describe("a bucket's ticket", function()
  it("names the model and the bucket, so that those of two models are not mixed", function()
    local got = on.run(2, [[
      local Two = nn.Module:extend("Two")
      function Two:init() self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3) end
      function Two:forward(x, which) return self[which](x) end
      local a, b = nn.parallel.DistributedDataParallel(Two()), nn.parallel.DistributedDataParallel(Two())
      local x, sum = lm.ones { 2, 3 }, 0
      -- Backward starts with a's gradient and b's, and ends with those of the first line, in the opposite order.
      for _, net in ipairs(rank == 0 and { a, b } or { b, a }) do sum = sum + net(x, "first"):sum() end
      local function pause() os.execute "sleep 0.1" end
      for _, net in ipairs { b, a } do
        local y = net(x, "second")
        y:register_hook(pause)
        sum = sum + y:sum()
      end
      print(message(sum.backward, sum))
      os.exit(0, true)
    ]], { LM_SHM = "0" })
    assert(got.ok, got.text)
    for rank = 0, 1 do
      assert.matches("came to another call than the others: rank %d on host %S+ came with DistributedDataParallel[ 2]* "
        .. "backward, bucket 1 of 1", got[rank].output)
    end
    assert.matches("DistributedDataParallel 2 backward, bucket 1 of 1", got.text)
  end)
end)
