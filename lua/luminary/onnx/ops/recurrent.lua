--- ONNX's recurrent layers: RNN, GRU and LSTM.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"

local ops = core.ops
local nth = helpers.nth
local recurrent = {}

-- Activations by name: f(x, alpha, beta), and their defaults of alpha and beta.
local activations = {
  relu = {ops.relu}, tanh = {ops.tanh}, sigmoid = {ops.sigmoid}, softsign = {ops.softsign}, softplus = {ops.softplus},
  affine = {function(x, a, b) return x * a + b end, 1, 0},
  leakyrelu = {function(x, a) return ops.leaky_relu(x, a) end, 0.01},
  thresholdedrelu = {function(x, a) return ops.threshold(x, a, 0) end, 1},
  scaledtanh = {function(x, a, b) return ops.tanh(x * b) * a end, 1, 1},
  hardsigmoid = {function(x, a, b) return ops.clamp(x * a + b, 0, 1) end, 0.2, 0.5},
  elu = {function(x, a) return ops.elu(x, a) end, 1},
}

-- Returns the activations of each direction, lists of functions of one argument.
local function activations_of(n, defaults, directions)
  local all, names, at = {}, n.a.activations, 0
  local alphas, betas, a_at, b_at = n.a.activation_alpha or {}, n.a.activation_beta or {}, 0, 0
  for d = 1, directions do
    all[d] = {}
    for k = 1, #defaults do
      at = at + 1
      local name = (names and names[at] or defaults[k]):lower()
      local known = activations[name] or n:unsupported("with the activation " .. name)
      local f, alpha, beta = known[1], known[2], known[3]
      if alpha and alphas[a_at + 1] then a_at, alpha = a_at + 1, alphas[a_at + 1] end
      if beta and betas[b_at + 1] then b_at, beta = b_at + 1, betas[b_at + 1] end
      all[d][k] = function(x) return f(x, alpha, beta) end
    end
  end
  return all
end

-- Returns x [T, B, ...] with the first lengths[b] steps of each b reversed; lengths nil: all.
local function reversed(x, lengths)
  if not lengths then return ops.flip(x, {1}) end
  local rows = {}
  for b, length in ipairs(lengths) do
    local row = ops.narrow(x, 2, b, 1)
    rows[b] = ops.cat({ops.flip(ops.narrow(row, 1, 1, length), {1}),
      ops.narrow(row, 1, length + 1, x.shape[1] - length)}, 1)
  end
  return ops.cat(rows, 2)
end

-- Makes a layer of step(gates, h, c, direction's weights, activations, n) -> h, c. gates: their number.
local function layer(gates, defaults, step)
  return function(n)
    local direction = n.a.direction or "forward"
    local directions = direction == "bidirectional" and 2 or 1
    local f = activations_of(n, defaults, directions)
    local batch_first, clip = n.a.layout == 1, n.a.clip
    local lengths_of, is_lstm = n:list(5), gates == 4
    local function limited(x) return clip and ops.clamp(x, -clip, clip) or x end
    return function(x, w, r, bias, lengths, h0, c0, peepholes)
      if batch_first then
        x, h0 = ops.transpose(x, 1, 2), h0 and ops.transpose(h0, 1, 2)
        c0 = c0 and ops.transpose(c0, 1, 2)
      end
      local T, B, H, counts = x.shape[1], x.shape[2], r.shape[3], lengths_of(lengths)
      local opts = {dtype = x.dtype, device = x.device}
      local outputs, hs, cs, shortest = {}, {}, {}, counts and math.min(unpack(counts))
      for d = 1, directions do
        local backward = direction == "reverse" or d == 2
        local input = backward and reversed(x, counts) or x
        local p = {
          r = ops.t(ops.select(r, 1, d)), limited = limited, linear_before_reset = n.a.linear_before_reset == 1,
          couples = n.a.input_forget == 1, peepholes = peepholes and ops.select(peepholes, 1, d),
        }
        local both = bias and ops.select(bias, 1, d)
        p.bias_x, p.bias_h = both and nth(both, 1, 1, 2), both and nth(both, 1, 2, 2)
        local projected = ops.linear(input, ops.select(w, 1, d), p.bias_x)
        local h = h0 and ops.select(h0, 1, d) or ops.zeros({B, H}, opts)
        local c = is_lstm and (c0 and ops.select(c0, 1, d) or ops.zeros({B, H}, opts)) or nil
        local parts = {}
        for t = 1, T do
          local new_h, new_c = step(ops.select(projected, 1, t), h, c, p, f[d])
          if counts and t > shortest then
            local runs = {}
            for b = 1, B do runs[b] = t <= counts[b] end
            local live = core.tensor(runs, {device = x.device}):reshape(B, 1)
            parts[t] = ops.where(live, new_h, ops.zeros_like(new_h))
            new_h, new_c = ops.where(live, new_h, h), c and ops.where(live, new_c, c)
          else
            parts[t] = new_h
          end
          h, c = new_h, new_c
        end
        local y = T > 0 and ops.stack(parts, 1) or ops.zeros({0, B, H}, opts)
        outputs[d], hs[d], cs[d] = backward and reversed(y, counts) or y, h, c
      end
      local y, h, c = ops.stack(outputs, 2), ops.stack(hs, 1), is_lstm and ops.stack(cs, 1) or nil
      if not batch_first then return y, h, c end
      return ops.permute(y, {3, 1, 2, 4}), ops.transpose(h, 1, 2), c and ops.transpose(c, 1, 2)
    end
  end
end

local function hidden(h, p)
  local y = ops.matmul(h, p.r)
  return p.bias_h and y + p.bias_h or y
end

recurrent.RNN = layer(1, {"Tanh"}, function(gates, h, _, p, f) return f[1](p.limited(gates + hidden(h, p))) end)

recurrent.GRU = layer(3, {"Sigmoid", "Tanh"}, function(gates, h, _, p, f)
  local H = h.shape[2]
  local function part(x, i) return x and ops.narrow(x, -1, (i - 1) * H + 1, i == 1 and 2 * H or H) end
  local r, bias = p.r, p.bias_h
  local zr = part(gates, 1) + ops.matmul(h, part(r, 1))
  if bias then zr = zr + part(bias, 1) end
  zr = f[1](p.limited(zr))
  local z, reset = nth(zr, 2, 1, 2), nth(zr, 2, 2, 2)
  local inner
  if p.linear_before_reset then
    inner = ops.matmul(h, part(r, 3))
    if bias then inner = inner + part(bias, 3) end
    inner = reset * inner
  else
    inner = ops.matmul(reset * h, part(r, 3))
    if bias then inner = inner + part(bias, 3) end
  end
  local new = f[2](p.limited(part(gates, 3) + inner))
  return new + z * (h - new)
end)

recurrent.LSTM = layer(4, {"Sigmoid", "Tanh", "Tanh"}, function(gates, h, c, p, f)
  gates = gates + hidden(h, p)
  local i, o, forget, new = nth(gates, 2, 1, 4), nth(gates, 2, 2, 4), nth(gates, 2, 3, 4), nth(gates, 2, 4, 4)
  local function peek(x, state, k) return p.peepholes and x + state * nth(p.peepholes, 1, k, 3) or x end
  i = f[1](p.limited(peek(i, c, 1)))
  forget = p.couples and 1 - i or f[1](p.limited(peek(forget, c, 3)))
  c = forget * c + i * f[2](p.limited(new))
  return f[1](p.limited(peek(o, c, 2))) * f[3](c), c
end)

return recurrent
