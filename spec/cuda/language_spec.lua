-- A language model with quantized blocks on a GPU: serve.Engine has the tokens that it has on the CPU. Needs a CUDA
-- device, or a fake one.
local lists = require "luminary.base.lists"
local lm = require "luminary"
if require("luminary.core").device_count "cuda" == 0 then return end

describe("serve.Engine on CUDA", function()
  local net
  setup(function()
    lm.manual_seed(2) -- no two tokens are so alike that the order of sums decides
    net = lm.models.llama {
      vocab_size = 50, hidden_size = 256, intermediate_size = 256, num_hidden_layers = 2, num_attention_heads = 4,
      num_key_value_heads = 2, max_position_embeddings = 64,
    }:eval()
    lm.quantize(net, "q4_k")
  end)
  teardown(function() net = nil end)

  -- Returns the tokens of three conversations, of which two begin alike.
  local function tokens(device, cache)
    local engine = lm.serve.Engine(net:to(device), {
      num_workers = 0, max_tokens = 128, page_size = 4, cache = cache, chunk = 6, -- up to 8 rows are rounded alike
    })
    local futures, all = {}, {}
    for i = 1, 3 do
      local prompt = {1, 7, 9, 4, 2, 5, 8, 3, 6, i == 3 and 2 or 11}
      futures[i] = engine:submit(prompt, {max_new_tokens = 6 + i})
    end
    for i, future in ipairs(futures) do all[i] = future:get() end
    engine:close()
    return all
  end

  for _, cache in ipairs {"floats", "q8_0", "q4_0"} do
    it("has the CPU's tokens with a cache of " .. cache .. (cache == "q8_0" and "" or " #unsanitized"), function()
      local kind = cache ~= "floats" and cache or nil
      local want = tokens("cpu", kind)
      assert.same(want, tokens("cuda", kind))
      assert.equal(19, #want[3])
    end)
  end

  for dtype, rounding in lists.sorted_pairs {bfloat16 = 2 ^ -8, float16 = 2 ^ -11} do
    it(("has the CPU's likeliest tokens in %s, as far as its rounding allows #unsanitized"):format(dtype), function()
      local wide = net
      net = wide:clone():to(dtype)
      for _, cache in ipairs {"floats", "q8_0"} do
        local all = tokens("cuda", cache ~= "floats" and cache or nil)
        net:to "cpu"
        for _, ids in ipairs(all) do
          local scores = lm.no_grad(function() return net(lm.LongTensor {ids})[1]:float() end)
          local close = (16 * rounding + (cache == "floats" and 0 or 2 ^ -6)) * scores:abs():max():item()
          for i = 10, #ids - 1 do
            local row = scores[i]
            assert.is_true(row[ids[i + 1]] >= row:max():item() - close, i)
          end
        end
      end
      net = wide
    end)
  end
end)
