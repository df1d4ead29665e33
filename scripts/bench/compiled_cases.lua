-- Training steps by name: weights() by name or a net, inputs(), loss(p) with the weights p or the net, and
-- optimizer(parameters). Loaded with true, the inputs are tiny.
local lm = require "luminary"
local F, optim = lm.nn.functional, lm.optim
local is_small = ...

local function sized(real, tiny) return is_small and tiny or real end

-- Returns a weight [outputs, inputs, …] whose outputs have about the variance of its inputs.
local function weight(outputs, ...)
  local inputs = 1
  for _, n in ipairs {...} do inputs = inputs * n end
  return lm.randn(outputs, ...) / math.sqrt(inputs)
end

local cases = {}

local function sgd(params) return optim.SGD(params, {lr = 1e-3, momentum = 0.9}) end
local function adamw(params) return optim.AdamW(params, {lr = 1e-4}) end

cases.mlp = {
  optimizer = sgd,
  weights = function() return {w1 = weight(256, 784), b1 = lm.zeros(256), w2 = weight(10, 256), b2 = lm.zeros(10)} end,
  inputs = function()
    local n = sized(256, 4)
    return lm.randn(n, 784), lm.randint(1, 11, {n})
  end,
  loss = function(p)
    return function(x, y)
      return F.cross_entropy(F.linear(F.relu(F.linear(x, p.w1, p.b1)), p.w2, p.b2), y)
    end
  end,
}

-- An LSTM's cell, step by step.
local width = 128
cases.recurrent = {
  optimizer = adamw,
  weights = function()
    return {wx = weight(4 * width, width), wh = weight(4 * width, width), b = lm.zeros(4 * width),
      wo = weight(width, width)}
  end,
  inputs = function() return lm.randn(sized(32, 3), sized(32, 2), width), lm.randn(sized(32, 2), width) end,
  loss = function(p)
    return function(x, y)
      local h = lm.zeros({x.shape[2], width}, {dtype = x.dtype})
      local c = h
      for t = 1, x.shape[1] do
        local gates = F.linear(x[t], p.wx, p.b) + F.linear(h, p.wh)
        local i, f, g, o = unpack(gates:chunk(4, 2))
        c = f:sigmoid() * c + i:sigmoid() * g:tanh()
        h = o:sigmoid() * c:tanh()
      end
      return F.mse_loss(F.linear(h, p.wo), y)
    end
  end,
}

-- SIREN (Sitzmann et al. 2020): sines of 30 times what a layer computes.
local layers, features = 3, 256
cases.sine = {
  optimizer = adamw,
  weights = function()
    local function uniform(limit, ...) return (lm.rand(...) * 2 - 1) * limit end
    local limit = math.sqrt(6 / features) / 30
    local p = {w0 = uniform(0.5, features, 2), b0 = uniform(0.5, features)}
    for k = 1, layers do p["w" .. k], p["b" .. k] = uniform(limit, features, features), uniform(limit, features) end
    p.wo, p.bo = uniform(limit, 1, features), lm.zeros(1)
    return p
  end,
  inputs = function()
    local n = sized(16384, 8)
    local x = lm.rand(n, 2) * 2 - 1
    return x, x:sum(2, {keepdim = true})
  end,
  loss = function(p)
    return function(x, y)
      for k = 0, layers do x = (F.linear(x, p["w" .. k], p["b" .. k]) * 30):sin() end
      return (F.linear(x, p.wo, p.bo) - y):square():mean()
    end
  end,
}

