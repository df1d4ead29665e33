-- nn.parallel.context_parallel: sequences divided over ranks, with attention as a ring.
local several = require "spec.support.several"

local on = several([[
  local context_parallel, context_unshard = nn.parallel.context_parallel, nn.parallel.context_unshard
  lm.set_default_dtype "float64"
  lm.manual_seed(9)
  local function context() return dist.init_device_mesh("cpu", {size}, {names = {"context"}}) end
  local function off(a, b) return (a - b):abs():max():item() end
  local function near(what, a, b, most)
    if not (off(a, b) < (most or 1e-12)) then error(what .. " is off by " .. off(a, b), 2) end
  end
]], 60)

-- Compares results and gradients of one call with those of one process.
local attention = [[
  local mesh = context()
  local L = 4 * size
  for i, case in ipairs {
    {2, 2, is_causal = true}, {4, 2, is_causal = true}, {2, 2}, {4, 1, scale = 0.3},
    {2, 2, is_causal = true, flat = true},
    {2, 2, is_causal = true, dtype = "float32"}, {2, 2, is_causal = true, dtype = "bfloat16"},
  } do
    lm.manual_seed(i)
    local h, g = case[1], case[2]
    local how = {dtype = case.dtype}
    local function make(heads, e)
      return (case.flat and lm.randn({heads, L, e}, how) or lm.randn({3, heads, L, e}, how)):requires_grad_()
    end
    local q, k, v = make(h, 4), make(g, 4), make(g, 5)
    local dim, most = case.flat and 2 or 3, case.dtype == "bfloat16" and 0.05 or case.dtype and 1e-5
    local opts = {is_causal = case.is_causal, scale = case.scale, enable_gqa = h ~= g}
    local y = F.scaled_dot_product_attention(q, k, v, opts)
    local upper = lm.randn(y.shape, how)
    y:backward(upper)
    local want = {q.grad, k.grad, v.grad}
    q.grad, k.grad, v.grad = nil, nil, nil
    local divided = {buffers = {q, k, v, upper}, dims = {dim, dim, -2, dim}}
    local back = context_parallel(mesh, divided, function(q, k, v, upper)
      assert(q:size(dim) == 4)
      local z = F.scaled_dot_product_attention(q, k, v, opts)
      near("result", context_unshard(mesh, {buffers = {z}, dims = {-2}}), y, most)
      z:backward(upper)
      return "back"
    end)
    assert(back == "back")
    for j, t in ipairs {q, k, v} do near("gradient " .. j, dist.all_reduce(t.grad:double()), want[j]:double(), most) end
    near("after the scope", F.scaled_dot_product_attention(q, k, v, opts), y, 1e-12)
  end
]]

-- Trains a GPT and a LLaMA with grouped queries for $steps steps, parameters sharded over $mesh.
local training = [[
  local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"outer", "context"}})
  local models = {
    {"gpt2", {n_embd = 12, n_head = 3, n_layer = 2, vocab_size = 30, n_positions = 16, embd_pdrop = 0, resid_pdrop = 0,
      attn_pdrop = 0}},
    {"llama", {hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
      num_key_value_heads = 2, vocab_size = 30, max_position_embeddings = 16}},
  }
  for _, row in ipairs(models) do
    lm.manual_seed(1)
    local alone = lm.models[row[1] ](row[2])
    lm.manual_seed(1)
    local net = lm.models[row[1] ](row[2])
    nn.parallel.fully_shard(net, {mesh = $mesh})
    local steps = {optim.AdamW(alone:parameters(), {lr = 0.003}), optim.AdamW(net:parameters(), {lr = 0.003})}
    local function loss_of(m, x, y, opts) return F.cross_entropy(m(x, opts):view(-1, 30), y:reshape(-1)) end
    for step = 1, $steps do
      lm.manual_seed(step)
      local ids = lm.randint(1, 31, {4, 17})
      local x, y = ids:narrow(2, 1, 16), ids:narrow(2, 2, 16)
      local whole = loss_of(alone, x, y)
      local own = {{2 * mesh:get_local_rank "outer" + 1, 2 * mesh:get_local_rank "outer" + 2}}
      local positions = lm.arange(1, 17, {dtype = "int64"})
      local part = context_parallel(mesh["context"], {buffers = {x[own], y[own], positions}, dims = {2, 2, 1}},
        function(x, y, positions)
        assert(x:size(2) == 8)
        return loss_of(net, x, y, step % 2 == 0 and {position_ids = positions:expand(2, 8)} or nil)
      end)
      for i, loss in ipairs {whole, part} do
        steps[i]:zero_grad()
        loss:backward()
        local p = ({alone, net})[i]:parameters()
        nn.utils.clip_grad_norm_(p, 0.5)
        steps[i]:step()
      end
      local mean = dist.all_reduce(part:detach():clone()) / 4
      near(row[1] .. ": step " .. step, mean, whole:detach(), 1e-10)
    end
  end
]]

