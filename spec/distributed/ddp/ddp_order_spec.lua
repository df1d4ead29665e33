-- Tests that backward sends in an order that follows from the graph, on whichever rank and however late: buckets of
-- one and several DistributedDataParallels, sums of SyncBatchNorm, all_reduces in hooks (support/ddp_order.lua). The
-- same over MPI is in mpi_spec, over NCCL's stand-in in cuda/nccl_spec.
local several = require "spec.support.several"
local ddp_order = require "spec.support.ddp_order"

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

-- Two branches that backward runs through side by side, each device on a thread: all that talks to other ranks runs in
-- the order of the graph nevertheless.
local branches = [[
  local ffi = require "ffi"
  ffi.cdef "int usleep(unsigned);"
  math.randomseed(rank * 7 + 3)
  for _ = 1, 20 do math.random() end
  local order
  local function meet(n, name)
    ffi.C.usleep(math.random(0, 1000))
    local t = lm.full({ 3 + n }, rank + n, { dtype = "float64" })
    dist.all_reduce(t)
    assert(t:eq(n * size + size * (size - 1) / 2):all():item(), "sums are mixed")
    order[#order + 1] = name or n
  end
  local Meets = lm.autograd.Function:extend("Meets")
  function Meets.forward(_, x) return x:clone() end
  function Meets.backward(_, g)
    meet(30, "function")
    return g
  end
  local Two = nn.Module:extend("Two")
  function Two:init(hooks)
    self.hooks = hooks
    self.a = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)):double()
    self.b = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)):double():to("cpu:1")
    self.both = nn.Parameter(lm.ones({ 4, 4 }, { dtype = "float64" }))
  end
  function Two:forward(x)
    local y, z = x:mm(self.both), x:to("cpu:1"):mm(self.both:to("cpu:1"))
    for i = 1, 3 do
      y, z = self.a[i](y), self.b[i](z)
      if self.hooks then
        y:register_hook(function() meet(2 * i) end)
        z:register_hook(function() meet(2 * i + 1) end)
        if i == 2 then z = Meets.apply(z) end
      end
    end
    return y + z:to("cpu:0")
  end
  lm.manual_seed(9)
  local alone = Two()
  local inner = Two(true)
  inner:load_state_dict(alone:state_dict())
  local net = nn.parallel.DistributedDataParallel(inner, { bucket_cap_mb = 1e-5 })
  local first
  for _ = 1, passes do
    lm.manual_seed(4)
    local x = lm.randn({ 3 * size, 4 }, { dtype = "float64" })
    order = {}
    alone:zero_grad()
    net:zero_grad()
    net(x[{ { 3 * rank + 1, 3 * rank + 3 } }]):square():mean():backward()
    alone(x):square():mean():backward()
    first = first or table.concat(order, " ")
    assert(table.concat(order, " ") == first)
    local mine = inner:parameters()
    for i, p in ipairs(alone:parameters()) do
      local off = (p.grad - mine[i].grad):abs():max():item()
      assert(off < 1e-9, "differs by " .. off)
    end
  end
  assert(first == "7 6 function 5 4 3 2", first)
]]

describe("what a backward pass over several devices sends", function()
  for _, shared in ipairs { "0", "1" } do
    it("is in order, LM_SHM=" .. shared, function()
      on.succeeds(2, ("local passes = %d\n"):format(long and 1000 or 20) .. branches, { LM_SHM = shared })
    end)
  end
end)

describe("ranks that wait in different places of one average", function()
  for _, shared in ipairs { "0", "1" } do
    it("are not taken for ranks in different calls, LM_SHM=" .. shared, function()
      on.succeeds(3, [[
        local function late(seconds) os.execute("sleep " .. seconds) end
        local net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        local ddp = nn.parallel.DistributedDataParallel(net, { bucket_cap_mb = 1e-5 })
        if rank == 2 then net[2]:register_forward_hook(function(_, inputs)
          inputs[1]:register_hook(function() late(0.6) end)
        end) end
        late(({ [0] = 0, 0.4, 0.2 })[rank])
        ddp(lm.ones { 2, 3 }):sum():backward() -- rank 0 waits for facts, 1 for the second bucket
      ]], { LM_SHM = shared })
    end)
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
      -- "called" where a rank finds it, "waits in" where the store does, whichever is first
      assert.matches("ranks 0 and 1 made different calls: rank %d on %S+ %l+[ in]*DistributedDataParallel[ 2]* "
        .. "backward, bucket 1 of 1", got[rank].output)
    end
    assert.matches("DistributedDataParallel 2 backward, bucket 1 of 1", got.text)
  end)
end)
