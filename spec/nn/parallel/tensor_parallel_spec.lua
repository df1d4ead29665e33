-- nn.parallel.parallelize: layers divided over the ranks of a mesh by a plan; the functions beneath it.
local several = require "spec.support.several"
local temp = require "spec.support.temp"

local on = several([[
  local functions = require "luminary.nn.parallel.collective_functions"
  local parallelize, fully_shard = nn.parallel.parallelize, nn.parallel.fully_shard
  local cross_entropy = nn.parallel.vocabulary_cross_entropy
  lm.set_default_dtype "float64"
  local function mesh_of(shape, names) return dist.init_device_mesh("cpu", shape, {names = names}) end
  local function gpt2(more)
    lm.manual_seed(1)
    local config = {
      n_embd = 16, n_head = 4, n_layer = 2, vocab_size = 32, n_positions = 8, embd_pdrop = 0, resid_pdrop = 0,
      attn_pdrop = 0,
    }
    for key, value in pairs(more or {}) do config[key] = value end
    return lm.models.gpt2(config)
  end
  local function llama(name, more)
    lm.manual_seed(1)
    local config = {
      hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
      num_key_value_heads = 2, head_dim = 4, vocab_size = 32, max_position_embeddings = 16,
    }
    for key, value in pairs(more or {}) do config[key] = value end
    return lm.models[name](config)
  end
  -- A block in the way of scripts: attention with a q, k and v of their own, dropout, and tied weights.
  local Net = nn.Module:extend("Net")
  function Net:init(rate)
    self.tok = nn.Embedding(24, 16)
    self.norm = nn.LayerNorm(16)
    for _, name in ipairs {"q", "k", "v", "out"} do self[name] = nn.Linear(16, 16) end
    self.drop = nn.Dropout(rate or 0)
    self.head = nn.Linear(16, 24, {bias = false})
    self.head.weight = self.tok.weight
  end
  function Net:forward(ids)
    local h = self.tok(ids)
    local x = self.norm(h)
    local n, q = ids:size(1), self.q(x)
    local function heads(t) return t:view(n, t:size(2), -1, 4):transpose(2, 3) end
    local y = F.scaled_dot_product_attention(heads(q), heads(self.k(x)), heads(self.v(x)), {is_causal = true})
    h = h + self.drop(self.out(y:transpose(2, 3):reshape(n, q:size(2), -1)))
    return self.head(h)
  end
  local plan = {
    tok = "vocabulary", norm = "sequence", q = "column", k = "column", v = "column", out = "row",
    drop = "sequence", head = "vocabulary",
  }
  local function batch(step, n)
    lm.manual_seed(step)
    local ids = lm.randint(1, 25, {n, 8})
    return ids, lm.randint(1, 25, {n, 8})
  end
  local function shard(net, mesh)
    for name, m in net:named_modules() do
      if name:find "%.%d$" then fully_shard(m, {mesh = mesh}) end
    end
    return fully_shard(net, {mesh = mesh})
  end
  local function furthest(net, alone)
    local full, off = nn.parallel.full_state_dict(net), 0
    for name, t in pairs(alone:state_dict()) do off = math.max(off, (full[name] - t):abs():max():item()) end
    return off
  end
  -- Trains a model beside one process's on n samples a rank of `others`, the dim that has its own samples.
  local function same_training(what, alone, net, mesh, others, steps, model)
    local place, ranks = others and others:get_local_rank() or 0, others and others:size() or 1
    local opts = {optim.AdamW(alone:parameters(), {lr = 0.003}), optim.AdamW(net:parameters(), {lr = 0.003})}
    for step = 1, steps do
      local ids, y = batch(step, 2 * ranks)
      local scores = alone(ids)
      local whole = F.cross_entropy(scores:flatten(1, 2), y:view(-1))
      local function own(t) return t:narrow(1, 2 * place + 1, 2) end
      local part = cross_entropy((model or net)(own(ids)), own(y), mesh)
      for _, opt in ipairs(opts) do opt:zero_grad() end
      whole:backward()
      part:backward()
      local a = nn.utils.clip_grad_norm_(alone:parameters(), 0.1)
      local b = nn.utils.clip_grad_norm_(net:parameters(), 0.1)
      for _, opt in ipairs(opts) do opt:step() end
      local sum = part:detach():clone()
      if others then dist.all_reduce(sum, {group = others:get_group()}) end
      local off = math.abs(sum:item() / ranks - whole:item())
      if not (off < 1e-12) then error(("%s: step %d: loss is off by %g"):format(what, step, off)) end
      off = math.abs(a:item() - b:item())
      if not (off < 1e-12) then error(("%s: step %d: norm is off by %g"):format(what, step, off)) end
    end
    local off = furthest(net, alone)
    if not (off < 1e-12) then error(("%s: parameters are off by %g"):format(what, off)) end
    return opts[2]
  end
]], 60)

