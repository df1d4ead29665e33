--- ONNX's recurrent layers: RNN, GRU and LSTM.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local ops = core.ops
local nth, check_shape = helpers.nth, helpers.check_shape

-- Activations by name: f(x, alpha, beta), and their defaults of alpha and beta.
local activations = {
  relu = {ops.relu}, tanh = {ops.tanh}, sigmoid = {ops.sigmoid}, softsign = {ops.softsign}, softplus = {ops.softplus},
  affine = {function(x, a, b) return x * a + b end, 1, 0}, elu = {function(x, a) return ops.elu(x, a) end, 1},
  leakyrelu = {function(x, a) return ops.leaky_relu(x, a) end, 0.01},
  thresholdedrelu = {function(x, a) return ops.threshold(x, a, 0) end, 1},
  scaledtanh = {function(x, a, b) return ops.tanh(x * b) * a end, 1, 1},
  hardsigmoid = {function(x, a, b) return ops.clamp(x * a + b, 0, 1) end, 0.2, 0.5},
}

-- Sets n.f to the activations, functions of one argument: those of the first direction, then those of the second.
local function prepare(n, defaults)
  local names, alphas, betas, a_at, b_at = n.activations, n.activation_alpha or {}, n.activation_beta or {}, 0, 0
  n.f = {}
  for at = 1, #defaults * (n.direction == "bidirectional" and 2 or 1) do
    local name = (names and names[at] or defaults[(at - 1) % #defaults + 1]):lower()
    local f, alpha, beta = unpack(activations[name] or n:unsupported("with the activation " .. name))
    if alpha and alphas[a_at + 1] then a_at, alpha = a_at + 1, alphas[a_at + 1] end
    if beta and betas[b_at + 1] then b_at, beta = b_at + 1, betas[b_at + 1] end
    n.f[at] = function(x) return f(x, alpha, beta) end
  end
end

-- Returns the entry of a layer of step(n, gates, h, c, p, f): h and c of the next step. p: the direction's weights.
local function layer(defaults, step)
  return {direction = "forward", prepare = function(n) prepare(n, defaults) end,
    function(n, x, w, r, bias, lengths, h0, c0, peepholes)
    local turns = n.layout == 1
    if turns then
      x, h0, c0 = ops.transpose(x, 1, 2), h0 and ops.transpose(h0, 1, 2), c0 and ops.transpose(c0, 1, 2)
    end
    check_shape("X", x, {"T", "B", "N"})
    local T, B, H, D, counts = x.shape[1], x.shape[2], n.hidden_size, #n.f / #defaults, n:ints(5, lengths)
    local gates = H * (#defaults == 3 and 4 or #defaults == 2 and 3 or 1)
    check_shape("W", w, {D, gates, x.shape[3]})
    check_shape("R", r, {D, gates, H})
    check_shape("B", bias, {D, 2 * gates})
    check_shape("sequence_lens", lengths, {B})
    check_shape("initial_h", h0, {D, B, H})
    check_shape("initial_c", c0, {D, B, H})
    check_shape("P", peepholes, {D, 3 * H})
    local opts, ys, hs, cs, is_lstm = {dtype = x.dtype, device = x.device}, {}, {}, {}, #defaults == 3
    local shortest = counts and math.min(unpack(counts)) or T
    for d = 1, w.shape[1] do
      local backward, f, parts = n.direction == "reverse" or d == 2, {}, {}
      for k = 1, #defaults do f[k] = n.f[(d - 1) * #defaults + k] end
      local both = bias and ops.select(bias, 1, d)
      local p = {r = ops.t(ops.select(r, 1, d)), bias = both and nth(both, 1, 2, 2)}
      p.peepholes = peepholes and ops.select(peepholes, 1, d)
      local input = backward and helpers.reversed(x, counts, 1, 2) or x
      local projected = ops.linear(input, ops.select(w, 1, d), both and nth(both, 1, 1, 2))
      local h, c = h0 and ops.select(h0, 1, d) or ops.zeros({B, H}, opts), nil
      if is_lstm then c = c0 and ops.select(c0, 1, d) or ops.zeros({B, H}, opts) end
      for t = 1, T do
        local new_h, new_c = step(n, ops.select(projected, 1, t), h, c, p, f)
        parts[t] = new_h
        if t > shortest then
          local runs = {}
          for b = 1, B do runs[b] = t <= counts[b] end
          local live = core.tensor(runs, {device = x.device}):reshape(B, 1)
          parts[t] = ops.where(live, new_h, ops.zeros_like(new_h))
          new_h, new_c = ops.where(live, new_h, h), c and ops.where(live, new_c, c)
        end
        h, c = new_h, new_c
      end
      local y = T > 0 and ops.stack(parts, 1) or ops.zeros({0, B, H}, opts)
      ys[d], hs[d], cs[d] = backward and helpers.reversed(y, counts, 1, 2) or y, h, c
    end
    local y, h, c = ops.stack(ys, 2), ops.stack(hs, 1), is_lstm and ops.stack(cs, 1) or nil
    if not turns then return y, h, c end
    return ops.permute(y, {3, 1, 2, 4}), ops.transpose(h, 1, 2), c and ops.transpose(c, 1, 2)
  end}
end

local function clipped(n, x) return n.clip and ops.clamp(x, -n.clip, n.clip) or x end

-- Returns h times columns of p.r, from a gate's first on, plus their bias.
local function hidden(h, p, first, count)
  local r = first and ops.narrow(p.r, 2, first, count) or p.r
  local bias = p.bias and (first and ops.narrow(p.bias, 1, first, count) or p.bias)
  return bias and ops.matmul(h, r) + bias or ops.matmul(h, r)
end

return {
  RNN = layer({"Tanh"}, function(n, gates, h, _, p, f) return f[1](clipped(n, gates + hidden(h, p))) end),
  GRU = layer({"Sigmoid", "Tanh"}, function(n, gates, h, _, p, f)
    local H = h.shape[2]
    local zr = f[1](clipped(n, ops.narrow(gates, 2, 1, 2 * H) + hidden(h, p, 1, 2 * H)))
    local z, reset = nth(zr, 2, 1, 2), nth(zr, 2, 2, 2)
    local inner
    if n.linear_before_reset == 1 then
      inner = reset * hidden(h, p, 2 * H + 1, H)
    else
      inner = hidden(reset * h, p, 2 * H + 1, H)
    end
    local new = f[2](clipped(n, nth(gates, 2, 3, 3) + inner))
    return new + z * (h - new)
  end),
  LSTM = layer({"Sigmoid", "Tanh", "Tanh"}, function(n, gates, h, c, p, f)
    gates = gates + hidden(n.carry and n.carry(h) or h, p) -- carry: what the product with r gets of h
    local i, o, forget, new = nth(gates, 2, 1, 4), nth(gates, 2, 2, 4), nth(gates, 2, 3, 4), nth(gates, 2, 4, 4)
    local function peek(x, state, k) return p.peepholes and x + state * nth(p.peepholes, 1, k, 3) or x end
    i = f[1](clipped(n, peek(i, c, 1)))
    forget = n.input_forget == 1 and 1 - i or f[1](clipped(n, peek(forget, c, 3)))
    c = forget * c + i * f[2](clipped(n, new))
    return f[1](clipped(n, peek(o, c, 2))) * f[3](c), c
  end),
}
