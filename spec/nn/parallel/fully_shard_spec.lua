-- nn.parallel.fully_shard: parameters sharded by rows, gathered while they are used.
local on = require "spec.support.sharded"

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
      -- Activations of one sample, the collector's garbage, and what the allocator adds to sizes of shards.
      local small = 150000 + full / 4 / 8
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
      local left
      for _ = 1, 10 do -- stale slots of the stack keep the net for one or two rounds at times
        lm.ones(1):requires_grad_():register_hook(function() end) -- lets go of functions that graphs no longer call
        jit.flush() -- compiled code refers to functions of the net
        for _ = 1, 4 do collectgarbage() end
        left = lm.memory_allocated() - base
        if left <= small then break end
      end
      assert(left <= small, "the net is not collected: " .. left)
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
        assert(not net.unused.grad)
      end
      assert(net.head.weight == net.emb.weight and net.scale.shape[1] == 1)
      contains(message(fully_shard, net), "sharded already")
    ]])
  end)

  it("leaves parameters that no rank uses without a gradient, and gives all ranks that of others", function()
    on.succeeds(2, [[
      local Parts = nn.Module:extend "Parts"
      function Parts:init()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, {bias = false})
      end
      function Parts:forward(x, uses)
        for _, name in ipairs(uses) do x = self[name](x):tanh() end
        return x
      end
      local half = {mixed_precision = {reduce_dtype = "float16"}}
      for i, opts in ipairs {half, {}, {reshard_after_forward = true}, {offload = true}} do
        lm.manual_seed(1)
        local alone = Parts()
        local net = fully_shard(alone:clone(), opts)
        local steps = {optim.AdamW(alone:parameters(), {lr = 0.1, weight_decay = 0.5}), nil}
        steps[2] = optim.AdamW(net:parameters(), {lr = 0.1, weight_decay = 0.5})
        for step, uses in ipairs {
          {{"a", "b"}, {"a"}}, {{"a"}, {"a"}}, {{"c", "a"}, {"a", "b"}}, {{"b", "a", "a"}, {"b"}},
        } do
          local x = lm.randn(2, 4)
          for _, opt in ipairs(steps) do opt:zero_grad() end
          local loss = (alone(x[{{1, 1}}], uses[1]):sum() + alone(x[{{2, 2}}], uses[2]):sum()) / 2
          loss:backward()
          net(x[{{rank + 1, rank + 1}}]:requires_grad_(), uses[rank + 1]):sum():backward()
          local has = {}
          for _, list in ipairs(uses) do for _, name in ipairs(list) do has[name] = true end end
          for name, p in net:named_parameters() do
            assert((p.grad ~= nil) == (has[name:sub(1, 1)] or false), ("case %d, step %d: %s"):format(i, step, name))
          end
          for _, opt in ipairs(steps) do opt:step() end
          for name, t in pairs(nn.parallel.full_state_dict(net)) do
            local off = (t - alone:state_dict()[name]):abs():max():item()
            local where = ("case %d, step %d: %s is off by %g"):format(i, step, name, off)
            assert(off < (opts == half and 0.02 or 1e-12), where)
          end
        end
        net:zero_grad()
        local x = lm.ones(1, 4):requires_grad_()
        net:no_sync(function() net(x, {"a", "c"}):sum():backward() end)
        net(x, {"a"}):sum():backward()
        assert(net.c.weight.grad and net.a.bias.grad and not net.b.weight.grad)
      end
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
        assert(left < 513 * 512 * 8 / 2 * 9 / 8, "a full parameter is left: " .. left)
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
      local Nested = nn.Module:extend "Nested"
      function Nested:init() self.layer = nn.Linear(2, 2) end
      function Nested:forward(batch, cache)
        cache.seen = true
        return {y = self.layer(batch.x[1])}
      end
      local nested, cache = Nested():double(), {ids = lm.ones(2):long()}
      fully_shard(nested, {mixed_precision = {param_dtype = "float32", output_dtype = "float64"}})
      local result = nested({x = {lm.ones(3, 2)}}, cache)
      assert(result.y.dtype == "float64" and cache.seen, "tensors in a table, or a table that forward writes to")
      contains(message(fully_shard, nn.Linear(2, 2), {mixed_precision = {param_dtyp = "float32"}}), "param_dtype")
      contains(message(fully_shard, nn.Linear(2, 2), {mixed_precision = {reduce_dtype = "int64"}}),
        "mixed_precision.reduce_dtype must be floating, got")
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
        contains(message(net.emb.forward, net.emb, x), "'emb' is a part of Net")
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

  it("enters at most 70 Lua functions of the library in a forward of three layers, and swaps no forward", function()
    on.succeeds(2, [[
      jit.off()
      local records = require "luminary.nn.module_fields"
      local folder = debug.getinfo(records.of, "S").source:match "^(.*/)nn/"
      local function entered(f)
        local n = 0
        debug.sethook(function()
          if debug.getinfo(2, "S").source:sub(1, #folder) == folder then n = n + 1 end
        end, "c")
        f()
        debug.sethook()
        return n
      end
      local net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8))
      fully_shard(net)
      local x, record, seen = lm.randn(4, 8), records.of(net[2]), nil
      local function state() return {record.__call, record.values.forward} end
      for _ = 1, 2 do net(x):sum():backward() end
      local n = entered(function() net(x) end)
      assert(n > 20 and n <= 70, "a forward entered " .. n)
      n = lm.no_grad(function() return entered(function() net(x) end) end)
      assert(n > 20 and n <= 70, "without gradients " .. n)
      local before = state()
      net[2]:register_forward_hook(function() seen = state() end)
      net(x)
      assert(seen[1] == before[1] and seen[2] == before[2])
    ]])
  end)

  it("fuses layers of a unit as of a plain net, and sees a child that a list gets between two calls", function()
    on.succeeds(2, [[
      local net, alone = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
      fully_shard(net, {batch_dim = false})
      lm.manual_seed(4)
      local x = lm.randn(2, 3, 4, 4)
      local y, wanted = net(x), alone(x)
      assert(y.grad_fn == wanted.grad_fn and lm.equal(y, wanted), y.grad_fn)
      net[2] = nn.Linear(4, 4)
      contains(message(net, x), "parameter '1.weight' was replaced or added")
    ]])
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
end)