local words, stack, heads, model, inner = 8000, 4, 4, 256, 688
cases.llama = {
  optimizer = adamw,
  weights = function()
    local p = {embed = lm.randn(words, model) * 0.02, norm = lm.ones(model), head = weight(words, model)}
    for k = 1, stack do
      for _, name in ipairs {"wq", "wk", "wv", "wo"} do p[name .. k] = weight(model, model) end
      p["gate" .. k], p["up" .. k], p["down" .. k] = weight(inner, model), weight(inner, model), weight(model, inner)
      p["norm_1" .. k], p["norm_2" .. k] = lm.ones(model), lm.ones(model)
    end
    return p
  end,
  inputs = function()
    local size = {sized(4, 1), sized(128, 8)}
    return lm.randint(1, words + 1, size), lm.randint(1, words + 1, size)
  end,
  loss = function(p)
    local head = model / heads
    local angle = lm.exp(lm.arange(head / 2):float() * (-2 * math.log(10000) / head))
    local function norm(x, scale) return x * (x:square():mean(-1, {keepdim = true}) + 1e-5):rsqrt() * scale end
    return function(ids, labels)
      local n, l = ids.shape[1], ids.shape[2]
      local turns = (lm.arange(l):float():unsqueeze(2) * angle):unsqueeze(2)
      local cos, sin = turns:cos():to(p.embed.dtype), turns:sin():to(p.embed.dtype)
      local function rotate(x)
        local a, b = unpack(x:chunk(2, 4))
        return lm.cat({a * cos - b * sin, b * cos + a * sin}, 4)
      end
      local x = F.embedding(ids, p.embed)
      for k = 1, stack do
        local y = norm(x, p["norm_1" .. k])
        local function heads_of(name) return F.linear(y, p[name .. k]):view(n, l, heads, head) end
        local q, key, v = rotate(heads_of "wq"), rotate(heads_of "wk"), heads_of "wv"
        local seen = F.scaled_dot_product_attention(q:transpose(2, 3), key:transpose(2, 3), v:transpose(2, 3),
          {is_causal = true})
        x = x + F.linear(seen:transpose(2, 3):reshape(n, l, model), p["wo" .. k])
        y = norm(x, p["norm_2" .. k])
        x = x + F.linear(F.silu(F.linear(y, p["gate" .. k])) * F.linear(y, p["up" .. k]), p["down" .. k])
      end
      return F.cross_entropy(F.linear(norm(x, p.norm), p.head):flatten(1, 2), labels:flatten())
    end
  end,
}

-- ConvNeXt-T's first stage: a convolution of patches of 4 x 4, then blocks over 96 channels.
local channels, blocks = 96, 3
cases.convnext = {
  optimizer = adamw,
  weights = function()
    local p = {stem = weight(channels, 3, 4, 4), stem_b = lm.zeros(channels), head = weight(10, channels)}
    for k = 1, blocks do
      p["dw" .. k], p["dw_b" .. k] = weight(channels, 1, 7, 7), lm.zeros(channels)
      p["ln" .. k], p["ln_b" .. k] = lm.ones(channels), lm.zeros(channels)
      p["up" .. k], p["up_b" .. k] = weight(4 * channels, channels), lm.zeros(4 * channels)
      p["down" .. k], p["down_b" .. k] = weight(channels, 4 * channels), lm.zeros(channels)
      p["gamma" .. k] = lm.full({channels}, 0.1)
    end
    return p
  end,
  inputs = function()
    local n, side = sized(16, 1), sized(96, 16)
    return lm.randn(n, 3, side, side), lm.randint(1, 11, {n})
  end,
  loss = function(p)
    return function(x, y)
      x = lm.conv2d(x, p.stem, p.stem_b, {stride = 4})
      for k = 1, blocks do
        local z = lm.conv2d(x, p["dw" .. k], p["dw_b" .. k], {padding = 3, groups = channels}):permute(1, 3, 4, 2)
        z = F.layer_norm(z, {channels}, p["ln" .. k], p["ln_b" .. k])
        z = F.linear(F.gelu(F.linear(z, p["up" .. k], p["up_b" .. k])), p["down" .. k], p["down_b" .. k])
        x = x + (z * p["gamma" .. k]):permute(1, 4, 2, 3)
      end
      return F.cross_entropy(F.linear(x:mean({3, 4}), p.head), y)
    end
  end,
}

cases.resnet18 = {
  optimizer = sgd,
  net = function() return lm.models.resnet18 {num_classes = 10} end,
  inputs = function()
    local n, side = sized(8, 2), sized(96, 32)
    return lm.randn(n, 3, side, side), lm.randint(1, 11, {n})
  end,
  loss = function(net)
    return function(x, y) return F.cross_entropy(net(x), y) end
  end,
}

return cases
