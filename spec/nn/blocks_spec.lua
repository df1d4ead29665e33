-- nn.BlockLinear, nn.BlockEmbedding, lm.quantize(net, kind), and models whose GGUF files have quantized blocks.
local lm = require "luminary"
local gguf = require "spec.support.gguf"
local message = require "spec.support.error_of"
local temp = require "spec.support.temp"
local nn = lm.nn

local sizes = {
  vocab_size = 300, hidden_size = 256, intermediate_size = 512, num_hidden_layers = 1, num_attention_heads = 4,
  num_key_value_heads = 2, max_position_embeddings = 64,
}

local function llama(tied)
  local options = {tie_word_embeddings = tied}
  for name, value in pairs(sizes) do options[name] = value end
  return lm.models.llama(options):eval()
end

describe("layers of quantized blocks", function()
  it("compute with the expanded weight, and come back from their state", function()
    local weight, bias = lm.randn(5, 512), lm.randn(5)
    local layer = nn.BlockLinear(weight, "q6_k", bias)
    assert.equal("BlockLinear(in_features=512, out_features=5, kind='q6_k', bias=True)", tostring(layer))
    local x, expanded = lm.randn(3, 512), lm.expand_blocks(layer.weight, "q6_k")
    local want = nn.functional.linear(x, expanded, bias)
    assert.is_true(((layer(x) - want):norm() / want:norm()):item() < 0.02)
    local other = nn.BlockLinear(lm.randn(5, 512), "q6_k", lm.zeros(5))
    other:load_state_dict(layer:state_dict())
    assert.same(layer(x):totable(), other(x):totable())
    local rows = nn.BlockEmbedding(weight, "q4_0", {dtype = "bfloat16"})
    assert.equal("BlockEmbedding(num_embeddings=5, embedding_dim=512, kind='q4_0')", tostring(rows))
    assert.equal("bfloat16", rows(lm.LongTensor {{1, 5}}).dtype)
    local again = nn.BlockLinear(layer.weight, "q6_k")
    assert.same(512, again.in_features)
  end)

  it("say what they do not take", function()
    assert.matches("BlockLinear: kind must be one of 'q8_0', .*'mxfp4', got string 'q9'",
      message(nn.BlockLinear, lm.ones(2, 32), "q9"))
    assert.matches("BlockLinear: the number of bytes of a row %(35%) must be divisible by that of a q8_0 block %(34%)",
      message(nn.BlockLinear, lm.zeros(3, 35, {dtype = "uint8"}), "q8_0"))
    assert.matches("BlockLinear: weight must be finite", message(nn.BlockLinear, lm.full({2, 32}, 0 / 0), "q8_0"))
    assert.matches("BlockLinear: weight must be a floating matrix, or one of blocks as uint8, got",
      message(nn.BlockLinear, lm.ones(32), "q8_0"))
    assert.matches("expected bias to have shape %[2%], got %[3%]",
      message(nn.BlockLinear, lm.ones(2, 32), "q8_0", lm.ones(3)))
    assert.matches("quantize: kind must be one of", message(lm.quantize, nn.Linear(32, 2), "int4"))
  end)

  it("replace those of a net, which trains what is left", function()
    for _, tied in ipairs {true, false} do
      local net, ids = llama(tied), lm.LongTensor {{1, 7, 300}}
      local before = net(ids)
      lm.quantize(net, "q8_0")
      assert.is_true(((net(ids) - before):norm() / before:norm()):item() < 0.03)
      net(ids):sum():backward()
      assert.is_true(net.model.layers[1].input_layernorm.weight.grad:norm():item() > 0)
    end
    assert.equal("Linear", lm.quantize(nn.Linear(33, 2), "q8_0").__name) -- rows are not divisible into blocks
    assert.equal("BlockLinear", lm.quantize(nn.Linear(32, 2), "q8_0").__name)
  end)

  it("generate the same tokens for a conversation alone and among others", function()
    local net = lm.quantize(llama(true), "q4_k")
    local ids = lm.randint(1, 301, {6, 5})
    local all = net:generate(ids, {max_new_tokens = 4})
    for r = 1, 6 do
      assert.same(all[r]:totable(), net:generate(ids:narrow(1, r, 1), {max_new_tokens = 4})[1]:totable())
    end
  end)
end)

