-- Groups that know nothing of CUDA get its tensors by way of the host.
local core = require "luminary.core"
local ranks = require "spec.support.ranks"
local ddp_equal = require "spec.support.ddp_equal"
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

  describe("carry DistributedDataParallel", function()
    local function equal(with)
      with.backend, with.device = "gloo", "cuda"
      local env = { LM_TOKEN = "a token for specs" }
      local got = ranks.run { n = 2, timeout = 60, env = env, script = ddp_equal(with) }
      assert(got.ok, got.text)
      for rank = 0, 1 do assert.equal("equal\n", got[rank].output) end
    end

    -- Backward on one stream, the step on another: nobody waits but by what memory remembers.
    local streams = [[
      local back, forth = lm.cuda.Stream(), lm.cuda.Stream()
      function run(f) return lm.cuda.stream(back, f) end
      function step(opt) return lm.cuda.stream(forth, function() opt:step() end) end
    ]]

    it("on the default stream", function() equal {} end)
    it("on streams of its own", function() equal {before = streams} end)
    it("with gradients compressed", function() equal {before = streams, hook = "'bf16_compress'", most = 3e-3} end)
    it("with a hook, on yet another stream", function()
      equal {before = streams, hook = [[function(_, bucket)
        for _, g in ipairs(bucket:gradients()) do assert(g.is_cuda) end
        local twice = lm.cuda.stream(lm.cuda.Stream(), function() return bucket:buffer() * 2 end)
        local work = dist.all_reduce(twice, {async_op = true})
        return {wait = function()
          work:wait()
          return twice / 2
        end}
      end]]}
    end)
  end)
end)
