-- nn.parallel.fully_shard: parameters sharded by rows, gathered while they are used.
local several = require "spec.support.several"
local temp = require "spec.support.temp"

-- A small language model without attention, in float64; `pair(opts)` returns two equal ones, of which the second is
-- sharded.
local on = several([[
  local core = require "luminary.core"
  local fully_shard = nn.parallel.fully_shard
  lm.set_default_dtype "float64"
  local Block = nn.Module:extend("Block")
  function Block:init(d)
    self.norm = nn.LayerNorm(d)
    self.up = nn.Linear(d, 3 * d)
    self.down = nn.Linear(3 * d, d)
  end
  function Block:forward(x) return x + self.down(F.gelu(self.up(self.norm(x)))) end
  local Net = nn.Module:extend("Net")
  function Net:init(d, n)
    self.emb = nn.Embedding(11, d)
    self.blocks = nn.ModuleList()
    for i = 1, n do self.blocks:append(Block(d)) end
    self.norm = nn.LayerNorm(d)
    self.head = nn.Linear(d, 11, {bias = false})
  end
  function Net:forward(ids)
    local h = self.emb(ids)
    for _, b in ipairs(self.blocks) do h = b(h) end
    return self.head(self.norm(h))
  end
  local function shard(net, opts)
    for _, b in ipairs(net.blocks) do fully_shard(b, opts) end
    return fully_shard(net, opts)
  end
  local function pair(opts, change)
    lm.manual_seed(1)
    local alone = Net(10, 3)
    lm.manual_seed(rank + 1) -- ranks start with different parameters: rank 0's count
    local net = Net(10, 3)
    if change then
      change(alone)
      change(net)
    end
    return alone, shard(net, opts)
  end
  local function batch(step, n)
    lm.manual_seed(step)
    local x = lm.randint(1, 12, {n or 8, 5})
    return x, lm.randint(1, 12, {n or 8, 5})
  end
  local function loss_of(net, x, y) return F.cross_entropy(net(x):view(-1, 11), y:reshape(-1)) end
  -- This rank's samples; the last rank has one more than its share, and the first one less.
  local function part_of(t)
    local n = t:size(1) / size
    local first, last = rank * n + (rank > 0 and 0 or 1), (rank + 1) * n - (rank < size - 1 and 1 or 0)
    return t[{{first, last}}]
  end
  local function full_grads(net)
    local list = {}
    for name, p in net:named_parameters() do
      local joined = lm.zeros {size * p:size(1), unpack(p.shape, 2)}
      if p.grad then dist.all_gather_into_tensor(joined, p.grad) end
      list[name] = joined
    end
    return list
  end
  -- Fails unless the gradients of a sharded net are those of another.
  local function same_grads(what, net, alone)
    local got = full_grads(net)
    for name, p in alone:named_parameters() do
      if p.grad then
        local own = got[name]:view {-1}:narrow(1, 1, p:numel()):view(p.shape)
        local off = (own - p.grad):abs():max():item()
        if not (off < 1e-12) then error(what .. ": " .. name .. " is off by " .. off) end
      end
    end
  end
]], 60)

-- Trains 50 steps with a clipped norm.
local training = [[
  local alone, net = pair($opts)
  local steps = {optim.Adam(alone:parameters(), {lr = 0.01}), optim.Adam(net:parameters(), {lr = 0.01})}
  for step = 1, 50 do
    local x, y = batch(step)
    for _, opt in ipairs(steps) do opt:zero_grad() end
    local whole = loss_of(alone, x, y)
    whole:backward()
    local own = part_of(y)
    local part = loss_of(net, part_of(x), own)
    part:backward()
    local sum = dist.all_reduce(part:detach() * own:size(1)) / 8
    local grads = {}
    for i, p in ipairs(step == 1 and net:parameters() or {}) do grads[i] = p.grad end
    local first = step == 1 and nn.utils.get_total_norm(grads)
    local a = nn.utils.clip_grad_norm_(alone:parameters(), 0.1)
    if first and math.abs(a:item() - first:item()) > 1e-10 then error "get_total_norm differs" end
    local b = nn.utils.clip_grad_norm_(net:parameters(), 0.1)
    for _, opt in ipairs(steps) do opt:step() end
    if math.abs(sum:item() - whole:item()) > 1e-10 then error("step " .. step .. ": loss differs") end
    if math.abs(a:item() - b:item()) > 1e-10 then error("step " .. step .. ": norm differs") end
  end
]]

