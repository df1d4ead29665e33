-- nn.parallel.parallelize and context_parallel over the stand-in for NCCL (support/nccl/): the order, streams and bytes
-- of their collectives, alone and beside those of fully_shard.
local nccl_ranks = require "spec.support.nccl_ranks"
local spans = require "spec.support.nccl_spans"
if not nccl_ranks.are_there then return end

local PRELUDE = spans .. [[
  local parallel, LAYERS = nn.parallel, 2
  local function gpt2(dtype)
    lm.manual_seed(1)
    return lm.models.gpt2 {
      n_embd = 16, n_head = 4, n_layer = LAYERS, vocab_size = 32, n_positions = 16, embd_pdrop = 0, resid_pdrop = 0,
      attn_pdrop = 0,
    }:to(device, dtype or "float32")
  end
  local function mesh_of(shape, ...) return dist.init_device_mesh("cuda", shape, { names = { ... } }) end
  local function shard(net, mesh)
    for _, block in ipairs(net.transformer.h) do parallel.fully_shard(block, { mesh = mesh }) end
    return parallel.fully_shard(net, { mesh = mesh })
  end
  lm.manual_seed(2)
  local ids, y = lm.randint(1, 33, { 2, 16 }):to(device), lm.randint(1, 33, { 2, 16 }):to(device)
  local HIDDEN, TOKEN = 2 * 16 * 16 * 4, 2 * 16 * 4 -- bytes of all activations, and of a number for each token
  local function loss_of(scores, target) return F.cross_entropy(scores:flatten(1, 2), target:flatten()) end
  local function in_parts(context, f) -- f(ids, y) of this rank's tokens
    return parallel.context_parallel(context, { buffers = { ids, y }, dims = { 2, 2 } }, function(a, b)
      return f(a, b:contiguous())
    end)
  end
  local function spans_of(step) -- spans of the third step, in which the host waits for nothing
    step()
    step()
    local before = waits()
    step()
    assert(waits() == before, "the host waited")
    return spans(step)
  end
  local function equal(got, wanted) if got ~= wanted then error("expected " .. wanted .. ", got " .. got, 2) end end
]]

describe("layers divided over NCCL", function()
  it("have two sums a block in each direction, on a stream of their own, and the host waits for none", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local mesh = mesh_of({ 2 }, "tensor")
      local function step_of(sequence)
        local net = gpt2()
        parallel.parallelize(net, mesh, net:parallel_plan { sequence = sequence })
        return function() parallel.vocabulary_cross_entropy(net(ids), y, mesh):backward() end
      end
      local order, streams, bytes = spans_of(step_of(false))
      -- The embedding, a block's attention and MLP, the head and two sums of the loss.
      local forward, backward = "A" .. ("mtmA" .. "mmA"):rep(LAYERS) .. "m" .. "AA", ("mmmmA" .. "mmTmmA"):rep(LAYERS)
      equal(order, forward .. "mmA" .. backward)
      equal(bytes.A, (2 + 4 * LAYERS) * HIDDEN + 3 * TOKEN)
      equal(#streams_of(streams.A), 1)
      assert(streams_of(streams.A) ~= streams_of(streams.m), "collectives are on the stream of the ops")

      order, streams, bytes = spans_of(step_of(true))
      -- Gathers and reductions in place of sums, and the gradients of a norm's two parameters and of a bias.
      forward, backward = "A" .. ("GmtmR" .. "GmmR"):rep(LAYERS) .. "Gm" .. "AA", "mmR"
      for _ = 1, LAYERS do backward = backward .. "AAAG" .. "mmmmR" .. "AAAG" .. "mmTmmR" end
      equal(order, forward .. backward .. "AAG")
      equal(bytes.G, (2 + 4 * LAYERS) * HIDDEN / 2)
      equal(bytes.R, (1 + 4 * LAYERS) * HIDDEN / 2)
      equal(streams_of(streams.A, streams.G, streams.R), streams_of(streams.A))
    ]])
  end)
end)

describe("reduce_scatter of a layer over NCCL", function()
  it("copies its input once, and not at all along the first dim", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local mesh, functions = mesh_of({ 2 }, "tensor"), require "luminary.nn.parallel.collective_functions"
      local function copies(t, d)
        local function count() return calls "cudaMemcpyAsync" + calls "cudaLaunchKernel" end
        local own = t:narrow(d, rank * t:size(d) / 2 + 1, t:size(d) / 2) * 2
        functions.reduce_scatter(t, mesh, d)
        local before = count()
        local sum = functions.reduce_scatter(t, mesh, d)
        before = count() - before
        equal((sum - own):abs():max():item(), 0)
        return before
      end
      lm.manual_seed(3)
      local t = lm.randn({ 4, 6, 8 }):to(device)
      local none = copies(t, 1)
      equal(copies(t, 2), none + 1)
      equal(copies(t, 3), none + 1)
      local order, _, bytes = spans(function() functions.reduce_scatter(t, mesh, 2) end)
      equal(order .. bytes.R, "R" .. 4 * 6 * 8 * 4 / 2)
    ]])
  end)
