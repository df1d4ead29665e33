-- nn.LoRALinear, nn.utils.add_lora, merge_lora and lora_state_dict, over quantized blocks too.
local lm = require "luminary"
local says = require "spec.support.says"
local temp = require "spec.support.temp"
local nn = lm.nn

local function llama()
  return lm.models.llama {vocab_size = 40, hidden_size = 64, intermediate_size = 64, num_hidden_layers = 1,
    num_attention_heads = 2, max_position_embeddings = 64}:eval()
end

-- Trains the adapters of a net to repeat a sequence; returns the first and the last loss.
local function trained(net, ids)
  local optimizer, first, last = lm.optim.AdamW(net:parameters(), {lr = 0.02}), nil, nil
  for _ = 1, 15 do
    optimizer:zero_grad()
    local loss = nn.functional.cross_entropy(net(ids):float():flatten(1, 2), ids:flatten())
    loss:backward()
    optimizer:step()
    last = loss:item()
    first = first or last
  end
  return first, last
end

describe("LoRA", function()
  local folder = temp.during(setup, teardown)

  for _, dtype in ipairs {"bfloat16", "float32"} do
    for _, kind in ipairs {"q4_0", "q8_0", "none"} do
      it(("trains %s adapters over %s, which are saved, loaded and merged"):format(dtype, kind), function()
        lm.manual_seed(2)
        local net, ids = llama():to(dtype), lm.randint(1, 41, {2, 9})
        if kind ~= "none" then lm.quantize(net, kind) end
        local before = net(ids)
        nn.utils.add_lora(net, 4, {alpha = 8, targets = {"q_proj", "v_proj", "down_proj"}, dtype = dtype})
        assert.is_true(net(ids):equal(before)) -- lora_B is 0
        local layer = net.model.layers[1].mlp.down_proj
        assert.equal("in_features=64, out_features=64, rank=4, scaling=2", layer:extra_repr())
        local names = 0
        for _, p in net:named_parameters() do names = names + (p.requires_grad and 1 or 0) end
        assert.equal(6, names)
        local weight = layer.base_layer.weight:clone()
        local first, last = trained(net, ids)
        assert.is_true(last < 0.9 * first, last)
        assert.is_true(layer.base_layer.weight:equal(weight))
        lm.save(folder .. "/adapter.safetensors", nn.utils.lora_state_dict(net))
        local adapters = lm.load(folder .. "/adapter.safetensors")
        assert.equal(dtype, adapters["model.layers.0.self_attn.q_proj.lora_A.weight"].dtype)
        local y = net(ids)
        for _, p in net:named_parameters() do if p.requires_grad then p:detach():zero_() end end
        local theirs = {} -- peft's names
        for name, t in pairs(adapters) do theirs["base_model.model." .. name] = t end
        local report = net:load_state_dict(theirs, {strict = false, rename = {["^base_model%.model%."] = ""}})
        assert.equal(0, #report.unexpected_keys)
        assert.is_true(net(ids):equal(y))
        nn.utils.merge_lora(net, kind == "q4_0" and dtype or nil)
        local merged = net.model.layers[1].mlp.down_proj
        assert.equal(kind == "q8_0" and "BlockLinear" or "Linear", merged.__name)
        local bound = ({q4_0 = 0.05, q8_0 = 0.05, none = dtype == "float32" and 1e-5 or 0.03})[kind]
        local error_of = (net(ids):float() - y:float()):norm() / y:float():norm()
        assert.is_true(error_of:item() < bound, error_of:item())
        if kind == "q8_0" then lm.save(folder .. "/merged.gguf", net) end
      end)
    end
  end

  it("wraps and merges transposed weights, and one layer into another kind", function()
    local net = lm.models.gpt2 {vocab_size = 30, n_positions = 16, n_embd = 32, n_layer = 1, n_head = 2}:eval()
    local ids = lm.randint(1, 31, {1, 5})
    nn.utils.add_lora(net, 2)
    lm.no_grad(function() net.transformer.h[1].attn.c_attn.lora_B.weight:normal_(0, 0.1) end)
    local y = net(ids)
    assert.is_true((nn.utils.merge_lora(net)(ids) - y):abs():max():item() < 1e-5)
    assert.equal("Conv1D", net.transformer.h[1].attn.c_attn.__name)
    local layer = nn.LoRALinear(nn.Linear(32, 8), 2)
    assert.equal("q4_0", layer:merged("q4_0").kind)
    assert.equal("bfloat16", layer:merged("bfloat16").weight.dtype)
  end)

  -- Returns a LoRALinear whose lora_B is not 0.
  local function adapted(base)
    local layer = nn.LoRALinear(base, 2)
    lm.no_grad(function() layer.lora_B.weight:normal_() end)
    return layer
  end

  it("merges into a copy: again, and beside layers that share the weight", function()
    local layer, x = adapted(nn.Linear(8, 4)), lm.randn(3, 8)
    local y = layer(x)
    for _ = 1, 2 do assert.is_true((layer:merged()(x) - y):abs():max():item() < 1e-5) end
    layer:merged("bfloat16")
    assert.is_true(layer(x):equal(y))
    local first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    local net = nn.Sequential(adapted(first), adapted(second))
    y = net(x)
    assert.is_true((nn.utils.merge_lora(net)(x) - y):abs():max():item() < 1e-4)
  end)

  for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
    for _, kind in ipairs {"q8_0", "none"} do
      it(("computes %s inputs of any layout over %s as contiguous ones"):format(dtype, kind), function()
        lm.manual_seed(3)
        local weight = lm.randn(32, 6):to(dtype)
        local base = kind ~= "none" and nn.BlockLinear(weight:t():contiguous(), kind)
          or nn.Linear(32, 6, {dtype = dtype})
        if kind == "none" then base.weight = nn.Parameter(weight:t()) end
        local layer = nn.LoRALinear(base, 3, {alpha = 6, dtype = dtype})
        lm.no_grad(function() layer.lora_B.weight:normal_() end)
        local x = lm.randn(5, 4, 40):to(dtype)
        for name, view in pairs {
          offset = x:narrow(3, 7, 32), transposed = x:narrow(3, 1, 32):transpose(1, 2),
          columns = lm.randn(32, 9):to(dtype):t(), expanded = x:narrow(3, 2, 32):narrow(2, 3, 1):expand(5, 4, 32),
          strided = lm.randn(2, 64):to(dtype):unflatten(2, {32, 2}):select(3, 2),
          none = x:narrow(1, 1, 0):narrow(3, 1, 32),
        } do
          local results = {}
          for i, input in ipairs {view:contiguous(), view:detach()} do
            layer:zero_grad()
            input:requires_grad_(true)
            local y = layer(input)
            y:float():square():sum():backward()
            results[i] = {y, input.grad, layer.lora_A.weight.grad, layer.lora_B.weight.grad}
          end
          for i, want in ipairs(results[1]) do
            assert.equal(dtype, want.dtype)
            local close = dtype == "float32" and 1e-5 or 0.02
            assert.is_true(lm.allclose(results[2][i]:float(), want:float(), {rtol = close, atol = close}), name .. i)
          end
        end
        local y, wide = layer(x:narrow(3, 7, 32)), layer:merged("float32")(x:narrow(3, 7, 32):float())
        assert.is_true(((y:float() - wide):norm() / wide:norm()):item() < (kind == "none" and 0.02 or 0.03))
      end)
    end
  end

  it("changes nothing where it fails", function()
    for _, dtype in ipairs {"int64", "flaot32", "bool"} do
      local net = nn.Sequential(nn.Linear(4, 4))
      says("dtype", nn.utils.add_lora, net, 2, {targets = {"0"}, dtype = dtype})
      says("dtype", nn.LoRALinear, net[1], 2, {dtype = dtype})
      assert.is_true(net[1].weight.requires_grad)
      says("no linear layer is named ''", nn.utils.add_lora, net[1], 2, {targets = {""}})
    end
    local net = nn.Sequential(adapted(nn.Linear(32, 4)), adapted(nn.Linear(4, 4)))
    says("merge_lora: 1: in_features %(4%) must be divisible by that of a q4_0 block %(32%)", nn.utils.merge_lora, net,
      "q4_0")
    says("merge_lora: 0: dtype must be floating, got int64", nn.utils.merge_lora, net, "int64")
    assert.same({"LoRALinear", "LoRALinear"}, {net[1].__name, net[2].__name})
  end)

  it("merges a layer that is the net, one that is in two places, and float64", function()
    local layer, x = adapted(nn.Linear(8, 8, {dtype = "float64"})), lm.randn(3, 8):double()
    local merged = nn.utils.merge_lora(layer)
    assert.equal("Linear", merged.__name)
    assert.is_true((merged(x) - layer(x)):abs():max():item() < 1e-12)
    local shared = nn.Linear(8, 8)
    local net = nn.utils.add_lora(nn.Sequential(shared, nn.ReLU(), shared), 2, {targets = {"0", "2"}})
    assert.equal(net[1], net[3])
    lm.no_grad(function() net[1].lora_B.weight:normal_() end)
    local y = net(x:float())
    assert.is_true((nn.utils.merge_lora(net)(x:float()) - y):abs():max():item() < 1e-4)
    assert.equal(net[1], net[3])
    assert.equal("Linear", net[3].__name)
  end)

  it("says what it does not take", function()
    local net = nn.utils.add_lora(llama(), 2)
    says("add_lora: 'model.layers.0.self_attn.q_proj' has an adapter; merge it by nn.utils.merge_lora first",
      nn.utils.add_lora, net, 2, {targets = {"q_proj"}})
    says("LoRALinear: base_layer must be a linear layer, got a module, LoRALinear", nn.LoRALinear,
      nn.LoRALinear(nn.Linear(2, 2), 2), 2)
    local int8 = adapted(nn.Int8Linear(lm.randn(4, 8)))
    says("LoRALinear:merged: the weight of base_layer %(Int8Linear%) must be a parameter or blocks", int8.merged,
      int8)
    says("add_lora: no linear layer is named 'w1' or 'w2'", nn.utils.add_lora, llama(), 2, {targets = {"w1", "w2"}})
    says("LoRALinear: base_layer must be a linear layer, got a module, ReLU", nn.LoRALinear, nn.ReLU(), 2)
    says("rank must be an integer of at least 1", nn.LoRALinear, nn.Linear(2, 2), 0)
  end)
end)