describe("nn.parallel.fully_shard", function()
  for _, case in ipairs {
    { 1, "nil" }, { 2, "nil" }, { 4, "nil" }, { 2, "{reshard_after_forward = true}" },
    { 2, "{reshard_after_forward = false}" },
    { 4, '{mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"replicate", "shard"}})}' },
    { 2, "{offload = true}" }, { 3, "nil", { LM_SHM = "0" } },
  } do
    it(("trains as one process does: %d ranks, %s"):format(case[1], case[2]), function()
      local script = training:gsub("%$opts", function() return case[2] end)
      if case[1] == 3 then script = script:gsub("batch%(step%)", "batch(step, 9)"):gsub("/ 8", "/ 9") end
      on.succeeds(case[1], script, case[3])
    end)
  end

  it("trains GPT-2, whose embedding is also its last layer, over two by two ranks", function()
    on.succeeds(4, [[
      local function make()
        lm.manual_seed(1)
        return lm.models.gpt2 {
          n_embd = 12, n_head = 3, n_layer = 3, vocab_size = 30, n_positions = 8, embd_pdrop = 0, resid_pdrop = 0,
          attn_pdrop = 0,
        }
      end
      local alone, net = make(), make()
      local opts = {mesh = dist.init_device_mesh("cpu", {2, 2}), reshard_after_forward = true}
      for name, m in net:named_modules() do
        if name:find "h%.%d$" then fully_shard(m, opts) end
      end
      fully_shard(net, opts)
      local steps = {optim.AdamW(alone:parameters(), {lr = 0.003}), optim.AdamW(net:parameters(), {lr = 0.003})}
      local function loss_of_ids(m, ids)
        return F.cross_entropy(m(ids):narrow(2, 1, 7):reshape(-1, 30), ids:narrow(2, 2, 7):reshape(-1))
      end
      for step = 1, 10 do
        lm.manual_seed(step)
        local ids = lm.randint(1, 31, {8, 8})
        for _, opt in ipairs(steps) do opt:zero_grad() end
        local whole, part = loss_of_ids(alone, ids), loss_of_ids(net, ids[{{2 * rank + 1, 2 * rank + 2}}])
        whole:backward()
        part:backward()
        for _, opt in ipairs(steps) do opt:step() end
        local sum = dist.all_reduce(part:detach():clone()) / 4
        if math.abs(sum:item() - whole:item()) > 1e-10 then error("step " .. step .. ": loss differs") end
      end
    ]])
  end)

  it("makes GPT-2 without memory, with the paper's deviations", function()
    on.succeeds(2, [[
      local net = nn.utils.init_empty_weights(lm.models.gpt2, {
        n_embd = 60, n_head = 3, n_layer = 2, vocab_size = 91, n_positions = 40, tie_word_embeddings = false,
      })
      for _, block in ipairs(net.transformer.h) do fully_shard(block) end
      fully_shard(net)
      local count = 0
      for name, t in pairs(nn.parallel.full_state_dict(net)) do
        local wanted = name:find "c_proj%.weight$" and 0.01 or 0.02
        if t.ndim == 2 then
          assert(math.abs(t:std():item() / wanted - 1) < 0.1, name .. ": " .. t:std():item())
          count = count + 1
        else
          assert(lm.equal(t, lm.full_like(t, name:find "ln_.%.weight$" and 1 or 0)), name)
        end
      end
      assert(count == 3 + 2 * 4 and net(lm.ones({1, 3}, {dtype = "int64"})):isfinite():all():item())
    ]])
  end)

  it("draws LLaMA, BERT and ViT made without memory as their constructors do", function()
    on.succeeds(2, [[
      local text = {hidden_size = 48, intermediate_size = 80, num_hidden_layers = 2, num_attention_heads = 4,
        vocab_size = 91, max_position_embeddings = 40}
      local function both(more)
        for key, value in pairs(text) do more[key] = more[key] or value end
        return more
      end
      local image = {image_size = 32, patch_size = 4, num_layers = 2, num_heads = 4, hidden_dim = 48, mlp_dim = 96}
      for i, case in ipairs {
        {"llama", both {attention_bias = true, pad_vocab_to = 8}},
        {"gemma", both {head_dim = 12, num_key_value_heads = 4}},
        {"bert", both {head = "masked_lm"}}, {"bert", both {head = "sequence_classification", num_labels = 3}},
        {"vit", image},
        {"dinov2", {image_size = 28, num_layers = 1, num_heads = 4, hidden_dim = 48, mlp_dim = 96}},
      } do
        local model, config = unpack(case)
        lm.manual_seed(i)
        local wanted = lm.models[model](config):state_dict()
        local net = nn.utils.init_empty_weights(lm.models[model], config)
        for name, m in net:named_modules() do
          if name:find "layers?%.%d+$" or name:find "layer_%d+$" then fully_shard(m) end
        end
        fully_shard(net)
        for name, t in pairs(nn.parallel.full_state_dict(net)) do
          local deviation, where = wanted[name]:std():item(), ("%s %d: %s"):format(model, i, name)
          if t:numel() == 1 or deviation == 0 then
            assert(lm.equal(t, wanted[name]), where)
          else
            local off = math.abs(t:std():item() / deviation - 1)
            assert(off < (t:numel() < 200 and 0.6 or 0.2), where .. ": a deviation of " .. t:std():item())
            local function is_uniform(x) return x:abs():max():item() / x:std():item() < 1.9 end
            assert(t:numel() < 100 or is_uniform(t) == is_uniform(wanted[name]), where)
          end
        end
        local x = config.image_size and lm.randn(1, 3, config.image_size, config.image_size) or lm.ones({1, 3}):long()
        local y = net(x)
        assert(y:isfinite():logical_or(y:eq(-math.huge)):all():item(), model .. " " .. i)
      end
      local function bias_of(seed) -- a bias of one element has memory
        lm.manual_seed(seed)
        return nn.parallel.full_state_dict(fully_shard(nn.utils.init_empty_weights(nn.Linear, 8, 1))).bias:item()
      end
      assert(bias_of(1) == bias_of(1) and bias_of(1) ~= bias_of(2))
      local Padded = nn.Module:extend "Padded" -- a reset_parameters that reaches below
      function Padded:init()
        self.emb, self.scale = nn.Embedding(5, 4), nn.Parameter(lm.zeros({}):expand {4})
        self:reset_parameters()
      end
      function Padded:reset_parameters()
        nn.init.constant_(self.emb.weight, 7)
        if self.scale:stride(1) > 0 then lm.no_grad(self.scale.fill_, self.scale, 2) end
      end
      function Padded:forward(ids) return self.emb(ids) * self.scale end
      local deep = nn.utils.init_empty_weights(Padded)
      fully_shard(deep.emb)
      assert(deep.emb.weight:eq(7):sum():item() > 0)
      lm.no_grad(deep.emb.weight.fill_, deep.emb.weight, 5)
      assert(fully_shard(deep)(lm.tensor {3}:long()):eq(10):all():item())
      local padded = fully_shard(nn.utils.init_empty_weights(nn.Embedding, 5, 4, {padding_idx = 3}))
      assert(padded(lm.tensor {3}:long()):eq(0):all():item() and padded(lm.tensor {2}:long()):ne(0):all():item())
    ]])
  end)

  it("holds rows of each parameter, and at most two blocks in full", function()
    on.succeeds(4, [[
      local function sum(net)
        local bytes = 0
        for _, p in ipairs(net:parameters()) do bytes = bytes + p.nbytes end
        return bytes
      end
      local base = lm.memory_allocated()
      local net = nn.Sequential()
      for i = 1, 8 do net:append(Block(128)) end
      local full, block = sum(net), sum(net[1])
      for _, b in ipairs(net) do fully_shard(b, {reshard_after_forward = true}) end
      fully_shard(net, {reshard_after_forward = true})
      collectgarbage()
      collectgarbage()
      local small = 150000 -- activations of one sample, and the collector's garbage
      local blocks = 2 * block * 9 / 8 -- the allocator rounds sizes up, by an eighth at most
      assert(net[1].up.weight.shape[1] == 96 and sum(net) == full / 4, "not a quarter")
      assert(lm.memory_allocated() - base <= full / 4 + small, "a full parameter is left")
      for step = 1, 3 do
        lm.reset_peak_memory_stats()
        local loss = net(lm.ones(1, 128)):sum()
        local peak = lm.max_memory_allocated() - base - (step > 1 and full / 4 or 0) -- gradients
        assert(peak <= full / 4 + blocks + small, ("forward: %d of %d"):format(peak, full))
        assert(lm.memory_allocated() - base <= full / 4 * (step > 1 and 2 or 1) + small, "left after forward")
        lm.reset_peak_memory_stats()
        loss:backward()
        -- gradients: the shards', those of a block, and those of the one before, joined and reduced
        peak = lm.max_memory_allocated() - base
        assert(peak <= full / 2 + 2 * blocks + block / 4 + small, ("backward: %d of %d"):format(peak, full))
        loss = nil
        collectgarbage()
        collectgarbage()
        local left = lm.memory_allocated() - base -- the last block's reduced gradients among it
        assert(left <= full / 2 + block / 4 + small, ("left after backward: %d of %d"):format(left, full))
      end
      net:zero_grad() -- frozen blocks, whose weights the gradient of the first one needs
      for i = 2, 8 do net[i]:requires_grad_(false) end
      lm.reset_peak_memory_stats()
      local loss = net(lm.ones(1, 128)):sum()
      loss:backward()
      local peak = lm.max_memory_allocated() - base
      assert(peak <= full / 2 + 2 * blocks + small, ("frozen: %d of %d"):format(peak, full))
      local kept = fully_shard(nn.Linear(256, 256), {reshard_after_forward = false})
      loss = kept(lm.ones(1, 256)) -- no backward frees what it gathered
      loss, net, kept = nil, nil, nil
      collectgarbage()
      lm.ones(1):requires_grad_():register_hook(function() end) -- lets go of functions that graphs no longer call
      jit.flush() -- compiled code refers to functions of the net
      for _ = 1, 4 do collectgarbage() end
      local left = lm.memory_allocated() - base
      assert(left <= small, "the net is not collected: " .. left)
    ]])
  end)

  it("adds gradients of several passes, and defers reductions in no_sync", function()
    on.succeeds(2, [[
      local alone, net = pair {reshard_after_forward = true}
      local x, y = batch(1)
      local function on_both(f)
        alone:zero_grad()
        net:zero_grad()
        f(alone, function(t) return t end)
        f(net, part_of)
      end
      on_both(function(m, part) -- two forward passes, then one backward
        local first, second = loss_of(m, part(x), part(y)), loss_of(m, part(y), part(x))
        local both = first + second
        both:backward()
      end)
      same_grads("two forwards", net, alone)
      on_both(function(m, part)
        local first, second = loss_of(m, part(x), part(y)), loss_of(m, part(y), part(x))
        second:backward()
        first:backward {retain_graph = true}
        first:backward()
      end)
      same_grads("three backwards", net, alone)
      local function half(t) return t[{{rank * 4 + 1, rank * 4 + 4}}] end
      local calls = 0
      on_both(function(m, part)
        if m == net then part = half end
        local function first()
          calls = calls + 1
          loss_of(m, part(x), part(y)):backward()
          return 7
        end
        if m == net then assert(net:no_sync(first) == 7 and not net.head.weight.grad) else first() end
        loss_of(m, part(y), part(x)):backward()
      end)
      assert(calls == 2)
      same_grads("no_sync", net, alone)
    ]])
  end)

  it("drops gradients that no_sync or a Pipeline's failed step added up, with zero_grad", function()
    on.succeeds(2, [[
      local alone, net = pair()
      local x, y = batch(1)
      loss_of(alone, x, y):backward()
      local half = x[{{rank * 4 + 1, rank * 4 + 4}}]
      local function pass(factor)
        (loss_of(net, half, y[{{rank * 4 + 1, rank * 4 + 4}}]) * factor):backward()
      end
      local opt = optim.SGD(net:parameters(), {lr = 0.1})
      for i, zero in ipairs {
        function() net:zero_grad() end, function() opt:zero_grad() end,
        function() net:zero_grad {set_to_none = false} end,
      } do
        net:no_sync(pass, i == 1 and 0 / 0 or 1)
        zero()
        pass(1)
        same_grads("after no_sync " .. i, net, alone)
        if i == 3 then net:no_sync(pass, 0 / 0) end
        net:zero_grad()
      end
      local mesh = dist.init_device_mesh("cpu", {size, 1}, {names = {"shard", "stage"}})
      local function make()
        lm.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
      end
      local plain = make()
      local pipe = nn.parallel.Pipeline(make(), {mesh = mesh.stage, split = {}, microbatches = 3, loss = F.mse_loss})
      fully_shard(pipe.stages[1], {mesh = mesh.shard})
      local a, b, count = lm.ones(6, 4), lm.zeros(6, 2), 0
      pipe.stages[1]:register_forward_hook(function(_, _, out)
        out:register_hook(function()
          count = count + 1
          if count == 2 then error "failed" end
        end)
      end)
      contains(message(pipe.step, pipe, a, b), "failed")
      pipe:zero_grad()
      pipe:step(a, b)
      F.mse_loss(plain(a), b):backward()
      same_grads("Pipeline", pipe.stages[1], plain)
    ]])
  end)

  it("averages unequal batches of several passes as DistributedDataParallel does", function()
    on.succeeds(2, [[
      lm.manual_seed(1)
      local copy = Net(10, 3)
      local ddp = nn.parallel.DistributedDataParallel(copy)
      lm.manual_seed(1)
      local net = shard(Net(10, 3), {reshard_after_forward = true})
      local x, y = batch(1, 16)
      local sizes = {{1, 5, 0}, {4, 2, 3}}
      local function pass(m, k, n)
        n = n or sizes[rank + 1][k]
        return loss_of(m, x:narrow(1, 4 * k - 3, n), y:narrow(1, 4 * k - 3, n)) / 2
      end
      local function on_both(what, f)
        for _, m in ipairs {ddp, net} do
          m:zero_grad()
          f(m)
        end
        same_grads(what, net, copy)
      end
      on_both("no_sync", function(m)
        m:no_sync(function() pass(m, 1):backward() end)
        m:no_sync(function() pass(m, 2):backward() end)
        lm.no_grad(pass, m, 1)
        m:eval()
        pass(m, 1)
        m:train()
        pass(m, 1):backward()
      end)
      on_both("the next average", function(m) pass(m, 2):backward() end)
      on_both("forward in no_sync, two forwards before a backward", function(m)
        local first = m:no_sync(pass, m, 1)
        local second = pass(m, 2)
        m:no_sync(function() first:backward() end)
        second:backward()
      end)
      on_both("an empty batch", function(m) pass(m, 3):backward() end)
      assert(net.head.weight.grad:isfinite():all():item())
      on_both("in evaluation mode", function(m)
        m:eval()
        m:no_sync(function() pass(m, 1):backward() end)
        pass(m, 2):backward()
        m:train()
      end)
    ]])
  end)

  it("takes frozen, shared and unused parameters, those without dims or with fewer rows than ranks", function()
    on.succeeds(3, [[
      local function change(net)
        net.head.weight = net.emb.weight
        net.blocks[2].up.weight:requires_grad_(false)
        net.blocks[1]:requires_grad_(false)
        net.scale = nn.Parameter(lm.tensor(1.5))
        net.two = nn.Parameter(lm.tensor {2, 3})
        net.unused = nn.Parameter(lm.ones {7, 3})
      end
      local before = Net.forward
      local alone, net = pair({reshard_after_forward = true}, change)
      function Net:forward(ids) return before(self, ids) * self.scale + self.two:sum() * self.two[2] end
      local x, y = batch(2, 9)
      for _ = 1, 2 do
        alone:zero_grad()
        net:zero_grad()
        loss_of(alone, x, y):backward()
        loss_of(net, part_of(x), part_of(y)):backward()
        same_grads("frozen", net, alone)
        assert(not net.blocks[1].up.weight.grad and not net.blocks[2].up.weight.grad)
        assert(net.unused.grad:eq(0):all():item())
      end
      assert(net.head.weight == net.emb.weight and net.scale.shape[1] == 1)
      contains(message(fully_shard, net), "sharded already")
    ]])
  end)

  it("warns once, on rank 0, if parameters beside the sharded ones are not averaged", function()
    local got = on.run(2, [[
      local net = Net(10, 2)
      for _, b in ipairs(net.blocks) do fully_shard(b) end
      local opt = optim.SGD(net:parameters(), {lr = 0.1})
      for step = 1, 2 do
        loss_of(net, batch(step)):backward()
        opt:step()
      end
      fully_shard(net)
      opt = optim.SGD(net:parameters(), {lr = 0.1})
      loss_of(net, batch(3)):backward()
      opt:step()
    ]])
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got[rank].output)
      local _, n = got[rank].output:gsub("is in no module of fully_shard, so that nothing averages", "")
      assert.equal(1 - rank, n, got[rank].output)
    end
    assert.matches("warning: SGD: parameter 1, [11, 10], is in no", got[0].output, 1, true)
  end)

  it("runs within checkpoints, without gradients, and again after an error in forward", function()
    on.succeeds(2, [[
      local alone, net = pair {reshard_after_forward = true}
      local x, y = batch(3)
      local plain = Net.forward
      local broken
      function Net:forward(ids)
        local h = self.emb(ids)
        for i, b in ipairs(self.blocks) do
          if broken and i == 2 then error "broken" end
          h = lm.autograd.checkpoint(b, h)
        end
        return self.head(self.norm(h))
      end
      loss_of(alone, x, y):backward()
      loss_of(net, part_of(x), part_of(y)):backward()
      same_grads("checkpoint", net, alone)
      broken = true
      contains(message(net, x), "broken")
      assert(net.emb.weight:size(1) == 6 and net.emb.weight.is_leaf)
      broken = false
      local a, b = lm.no_grad(function() return alone(x), net(x) end)
      assert((a - b):abs():max():item() < 1e-12)
      assert((alone:eval()(x) - net:eval()(x)):abs():max():item() < 1e-12)
    ]])
  end)

  it("runs checkpoints of a part of a unit again with its full parameters", function()
    on.succeeds(2, [[
      local checkpoint = lm.autograd.checkpoint
      local Part = nn.Module:extend "Part"
      function Part:init(is_frozen)
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.scale, self.shift = nn.Parameter(lm.full({1}, 2)), nn.Parameter(lm.full({5}, 3))
        self.shift:requires_grad_(not is_frozen)
      end
      function Part:forward(x)
        local h = checkpoint(self.b, self.a(x):tanh())
        h = checkpoint(function(h)
          return self.c(checkpoint(function(g) return (g * self.scale):square() + self.shift[5] end, h)):tanh()
        end, h)
        return checkpoint(F.linear, h, self.a.weight:narrow(2, 1, 3)) * self.scale
      end
      lm.manual_seed(3)
      local x = lm.randn(4, 4)
      local all = {{}, {reshard_after_forward = true}, {reshard_after_backward = false}, {prefetch = false}}
      for i, opts in ipairs(all) do
        for j, shard_parts in ipairs {lm.is_tensor, function(net) fully_shard(net[2].c, opts) end,
          function(net) fully_shard(net[2], opts) end} do
          local function make()
            lm.manual_seed(1)
            return nn.Sequential(nn.Linear(4, 4), Part(i == 2))
          end
          local alone, net = make(), make()
          shard_parts(net)
          fully_shard(net, opts)
          for _ = 1, 2 do
            alone(x):square():mean():backward()
            net(x:narrow(1, 2 * rank + 1, 2)):square():mean():backward()
          end
          same_grads(("case %d %d"):format(i, j), net, alone)
          assert(net[2].scale.shape[1] == 1 and net[2].scale.is_leaf and net[2].scale.grad.shape[1] == 1)
        end
      end
    ]])
  end)

  it("forgets models that were collected between two collections that finalize their tensors", function()
    on.succeeds(2, [[
      local function train()
        local net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        fully_shard(net[1])
        fully_shard(net, {reshard_after_forward = false})
        net(lm.randn(3, 4)):sum():backward()
        net(lm.randn(3, 4)) -- keeps the gathered tensors, whose functions lead to the model
      end
      for _ = 1, 4 do
        train()
        collectgarbage()
        lm.ones(1) -- releases the graph's functions
        collectgarbage()
      end
    ]])
  end)

  it("detects parameters and gathered tensors that changed before backward", function()
    on.succeeds(2, [[
      local _, net = pair {reshard_after_forward = true}
      local x, y = batch(4)
      local loss = loss_of(net, x, y)
      lm.no_grad(function() net.blocks[2].up.weight:add_(1) end)
      contains(message(loss.backward, loss), "changed it in place")
      local seen
      local forward = Block.forward
      function Block:forward(x)
        if not self.mark then return forward(self, x) end
        seen = self.up.weight
        lm.no_grad(function() self.up.weight:mul_(2) end)
        return forward(self, x)
      end
      local alone = pair()
      net:load_state_dict(alone:state_dict())
      for _, is_training in ipairs {true, false} do
        net.blocks[2].mark = true
        local function run() return net(x) end
        contains(message(is_training and run or lm.no_grad, run), "up.weight was changed in place in forward")
        contains(message(function() return seen:sum() end), "freed")
        net.blocks[2].mark = nil
        net:zero_grad()
        alone:zero_grad()
        loss_of(alone, x, y):backward()
        loss_of(net, x, y):backward()
        same_grads("after the error", net, alone)
      end
      local short = fully_shard(nn.Embedding(5, 2, {max_norm = 0.1}), {reshard_after_backward = false})
      contains(message(short, lm.ones({1, 1}):long()), "fully_shard: weight was changed in place in forward")
      contains(message(function()
        lm.autograd.grad(loss_of(net, x, y), net.head.weight, {create_graph = true})
      end), "create_graph")
    ]])
  end)

  it("makes a model without memory shard by shard, and reads and returns full state dicts", function()
    on.succeeds(2, [[
      local alone = pair()
      local net = nn.utils.init_empty_weights(Net, 10, 3)
      lm.manual_seed(1)
      fully_shard(net.emb)
      for _, b in ipairs(net.blocks) do fully_shard(b) end
      fully_shard(net)
      local wanted = alone:state_dict()
      local full = nn.parallel.full_state_dict(net)
      for name, t in pairs(wanted) do assert(lm.equal(full[name], t), name) end
      local one = nn.parallel.full_state_dict(net, {dst = 1})
      assert((one == nil) == (rank == 0))
      contains(message(nn.parallel.full_state_dict, net, {dst = 2}), "dst must be from 0 to 1, got 2")
      lm.manual_seed(9)
      local other = Net(10, 3)
      net:load_state_dict(other:state_dict())
      full = nn.parallel.full_state_dict(net)
      for name, t in pairs(other:state_dict()) do assert(lm.equal(full[name], t), name) end
      net:load_state_dict(net:state_dict())
      for _ = 1, 3 do -- none of which waits for the collector
        collectgarbage()
        local large, base = nn.utils.init_empty_weights(nn.Linear, 512, 512), lm.memory_allocated()
        fully_shard(large)
        local left = lm.memory_allocated() - base
        assert(left < 512 * 512 * 8 / 2 * 9 / 8, "a full parameter is left: " .. left)
      end
      local Bare = nn.Module:extend "Bare"
      function Bare:init() self.w = nn.Parameter(lm.zeros({}):expand {2, 2}) end
      function Bare:forward(x) return x end
      contains(message(fully_shard, Bare()), "define Bare:reset_parameters()")
    ]])
  end)

  it("computes in another dtype than that of the shards", function()
    on.succeeds(2, [[
      local seen = {}
      local forward = Block.forward
      function Block:forward(x)
        seen[#seen + 1] = {x.dtype, self.up.weight.dtype}
        return forward(self, x)
      end
      local alone, net = pair {mixed_precision = {param_dtype = "float32", reduce_dtype = "float64"}}
      local x, y = batch(5)
      loss_of(alone, x, y):backward()
      seen = {}
      local out = net(part_of(x))
      assert(out.dtype == "float32")
      F.cross_entropy(out:view(-1, 11), part_of(y):reshape(-1)):backward()
      assert(#seen == 3 and seen[1][1] == "float32" and seen[1][2] == "float32")
      local p = net.blocks[1].up.weight
      assert(p.dtype == "float64" and p.grad.dtype == "float64")
      local joined = lm.zeros {30, 10}
      dist.all_gather_into_tensor(joined, p.grad)
      local off = (joined - alone.blocks[1].up.weight.grad):abs():max():item()
      assert(off < 1e-6 and off > 0, off)
      contains(message(fully_shard, nn.Linear(2, 2), {mixed_precision = {param_dtyp = "float32"}}), "param_dtype")
      contains(message(fully_shard, nn.Linear(2, 2), {mixed_precision = {reduce_dtype = "int64"}}),
        "mixed_precision.reduce_dtype must be floating, got")
    ]])
  end)

  describe("in checkpoints", function()
    local folder
    setup(function() folder = temp.folder() end)
    teardown(function() temp.remove(folder) end)

    -- Trains steps 1 to 4 and saves, or loads and trains steps 5 to 8; losses are those of one process.
    local half = [[
      local alone = pair()
      lm.manual_seed(rank + 5)
      local net = $layout
      local steps = {optim.Adam(alone:parameters(), {lr = 0.01}), optim.Adam(net:parameters(), {lr = 0.01})}
      local path, saves = "$folder/" .. "$name", $saves
      local parts = {net = net, opt = steps[2], step = 4}
      if saves then net:load_state_dict(alone:state_dict()) end
      for step = 1, saves and 4 or 8 do
        local x, y = batch(step, 12)
        for _, opt in ipairs(steps) do opt:zero_grad() end
        local whole = loss_of(alone, x, y)
        whole:backward()
        steps[1]:step()
        if step == 5 then assert(lm.checkpoint.load(path, parts).step == 4) end
        if saves or step > 4 then
          local own = part_of(y)
          local part = loss_of(net, part_of(x), own)
          part:backward()
          steps[2]:step()
          local sum = dist.all_reduce(part:detach() * own:size(1)) / 12
          if math.abs(sum:item() - whole:item()) > 1e-10 then error("step " .. step .. ": loss differs") end
        end
      end
      if saves then lm.checkpoint.save(path, parts) end
    ]]
    local function run(n, name, layout, saves)
      on.succeeds(n, (half:gsub("%$(%w+)", { folder = folder, name = name, layout = layout, saves = tostring(saves) })))
    end
    local sharded, plain = "shard(Net(10, 3))", "Net(10, 3)"
    local hybrid = 'shard(Net(10, 3), {mesh = dist.init_device_mesh("cpu", {2, 2})})'

    it("saves shards of two ranks, and loads them over one, three and two by two", function()
      run(2, "two", sharded, true)
      run(1, "two", plain, false)
      run(1, "two", sharded, false)
      run(3, "two", sharded, false)
      run(4, "two", hybrid, false)
    end)

    it("saves those of two by two once, and loads them and a plain net's over two", function()
      run(4, "hybrid", hybrid, true)
      run(2, "hybrid", sharded, false)
      run(1, "plain", plain, true)
      run(2, "plain", sharded, false)
      run(2, "plain", "shard(Net(10, 3), {offload = true})", false)
    end)

    it("refuses shards that no rank has saved", function()
      on.succeeds(1, [[
        local net = fully_shard(nn.Linear(2, 3))
        local opt = optim.Adam(net:parameters())
        net(lm.ones(1, 2)):sum():backward()
        opt:step()
        local function load(object, state)
          local given = false
          return message(object.load_shards, object, function()
            given = not given
            return given and state or nil
          end)
        end
        local t = lm.ones(3, 2)
        local function of_weight(saved)
          return {tensors = {weight = t, bias = lm.ones(3)}, shards = {weight = saved}}
        end
        contains(load(net, {}), "must have tables")
        contains(load(net, {tensors = {}, shards = {}}), "have no 'bias'")
        contains(load(net, {tensors = {other = t}, shards = {}}), "has no 'other'")
        contains(load(net, {tensors = {weight = 3}, shards = {}}), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, 2}, first = -1, chunk = 3}), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, "2"}, first = 0, chunk = 3}), "malformed")
        contains(load(net, of_weight(7)), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, 4}, first = 0, chunk = 3}), "to have shape [3, 2], got [3, 4]")
        t = lm.ones(3, 5)
        contains(load(net, of_weight {shape = {3, 2}, first = 0, chunk = 3}), "got [3, 2] from a tensor [3, 5]")
        local good = opt:shard_state_dict()
        for _, bad in ipairs {3, {shape = 1}, {shape = {3, 2}, first = 0.5, chunk = 3}} do
          local dict = opt:shard_state_dict()
          dict.shards = {bad, bad}
          contains(load(opt, dict), "is malformed")
        end
        local given = false
        opt:load_shards(function()
          given = not given
          return given and good or nil
        end)
      ]])
    end)

    it("refuses shards of another model, on all ranks", function()
      run(2, "other", sharded, true)
      local got = on.run(2, ([[
        lm.checkpoint.load("%s/other", {net = shard(Net(12, 3)), opt = nil})
      ]]):format(folder))
      for rank = 0, 1 do
        assert.not_equal(0, got[rank].code)
        assert.matches("to have shape [", got[rank].output, 1, true)
      end
    end)
  end)

  it("takes part in loss scaling: all ranks skip a step", function()
    on.succeeds(2, [[
      local _, net = pair()
      local opt, scaler = optim.SGD(net:parameters(), {lr = 0.1}), lm.amp.GradScaler {init_scale = 4, enabled = true}
      local x, y = batch(6)
      for step = 1, 2 do
        opt:zero_grad()
        scaler:scale(loss_of(net, part_of(x), part_of(y))):backward()
        if step == 2 and rank == 1 then net.head.weight.grad:fill_(math.huge) end
        local before = net.emb.weight:detach():clone()
        scaler:step(opt)
        scaler:update()
        assert(lm.equal(before, net.emb.weight:detach()) == (step == 2), "step " .. step)
        assert(scaler:get_scale() == (step == 1 and 4 or 2))
      end
      local whole = nn.Parameter(lm.ones(1)) -- with it an optimizer of a rank has a gradient of no shard
      local mixed = optim.SGD({whole, net.head.weight}, {lr = 0.1})
      for step = 3, 5 do
        mixed:zero_grad()
        scaler:scale(loss_of(net, part_of(x), part_of(y))):backward()
        if step == 3 and rank == 0 then whole.grad = lm.ones(1) end
        if step < 5 and rank == 0 then net.head.weight.grad = nil end
        if step == 5 then mixed:zero_grad() end
        if step == 4 then net.head.weight.grad = nil end
        if step == 4 and rank == 1 then net.head.weight.grad = lm.full_like(net.head.weight:detach(), math.huge) end
        if step == 5 then
          contains(message(scaler.step, scaler, mixed), "no parameter of this optimizer has a gradient")
        else
          scaler:step(mixed)
          scaler:update()
        end
        assert(scaler:get_scale() == (step == 3 and 2 or 1), "step " .. step)
      end
    ]])
  end)

  it("computes gradients of inputs and by lm.autograd.grad, with plain means, on several devices", function()
    on.succeeds(2, [[
      local function make()
        lm.manual_seed(1)
        return nn.Linear(4, 6), nn.Linear(6, 3):to "cpu:1"
      end
      local Pair = nn.Module:extend "Pair"
      function Pair:init(a, b)
        self.a = a
        self.b = b
      end
      function Pair:forward(x) return self.b(F.tanh(self.a(x)):to "cpu:1") end
      local alone, net = Pair(make()), Pair(make())
      local opts = {batch_dim = false, reshard_after_forward = true}
      fully_shard(net.a, opts)
      fully_shard(net.b, opts)
      fully_shard(net, opts)
      lm.manual_seed(2)
      local x = lm.randn(4, 4):requires_grad_()
      local own = x:detach()[{{2 * rank + 1, 2 * rank + 2}}]:requires_grad_()
      local wanted = lm.autograd.grad(alone(x):square():mean(), {x, alone.a.weight, alone.b.weight})
      local got = lm.autograd.grad(net(own):square():mean(), {own, net.a.weight, net.b.weight})
      local function near(a, b) assert((a - b):abs():max():item() < 1e-12) end
      near(got[1] / 2, wanted[1][{{2 * rank + 1, 2 * rank + 2}}])
      near(got[2], wanted[2][{{3 * rank + 1, 3 * rank + 3}}])
      local rows = rank == 0 and 2 or 1
      near(got[3][{{1, rows}}], wanted[3][{{2 * rank + 1, 2 * rank + rows}}])
      assert(net.a.weight.grad == nil and got[3].device == "cpu:1")
    ]])
  end)

  it("keeps averages of weights, sharded too, and saves them with buffers that have no dims", function()
    on.succeeds(2, [[
      lm.manual_seed(1)
      local alone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
      local net = alone:clone()
      local averages = {optim.AveragedModel(alone, {decay = 0.9}), optim.AveragedModel(net, {decay = 0.9})}
      contains(message(optim.AveragedModel, fully_shard(alone:clone())), "clone it before")
      fully_shard(net)
      contains(message(averages[2].update, averages[2], net), "where the averaged model has")
      fully_shard(averages[2].module)
      local steps = {optim.SGD(alone:parameters(), {lr = 0.1}), optim.SGD(net:parameters(), {lr = 0.1})}
      lm.manual_seed(2)
      local x = lm.randn(8, 4) -- the same on all ranks, so that the layer normalizes alike
      for _ = 1, 3 do
        for i, m in ipairs {alone, net} do
          steps[i]:zero_grad()
          m(x):square():mean():backward()
          steps[i]:step()
          averages[i]:update(m)
        end
      end
      local path = os.tmpname()
      if rank == 1 then os.remove(path) end
      local paths = {path}
      dist.broadcast_object_list(paths, 0)
      local parts = {net = net, average = averages[2], opt = steps[2]}
      lm.checkpoint.save(paths[1], parts)
      lm.no_grad(function() for _, p in ipairs(averages[2]:parameters()) do p:zero_() end end)
      lm.checkpoint.load(paths[1], parts)
      dist.barrier()
      if rank == 0 then os.execute("rm -f " .. path .. "*") end
      local full = nn.parallel.full_state_dict(averages[2].module)
      for name, t in pairs(averages[1].module:state_dict()) do
        assert((full[name] - t):abs():max():item() < 1e-12, name)
      end
    ]])
  end)

  it("is refused by optimizers whose steps treat a parameter as a whole, unless one rank has it", function()
    for n = 1, 2 do
      on.succeeds(n, [[
        for _, name in ipairs {"LAMB", "Muon", "Adafactor"} do
          local net = nn.Linear(4, 6, {bias = false})
          local opt = optim[name](net:parameters(), {lr = 0.1}) -- before the parameters are divided
          fully_shard(net)
          net(lm.ones(2, 4)):sum():backward()
          local before = net.weight:detach():clone()
          if size == 1 then
            opt:step()
            assert(not lm.equal(before, net.weight:detach()))
          else
            contains(message(opt.step, opt), name .. ": a step needs all elements of a parameter, but 2 ranks divide "
              .. "'weight'; choose another optimizer")
            net = nn.parallel.parallelize(nn.Sequential(nn.Linear(4, 6, {bias = false})),
              dist.init_device_mesh("cpu", {2}), {["0"] = "column"})
            net(lm.ones(2, 4)):sum():backward()
            opt = optim[name](net:parameters())
            contains(message(opt.step, opt), "divide one of shape [6, 4]")
          end
        end
      ]])
    end
  end)

  it("is refused by what takes tensors of one rank as they are, and refuses parameters that were replaced", function()
    on.succeeds(2, [[
      local net = fully_shard(nn.Linear(4, 6))
      contains(message(nn.parallel.DistributedDataParallel, net), "parameter 'weight' is sharded by fully_shard; it")
      local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
      contains(message(fully_shard, ddp), "DistributedDataParallel averages gradients itself; shard the module in it")
      contains(message(fully_shard, nn.Sequential(ddp)), "fully_shard: DistributedDataParallel averages gradients")
      local mixed = nn.Sequential(fully_shard(nn.Linear(2, 2):requires_grad_(false)), nn.Linear(2, 2))
      contains(message(nn.parallel.DistributedDataParallel, mixed), "parameter 'weight' is sharded by fully_shard; it")
      contains(message(optim.ZeroRedundancyOptimizer, net:parameters(), {optimizer_class = optim.Adam}), "'weight' is")
      contains(message(optim.LBFGS, net:parameters()), "LBFGS needs all elements")
      local function batch_dim(make, ...) return message(make(nn.Linear(4, 6), {batch_dim = 9}), ...) end
      contains(batch_dim(fully_shard, lm.ones(2, 4)),
        "fully_shard: batch_dim must be at most 2, the number of dims of the first tensor, got 9")
      contains(batch_dim(nn.parallel.DistributedDataParallel, lm.ones(4)),
        "DistributedDataParallel: batch_dim must be at most 1, the number of dims of the first tensor, got 9")
      local Scale = nn.Module:extend "Scale"
      function Scale:init() self.weight = nn.Parameter(lm.ones(1)) end
      function Scale:forward(x) return self.weight * x end
      assert(fully_shard(Scale())(lm.tensor(3)):item() == 3) -- one sample
      local weight = net.weight
      net.bias = nn.Parameter(lm.randn(6))
      contains(message(net, lm.ones(2, 4)), "parameter 'bias' was replaced; assign")
      assert(net.weight == weight)
    ]])
  end)

  it("refuses parameters whose data has another shape than the rank's rows, and takes other rows", function()
    on.succeeds(2, [[
      local net = fully_shard(nn.Linear(4, 6))
      local before = net(lm.ones(2, 4)):detach():clone()
      net.bias.data = net.bias.data + 1
      assert((net(lm.ones(2, 4)) - before - 1):abs():max():item() < 1e-12)
      net.weight.data = lm.ones(6, 4)
      for _, f in ipairs {
        function() net(lm.ones(2, 4)) end, function() nn.parallel.full_state_dict(net) end,
        function() lm.checkpoint.save("none", {net = net}) end,
      } do
        contains(message(f), "expected weight to have shape [3, 4], this rank's rows, got [6, 4]; load_state_dict")
      end
      assert(net.weight:size(1) == 6 and net.bias:size(1) == 3)
      net.weight.data = lm.ones(3, 4)
      assert((net(lm.ones(2, 4)) - net(lm.zeros(2, 4)) - 4):abs():max():item() < 1e-12)
    ]])
  end)

  it("returns parameters from forward, in tables too", function()
    on.succeeds(2, [[
      local Table = nn.Module:extend "Table"
      function Table:init()
        self.a = nn.Parameter(lm.ones(3))
        self.b = nn.Parameter(lm.ones(2, 3))
      end
      function Table:forward(x)
        local t = {x = x, {self.b, 0 / 0}, self.b}
        t.loop = t
        return self.a, t
      end
      local net = fully_shard(Table(), {reshard_after_forward = true})
      local a, t = net(lm.ones(1, 3))
      local loss = (a * t[2] * t[1][1]):sum() + t.x:sum()
      assert(loss:item() == 9)
      loss:backward()
      assert((net.b.grad - 2):abs():max():item() == 0)
    ]])
  end)

  it("gathers in calls of the module and of the methods it is given, and refuses calls of its parts", function()
    on.succeeds(2, [[
      function Net:encode(ids, n) return self.blocks[1](self.emb(ids)), n end
      local alone, net = Net(10, 2), Net(10, 2)
      alone:load_state_dict(net:state_dict())
      for _, p in ipairs(alone:parameters()) do dist.broadcast(p.data) end
      fully_shard(net.blocks[2])
      fully_shard(net, {methods = {"encode"}})
      local x = batch(1)
      local function check()
        local h, n = net:encode(x, 5)
        assert(n == 5 and lm.equal(h, (alone:encode(x))) and lm.equal(net(x), alone(x)))
        return h
      end
      for _ = 1, 2 do
        contains(message(net.emb, x), "fully_shard: 'emb' is a part of Net, which gathers its parameters while it "
          .. "runs; call that, name a method of it in {methods = {…}}, or shard 'emb' in a call of its own")
        contains(message(net.blocks[1], lm.ones(2, 10)), "'blocks.0.norm' is a part of Net")
        contains(message(net.blocks[2].up, lm.ones(2, 10)), "'up' is a part of Block")
        assert(net.blocks[2](lm.ones(2, 10)).shape[2] == 10)
        check()
      end
      local function failing() error "amid a pass" end
      local hook = net.head:register_forward_pre_hook(failing)
      contains(message(net, x), "amid a pass")
      hook:remove()
      contains(message(net.emb, x), "is a part of Net")
      check():sum():backward()
      alone:encode(x):sum():backward()
      same_grads("encode", net, alone)
      contains(message(fully_shard, nn.ModuleList {nn.Linear(2, 2)}), "fully_shard: ModuleList has no forward; "
        .. "shard each of its modules, or the module that calls them")
      contains(message(fully_shard, nn.Linear(2, 2), {methods = {"encode"}}), "methods[1] must be the name of a method")
    ]])
  end)

  it("names the place of a rank that ends amid a pass", function()
    local got = on.run(3, [[
      local _, net = pair {reshard_after_forward = true}
      local x, y = batch(1, 9)
      local loss = loss_of(net, part_of(x), part_of(y))
      if rank == 2 then error "lost the data" end
      loss:backward()
    ]])
    for rank = 0, 1 do
      assert(got[rank].code ~= 0 and got[rank].seconds < 10, got.text)
      assert.matches(("rank %d = shard %d; rank 2 = shard 2"):format(rank, rank), got[rank].output, 1, true)
    end
  end)

  it("follows a net that is converted to another dtype", function()
    on.succeeds(2, [[
      local alone, net = pair {reshard_after_forward = true}
      net:float()
      alone:float()
      local x, y = batch(7)
      loss_of(alone, x, y):backward()
      local loss = loss_of(net, part_of(x), part_of(y))
      loss:backward()
      assert(loss.dtype == "float32" and net.head.weight.grad.dtype == "float32")
      net:double()
      alone:double()
      net:zero_grad()
      alone:zero_grad()
      loss_of(alone, x, y):backward()
      loss_of(net, part_of(x), part_of(y)):backward()
      same_grads("double", net, alone)
    ]])
  end)

  it("refuses models that differ, and names the rank's place in the mesh", function()
    local got = on.run(2, [[
      fully_shard(nn.Linear(2, rank + 3))
    ]])
    for rank = 0, 1 do assert.not_equal(0, got[rank].code) end
    assert.matches("module differs from rank 0's: here 'weight', float64 [4, 2]", got[1].output, 1, true)
    assert.matches("rank 0 = shard 0; rank 1 = shard 1", got[0].output, 1, true)
    on.succeeds(2, [[
      local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      net[2].weight = net[1].weight
      fully_shard(net[1])
      contains(message(fully_shard, net), "'1.weight' of this Sequential is 'weight' of a Linear that is sharded")
      contains(message(fully_shard, nn.Linear(2, 2), {mesh = 3}), "mesh must be")
      contains(message(net[1].clone, net[1]), "cannot be cloned")
    ]])
  end)
end)