describe("blocks of several matrices", function()
  it("become the weights of a list of experts, as views", function()
    local net = lm.models.olmoe {
      num_hidden_layers = 1, hidden_size = 32, intermediate_size = 64, num_attention_heads = 2, vocab_size = 20,
      num_experts = 3, num_experts_per_tok = 2,
    }
    local path, floats = os.tmpname() .. ".gguf", {}
    for i = 1, 3 do floats[i] = net.model.layers[1].mlp.experts[i].up_proj.weight:detach() end
    lm.save(path, net, {kind = "q8_0", tokenizer = false})
    local file = lm.load(path, {keep_blocks = true})
    local all = file.tensors["blk.0.ffn_up_exps.weight"].blocks
    local read = lm.models.olmoe {weights = file, assign = true}
    for i = 1, 3 do
      local layer = read.model.layers[1].mlp.experts[i].up_proj
      assert.equal("BlockLinear", layer.__name)
      assert.equal(all[i]:data_ptr(), layer.weight:data_ptr())
      local x = lm.randn(4, 32)
      assert.is_true((layer(x) - x:matmul(floats[i]:t())):abs():max():item() < 0.02)
    end
    os.remove(path)
  end)
end)

describe("GGUF files with quantized blocks", function()
  local metadata = {
    ["general.architecture"] = "llama", ["llama.context_length"] = 64, ["llama.embedding_length"] = 256,
    ["llama.block_count"] = 1, ["llama.feed_forward_length"] = 512, ["llama.attention.head_count"] = 4,
    ["llama.attention.head_count_kv"] = 2,
  }
  local names = {
    ["model.embed_tokens"] = "token_embd", ["model.norm"] = "output_norm", lm_head = "output",
    input_layernorm = "attn_norm", ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k",
    ["self_attn.v_proj"] = "attn_v", ["self_attn.o_proj"] = "attn_output", post_attention_layernorm = "ffn_norm",
    ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
  }

  local function file(kind, tied)
    local tensors = {}
    for name, t in pairs(llama(tied):state_dict()) do
      local of, what = name:match "^model%.layers%.0%.(.*)%.(%w+)$"
      local key = of and "blk.0." .. names[of] .. "." .. what
      if not key then
        of, what = name:match "^(.*)%.(%w+)$"
        key = names[of] .. "." .. what
      end
      tensors[key] = t.ndim == 2 and {kind = kind, blocks = lm.quantize_blocks(t, kind)} or t
    end
    return temp.write(os.tmpname() .. ".gguf", gguf(metadata, nil, tensors))
  end

  for _, kind in ipairs {"q4_0", "q4_k", "q6_k", "q8_0", "iq4_nl"} do
    it("stay blocks in a model, and are floats if a dtype is given: " .. kind, function()
      for _, tied in ipairs {true, false} do
        local path, ids = file(kind, tied), lm.LongTensor {{3, 1, 4, 1, 5}}
        local net, report = lm.models.llama {weights = path}
        assert.equal("<all keys matched>", tostring(report))
        assert.equal("BlockLinear", net.model.layers[1].mlp.up_proj.__name)
        assert.equal("BlockEmbedding", net.model.embed_tokens.__name)
        local also = {(lm.models.llama {weights = path, dtype = "auto"})}
        if require("luminary.core").device_count "cuda" > 0 then
          also[2] = lm.models.llama {weights = path, device = "cuda"}
        end
        for _, other in ipairs(also) do
          local blocks = other.model.layers[1].mlp.up_proj
          assert.equal("BlockLinear", blocks.__name)
          assert.same(net.model.layers[1].mlp.up_proj.weight:totable(), blocks.weight:totable())
          assert.is_true((net(ids) - other(ids:to(blocks.weight.device)):cpu()):abs():max():item() < 0.05)
        end
        local floats = lm.models.llama {weights = path, dtype = "float32"}
        assert.equal("Linear", floats.model.layers[1].mlp.up_proj.__name)
        local want = floats(ids)
        assert.is_true(((net(ids) - want):norm() / want:norm()):item() < 0.03, kind)
        local raw = lm.load(path, {keep_blocks = true}).tensors["blk.0.ffn_up.weight"]
        assert.equal(kind, raw.kind)
        assert.same(raw.blocks:totable(), net.model.layers[1].mlp.up_proj.weight:totable())
        os.remove(path)
      end
    end)
  end
end)
