-- Models of nn.utils.init_empty_weights: with the weights of an eager model they compute what it computes, since their
-- buffers, of which a state_dict lacks some, have values.
local lm = require "luminary"
local nn = lm.nn

local text = {
  hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 24, vocab_size = 30,
  max_position_embeddings = 16,
}
local picture = {
  hidden_dim = 16, num_layers = 1, num_heads = 2, mlp_dim = 24, image_size = 16, patch_size = 8, num_classes = 3,
}

local function ids() return lm.randint(1, 31, { 2, 8 }) end
local function image(size)
  return function() return lm.randn { 2, 3, size, size } end
end

local cases = {
  gpt2 = { { n_layer = 1, n_head = 2, n_embd = 16, vocab_size = 30, n_positions = 16 }, ids },
  llama = { text, ids }, mistral = { text, ids }, qwen2 = { text, ids }, qwen3 = { text, ids }, gemma = { text, ids },
  gemma2 = { text, ids }, gemma3 = { text, ids }, smollm3 = { text, ids }, qwen3_moe = { text, ids },
  phi3 = { text, ids }, bert = { text, ids }, roberta = { text, ids }, distilbert = { text, ids },
  vit = { picture, image(16) }, deit = { picture, image(16) }, dinov2 = { picture, image(16) },
  swin_v2_t = { { num_classes = 3 }, image(32) }, resnet18 = { { num_classes = 3 }, image(32) },
}

local function first(x) return lm.is_tensor(x) and x or x.logits or x.last_hidden_state or x[1] end

describe("models made without weights", function()
  for name, case in pairs(cases) do
    it("compute as " .. name .. " does", function()
      local function make()
        local options = {}
        for key, value in pairs(case[1]) do options[key] = value end
        return lm.models[name](options):eval()
      end
      lm.manual_seed(1)
      local eager, x = make(), case[2]()
      lm.no_grad(function()
        for _, p in ipairs(eager:parameters()) do p:normal_(0, 0.3) end
        local expected = first(eager(x))
        assert.is_true(expected:std():item() > 1e-3)
        local assigned = nn.utils.init_empty_weights(make)
        assigned:load_state_dict(eager:state_dict(), { assign = true })
        assert.equal(0, (first(assigned(x)) - expected):abs():max():item())
        local copied = nn.utils.init_empty_weights(make):to_empty { device = "cpu" }
        copied:load_state_dict(eager:state_dict())
        assert.equal(0, (first(copied(x)) - expected):abs():max():item())
      end)
    end)
  end
end)

describe("layers made without weights", function()
  it("have the values of their buffers", function()
    local Net = nn.Module:extend "Net"
    function Net:init()
      self.norm, self.rope = nn.BatchNorm1d(3), nn.RotaryPositionalEmbeddings(4, { max_seq_len = 5 })
      self.positions = nn.SinusoidalPositions(4, { max_seq_len = 5 })
      self:register_buffer("mask", nn.init.ones_(lm.empty(2, 2)), { persistent = false })
    end
    local net, eager = nn.utils.init_empty_weights(Net), Net()
    local function check()
      for name, b in eager:named_buffers() do assert.same(b:tolist(), net:get_buffer(name):tolist()) end
    end
    check()
    net.norm.running_var:mul_(1) -- each element has its own memory
    net:to_empty()
    check()
  end)
end)