describe("collectives with gradients", function()
  it("have the gradients of one process, first and second, and errors with the place in the mesh", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      lm.manual_seed(1)
      local x = lm.randn(4, 6, 3):requires_grad_()
      local function check(what, y, factor) -- y is factor * x^2 on all ranks
        local function near(name, a, b)
          if not ((a - b):abs():max():item() < 1e-9) then error(what .. ": " .. name) end
        end
        near("value", y, factor * x ^ 2)
        local g = lm.autograd.grad(y:square():sum(), {x}, {create_graph = true})[1]
        near("gradient", g, 4 * factor ^ 2 * x ^ 3)
        near("second gradient", lm.autograd.grad(g:sum(), {x})[1], 12 * factor ^ 2 * x ^ 2)
      end
      check("copy and reduce", functions.reduce((functions.copy(x, mesh) * (rank + 1)):square(), mesh), 5)
      for d = 1, 2 do
        check("split and gather", functions.gather(functions.split(x, mesh, d):square(), mesh, d), 1)
        local part = functions.gather_partial(functions.split(x, mesh, d), mesh, d) * (rank + 1)
        check("partial", functions.gather(functions.reduce_scatter(part:square(), mesh, d), mesh, d), 5)
      end
      local sent = functions.all_to_all(functions.split(x, mesh, 1), mesh)
      check("all_to_all", functions.gather(functions.all_to_all(sent, mesh), mesh, 1):square(), 1)
      local own = functions.split(x, mesh, 1):detach():requires_grad_()
      local y = functions.all_to_all(own, mesh, rank == 0 and {2, 0} or {1, 1}, rank == 0 and {2, 1} or {0, 1})
      assert(y:size(1) == (rank == 0 and 3 or 1))
      local g = lm.autograd.grad(y:square():sum(), {own})[1]
      assert((g - 2 * own):abs():max():item() == 0)
      contains(message(functions.split, x, mesh, 3), "the size of dim 3 (3) must be divisible by the number of ranks")
    ]])
    local got = on.run(2, [[
      local mesh = mesh_of({1, 2}, {"shard", "tensor"})
      if rank == 0 then
        functions.reduce(lm.ones(3), mesh["tensor"])
      else
        functions.reduce(lm.ones(4), mesh["tensor"])
      end
    ]])
    assert.is_falsy(got.ok)
    assert.match("rank 0 = shard 0, tensor 0", got.text)
  end)
end)

