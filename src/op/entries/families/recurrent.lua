-- Defines recurrent layers: one op runs a layer in one direction over complete sequences.
local op = ...

-- y3 holds the values of every step that the gradient needs: gates, cells.
op("recurrent_layer(gates, weight_hh, h0, c0?, bias_hh?, weight_hr?, {cell: recurrent_cell = lstm, "
  .. "reverse = false, batch_sizes?, x?, weight_ih?, bias_ih?})") {
  operands = {
    "weight_hh: [G, P] float in stat of weight_hh", "cell(cell, weight_hh, given(c0), given(weight_hr), H)",
    "h0: [N, P] of weight_hh in stat of weight_hh", "c0: [N, H] of weight_hh in stat of weight_hh",
    "bias_hh: [G] of weight_hh in stat of weight_hh", "weight_hr: [P, H] of weight_hh in stat of weight_hh",
    "gates: [R, G] of weight_hh in stat of weight_hh", "batch_sizes: private on_host", "steps(batch_sizes, N, R)",
  },
  results = {
    "y: [R, P] of gates in stat of weight_hh", "h: [N, P] of gates in stat of weight_hh",
    "c: [N, H] of gates in stat of weight_hh if cell == 'lstm' else [0]",
    "work: [R, recurrent_slots(cell) * H] stat of weight_hh",
  },
  hidden = 1, compute = "recurrent_layer",
  grad = {
    ["gates, weight_hh, h0, c0, bias_hh, weight_hr"] = "recorded() "
      .. "? recurrent_gradients(given(x) ? linear(x, weight_ih, bias_ih) : gates, weight_hh, h0, g, g1, g2, c0, "
      .. "bias_hh, weight_hr, batch_sizes, cell, reverse) "
      .. ": recurrent_layer_backward(weight_hh, h0, y, y3, g, g1, g2, c0, bias_hh, weight_hr, batch_sizes, cell, "
      .. "reverse)",
    x = "nil", weight_ih = "nil", bias_ih = "nil",
  },
  autocast = "lower", internal = true,
  help = "a recurrent layer (cell: rnn_tanh, rnn_relu, gru or lstm) in one direction. gates [steps * N, G * H] are the "
    .. "inputs times weight_ih, one step after the other, with G = 1, 1, 3 (r, z, n) or 4 (i, f, g, o); to them is "
    .. "added weight_hh [G * H, P] times the state, from h0 [N, P], plus bias_hh [G * H]; c0 [N, H]: cells of an "
    .. "lstm, whose weight_hr [P, H] projects h to P numbers (else P = H). batch_sizes: how many sequences each step "
    .. "has, as in a PackedSequence. x, weight_ih, bias_ih: what gates were made of, for a gradient of the gradient "
    .. "to make them again, so that they are not kept. Returns y [steps * N, P], the last h [N, P] and the last cells "
    .. "[N, H], [0] where there are none. Computed by the CPU; nn.RNN, nn.GRU and nn.LSTM work on every device",
}
op("recurrent_layer_backward(weight_hh, h0, y, work, grad_y?, grad_h?, grad_c?, c0?, bias_hh?, weight_hr?, "
  .. "batch_sizes?, cell: recurrent_cell = lstm, reverse = false)") {
  results = 6, internal = true,
  help = "gradients of recurrent_layer: gates, weight_hh, h0, c0, bias_hh, weight_hr; [0] for what was not there",
}

-- Recurrent layers of a device's library (cuDNN), all in one call. y1 of recurrent_weights is the position of each
-- weight, y3 of recurrent_network the library's data for the gradient.
op "recurrent_weights(weights: tensors, {cell: recurrent_cell = lstm, bidirectional = false, bias = true})" {
  hidden = 1,
  grad = {weights = "packed_weight(g, y1, sizes, at)"},
  autocast = "lower", internal = true,
  help = "weights of recurrent layers as the library of their device wants them, [n]; [0] where there is none, or it "
    .. "has no such layers: nn.RNN, nn.GRU and nn.LSTM then do without. weights: weight_ih [G * H, I] and weight_hh "
    .. "[G * H, H] and, with bias, bias_ih and bias_hh [G * H] of each layer, in turn those of each direction",
}
op("recurrent_network(x, weights, h0, c0?, {cell: recurrent_cell = lstm, bidirectional = false, bias = true, "
  .. "keep = true, batch_sizes?})") {
  results = 3, hidden = 1,
  grad = {
    ["x, weights, h0, c0"] =
      "recurrent_network_backward(x, weights, h0, y, y3, g, g1, g2, c0, batch_sizes, cell, bidirectional, bias)",
  },
  autocast = "lower", internal = true,
  help = "recurrent layers by the library of their device. x [steps * N, I], one step after the other; weights: a "
    .. "result of recurrent_weights; h0 and, of an lstm, c0 [layers * D, N, H], with D = 2 where bidirectional and "
    .. "else 1. batch_sizes: how many sequences each step has, as in a PackedSequence; keep = false: there will be no "
    .. "gradient. Returns y [steps * N, D * H], the last h and the last cells, [0] where there are none; and [0] for "
    .. "all three where the library does not support them",
}
op("recurrent_network_backward(x, weights, h0, y, work, grad_y?, grad_h?, grad_c?, c0?, batch_sizes?, "
  .. "cell: recurrent_cell = lstm, bidirectional = false, bias = true)") {
  results = 4,
  internal = true, help = "gradients of recurrent_network: x, weights, h0, c0, [0] where that was not there",
}
