--- Training steps of networks and layers.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local nn, F, optim, models = lm.nn, lm.nn.functional, lm.optim, lm.models
local list, add = require "spec.support.steps.list"()
local written = assert(loadfile "scripts/bench/compiled_cases.lua")(true)

-- ---- networks

local function images(c) return c.randn(2, 3, 12, 12) end
local function large_images(c) return c.randn(3, 3, 48, 48) end
local function ids() return lm.randint(1, 21, {2, 6}) end
local function noised(c) return c.randn(2, 3, 8, 8) end

-- Adds a network's step.
local function network(name, options, input, opt, kinds)
  add("models." .. name, function(c, t)
    local copy = {}
    for key, value in pairs(options) do copy[key] = value end
    t.net = models[name](copy):to(c.dtype)
    t.opt = (opt or optim.AdamW)(t.net:parameters(), {lr = 1e-3})
    function t.inputs()
      local x = input(c)
      return x, lm.randint(1, 4, {x.shape[1]})
    end
    function t.loss(x, y)
      local out = name == "unet2d" and t.net(x, y) or t.net(x)
      if out.ndim == 2 then return F.cross_entropy(out, y) end
      if out.ndim == 4 then return F.mse_loss(out, x) end
      return F.cross_entropy(out:flatten(1, 2), x:flatten())
    end
  end, kinds)
end

local llama = {
  vocab_size = 20, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
  num_key_value_heads = 2, max_position_embeddings = 16,
}
for name in ("llama mistral qwen2 qwen3 smollm3 gemma gemma2 gemma3 phi3"):gmatch "%S+" do network(name, llama, ids) end
local bert = {
  vocab_size = 20, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 24,
  max_position_embeddings = 16, num_labels = 3, head = "sequence_classification",
}
for name in ("bert roberta distilbert"):gmatch "%S+" do network(name, bert, ids) end
local vit = {image_size = 12, patch_size = 4, num_layers = 2, num_heads = 2, hidden_dim = 16, mlp_dim = 24,
  num_classes = 3}
for name in ("vit deit dinov2"):gmatch "%S+" do network(name, vit, images) end
network("gpt2", {vocab_size = 20, n_positions = 16, n_embd = 16, n_layer = 2, n_head = 4}, ids)
network("unet2d", {
  block_out_channels = {4, 8}, norm_num_groups = 2, layers_per_block = 1, attention_head_dim = 4,
  down_block_types = {"DownBlock2D", "AttnDownBlock2D"}, up_block_types = {"AttnUpBlock2D", "UpBlock2D"},
}, noised)
network("mlp", {num_classes = 3, hidden = 16}, function(c) return c.randn(2, 1, 28, 28) end)
network("lenet", {num_classes = 3}, function(c) return c.randn(2, 1, 28, 28) end)
-- Their widths are fixed: each has one kind in a short run.
for kind, names in lists.sorted_pairs {
  float32 = "squeezenet1_1 mobilenet_v2 resnet18 convnext_tiny", float64 = "mnasnet0_5 densenet121",
  bfloat16 = "mobilenet_v3_small efficientnet_b0 swin_t", autocast = "shufflenet_v2_x0_5 regnet_y_400mf googlenet",
} do
  for name in names:gmatch "%S+" do
    network(name, {num_classes = 3}, large_images, optim.SGD, not os.getenv "LM_TEST_LONG" and {kind} or nil)
  end
end

for name in ("LSTM GRU RNN"):gmatch "%S+" do
  add("nn." .. name, function(c, t)
    t.net = nn[name](5, 6, {num_layers = 2, dropout = 0.2, bidirectional = name == "GRU"}):to(c.dtype)
    function t.inputs() return c.randn(7, 2, 5) end
    function t.loss(x) return t.net(x):square():mean() end
  end)
end
add("nn.LSTM, its state carried on", function(c, t)
  local state
  t.net = nn.LSTM(5, 6):to(c.dtype)
  function t.inputs() return c.randn(4, 2, 5) end
  function t.loss(x)
    local y, after = t.net(x, state)
    state = {after[1]:detach(), after[2]:detach()}
    return y:square():mean()
  end
end)
add("nn.Transformer", function(c, t)
  t.net = nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, dropout = 0.1}):to(c.dtype)
  function t.inputs() return c.randn(5, 2, 8) end
  function t.loss(x) return t.net(x):square():mean() end
end)

-- ---- layers and functions, of rows that no vector and no thread divides evenly