describe("nn.parallel.parallelize", function()
  local dir = temp.during(setup, teardown)

  it("trains 50 steps as one process: GPT-2 over 4 ranks, with and without sequence", function()
    on.succeeds(4, [[
      local mesh = mesh_of({4}, {"tensor"})
      for _, sequence in ipairs {false, true} do
        local alone, net = gpt2(), gpt2()
        lm.manual_seed(rank) -- ranks may start with other values: the first one's count
        if rank > 0 then net:reset_parameters() end
        parallelize(net, mesh, net:parallel_plan {sequence = sequence})
        assert(net.transformer.h[1].attn.c_attn.weight:size(2) == 12 and net.transformer.wte.weight:size(1) == 8)
        same_training("gpt2", alone, net, mesh, nil, 50)
      end
    ]])
  end)

  it("divides each family of models, fused and tied weights, and vocabularies with padding", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      local makers = {
        untied = function() return gpt2 {tie_word_embeddings = false, vocab_size = 29, pad_vocab_to = 8} end,
        llama = function() return llama("llama", {attention_bias = true, mlp_bias = true}) end,
        gpt2_padded = function() return gpt2 {vocab_size = 29, pad_vocab_to = 8} end,
      }
      for _, name in ipairs {"qwen3", "phi3", "gemma", "gemma2", "gemma3"} do
        makers[name] = function() return llama(name) end
      end
      for _, name in ipairs {"gemma", "gemma2", "gemma3", "gpt2_padded", "llama", "phi3", "qwen3", "untied"} do
        for _, sequence in ipairs {false, true} do
          local alone, net = makers[name](), makers[name]()
          parallelize(net, mesh, net:parallel_plan {sequence = sequence})
          same_training(name, alone, net, mesh, nil, 3)
          for _, each in ipairs {alone, net} do each:eval() end
          local ids = batch(9, 2)
          local whole, part = alone(ids), lm.no_grad(function() return net(ids) end)
          local n = part:size(3)
          assert((whole:narrow(3, rank * n + 1, n):exp() - part:exp()):abs():max():item() < 1e-10)
        end
      end
      -- The same tokens, with a cache of this rank's heads.
      local alone, net = llama "llama", llama "llama"
      parallelize(net, mesh, net:parallel_plan {gather = true})
      local ids = batch(1, 2)
      local opts = {max_new_tokens = 5, do_sample = false}
      assert(lm.equal(alone:eval():generate(ids, opts), net:eval():generate(ids, opts)))
      for _, divided in ipairs {gpt2(), llama "llama"} do
        parallelize(divided, mesh, divided:parallel_plan())
        contains(message(divided.generate, divided, ids, {max_new_tokens = 1}), "generate: this rank computes a part "
          .. "of the scores; pass nn.parallel.parallelize the plan of parallel_plan {gather = true}")
      end
    ]])
  end)

  it("takes plans of a script's own module, in autocast, checkpoints and with second derivatives", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      local function pair(change)
        lm.manual_seed(1)
        local alone = Net()
        lm.manual_seed(1)
        return alone, parallelize(Net(), mesh, change or plan)
      end
      local without = {tok = "vocabulary", ["*"] = "column", out = "row", head = "vocabulary", norm = "replicated",
        drop = "replicated"}
      for _, each in ipairs {plan, without} do
        local alone, net = pair(each)
        same_training("net", alone, net, mesh, nil, 5)
      end
      -- Layouts of inputs and outputs that differ from the defaults.
      lm.manual_seed(1)
      local one, two = nn.Linear(6, 8), nn.Linear(8, 4)
      local x = lm.randn(3, 6):requires_grad_()
      local wanted = two(one(x))
      local expected = lm.autograd.grad(wanted:square():sum(), {x})[1]
      parallelize(one, mesh, {style = "column", output = "replicated"})
      parallelize(two, mesh, {style = "row", input = "replicated"})
      local y = one(x)
      assert(y:size(2) == 8)
      y = two(y)
      assert((y - wanted):abs():max():item() < 1e-12)
      local g = lm.autograd.grad(y:square():sum(), {x}, {create_graph = true})[1]
      assert((g - expected):abs():max():item() < 1e-12)
      local emb = nn.Embedding(5, 6)
      dist.broadcast(emb.weight.data)
      local rows = emb(lm.tensor {{2, 5}}:long())
      parallelize(emb, mesh, {style = "column", output = "replicated"})
      assert((emb(lm.tensor {{2, 5}}:long()) - rows):abs():max():item() == 0)

      local alone, net = pair()
      local ids, target = batch(1, 2)
      local function grads(f)
        net:zero_grad()
        cross_entropy(f(), target, mesh):backward()
        local list = {}
        for name, p in net:named_parameters() do list[name] = p.grad:clone() end
        return list
      end
      local first = grads(function() return net(ids) end)
      local again = grads(function() return lm.autograd.checkpoint(function(i) return net(i) end, ids) end)
      for name, grad in pairs(first) do assert((grad - again[name]):abs():max():item() < 1e-14, name) end
      -- Layers of one input share what they make of it, but not with what a checkpoint computes again.
      local all_reduce, calls = dist.all_reduce, 0
      dist.all_reduce = function(...)
        calls = calls + 1
        return all_reduce(...)
      end
      local function run_alike(inside)
        lm.manual_seed(2)
        local two, x = nn.Module(), lm.randn(2, 3, 4):requires_grad_()
        two.a, two.b = nn.Linear(4, 4), nn.Linear(4, 4)
        parallelize(two, mesh, {["*"] = "column"})
        local function call(layer, h)
          if inside then return lm.autograd.checkpoint(function(t) return layer(t) end, h) end
          return layer(h)
        end
        local h = x * 2
        local y = call(two.a, h):square() + two.b(h)
        calls = 0
        y:sum():backward()
        return x.grad, calls
      end
      local without, once = run_alike(false)
      local with, twice = run_alike(true)
      dist.all_reduce = all_reduce
      assert((without - with):abs():max():item() < 1e-14)
      assert(once == 1 and twice == 2, "collectives: " .. once .. ", " .. twice)
      -- Twice through one graph.
      net:zero_grad()
      local loss = cross_entropy(net(ids), target, mesh)
      loss:backward {retain_graph = true}
      loss:backward()
      for name, p in net:named_parameters() do assert((p.grad - 2 * first[name]):abs():max():item() < 1e-14, name) end
      -- Second derivatives: the gradient of a norm of gradients.
      local function penalty(m, loss)
        local gs = lm.autograd.grad(loss, {m.norm.weight}, {create_graph = true})
        m:zero_grad()
        gs[1]:square():sum():backward()
        return m.norm.bias.grad
      end
      lm.set_default_dtype "float64"
      local off = penalty(alone, F.cross_entropy(alone(ids):flatten(1, 2), target:view(-1)))
        - penalty(net, cross_entropy(net(ids), target, mesh))
      assert(off:abs():max():item() < 1e-12)
      -- In bfloat16 within its precision; frozen parameters get no gradient.
      net.norm.weight:requires_grad_(false)
      net.out.bias:requires_grad_(false)
      net:zero_grad()
      net:float()
      local logits = lm.autocast({device_type = "cpu", dtype = "bfloat16"}, function() return net(ids) end)
      assert(logits.dtype == "bfloat16")
      cross_entropy(logits, target, mesh):backward()
      assert(net.norm.weight.grad == nil and net.out.bias.grad == nil)
      assert((net.q.weight.grad:double() - first["q.weight"]):abs():max():item() < 0.02)
    ]])
  end)

  it("joins the input of layers in turn once, when the collector runs on one rank alone", function()
    on.succeeds(2, [[
      local mesh = mesh_of {2}
      local Pair = nn.Module:extend("Pair")
      function Pair:init()
        self.norm = nn.LayerNorm(4)
        self.q, self.k, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)
      end
      function Pair:forward(x)
        local h = self.norm(x)
        local q = self.q(h)
        for _ = 1, rank == 0 and 3 or 0 do collectgarbage() end
        return self.out(q * self.k(h))
      end
      lm.manual_seed(1)
      local alone = Pair()
      local net = parallelize(alone:clone(), mesh, {
        norm = {style = "sequence", input = "replicated"}, q = "column", k = "column",
        out = {style = "row", output = "replicated"},
      })
      local x = lm.randn(2, 8, 4)
      local wanted, y = alone(x), net(x)
      wanted:square():sum():backward()
      y:square():sum():backward()
      assert(lm.allclose(wanted, y) and lm.allclose(alone.norm.weight.grad, net.norm.weight.grad))
    ]])
  end)

  it("draws the same where activations are replicated, and each rank its own where they are divided", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      local function draw(style)
        local layer = parallelize(nn.Dropout(0.5), mesh, style)
        lm.manual_seed(5)
        local x = lm.ones(2, 64, 4)
        local y, after = layer(x), lm.rand(3)
        local all = lm.zeros(2, 2, 64, 4)
        dist.all_gather_into_tensor(all, y)
        local both = lm.zeros(2, 3)
        dist.all_gather_into_tensor(both, after)
        assert(lm.equal(both[1], both[2]), "the generators went apart")
        -- A checkpoint draws the same numbers again.
        local p = lm.ones(2, 64, 4):requires_grad_()
        local z = lm.autograd.checkpoint(function(t) return layer(t) * t end, p)
        z:sum():backward()
        assert((p.grad - 2 * z:detach()):abs():max():item() == 0)
        return lm.equal(all[1], all[2])
      end
      assert(draw "replicated" and not draw "sequence" and not draw "divided")
      local net = gpt2 {attn_pdrop = 0.5}
      parallelize(net, mesh, net:parallel_plan {gather = true})
      local weights = {}
      net.transformer.h[1].attn.attend:register_forward_hook(function(_, _, y) weights[1] = y:detach() end)
      net((batch(1, 2)))
      local all = lm.zeros(2, unpack(weights[1].shape))
      dist.all_gather_into_tensor(all, weights[1]:contiguous())
      local zeros = all:eq(0)
      assert(zeros[1]:any():item() and not lm.equal(zeros[1], zeros[2]))
    ]])
  end)

  it("computes the loss of a divided vocabulary as F.cross_entropy does", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      lm.manual_seed(3)
      local x, target = lm.randn(5, 7, 6) * 30, lm.randint(1, 7, {5, 7})
      target[1][1], target[2][3] = -100, 3
      x[3][1][6], x[3][1][5], x[3][1][4] = -math.huge, -math.huge, -math.huge -- all classes of rank 1
      target[3][1] = 2
      for _, o in ipairs {{}, {reduction = "sum"}, {reduction = "none"}, {label_smoothing = 0.1}, {ignore_index = 3}} do
        local a, b = x:clone(), x:narrow(3, 3 * rank + 1, 3):clone()
        local t = target:clone()
        if o.ignore_index then t[1][1] = 3 end
        if o.label_smoothing then a:clamp_(-9, 9) b:clamp_(-9, 9) end
        a:requires_grad_()
        b:requires_grad_()
        local wanted = F.cross_entropy(a:view(-1, 6), t:view(-1), o)
        local got = cross_entropy(b, t, mesh, o)
        assert((wanted - got:view(wanted.shape)):abs():max():item() < 1e-12)
        wanted:sum():backward()
        got:sum():backward()
        assert((a.grad:narrow(3, 3 * rank + 1, 3) - b.grad):abs():max():item() < 1e-12)
      end
      local part = x:narrow(3, 1, 3)
      target[5][7] = 7
      contains(message(cross_entropy, part, target, mesh), "index 7 is out of range for 6 classes")
      contains(message(cross_entropy, part, target[1], mesh), "target must have the shape of logits without its last")
      contains(message(cross_entropy, part, target, nil), "a mesh of one dim")
      contains(message(cross_entropy, part, target:double(), mesh), "int64")
      local emb = parallelize(nn.Embedding(6, 2, {padding_idx = 5}), mesh, "vocabulary")
      contains(message(emb, lm.tensor {7}:long()), "index 7 is out of range for 6 entries")
      contains(message(emb, lm.tensor {0}:long()), "index 0 is out of range for 6 entries")
      emb(lm.tensor {5, 4, 1}:long()):sum():backward()
      local wanted = rank == 0 and {{1, 1}, {0, 0}, {0, 0}} or {{1, 1}, {0, 0}, {0, 0}}
      assert(lm.equal(emb.weight.grad, lm.tensor(wanted)))
    ]])
  end)

  it("composes with fully_shard and DistributedDataParallel, in checkpoints of any layout", function()
    on.succeeds(4, ([[
      local dir = "%s/"
      for i, case in ipairs {
        {{"shard", "tensor"}, gpt2, true}, {{"tensor", "shard"}, function() return llama("phi3") end, false},
        {{"replicate", "tensor"}, gpt2, false},
      } do
        local names, make, sequence = unpack(case)
        local mesh = mesh_of({2, 2}, names)
        local others = mesh[names[1] == "tensor" and names[2] or names[1] ]
        local alone, net, model = make(), make(), nil
        parallelize(net, mesh["tensor"], net:parallel_plan {sequence = sequence})
        if names[1] == "replicate" then
          local ddp = nn.parallel.DistributedDataParallel
          contains(message(ddp, net), "hold different parts of 'transformer.wte.weight'")
          model = ddp(net, {process_group = others:get_group()})
        else
          contains(message(fully_shard, net), "hold different parts of '")
          shard(net, others)
        end
        local opt = same_training(i, alone, net, mesh["tensor"], others, 5, model)
        lm.checkpoint.save(dir .. i, {net = net, opt = opt})
        if rank == 0 then lm.save(dir .. i .. ".full", alone:state_dict()) end
        local layouts = {
          plain = function() end,
          tensor_4 = function(m) parallelize(m, mesh_of({4}), m:parallel_plan()) end,
          shard_4 = function(m) shard(m) end,
          turned = function(m)
            local other = mesh_of({2, 2}, {names[2], names[1]})
            parallelize(m, other["tensor"], m:parallel_plan())
            if names[1] ~= "replicate" then shard(m, other["shard"]) end
          end,
        }
        if i == 2 then layouts.tensor_4 = nil end -- two heads of k and v
        for _, name in ipairs(i < 3 and {"plain", "shard_4", "tensor_4", "turned"} or {"tensor_4"}) do
          if layouts[name] then
            local other = make()
            for _, p in ipairs(other:parameters()) do p.data:zero_() end
            layouts[name](other)
            local loaded = optim.AdamW(other:parameters(), {lr = 0.1})
            lm.checkpoint.load(dir .. i, {net = other, opt = loaded})
            if not (furthest(other, alone) < 1e-10) then error(name .. ": parameters differ") end
            -- The state of each parameter, as the full one: exp_avg of its own part is saved and loaded alike.
            if name == "turned" then
              lm.checkpoint.save(dir .. "again", {net = other, opt = loaded})
              local back = optim.AdamW(net:parameters(), {lr = 0.1})
              lm.checkpoint.load(dir .. "again", {net = net, opt = back})
              for _, p in ipairs(net:parameters()) do
                assert(lm.equal(back.state[p].exp_avg, opt.state[p].exp_avg))
              end
            end
            -- A full state dict.
            for _, p in ipairs(other:parameters()) do p.data:zero_() end
            other:load_state_dict(alone:state_dict())
            if not (furthest(other, alone) == 0) then error(name .. ": the full state dict differs") end
          end
        end
      end
    ]]):format(dir))
    -- One process loads what four wrote.
    on.succeeds(1, ([[
      for i, net in ipairs {gpt2(), llama("phi3"), gpt2()} do
        local opt = optim.AdamW(net:parameters(), {lr = 0.1})
        lm.checkpoint.load("%s/" .. i, {net = net, opt = opt})
        for name, t in pairs(lm.load("%s/" .. i .. ".full")) do
          assert((net:state_dict()[name] - t):abs():max():item() < 1e-10)
        end
        assert(opt.state[net:parameters()[1] ].exp_avg:abs():sum():item() > 0)
      end
      local net = gpt2()
      parallelize(net, mesh_of({1}), net:parallel_plan())
      assert(lm.equal(net((batch(1, 2))), gpt2()((batch(1, 2)))))
    ]]):format(dir, dir))
  end)

  it("divides a model without memory, which loads a full state dict by parts", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      local whole = Net()
      for _, p in ipairs(whole:parameters()) do dist.broadcast(p.data) end
      local net = nn.utils.init_empty_weights(function() return Net() end)
      net.head.weight = net.tok.weight
      parallelize(net, mesh, plan)
      assert(net.q.weight:stride(1) == 0 and net.q.weight:size(1) == 8, "memory was allocated")
      net:load_state_dict(whole:state_dict(), {assign = true})
      assert(net.q.weight:size(1) == 8)
      same_training("net", whole, net, mesh, nil, 3)
    ]])
  end)

  it("gives a model without memory the values of one that is made on the first rank", function()
    on.succeeds(4, [[
      local mesh = mesh_of({2, 2}, {"shard", "tensor"})
      local Tied = nn.Module:extend "Tied"
      function Tied:init()
        self.tok = nn.Embedding(8, 6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 6))
        self.norm = nn.Linear(6, 6)
        self.head = nn.Linear(6, 8)
        self.head.weight = self.tok.weight
      end
      function Tied:forward(ids) return self.head(self.norm(self.body(self.tok(ids)))) end
      local plan = {tok = "vocabulary", head = {style = "column", output = "replicated"}}
      plan["body.0"], plan["body.2"] = "column", "row"
      local function make()
        local net = parallelize(nn.utils.init_empty_weights(Tied), mesh.tensor, plan)
        lm.manual_seed(7 + rank)
        return net
      end
      lm.manual_seed(7)
      local alone = Tied()
      local function check(net, first)
        local full = nn.parallel.full_state_dict(net)
        lm.manual_seed(7 + first)
        local wanted = Tied():state_dict()
        wanted["head.bias"] = full["head.bias"] -- its weight, which is tied, is not drawn
        for name, t in pairs(full) do assert(lm.equal(wanted[name], t), name) end
      end
      local first = mesh:get_local_rank "shard" * 2 -- the first rank of this one's group of tensor parallel
      check(make(), first)
      local ids, net = lm.arange(1, 9):long():view(1, 8), make()
      contains(message(net.state_dict, net), "state_dict: 'tok.weight' gets its values in the first forward pass; call")
      local scores = net(ids)
      assert(net:state_dict()["tok.weight"]:size(1) == 4)
      local full, one = nn.parallel.full_state_dict(net), Tied()
      one:load_state_dict(full)
      assert(lm.allclose(one(ids), scores))
      check(net, first)
      net = make()
      net.body(lm.ones(1, 6)) -- the first call is one of a part
      check(net, first)
      check(fully_shard(make(), {mesh = mesh.shard}), 0)
      check(nn.parallel.DistributedDataParallel(make(), {process_group = mesh:get_group "shard"}).module, 0)
      net = make()
      net:load_state_dict(alone:state_dict(), {assign = true})
      net(ids)
      full = nn.parallel.full_state_dict(net)
      for name, t in pairs(alone:state_dict()) do assert(lm.equal(full[name], t), name) end
    ]])
  end)

  it("draws the values of a divided model without memory as those of the full one", function()
    on.succeeds(2, [[
      local mesh = mesh_of({1, 2}, {"shard", "tensor"})
      lm.manual_seed(3)
      local net = nn.utils.init_empty_weights(function() return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) end)
      parallelize(net, mesh["tensor"], {["0"] = "column", ["1"] = "row"})
      assert(net[1].weight:stride(1) == 0, "memory was allocated")
      shard(net, mesh["shard"])
      assert(net[1].weight:size(1) == 32 and net[2].weight:size(2) == 32)
      local full = nn.parallel.full_state_dict(net)
      for name, dim in pairs {["0.weight"] = 1, ["1.weight"] = 2} do
        local most, a, b = full[name]:abs():max():item(), unpack(full[name]:chunk(2, dim))
        assert(most > 0.12 and most <= 0.125, name .. " has a bound of " .. most)
        assert((a - b):abs():mean():item() > 0.06, "ranks have equal parts of " .. name)
      end
      assert(net(lm.ones(2, 64)):isfinite():all():item())
      local moe = nn.utils.init_empty_weights(nn.MixtureOfExperts, 4, 8, 4, {mesh = mesh["tensor"]})
      fully_shard(moe.experts, {mesh = mesh["shard"]})
      local w = nn.parallel.full_state_dict(fully_shard(moe, {mesh = mesh:flatten {"shard", "tensor"}}))["experts.w1"]
      assert(w.shape[1] == 4 and not lm.equal(w[1], w[3]))
    ]])
  end)

  it("does not add the norm of one rank to a sum of another, whose list has no divided parameter", function()
    local got = on.run(2, [[
      local net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
      parallelize(net, mesh_of({2}, {"tensor"}), {["0"] = {style = "column", output = "replicated"}})
      net(lm.ones(2, 4)):square():sum():backward()
      nn.utils.clip_grad_norm_(rank == 0 and net:parameters() or net[2]:parameters(), 0.1)
      dist.all_reduce(lm.tensor(1))
    ]])
    for rank = 0, 1 do
      -- "called" where a rank finds it, "waits in" where the store does, whichever is first
      assert.matches("rank 0 on [^ ]+ %l+[ in]*norm of order 2, max_norm 0.1, over all ranks at [^ ]+script.lua:%d+, "
        .. "rank 1 on [^ ]+ %l+[ in]*all_reduce sum float64 %[%]", got[rank].output)
    end
  end)

  it("counts an infinite gradient of one rank on all", function()
    on.succeeds(2, [[
      local net = parallelize(nn.Linear(2, 2), mesh_of({2}), "column")
      local opt = optim.SGD(net:parameters(), {lr = 1})
      local scaler = lm.amp.GradScaler {init_scale = 4}
      local before = net.weight:detach():clone()
      local y = net(lm.ones(1, 2)):sum()
      scaler:scale(rank == 0 and y * math.huge or y):backward()
      scaler:step(opt)
      scaler:update()
      assert(lm.equal(net.weight.data, before) and scaler:get_scale() == 2)
    ]])
  end)

  it("divides a vocabulary that is not divisible by the number of ranks", function()
    for n = 2, 4, 2 do
      on.succeeds(n, [[
        local both = size == 4 and mesh_of({2, 2}, {"shard", "tensor"})
        local mesh = both and both.tensor or mesh_of({2}, {"tensor"})
        local function check(what, make, options, divided, others)
          local alone, net = make(), make()
          parallelize(net, divided, net:parallel_plan(options))
          if others then shard(net, others) end
          same_training(what, alone, net, divided, others, 4)
        end
        check("gpt2", function() return gpt2 {vocab_size = 31} end, {}, mesh, both and both.shard)
        check("sequence", function() return llama("llama", {vocab_size = 33}) end, {sequence = true}, mesh,
          both and both.shard)
        if both then check("four", function() return gpt2 {vocab_size = 29} end, {}, mesh_of({4}, {"tensor"})) end

        local alone, net, ids = gpt2 {vocab_size = 31}, gpt2 {vocab_size = 31}, batch(1, 2)
        parallelize(net, mesh, net:parallel_plan {gather = true})
        local wanted, got = alone(ids), net(ids)
        assert(got.shape == wanted.shape and (got - wanted):abs():max():item() < 1e-12)
        wanted:square():mean():backward()
        got:square():mean():backward()
        for name, t in pairs(net:state_dict()) do
          assert(name ~= "transformer.wte.weight" or t.shape[1] == 16 - mesh:get_local_rank())
        end
        local function near(a, b) assert((a - b):abs():max():item() < 1e-12) end
        near(net.transformer.h[1].mlp.c_fc.weight.grad:sum(), alone.transformer.h[1].mlp.c_fc.weight.grad
          :unflatten(2, {2, -1}):select(2, mesh:get_local_rank() + 1):sum())
        net:load_state_dict(alone:state_dict())
        assert(furthest(net, alone) == 0)

        local logits, y = lm.randn(5, 7):half():double(), lm.tensor({1, 4, 5, 7, 2}):long()
        local own = mesh:get_local_rank() == 0 and logits:narrow(2, 1, 4)
          or lm.cat({logits:narrow(2, 5, 3), lm.full({5, 1}, -math.huge)}, 2)
        for _, smoothing in ipairs {0, 0.2} do
          near(cross_entropy(own, y, mesh, {label_smoothing = smoothing}),
            F.cross_entropy(logits, y, {label_smoothing = smoothing}))
        end
        local small, plan = gpt2 {vocab_size = 5}, {["transformer.wte"] = "vocabulary", lm_head = "vocabulary"}
        contains(size == 4 and message(parallelize, small, mesh_of({4}, {"all"}), plan) or "has 5, which must be",
          "has 5, which must be")
      ]])
    end
  end)

  it("gives ranks copies of heads of keys and values, if there are fewer than ranks", function()
    on.succeeds(4, [[
      local both, all = mesh_of({2, 2}, {"shard", "tensor"}), mesh_of({4}, {"tensor"})
      local function check(what, name, config, options, divided, others)
        local alone, net = llama(name, config), llama(name, config)
        parallelize(net, divided, net:parallel_plan(options))
        if others then shard(net, others) end
        local opt = same_training(what, alone, net, divided, others, 4)
        assert(net.model.layers[1].self_attn.k_proj.weight.shape[1] == 4 / (others and others:size() or 1))
        return net, opt
      end
      local net, opt = check("two of four", "llama", {}, {}, all)
      check("one of two", "qwen2", {num_key_value_heads = 1}, {sequence = true}, both.tensor, both.shard)
      check("with norms", "qwen3", {num_key_value_heads = 1, head_dim = 4}, {}, all)
      local net16, ids = llama("llama"):bfloat16(), batch(1, 2)
      local wanted = net16(ids)
      local got = parallelize(llama("llama"):bfloat16(), all, net16:parallel_plan {gather = true})(ids)
      assert(got.dtype == "bfloat16" and (got - wanted):abs():max():item() < 0.05)

      local path = {os.tmpname()}
      dist.broadcast_object_list(path, 0)
      lm.checkpoint.save(path[1], {net = net, opt = opt})
      local saved = 0
      for _, state in pairs(net:shard_state_dict().tensors) do saved = saved + state:numel() end
      local sum = dist.all_reduce(lm.tensor(saved))
      local whole = 0
      for _, p in ipairs(llama("llama"):parameters()) do whole = whole + p:numel() end
      assert(sum:item() == whole, "each part is saved once")
      local plain = llama("llama")
      lm.checkpoint.load(path[1], {net = plain, opt = optim.AdamW(plain:parameters())})
      assert(furthest(net, plain) == 0)
      dist.barrier()
      if rank == 0 then os.execute("rm -f " .. path[1] .. "*") end
      local cached = net:new_cache(2, 8)
      local y = net(ids:narrow(2, 1, 4), {cache = cached})
      assert((y - net(ids:narrow(2, 1, 4))):abs():max():item() < 1e-12)
      contains(message(parallelize, llama("llama", {num_key_value_heads = 4, num_attention_heads = 12, head_dim = 4}),
        mesh_of({4}, {"x"}), {["model.layers.*.self_attn.q_proj"] = {style = "column", unit = 16, shared = true}}),
        "has 3 units of 16, which must be divisible")
    ]])
  end)

  it("refuses what it cannot divide, by name", function()
    on.succeeds(2, [[
      local mesh = mesh_of({2}, {"tensor"})
      local function refuses(net, plan, wanted) contains(message(parallelize, net, mesh, plan), wanted) end
      local net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))
      refuses(net, {["3"] = "row"}, "no module matches '3', a key of plan")
      refuses(Net(), {heat = "row"}, "no module matches 'heat', a key of plan; did you mean 'head'?")
      refuses(net, {["0"] = "colum"}, "did you mean 'column'?")
      refuses(net, {["1"] = "column"}, "the linear layer of GPT-2, not for GELU")
      refuses(net, {["2"] = "column"}, "'2': dim 1 of a tensor [3, 6] has 3, which must be divisible by the number of "
        .. "ranks (2)")
      refuses(net, {["0"] = {style = "column", unit = 2}}, "has 3 units of 2, which must be divisible by the number")
      refuses(net, {["0"] = {style = "column", parts = 4}}, "the size of its output (6) must be divisible by parts (4)")
      refuses(net, {["0"] = {style = "column", parts = {2, 2}}}, "parts must be sizes whose sum is 6, got 4")
      refuses(net, {["0"] = {style = "row", parts = 2}}, "unknown option 'parts'")
      refuses(net, {["0"] = {style = "column", parts = 3, output = "replicated"}}, "parts cannot be joined again")
      refuses(net, {["0"] = {style = "column", output = "sequence"}}, "output")
      refuses(net, {["*"] = "replicated", ["?"] = "row"}, "no module matches '?'")
      refuses(net, {["0*"] = "column", ["*0"] = "column"}, "plan has two keys for '0'")
      refuses(net, {["0"] = "column", ["1"] = "sequence"}, 'the plan has "sequence", but no style for \'2\' (Linear)')
      refuses(net, 3, "plan must be a table of styles by module names")
      contains(message(parallelize, net, nil, {}), 'mesh["tensor"]')
      contains(message(parallelize, net, mesh_of({1, 2}), {}), "mesh must be a mesh of one dim")
      local tied = Net()
      refuses(tied, {tok = "vocabulary"}, "'head.weight' is 'tok.weight', which the plan divides; name both")
      refuses(tied, {tok = "vocabulary", head = "row"}, "which the plan divides in two ways")
      refuses(gpt2(), {["transformer.wte"] = "vocabulary"}, "name 'lm_head' in the plan")
      local one = gpt2 {n_head = 1}
      refuses(one, one:parallel_plan(), "has 1 units of 16, which must be divisible by the number of ranks (2)")
      refuses(nn.Embedding(4, 4, {max_norm = 1}), "vocabulary", "max_norm or scale_grad_by_freq cannot be divided")
      refuses(nn.BatchNorm1d(4), "sequence", "statistics of a part of the batch")
      refuses(tied, {tok = "vocabulary", head = "vocabulary", [""] = "divided"}, "is within ''")
      refuses(fully_shard(nn.Linear(4, 4)), "column", "call parallelize before fully_shard")
      local twice = parallelize(nn.Linear(4, 4), mesh, "column")
      refuses(twice, "column", "in the plan of an earlier call")
      contains(message(twice), "the input")
      contains(message(twice.clone, twice), "a module of parallelize cannot be cloned")
      contains(message(lm.quantize, nn.Sequential(twice)), "quantize: 0: nn.parallel.parallelize has divided it")
      contains(message(optim.ZeroRedundancyOptimizer, twice:parameters(), {optimizer_class = optim.Adam}),
        "divided over ranks already, and their state with them; use optim.Adam")
      local lone = parallelize(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), mesh, {["0"] = "column"})
      for _ = 1, 2 do
        contains(message(lone, lm.ones(2, 4)), "got [2, 3]; parallelize: '0': \"column\" returned this rank's part of "
          .. "the features, for a \"row\"; {output = \"replicated\"} joins them, and a fused layer")
      end
      local pair = parallelize(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), mesh, {["0"] = "column", ["1"] = "row"})
      contains(message(pair, lm.ones(2, 5)), "linear: expected x")
      local whole = parallelize(nn.Sequential(nn.Embedding(4, 4)), mesh, {["0"] = {style = "sequence",
        input = "replicated"}})
      contains(message(whole, lm.arange(1, 5)), "'0': \"sequence\" is along dim 2 of an input, got a tensor [4]; "
        .. "positions are [1, L]")
      contains(message(whole, lm.ones {1, 3}), "'0': the size of dim 2 (3) must be divisible by the number")
      assert(whole(lm.arange(1, 5):view(1, 4)).shape[2] == 2)
      contains(message(parallelize, nn.Linear(4, 4), mesh, rank == 0 and "column" or "row"),
        rank == 0 and "plan differs" or "plan differs from rank 0's: here '' is \"row\"")
    ]])
  end)

  describe("names the rank, and its place in the mesh, that differs in", function()
    local function differs(what, script, wanted)
      it(what, function()
        local got = on.run(2, 'local mesh = mesh_of({2}, {"tensor"})\n' .. script .. "\ndist.barrier()")
        for rank = 0, 1 do assert.is_nil(got[rank].output:find("finished", 1, true), got.text) end
        assert.matches(wanted, got[1].output, 1, true)
        assert.matches("rank 1 = tensor 1", got[1].output, 1, true)
      end)
    end

    differs("parameters that are frozen", [[
      local net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
      net[2].bias:requires_grad_(rank == 0)
      parallelize(net, mesh, {["0"] = "column", ["1"] = "row"})
    ]], "the plan differs from rank 0's: here '1.bias', float64 [4], without gradient; there '1.bias', float64 [4]")

    differs("the batch of a vocabulary", [[
      local net = gpt2()
      parallelize(net, mesh, net:parallel_plan {})
      net(lm.full({2, 8}, 3 + rank, {dtype = "int64"}))
    ]], "'transformer.wte': the call differs from rank 0's: here tensor 1, int64 [2, 8] with checksum ")

    differs("the batch of a column", [[
      local net = parallelize(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), mesh, {["0"] = "column", ["1"] = "row"})
      lm.manual_seed(rank)
      net(lm.randn(2, 4))
    ]], "'0': the call differs from rank 0's: here tensor 1, float64 [2, 4] with checksum ")

    differs("options of the loss", [[
      cross_entropy(lm.randn(5, 4), lm.ones({5}):long(), mesh, {label_smoothing = rank / 10})
    ]], "vocabulary_cross_entropy: the call differs from rank 0's: here 4 classes a rank, ignore_index -100, "
      .. 'reduction "mean", label_smoothing 0.1; there ')

    differs("the number of its classes", [[
      cross_entropy(lm.randn(5, 4 + rank), lm.ones({5}):long(), mesh)
    ]], "here 5 classes a rank, ")

    differs("its targets", [[
      cross_entropy(lm.randn(5, 4), lm.full({5}, 1 + rank):long(), mesh)
    ]], "here tensor 1, int64 [5] with checksum ")
  end)

  it("compares batches once, and options when a rank first has them", function()
    on.succeeds(2, [[
      local mesh, calls, broadcast = mesh_of({2}, {"tensor"}), 0, dist.broadcast_object_list
      local objects = require "luminary.distributed.objects"
      objects.broadcast_object_list = function(...)
        calls = calls + 1
        return broadcast(...)
      end
      local net = gpt2()
      parallelize(net, mesh, net:parallel_plan {})
      calls = 0
      local ids = lm.ones({2, 8}):long()
      for step = 1, 3 do cross_entropy(net(ids * step), ids * step, mesh):backward() end
      assert(calls == 2, calls)
      for _ = 1, 2 do cross_entropy(net(ids), ids, mesh, {reduction = "sum"}) end
      assert(calls == 3, calls)
    ]])
  end)
end)
