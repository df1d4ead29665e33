-- nn.parallel.context_parallel over the stand-in for NCCL (support/nccl/).
local nccl_ranks = require "spec.support.nccl_ranks"
if not nccl_ranks.are_there then return end

local PRELUDE = [[
  local mesh = dist.init_device_mesh("cuda", {size}, {names = {"context"}})
  local function inputs()
    lm.manual_seed(1)
    local list = {}
    for i = 1, 3 do list[i] = lm.randn({2, 2, 4 * size, 8}, {dtype = "float64"}):to(device):requires_grad_() end
    return list
  end
  local function attend(list) return F.scaled_dot_product_attention(list[1], list[2], list[3], {is_causal = true}) end
]]

describe("nn.parallel.context_parallel over NCCL", function()
  it("computes the attention of one process, and its gradients", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local list = inputs()
      local whole = attend(list)
      whole:square():sum():backward()
      nn.parallel.context_parallel(mesh, {buffers = inputs(), dims = {3, 3, 3}}, function(q, k, v)
        local own = {q, k, v}
        for i, t in ipairs(own) do own[i] = t:detach():requires_grad_() end
        local y = attend(own)
        y:square():sum():backward()
        local results = {y:detach(), own[1].grad, own[2].grad, own[3].grad}
        results = {nn.parallel.context_unshard(mesh, {buffers = results, dims = {3, 3, 3, 3}})}
        for i, t in ipairs {whole:detach(), list[1].grad, list[2].grad, list[3].grad} do
          assert((results[i] - t):abs():max():item() < 1e-12, "result " .. i)
        end
      end)
    ]])
  end)

  it("computes with the keys of a step while those of the next are not there", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      -- Other ranks send the keys of a step once rank 0 has the result of the step before.
      local collectives, go, calls_made = require "luminary.distributed.collectives", lm.zeros(1), 0
      local function run()
        nn.parallel.context_parallel(mesh, {buffers = inputs(), dims = {3, 3, 3}}, function(...)
          local strided = {...}
          for i, t in ipairs(strided) do strided[i] = t:transpose(2, 3):contiguous():transpose(2, 3) end
          lm.no_grad(attend, strided)
        end)
      end
      run() -- connects the ranks
      local where = rank == 0 and core or collectives
      local name = rank == 0 and "run_op" or "batch_isend_irecv"
      local before = where[name]
      where[name] = function(op, ...)
        if rank == 0 and op ~= "attention" then return before(op, ...) end
        calls_made = calls_made + 1
        if rank > 0 then dist.recv(go, {src = 0}) end
        local results = {before(op, ...)}
        if rank == 0 and calls_made < size then
          results[1]:sum():item()
          for other = 1, size - 1 do dist.send(go, {dst = other}) end
        end
        return unpack(results)
      end
      run()
      assert(calls_made == (rank == 0 and size or size - 1), calls_made)
    ]], { init = "timeout = 6" })
  end)

  it("sends around the ring at once: a rank gets keys of the one before, whatever a third one has sent", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      -- Rank 0 sends its keys once rank 2 has computed with those of rank 1.
      local collectives, go, calls_made = require "luminary.distributed.collectives", lm.zeros(1), 0
      local function run()
        nn.parallel.context_parallel(mesh, {buffers = inputs(), dims = {3, 3, 3}}, function(...)
          lm.no_grad(attend, {...})
        end)
      end
      run()
      assert(live "communicator" == 1, live "communicator")
      local attention, batch = core.run_op, collectives.batch_isend_irecv
      if rank == 0 then
        function collectives.batch_isend_irecv(...)
          calls_made = calls_made + 1
          if calls_made == 1 then dist.recv(go, {src = 2}) end
          return batch(...)
        end
      elseif rank == 2 then
        function core.run_op(op, ...)
          local results = {attention(op, ...)}
          calls_made = calls_made + (op == "attention" and 1 or 0)
          if op == "attention" and calls_made == 2 then
            results[1]:sum():item()
            dist.send(go, {dst = 0})
          end
          return unpack(results)
        end
      end
      run()
      assert(calls_made >= (rank % 2 == 0 and 2 or 0), calls_made)
    ]], { init = "timeout = 6" })
  end)
end)
