-- Layers of sequences against PyTorch's values (spec/golden/_sequences.safetensors).
local lm = require "luminary"
local golden = require "spec.support.golden"
local nn = lm.nn

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local stored
setup(function() stored = golden.load("_sequences") end)
teardown(function() stored = nil end)

local function below(prefix)
  local found = {}
  for name, t in pairs(stored) do
    local rest = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
    if rest then found[tonumber(rest) or rest] = t:to(device):clone() end
  end
  return found
end

-- Tensors of results, nested ones too, in their order.
local function flat(into, ...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if lm.is_tensor(value) then
      into[#into + 1] = value
    elseif type(value) == "table" then
      flat(into, unpack(value))
    end
  end
  return into
end

-- A layer with its stored state gives the stored results, and gradients of the sum of their squares.
local function check(name, net, options, same)
  net = net:double():to(device)
  net:load_state_dict(below(name .. ".state."))
  local inputs, given = below(name .. ".in."), below(name .. ".mask.")
  assert.is_true(#inputs > 0)
  for _, x in ipairs(inputs) do x:requires_grad_() end
  for key, value in pairs(options or {}) do given[key] = value end
  local call = same and {inputs[1], inputs[1], inputs[1]} or {unpack(inputs)}
  if next(given) then call[#call + 1] = given end
  local results = flat({}, net(unpack(call)))
  local function near(what, got, want)
    local difference = golden.differs(got, want)
    if difference then error(name .. " " .. what .. ": " .. difference, 2) end
  end
  local loss, wanted = 0, below(name .. ".out.")
  assert.equal(#wanted, #results)
  for k, want in ipairs(wanted) do
    near("result " .. k, results[k], want)
    loss = loss + results[k]:square():sum()
  end
  loss:backward()
  for k, want in ipairs(below(name .. ".in_grad.")) do near("gradient of input " .. k, inputs[k].grad, want) end
  local grads = below(name .. ".grad.")
  for key, p in net:named_parameters() do near("gradient of " .. key, p.grad or lm.zeros_like(p), grads[key]) end
end

describe("attention", function()
  it("is PyTorch's MultiheadAttention", function()
    check("mha", nn.MultiheadAttention(6, 2))
    check("mha_self", nn.MultiheadAttention(6, 3, {batch_first = true}), nil, true)
    check("mha_plain", nn.MultiheadAttention(6, 2, {bias = false}), {need_weights = false}, true)
    check("mha_widths", nn.MultiheadAttention(6, 2, {kdim = 4, vdim = 5}), {average_attn_weights = false})
    check("mha_more", nn.MultiheadAttention(6, 2, {add_bias_kv = true, add_zero_attn = true}))
    check("mha_numbers", nn.MultiheadAttention(6, 2))
    check("mha_single", nn.MultiheadAttention(6, 2))
  end)

  it("makes PyTorch's transformers", function()
    local quiet = {dim_feedforward = 7, dropout = 0}
    local function encoder_layer() return nn.TransformerEncoderLayer(6, 2, quiet) end
    check("encoder_layer", encoder_layer())
    check("encoder_layer_first", nn.TransformerEncoderLayer(6, 2, {
      dim_feedforward = 7, dropout = 0, norm_first = true, activation = "gelu", batch_first = true, bias = false,
    }))
    check("decoder_layer", nn.TransformerDecoderLayer(6, 2, quiet))
    check("encoder", nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(6)))
    check("transformer", nn.Transformer(6, 2, 2, 2, {dim_feedforward = 7, dropout = 0, batch_first = true}))
  end)

  it("sees no further than its own place by is_causal, with and without weights", function()
    local mha = nn.MultiheadAttention(6, 2, {batch_first = true}):to(device)
    local x = lm.randn({2, 5, 6}, {device = device})
    local later = x:clone()
    later[{{}, 5}] = 7
    for _, need in ipairs {true, false} do
      local y, weights = mha(x, x, x, {is_causal = true, need_weights = need})
      local z = mha(later, later, later, {is_causal = true, need_weights = need})
      assert.is_true(y:narrow(2, 1, 4):allclose(z:narrow(2, 1, 4), 1e-5, 1e-6))
      assert.is_false(y:allclose(z))
      assert.equal(need, weights ~= nil)
      local mask = nn.Transformer.generate_square_subsequent_mask(5):to(device)
      assert.is_true(y:allclose(mha(x, x, x, {attn_mask = mask}), 1e-5, 1e-6))
    end
  end)

  it("says what is wrong with its inputs", function()
    local function says(words, f) assert.error_matches(f, words) end
    local mha = nn.MultiheadAttention(6, 2)
    local x, y = lm.randn(4, 3, 6), lm.randn(5, 3, 6)
    says("embed_dim 6 is not to be divided into 4 heads", function() nn.MultiheadAttention(6, 4) end)
    says("query is .*4, 3, 6.*key .*5, 3, 6.*as many values as keys", function() mha(x, y, x) end)
    says("key is .*4, 3, 5.*%[length, batch, 6%] wanted", function() mha(x, lm.randn(4, 3, 5), x) end)
    says("value has to be a tensor, got nil", function() mha(x, x) end)
    says("attn_mask is .*%[4, 4%] or %[6, 4, 4%]", function() mha(x, x, x, {attn_mask = lm.ones(4, 5)}) end)
    says("attn_mask.*bool", function() mha(x, x, x, {attn_mask = lm.ones(4, 4):long()}) end)
    says("key_padding_mask is .*%[3, 4%]", function() mha(x, x, x, {key_padding_mask = lm.ones(4, 4)}) end)
    says("need_weights", function() mha(x, x, x, {need_weight = true}) end)
    says("'relu', 'gelu' or a function", function() nn.TransformerEncoderLayer(6, 2, {activation = "tanh"}) end)
  end)
end)
