-- The cost model: memory beside what fully_shard takes, and what each part of a step depends on. LM_TEST_LONG=1
-- measures twice as many layouts.
local lm = require "luminary"
local cost = require "luminary.distributed.cost_model"
local plan = require "luminary.cli.plan"
local ranks = require "spec.support.ranks"

local function layout(fields)
  for name, value in pairs {replicate = 1, shard = 1, tensor = 1, pipeline = 1, context = 1, micro = 1, micros = 1} do
    fields[name] = fields[name] or value
  end
  return fields
end

local function llama() return cost.transformer {layers = 32, hidden = 4096, heads = 32, inner = 11008, gated = true,
  vocab = 32000, seq = 2048} end

local h100 = cost.machine(cost.cards.h100, 8)
local function step(fields, model) return cost.step(model or llama(), layout(fields), h100) end
local function memory(fields, model) return cost.memory(model or llama(), layout(fields)) end

describe("the cost model #unsanitized #full", function()
  for i, case in ipairs {
    {4, "gpt2:192:4:1024:1:128"}, {2, "llama:192:4:1024:1:128:recompute"}, {4, "llama:184:3:1001:1:64:hybrid"},
    {2, "gpt2:192:4:1024:1:128:noreshard,accumulate"}, {4, "gpt2:192:4:1024:1:128:keep,accumulate"},
    {3, "gpt2:192:2:8192:1:32"},
    {2, "gpt2:192:4:1024:1:128:tensor"}, {4, "llama:192:4:1024:1:128:tensor,recompute"},
    {2, "llama:192:4:1024:1:128:pipeline2"}, {8, "gpt2:192:4:1024:1:64:pipeline2"},
    {4, "gpt2:128:4:64:2:128:context2,tensor"}, {4, "llama:192:4:1024:1:64:context2,pipeline2,interleave2"},
    {4, "gpt2:128:6:64:1:8:bounded"}, {2, "llama:128:6:64:1:8:noprefetch,bounded"},
  } do
    local tag = i % 2 == 0 and " #long" or ""
    it(("knows the memory of layouts: %d ranks, %s"):format(case[1], case[2]) .. tag, function()
      local got = ranks.run {n = case[1], file = "scripts/bench/plan_worker.lua", args = case[2], timeout = 60,
        env = {OMP_NUM_THREADS = 1}}
      assert(got.ok, got.text)
      local measured, planned, bound = got.text:match "measured (%d+) planned (%d+) .* bound (%d+)"
      assert(measured, got.text)
      assert.is_true(math.abs(planned / measured - 1) <= 0.1, got.text)
      local most = case[2]:find "noprefetch" and 1.03 or 1 -- activations, and gradients outside of blocks
      if case[2]:find "bounded" then assert.is_true(tonumber(measured) <= most * tonumber(bound), got.text) end
    end)
  end

  it("knows what a block saves", function()
    jit.off() -- compiled code holds a tensor or two of a call that has ended, in 1 of 40 runs
    finally(jit.on)
    local function saved(layers, make)
      local net, ids = make(layers), lm.randint(1, 65, {2, 64})
      collectgarbage()
      collectgarbage()
      local before = lm.memory_allocated "cpu"
      local scores = net(ids)
      collectgarbage()
      collectgarbage()
      return lm.memory_allocated "cpu" - before, scores
    end
    for _, make in ipairs {
      function(n) return lm.models.gpt2 {n_layer = n, n_embd = 96, n_head = 4, vocab_size = 64, n_positions = 64,
        embd_pdrop = 0, attn_pdrop = 0, resid_pdrop = 0} end,
      function(n) return lm.models.llama {num_hidden_layers = n, hidden_size = 96, num_attention_heads = 4,
        head_dim = 32, num_key_value_heads = 2, intermediate_size = 160, vocab_size = 64,
        max_position_embeddings = 64} end,
    } do
      local model = plan.model_of(make(1))
      local measured = (saved(3, make) - saved(1, make)) / 2 / (2 * 64 * 4)
      assert.near(1, (model.saved.whole + model.saved.divided) / measured, 0.02)
    end
  end)

  it("divides state by shards, tensors and stages", function()
    local one = memory {reshard = true}
    local parameters = 32 * (4 * 4096 ^ 2 + 3 * 4096 * 11008) + 2 * 32000 * 4096
    assert.near(4 * parameters, one.parameters, 1)
    assert.near(2, one.optimizer / one.parameters, 1e-9)
    for _, dim in ipairs {"shard", "tensor", "pipeline"} do
      local split = memory {[dim] = 4, reshard = true}
      assert.near(dim == "pipeline" and 0.26 or 0.25, split.parameters / one.parameters, 0.01)
      assert.is_true(split.total < one.total)
    end
    assert.equal(one.parameters, memory({replicate = 4, reshard = true}).parameters)
  end)

  it("gathers two blocks at most, or all of them", function()
    local model = llama()
    local block = 2 * cost.elements(model.block, 1, 1)
    local root = 2 * cost.elements(model.rest, 1, 1)
    local gathered = memory({shard = 64, reshard = true}, model).gathered
    assert.is_true(gathered <= root + 2 * block)
    assert.is_true(memory({shard = 64}, model).gathered >= 32 * block)
    local odd = cost.transformer {layers = 1, hidden = 10, heads = 2, vocab = 7, seq = 4}
    assert.equal(4 * 4 * (96 + 32 + 128 + 128 + 2 * 32), -- 80, 30, 100, 120 and 20 elements in multiples of 32
      4 * memory({shard = 4, reshard = true}, odd).parameters)
  end)

  it("saves one input a block when blocks are recomputed, and computes forward again", function()
    local plain = memory {shard = 64, micro = 8, reshard = true}
    local again = memory {shard = 64, micro = 8, reshard = true, recompute = "block"}
    assert.is_true(again.activations < plain.activations / 10)
    assert.near(1, again.activations / (8 * 32 * 2048 * 4096 * 2), 1 / 32)
    local time = step {shard = 8, reshard = true, recompute = "block"}
    assert.near(1 / 3, time.recompute / time.compute, 0.04)
  end)

  it("recomputes as other libraries do, at the speed of their attention", function()
    local model, card = llama(), cost.cards.h100
    local function again(kind, fused) return step {recompute = kind, fused = fused}.recompute / model.layers end
    -- The last product is that of 11008 inputs and 4096 outputs: arithmetic, memory, and a call.
    local product = 2 * 2048 * 11008 * 4096 / (card.speed * card.flops)
      + 2 * (2048 * 11008 + 11008 * 4096 + 2048 * 4096) / (0.8 * card.memory) + 5e-6
    assert.near(product, again "block" - again "early", 1e-9)
    -- "op" is half of the products, and all that passes memory twice: 2 bytes of each saved element.
    local saved = 2048 * (model.saved.whole + model.saved.divided)
    local memory_time = 2 * 2 * saved / (0.8 * card.memory)
    assert.near((again "block" - again "attention" + memory_time) / 2, again "op", 1e-9)
    local scores = 2 * 2048 * 2048 * 4096 / card.flops -- causal: half of the pairs
    for _, share in ipairs {0.2, 0.4} do assert.near(scores / share, again("attention", share), 1e-9) end
  end)

  it("hides collectives beside arithmetic, and no more", function()
    local slow = cost.machine(cost.cards.h100, 8, 10)
    for _, machine in ipairs {h100, slow} do
      local time = cost.step(llama(), layout {shard = 16, reshard = true}, machine)
      assert.near(time.times.shard, time.hidden + time.shard, 1e-9)
      assert.equal("shard", time.longest)
      assert.is_true(machine == slow and time.shard > time.compute or time.shard < 0.05 * time.compute)
    end
    local waits = step {shard = 8, reshard = true, prefetch = false}
    assert.same({0, waits.times.shard}, {waits.hidden, waits.shard})
    assert.equal(0, step({}).hidden)
    assert.is_true(step({shard = 8}).times.shard < step({shard = 8, reshard = true}).times.shard)
  end)

  it("counts the copies around gathers and reductions, and their calls", function()
    local function of_card(fields)
      local card = setmetatable(fields, {__index = cost.cards.h100})
      return function(how) return cost.step(llama(), layout(how), cost.machine(card, 8)) end
    end
    local model, speed = llama(), 0.8 * cost.cards.h100.memory
    local block, own = cost.elements(model.block, 1, 8)
    local twice, once = step {shard = 8, reshard = true}, step {shard = 8}
    assert.near(1, (twice.copies - once.copies) / 32 / ((2 * 2 * block + 6 * own) / speed + 5 * 5e-6), 1e-9)
    local root, own_root = cost.elements(model.rest, 1, 8)
    local numbers = 32 * (6 * block + 3 * own) + 6 * root + 3 * own_root -- 2-byte ones; own rows are float32
    local calls = 32 * (4 + 1 + 2) + 2 + 1 + 2
    assert.near(1, once.copies / (2 * numbers / speed + calls * 5e-6), 1e-9)
    assert.is_nil(step({replicate = 8}).copies)
    local slow = of_card({call = 1e-3}) {shard = 8}
    assert.near(1, (slow.copies - once.copies) / (calls * (1e-3 - 5e-6)), 1e-9)
    local busy = of_card({contention = 1}) {shard = 8}
    assert.near(0.3, once.contention / busy.contention, 1e-9)
  end)

  it("leaves stages waiting at both ends of a pipeline", function()
    local a, b = step {pipeline = 4, micros = 4}, step {pipeline = 4, micros = 16}
    local c = step {pipeline = 4, micros = 16, interleave = 2}
    assert.near(4, (b.total - b.bubble - a.total + a.bubble) / (a.total - a.bubble - a.optimizer) + 1, 0.05)
    assert.near(a.bubble, b.bubble, 1e-9)
    assert.near(0.5, c.bubble / b.bubble, 0.02)
    assert.is_true(memory({pipeline = 4, micros = 16}).activations > 3 * memory({pipeline = 4, micros = 1}).activations)
  end)

  it("shares a node's network among the groups that cross it", function()
    local model = llama()
    local near = cost.step(model, layout {shard = 8, replicate = 4, reshard = true}, h100)
    local far = cost.step(model, layout {tensor = 8, shard = 4, reshard = true}, h100)
    -- A group of one card a node has an eighth of the network.
    assert.near((3 / 4) / (h100.outside / 8), (far.times.shard / 3 / (32 * cost.elements(model.block, 8, 1)
      + cost.elements(model.rest, 8, 1)) / 2), 1e-12)
    assert.is_true(near.times.shard > 0)
  end)

  it("chooses the size of buckets from what a bucket costs", function()
    assert.equal(25 * 2 ^ 20, cost.bucket_size(1e6))
    assert.near(math.sqrt(130e-6 * 80e9 * 4e9), cost.bucket_size(4e9), 1)
  end)
end)