local function rows(name, rank, f, kinds)
  add(name, function(c, t)
    t.net = nn.Linear(rank == 2 and 37 or 5, rank == 2 and 37 or 5):to(c.dtype)
    local shape = ({nil, {23, 37}, {5, 6, 5}, {3, 6, 7, 5}, {2, 4, 3, 5, 5}})[rank]
    function t.inputs() return c.randn(shape) end
    function t.loss(x) return f(t.net(x), x, c) end
  end, kinds)
end

local activations = [[relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh softplus
  softsign tanhshrink softshrink hardshrink logsigmoid sigmoid tanh]]
rows("activations, one after the other", 2, function(x)
  for name in activations:gmatch "%S+" do x = (x + F[name](x * 0.9)) * 0.5 end
  return (x * F.softmax(x, 2) - F.log_softmax(x, 1)):square():mean()
end)
rows("activations in place", 2, function(x)
  x = (x + 1):mul_(2):relu_()
  return F.elu_((x - 1):add_(F.silu_(x * 1), {alpha = 0.5})):square():mean()
end)
for name, loss in lists.sorted_pairs {
  l1_loss = "plain", mse_loss = "plain", smooth_l1_loss = "plain", huber_loss = "plain", soft_margin_loss = "sign",
  binary_cross_entropy_with_logits = "share", kl_div = "share", poisson_nll_loss = "share",
  hinge_embedding_loss = "sign", multilabel_soft_margin_loss = "share", cosine_embedding_loss = "pair",
  triplet_margin_loss = "three", multi_margin_loss = "class", cross_entropy = "class", gaussian_nll_loss = "variance",
} do
  rows("F." .. name, 2, function(x, y)
    local f, share = F[name], y:sigmoid()
    if loss == "class" then return f(x, lm.arange(1, 24):long()) end
    if loss == "three" then return f(x, y, y * 2) end
    if loss == "pair" then return f(x, y, y:select(2, 1):sign()) end
    if loss == "variance" then return f(x, y, share + 0.1) end
    if loss == "share" then return f(name == "kl_div" and F.log_softmax(x, 2) or x, share) end
    return f(x, loss == "sign" and y:sign() or y)
  end)
end
rows("cross_entropy with weights, smoothing and ignored labels", 2, function(x, y, c)
  local labels, weight = lm.arange(1, 24):long(), lm.arange(1, 38):to(c.dtype) / 37
  labels[3] = -100
  return F.cross_entropy(x, labels, {weight = weight, label_smoothing = 0.1}) + F.cross_entropy(x, F.softmax(y, 2))
    + F.cross_entropy(x, labels, {reduction = "sum"}) / 100
end)
for name, make in lists.sorted_pairs {
  LayerNorm = function() return nn.LayerNorm(37) end, RMSNorm = function() return nn.RMSNorm(37) end,
  BatchNorm1d = function() return nn.BatchNorm1d(37) end, GroupNorm = function() return nn.GroupNorm(2, 6) end,
  InstanceNorm2d = function() return nn.InstanceNorm2d(6, {affine = true}) end,
  BatchNorm2d = function() return nn.BatchNorm2d(6, {momentum = 0.3}) end,
  LocalResponseNorm = function() return nn.LocalResponseNorm(3) end,
  BatchNorm3d = function() return nn.BatchNorm3d(4) end,
} do
  local rank = name:find "[GI2]" and 4 or name:find "3d" and 5 or name:find "Local" and 4 or 2
  add("nn." .. name, function(c, t)
    local width = rank == 2 and 37 or 5
    t.net = nn.Sequential(nn.Linear(width, width), make(), nn.GELU()):to(c.dtype)
    function t.inputs() return c.randn(({nil, {23, 37}, nil, {3, 6, 7, 5}, {2, 4, 3, 5, 5}})[rank]) end
    function t.loss(x) return (t.net(x) - x * 0.5):square():mean() end
  end)
end
add("convolutions and pools", function(c, t)
  t.net = nn.Sequential(nn.Conv2d(3, 6, 3, {padding = 1, bias = false}), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(6, 6, 3, {padding = 1, groups = 6}), nn.ReLU6(), nn.Conv2d(6, 8, 1, {stride = 2}), nn.AvgPool2d(2),
    nn.ConvTranspose2d(8, 4, 2, {stride = 2}), nn.SiLU(), nn.Conv2d(4, 4, 3, {dilation = 2, padding = 2}),
    nn.Upsample {scale_factor = 2}, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)):to(c.dtype)
  function t.inputs() return c.randn(2, 3, 19, 17), lm.randint(1, 4, {2}) end
