-- Recurrent layers: one op for a layer in one direction over whole sequences.
local op = ...

-- y3 is what the gradient needs of every step: gates, cells.
op "recurrent_layer" {
  "gates", "weight_hh", "h0", "c0?", "bias_hh?", "weight_hr?",
  options = {"cell: recurrent_cell = lstm", "reverse = false", "batch_sizes?"},
  results = 3, hidden = 1,
  grad = {
    ["gates, weight_hh, h0, c0, bias_hh, weight_hr"] =
      "recurrent_layer_backward(weight_hh, h0, y, y3, g, g1, g2, c0, bias_hh, weight_hr, batch_sizes, cell, reverse)",
  },
  autocast = "lower",
  help = "a recurrent layer (cell: rnn_tanh, rnn_relu, gru or lstm) in one direction. gates [steps * N, G * H] is what "
    .. "the inputs give, one step after the other, with G = 1, 1, 3 (r, z, n) or 4 (i, f, g, o); weight_hh [G * H, P] "
    .. "and bias_hh [G * H] make of the state h0 [N, P] what is added to them; c0 [N, H]: cells of an lstm, whose "
    .. "weight_hr [P, H] projects h to P numbers (else P = H). batch_sizes: how many sequences each step has, as in a "
    .. "PackedSequence. Gives y [steps * N, P], the last h [N, P] and the last cells [N, H], [0] where there are none. "
    .. "Computed by the CPU; nn.RNN, nn.GRU and nn.LSTM work on every device",
}
op "recurrent_layer_backward" {
  "weight_hh", "h0", "y", "work", "grad_y?", "grad_h?", "grad_c?", "c0?", "bias_hh?", "weight_hr?", "batch_sizes?",
  "cell: recurrent_cell = lstm", "reverse = false",
  results = 6,
  help = "gradients of recurrent_layer: gates, weight_hh, h0, c0, bias_hh, weight_hr; [0] for what was not there",
}
