--- ONNX's recurrent layers: RNN, GRU and LSTM.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
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

-- Sets n.f to the activations, functions of one argument: those of the first direction, then those of the second; and
-- n.names to their names, joined, of each direction.
local function prepare(n, defaults)
  local names, alphas, betas, a_at, b_at = n.activations, n.activation_alpha or {}, n.activation_beta or {}, 0, 0
  n.f, n.names = {}, {"", ""}
  for at = 1, #defaults * (n.direction == "bidirectional" and 2 or 1) do
    local name, d = (names and names[at] or defaults[(at - 1) % #defaults + 1]):lower(), math.ceil(at / #defaults)
    local f, alpha, beta = unpack(activations[name] or n:unsupported("with the activation " .. name))
    if alpha and alphas[a_at + 1] then a_at, alpha = a_at + 1, alphas[a_at + 1] end
    if beta and betas[b_at + 1] then b_at, beta = b_at + 1, betas[b_at + 1] end
    n.f[at] = function(x) return f(x, alpha, beta) end
    n.names[d] = n.names[d] .. " " .. name
  end
end

-- Cells of the op recurrent_layer by the names of their activations, and the order of ONNX's gates in that op.
local cells = {
  [" sigmoid tanh tanh"] = "lstm", [" sigmoid tanh"] = "gru", [" tanh"] = "rnn_tanh", [" relu"] = "rnn_relu",
}
local orders = {lstm = {1, 3, 4, 2}, gru = {2, 1, 3}}
local FAR = 3e4 -- a number whose sigmoid is 1, and 0 of the negative one, in half precision too

-- Returns t with its gates, along dim 1, in the op's order.
local function reordered(t, order)
  return t and order and ops.cat(lists.map(order, function(k) return nth(t, 1, k, #order) end), 1) or t
end

-- Runs a direction by one op. p: {w, r, bias of w, bias of r}; live: bool [T, B, 1], or nil for sequences of full
-- length. Returns y, without zeros at steps that are not live, the last h, which counts without `live`, and c.
local function fused(cell, x, p, h, c, live)
  local T, B, H, order = x.shape[1], x.shape[2], h.shape[2], orders[cell]
  local w, r, bias, bias_hh = unpack(lists.map({1, 2, 3, 4}, function(k) return reordered(p[k], order) or false end))
  if cell ~= "gru" and bias then bias, bias_hh = bias + bias_hh, nil end
  if live then x = ops.where(live, x, 0) end
  if live and cell == "lstm" then -- an input that is 1 at steps which keep c
    local gate = core.tensor({{-FAR}, {FAR}, {0}, {-FAR}}, {dtype = x.dtype}):expand(4, H)
    x, w = ops.cat({x, ops.logical_not(live):to(x.dtype)}, 3), ops.cat({w, gate:reshape(4 * H, 1)}, 2)
  end
  x = x:reshape(T * B, -1)
  local gates, o = ops.linear(x, w, bias or nil), {cell = cell}
  if not core.is_autocast_enabled() then o.x, o.weight_ih, o.bias_ih = x, w, bias or nil end
  local y, last, last_c = ops.recurrent_layer(gates, r, h, c, bias_hh or nil, nil, o)
  return y:reshape(T, B, H), last, c and last_c
end

-- Returns all h of a direction, the last h and c, by ordinary ops.
local function run_by_steps(n, step, x, p, h, c, live)
  local projected, parts = ops.linear(x, p[1], p[3]), {}
  p = {r = ops.t(p[2]), bias = p[4], peepholes = p.peepholes, f = p.f}
  for t = 1, x.shape[1] do
    local new_h, new_c = step(n, ops.select(projected, 1, t), h, c, p, p.f)
    parts[t] = new_h
    if live then
      local now = ops.select(live, 1, t)
      new_h, new_c = ops.where(now, new_h, h), c and ops.where(now, new_c, c)
    end
    h, c = new_h, new_c
  end
  return #parts > 0 and ops.stack(parts, 1) or ops.zeros({0, h.shape[1], h.shape[2]}, {dtype = x.dtype}), h, c
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
    local T, B, H, D = x.shape[1], x.shape[2], n.hidden_size, #n.f / #defaults
    local gates = H * (#defaults == 3 and 4 or #defaults == 2 and 3 or 1)
    check_shape("W", w, {D, gates, x.shape[3]})
    check_shape("R", r, {D, gates, H})
    check_shape("B", bias, {D, 2 * gates})
    check_shape("sequence_lens", lengths, {B})
    check_shape("initial_h", h0, {D, B, H})
    check_shape("initial_c", c0, {D, B, H})
    check_shape("P", peepholes, {D, 3 * H})
    local ys, hs, cs, is_lstm, live, reversal, ends = {}, {}, {}, #defaults == 3, nil, nil, nil
    local function state(t, d) return t and ops.select(t, 1, d) or ops.zeros({B, H}, {dtype = x.dtype}) end
    if lengths then -- compared, not read, so that recordings hold for other lengths
      lengths = lengths:to(x.device):to "int64"
      live = ops.gt(lengths:reshape(1, B, 1), ops.arange(T, {dtype = "int64"}):reshape(T, 1, 1))
      reversal = n.direction ~= "forward" and helpers.reversal(lengths, T, 3, 1, 2)
      ends = ops.clamp(lengths, 1, T):reshape(1, B, 1):expand(1, B, H)
    end
    local plain = x.device == "cpu" and T > 0 and B > 0 and not (n.clip or peepholes or n.input_forget == 1)
      and (#defaults ~= 2 or n.linear_before_reset == 1)
    for d = 1, D do
      local backward, f, both = n.direction == "reverse" or d == 2, {}, bias and ops.select(bias, 1, d)
      for k = 1, #defaults do f[k] = n.f[(d - 1) * #defaults + k] end
      local p = {ops.select(w, 1, d), ops.select(r, 1, d), both and nth(both, 1, 1, 2), both and nth(both, 1, 2, 2),
        f = f, peepholes = peepholes and ops.select(peepholes, 1, d)}
      local input = backward and helpers.reversed(x, reversal, 1) or x
      local h, c, cell, y, last = state(h0, d), is_lstm and state(c0, d) or nil, plain and cells[n.names[d]]
      if cell then
        y, last, c = fused(cell, input, p, h, c, live)
      else
        y, last, c = run_by_steps(n, step, input, p, h, c, live)
      end
      if live then
        if cell then last = ops.where(ops.select(live, 1, 1), ops.gather(y, 1, ends):reshape(B, H), h) end
        y = ops.where(live, y, 0)
      end
      ys[d], hs[d], cs[d] = backward and helpers.reversed(y, reversal, 1) or y, last, c
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