end)
add("convolutions with channels last", function(c, t)
  t.net = nn.Sequential(nn.Conv2d(3, 6, 3, {padding = 1}), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(6, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)):to(c.dtype):to {
    memory_format = "channels_last",
  }
  function t.inputs()
    return c.randn(2, 3, 11, 9):contiguous {memory_format = "channels_last"}, lm.randint(1, 4, {2})
  end
end)
rows("attention written by hand, and with masks", 4, function(x)
  local scores = x:matmul(x:transpose(3, 4)) / math.sqrt(5)
  local mask = lm.ones(7, 7):tril():eq(0)
  local seen = F.softmax(scores:masked_fill(mask, -1 / 0), 4):matmul(x)
  return (seen - F.scaled_dot_product_attention(x, x, x, {is_causal = true}) * 0.5):square():mean()
end)
rows("views, joins and parts", 3, function(x)
  local a, b = unpack(x:chunk(2, 2))
  local y = lm.cat({a:transpose(1, 2), b:permute(2, 1, 3):flip(1)}, 3):reshape(3, 5, 2, 5):sum(3)
  y = lm.stack({y, y:roll(1, 2)}, 1):flatten(1, 2):unsqueeze(1):expand(2, 6, 5, 5) * 1
  y[{1, {2, 4}}] = a:select(2, 1):unsqueeze(1) * 2
  return y:cumsum(3):square():mean() + x:unfold(3, 2, 2):prod():mean() + x:diagonal({dim1 = 1, dim2 = 3}):sum()
end)
rows("gathers, scatters and sorts", 2, function(x)
  local order = lm.randperm(23)
  local values, at = x:topk(5, {dim = 2})
  local y = x:index_select(1, order):gather(2, at) * values
  y = lm.zeros_like(x):scatter_add(2, at, y):index_add(1, order, x * 0.5)
  return (y:sort(1) * lm.where(x:gt(0), x, x:exp())):mean() + x:masked_select(x:lt(0)):square():sum() * 0.01
end)
rows("reductions over rows, columns and all", 2, function(x)
  return (x - x:mean(2, {keepdim = true})):square():sum(1):sqrt():mean() + x:var(2):mean() + x:std()
    + x:logsumexp(2):mean() + x:amax(1):sum() * 0.1 + x:norm() + x:prod(2):abs():clamp(0, 1):sum() + x:max()
end)
rows("broadcasting of rows, columns and numbers", 2, function(x)
  local row, column = x:select(1, 1), x:select(2, 1):unsqueeze(2)
  return ((x + row) * column / (column:square() + 1) - 2 ^ x:clamp(-1, 1)):pow(2):mean() + (row * 3 - 1):abs():sum()
end)
rows("products of several kinds", 3, function(x)
  local y = lm.einsum("bij,bkj->bik", x, x) + lm.bmm(x, x:transpose(2, 3)) + lm.baddbmm(x:select(3, 1):unsqueeze(3), x,
    x:transpose(2, 3))
  return (y:matmul(x) + lm.addmm(x[1], x[2]:narrow(2, 1, 5), x[3]:narrow(1, 1, 5)):unsqueeze(1)):square():mean()
end)
add("embeddings and bags", function(c, t)
  t.net = nn.Sequential(nn.EmbeddingBag(9, 5, {mode = "mean"}), nn.Linear(5, 3)):to(c.dtype)
  function t.inputs() return lm.randint(1, 10, {4, 3}), lm.randint(1, 4, {4}) end
end)
add("more elements than one thread takes", function(c, t)
  t.net = nn.Sequential(nn.Linear(301, 257), nn.LayerNorm(257), nn.GELU(), nn.Dropout(0.1), nn.Linear(257, 1003)):to(
    c.dtype)
  function t.inputs() return c.randn(131, 301), lm.randint(1, 1004, {131}) end
end)

-- ---- steps of scripts/bench/compiled, which are written by hand

for name, case in lists.sorted_pairs(written) do
  if case.weights then
    add("written by hand: " .. name, function(c, t)
      local p, params = {}, {}
      for i, key in ipairs(lists.sorted_keys(case.weights())) do params[i] = key end
      local weights = case.weights()
      for i, key in ipairs(params) do
        p[key] = nn.Parameter(weights[key]:to(c.dtype))
        params[i] = p[key]
      end
      t.opt, t.loss = case.optimizer(params), case.loss(p)
      function t.inputs()
        local x, y = case.inputs()
        local function cast(v) return v.dtype == "float32" and v:to(c.dtype) or v end
        return cast(x), cast(y)
      end
    end)
  end
end

return list