describe("nn.parallel.context_parallel", function()
  for n = 1, 4 do
    it(("computes attention of full sequences over %d ranks"):format(n), function() on.succeeds(n, attention) end)
  end

  local meshes = { ['mesh:flatten({"outer", "context"}, "both")'] = 50, ['mesh[{"outer", "context"}]'] = 5 }
  for mesh, steps in pairs(meshes) do
    it("trains GPT-2 and LLaMA as one process does, sharded over " .. mesh, function()
      on.succeeds(4, (training:gsub("%$%a+", { ["$mesh"] = mesh, ["$steps"] = steps })))
    end)
  end

  it("averages gradients in hybrid sharding over a flattened dim, and with DDP, also in checkpoints", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 1, 2}, {names = {"replicate", "shard", "context"}})
      mesh:flatten({"shard", "context"}, "shard_context")
      local function make()
        lm.manual_seed(1)
        return lm.models.gpt2 {n_embd = 12, n_head = 3, n_layer = 2, vocab_size = 30, n_positions = 16, embd_pdrop = 0,
          resid_pdrop = 0, attn_pdrop = 0}
      end
      local alone, sharded, copied = make(), make(), make()
      local opts = {mesh = mesh[{"replicate", "shard_context"}]}
      for _, block in ipairs(sharded.transformer.h) do nn.parallel.fully_shard(block, opts) end
      for _, net in ipairs {alone, sharded, copied} do
        for _, block in ipairs(net.transformer.h) do
          local forward = block.forward
          block.forward = function(self, ...) return lm.autograd.checkpoint(forward, self, ...) end
        end
      end
      nn.parallel.fully_shard(sharded, opts)
      local ddp = nn.parallel.DistributedDataParallel(copied)
      local function loss_of(m, x, y) return F.cross_entropy(m(x):view(-1, 30), y:reshape(-1)) end
      local ids = lm.randint(1, 31, {4, 17})
      local x, y = ids:narrow(2, 1, 16), ids:narrow(2, 2, 16)
      loss_of(alone, x, y):backward()
      local own = {{2 * mesh:get_local_rank "replicate" + 1, 2 * mesh:get_local_rank "replicate" + 2}}
      opts = {buffers = {x[own], y[own]}, dims = {2, 2}}
      for _, net in ipairs {sharded, ddp} do
        context_parallel(mesh["context"], opts, function(x, y) loss_of(net, x, y):backward() end)
      end
      local of = {}
      for name, p in copied:named_parameters() do of[name] = p.grad end
      for name, p in sharded:named_parameters() do
        local full = lm.zeros {2 * p:size(1), unpack(p.shape, 2)}
        dist.all_gather_into_tensor(full, p.grad, {group = mesh:get_group "context"})
        of[name .. "*"] = full
      end
      for name, p in alone:named_parameters() do
        near("DDP: " .. name, of[name], p.grad)
        near("fully_shard: " .. name, of[name .. "*"]:narrow(1, 1, p:size(1)), p.grad)
      end
      local outside = context_parallel(mesh["context"], opts, function(x, y) return loss_of(alone, x, y) end)
      contains(message(outside.backward, outside), "recomputing must run the same ops")
    ]])
  end)

  it("drops weights, and casts as autocast does", function()
    on.succeeds(2, [[
      local mesh = context()
      lm.manual_seed(3)
      local q, k, v = lm.randn(1, 1, 8, 4), lm.randn(1, 1, 8, 4), lm.randn(1, 1, 8, 3)
      local direction, upper = lm.randn(1, 1, 8, 4), lm.randn(1, 1, 8, 3)
      context_parallel(mesh, {buffers = {q, k, v, direction, upper}, dims = {3, 3, 3, 3, 3}}, function(q, k, v, d, g)
        local function attend(q, k, v)
          lm.manual_seed(5 + rank)
          return F.scaled_dot_product_attention(q, k, v, {is_causal = true, dropout_p = 0.4})
        end
        local function total(t) return dist.all_reduce((t * g):sum():detach()):item() end
        for _, t in ipairs {q, k, v} do t:requires_grad_() end
        attend(q, k, v):backward(g)
        local function slope(f, t, d)
          local up, down = total(f(t:detach() + 1e-5 * d)), total(f(t:detach() - 1e-5 * d))
          return (up - down) / 2e-5 - dist.all_reduce((t.grad * d):sum()):item()
        end
        assert(math.abs(slope(function(t) return attend(t, k, v) end, q, d)) < 1e-8)
        assert(math.abs(slope(function(t) return attend(q, t, v) end, k, d)) < 1e-8)
        assert(math.abs(slope(function(t) return attend(q, k, t) end, v, g)) < 1e-8)
        local zeros = attend(q, k, lm.ones(1, 1, 4, 3)):eq(1):sum():item()
        assert(zeros < 12, "nothing was dropped")
        lm.autocast({dtype = "bfloat16"}, function()
          local y = F.scaled_dot_product_attention(q:float(), k:bfloat16(), v:float(), {is_causal = true})
          assert(y.dtype == "bfloat16")
        end)
      end)
    ]])
  end)

  it("holds a part of each sequence, and of the keys that pass by one block", function()
    on.succeeds(4, [[
      local mesh = context()
      local L, e = 4096, 32
      local bytes = L * e * 8
      local function peak(f)
        collectgarbage()
        collectgarbage()
        lm.reset_peak_memory_stats()
        local base = lm.memory_allocated()
        f()
        return (lm.max_memory_allocated() - base) / bytes
      end
      local full = lm.randn(1, 1, L, e)
      local got
      context_parallel(mesh, {buffers = {full}, dims = {3}}, function(part)
        got = peak(function()
          local q, k, v = part:clone():requires_grad_(), part:clone():requires_grad_(), part:clone():requires_grad_()
          local y = F.scaled_dot_product_attention(q, k, v, {is_causal = true})
          y:backward(part)
        end)
      end)
      -- in quarters: q, k, v, y, 3 gradients, 2 arriving and 2 present keys and values, and 4 such gradients, 3 of a
      -- block, and the packed copies of the kernel
      assert(got < 22 / 4, "peak of " .. got .. " sequences")
    ]])
  end)

  it("refuses what a ring cannot compute", function()
    on.succeeds(2, [[
      local mesh = context()
      local x = lm.randn(1, 2, 8, 4)
      local attend = F.scaled_dot_product_attention
      local function within(f) return context_parallel(mesh, {buffers = {x}, dims = {3}}, f) end
      within(function(t)
        contains(message(attend, t, t, t, {attn_mask = lm.ones(4, 4)}), "attn_mask, a sliding window and a cache")
        contains(message(attend, t, t:narrow(3, 1, 2), t), "expected query [N, H, L, E]")
        contains(message(attend, t, t:narrow(2, 1, 1), t:narrow(2, 1, 1)), "with enable_gqa")
        contains(message(nn.MultiheadAttention(8, 2), lm.ones(4, 1, 8), lm.ones(4, 1, 8), lm.ones(4, 1, 8)),
          "need_weights = false")
        contains(message(within, print), "within another")
        local q = t:clone():requires_grad_()
        contains(message(lm.autograd.grad, attend(q, t, t):sum(), q, {create_graph = true}), "create_graph")
        local near = lm.models.mistral {vocab_size = 9, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
          intermediate_size = 8, max_position_embeddings = 16, sliding_window = 6}
        contains(message(near, lm.ones({1, 4}, {dtype = "int64"})), "a sliding window")
        local bert = lm.models.bert {vocab_size = 9, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
          intermediate_size = 8}
        contains(message(bert, lm.ones({1, 4}, {dtype = "int64"})), "context_parallel is not supported")
      end)
      assert(message(within, function() error("mine") end):find "mine")
      assert(attend(x, x, x, {attn_mask = lm.ones(8, 8)}).shape[3] == 8) -- the scope has ended
      contains(message(context_parallel, mesh, {buffers = {x}, dims = {4, 3}}, print), "dims")
      contains(message(context_parallel, mesh, {buffers = {x}, dims = {2}}, print),
        "the size of buffer 1 in dim 2 must be divisible by 4, twice the number of ranks, got 2")
      contains(message(context_parallel, mesh, {buffers = {x}}, print), "expected options {buffers = {…}, dims = {…}}")
      contains(message(context_parallel, {}, {buffers = {x}, dims = {3}}, print), "mesh must be a mesh of one dim")
      contains(message(context_unshard, mesh, {buffers = {x}, dims = {5}}), "dim")
    ]])
  end)

  for option, value in pairs {is_causal = "rank == 1", scale = "1 + rank"} do
    it(("names the place of a rank with another %s"):format(option), function()
      local got = on.run(2, ([[
        context_parallel(context(), {buffers = {lm.ones(1, 1, 8, 4)}, dims = {3}}, function(t)
          F.scaled_dot_product_attention(t, t, t, {%s = %s})
        end)
        dist.barrier()
      ]]):format(option, value))
      for rank = 0, 1 do assert.is_nil(got[rank].output:find("finished", 1, true), got.text) end
      assert.matches("context_parallel: the call differs from rank 0's: here ", got[1].output, 1, true)
      assert.matches("rank 1 = context 1", got[1].output, 1, true)
    end)
  end

  it("names the place of a rank with other sequences", function()
    local got = on.run(2, [[
      context_parallel(context(), {buffers = {lm.full({8, 2}, rank)}, dims = {1}}, function(t) return t end)
      dist.barrier()
    ]])
    assert.matches("here tensor 1, float64 [8, 2] with checksum ", got[1].output, 1, true)
    assert.matches("rank 1 = context 1", got[1].output, 1, true)
  end)

  it("names the place of a rank that leaves the ring", function()
    local got = on.run(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"shard", "context"}})
      context_parallel(mesh["context"], {buffers = {lm.randn(1, 1, 8, 4)}, dims = {3}}, function(t)
        if rank == 3 then error "lost the data" end
        F.scaled_dot_product_attention(t, t, t, {is_causal = true})
      end)
      dist.barrier()
    ]])
    assert.matches("(rank 2 = shard 1, context 0; rank 3 = shard 1, context 1", got[2].output, 1, true)
  end)
end)