end)

describe("sequences divided over NCCL", function()
  it("send keys and values on before a block of attention is computed, and gradients after it", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local mesh = mesh_of({ 1, 2 }, "shard", "context")
      local net = gpt2()
      local function step() in_parts(mesh["context"], function(a, b) loss_of(net(a), b):backward() end) end
      local order, streams, bytes = spans_of(step)
      local forward, backward = "m" .. "Vtt" .. "mmm", "mmmmmm" .. "VTVTV" .. "mm"
      equal(order, forward:rep(LAYERS) .. "mmm" .. backward:rep(LAYERS))
      equal(bytes.V, LAYERS * 4 * (2 + 2) * HIDDEN / 2) -- two tensors are sent, and two received
      equal(#streams_of(streams.V), 1)
      assert(streams_of(streams.V) ~= streams_of(streams.m), "messages are on the stream of the ops")

      net = shard(net, mesh:flatten({ "shard", "context" }, "rows")) -- over the same ranks
      order, streams = spans_of(step)
      assert(order:find("GgG", 1, true) and order:find("R", 1, true), order)
      equal(#streams_of(streams.V), 1)
      equal(#streams_of(streams.V, streams.G, streams.R), 3)
    ]])
  end)
end)

describe("collectives of different dims of a mesh over NCCL", function()
  it("do not wait for each other", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      -- In forward and in backward, two ranks hold back a collective of fully_shard until the other two, which have
      -- enqueued it, have computed what follows in the dim of their pair.
      local by_host, armed = dist.new_group { backend = "gloo" }, false
      local function meet(is_first)
        if not armed or is_first ~= (rank < 2) then return end
        if is_first then lm.cuda.current_stream():synchronize() else lm.cuda.synchronize() end
        dist.barrier { group = by_host }
      end
      local function hold(net)
        local first, second = net.transformer.h[1], net.transformer.h[2]
        net.transformer.drop:register_forward_hook(function() meet(false) end) -- before the second block is gathered
        first.attn:register_forward_hook(function() meet(true) end)
        for is_first, block in pairs { [true] = first, [false] = second } do -- the second one is not reduced yet
          block.ln_1:register_forward_hook(function(_, _, out) out:register_hook(function() meet(is_first) end) end)
        end
      end
      local function check(net, step)
        hold(net)
        step()
        armed = true
        step()
        armed = false
        lm.cuda.synchronize()
      end

      local mesh = mesh_of({ 2, 2 }, "shard", "tensor")
      local net = gpt2()
      parallel.parallelize(net, mesh["tensor"], net:parallel_plan())
      shard(net, mesh["shard"])
      check(net, function() parallel.vocabulary_cross_entropy(net(ids), y, mesh["tensor"]):backward() end)

      mesh = mesh_of({ 2, 2 }, "shard", "context")
      net = shard(gpt2(), mesh:flatten({ "shard", "context" }, "rows"))
      check(net, function() in_parts(mesh["context"], function(a, b) loss_of(net(a), b):backward() end) end)
    ]])
  end)

  it("train as one process does, over connections made at first use", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local mesh = mesh_of({ 2, 2 }, "context", "tensor")
      local alone, net = gpt2 "float64", gpt2 "float64"
      parallel.parallelize(net, mesh["tensor"], net:parallel_plan { sequence = true })
      shard(net, mesh["context"])
      local steps = { lm.optim.Adam(alone:parameters(), { lr = 0.01 }), lm.optim.Adam(net:parameters(), { lr = 0.01 }) }
      for step = 1, 3 do
        for _, opt in ipairs(steps) do opt:zero_grad() end
        local whole = loss_of(alone(ids), y)
        whole:backward()
        local part = in_parts(mesh["context"], function(a, b)
          local loss = parallel.vocabulary_cross_entropy(net(a), b, mesh["tensor"])
          loss:backward()
          return loss
        end)
        for _, opt in ipairs(steps) do opt:step() end
        local sum = dist.all_reduce(part:detach():clone(), { group = mesh:get_group "context" }) / 2
        assert(math.abs(sum:item() - whole:item()) < 1e-12, "step " .. step .. ": loss differs")
      end
    ]], { env = { LM_FAKE_NCCL = "connect=1,eager=0" } })
  end)
end)
