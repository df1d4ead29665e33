-- Groups that know nothing of CUDA get its tensors by way of the host.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/../support/?.lua;" .. package.path
local core = require "luminary.core"
local ranks = require "ranks"
if core.device_count("cuda") == 0 then return end

describe("collectives of CUDA tensors over gloo", function()
  it("move bytes in the order of the streams", function()
    local got = ranks.run { n = 2, timeout = 60, env = { LM_TOKEN = "a token for specs" }, script = [[
      local lm = require "luminary"
      local dist = lm.dist
      dist.init_process_group("gloo", {timeout = 30})
      local rank = dist.get_rank()
      local side = lm.cuda.Stream()
      local t = lm.cuda.stream(side, function() return lm.full({3, 2}, rank + 1, {device = "cuda"}):t() end)
      dist.all_reduce(t)
      local b = lm.full({4}, rank, {device = "cuda"})
      local work = dist.broadcast(b, 1, {async_op = true})
      work:wait()
      local list = {lm.zeros({2}, {device = "cuda"}), lm.zeros({2}, {device = "cuda"})}
      dist.all_gather(list, lm.full({2}, 10 * rank, {device = "cuda"}))
      local p = lm.zeros({2}, {device = "cuda"})
      if rank == 0 then dist.send(lm.tensor({5, 6}, {device = "cuda"}), 1) else dist.recv(p, 0) end
      print(t.device, t:sum():item(), b:sum():item(), list[1][1], list[2][2], p:sum():item())
      dist.destroy_process_group()
    ]] }
    assert(got.ok, got.text)
    assert.equal("cuda:0\t18\t4\t0\t10\t0\n", got[0].output)
    assert.equal("cuda:0\t18\t4\t0\t10\t11\n", got[1].output)
  end)

  it("carry DistributedDataParallel", function()
    local got = ranks.run { n = 2, timeout = 60, env = { LM_TOKEN = "a token for specs" }, script = [[
      local lm = require "luminary"
      local dist, nn, F = lm.dist, lm.nn, lm.nn.functional
      dist.init_process_group("gloo", {timeout = 30})
      local rank = dist.get_rank()
      local function model()
        lm.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)):to("cuda")
      end
      lm.manual_seed(11)
      local x, y = lm.randn({8, 5}):cuda(), lm.randint(1, 4, {8}):cuda()
      local alone, net = model(), nn.parallel.DistributedDataParallel(model())
      local steps = {lm.optim.SGD(alone:parameters(), {lr = 0.1}), lm.optim.SGD(net:parameters(), {lr = 0.1})}
      for _ = 1, 3 do
        for _, opt in ipairs(steps) do opt:zero_grad() end
        F.cross_entropy(alone(x), y):backward()
        local part = {rank * 4 + 1, rank * 4 + 4}
        F.cross_entropy(net(x[{part}]), y[{part}]):backward()
        for _, opt in ipairs(steps) do opt:step() end
      end
      local worst = 0
      local mine, theirs = alone:parameters(), net:parameters()
      for i = 1, #mine do worst = math.max(worst, (mine[i]:detach() - theirs[i]:detach()):abs():max():item()) end
      assert(worst < 1e-6, "differs by " .. worst)
      print "equal"
      dist.destroy_process_group()
    ]] }
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("equal\n", got[rank].output) end
  end)
end)
