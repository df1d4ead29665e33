-- Attention: softmax(scale * query keyᵀ + mask) value.
local op = ...

op "scaled_dot_product_attention" {
  "query", "key", "value", "attn_mask?", "dropout_p: number = 0", "is_causal = false",
  options = {"scale: number?", "enable_gqa = false"},
  needs = {
    {"ndim_of(query) >= 2 && ndim_of(key) >= 2 && ndim_of(value) >= 2",
      "query is {query}, key {key}, value {value}; [..., L, E], [..., S, E] and [..., S, Ev] wanted"},
    {"size_of(query)[-1] == size_of(key)[-1] && size_of(key)[-2] == size_of(value)[-2]",
      "query is {query}, key {key}, value {value}; [..., L, E], [..., S, E] and [..., S, Ev] wanted"},
    {"is_float(query) && is_float(key) && is_float(value)",
      "query is {dtype_of(query)}, key {dtype_of(key)}, value {dtype_of(value)}; floating numbers wanted"},
    {"same_dtype(query, key) && same_dtype(query, value)",
      "query is {dtype_of(query)}, key {dtype_of(key)}, value {dtype_of(value)}; one dtype wanted: :to() converts"},
    {"!given(attn_mask) || is_bool(attn_mask) || is_float(attn_mask)",
      "attn_mask is {dtype_of(attn_mask)}; bool (true: seen) wanted, or floating numbers, which are added"},
    {"!given(attn_mask) || is_bool(attn_mask) || epsilon_of(attn_mask) >= epsilon_of(query)",
      "attn_mask is {dtype_of(attn_mask)}, query {dtype_of(query)}; attn_mask:to(\"{dtype_of(query)}\") makes them "
        .. "alike, or a mask of bool goes with every query"},
    {"!(is_causal && given(attn_mask))", "either attn_mask or is_causal = true, not both"},
    {"!given(attn_mask) || ndim_of(attn_mask) < 1 || size_of(attn_mask)[-1] == 1 "
      .. "|| size_of(attn_mask)[-1] == size_of(key)[-2]",
      "attn_mask is {attn_mask}; it has to broadcast to [..., {size_of(query)[-2]}, {size_of(key)[-2]}]"},
    {"!given(attn_mask) || ndim_of(attn_mask) < 2 || size_of(attn_mask)[-2] == 1 "
      .. "|| size_of(attn_mask)[-2] == size_of(query)[-2]",
      "attn_mask is {attn_mask}; it has to broadcast to [..., {size_of(query)[-2]}, {size_of(key)[-2]}]"},
    {"dropout_p >= 0 && dropout_p <= 1", "dropout_p is {dropout_p}; a probability from 0 to 1 wanted"},
    {"!enable_gqa || heads_of(query) == heads_of(key) || divides(heads_of(key), heads_of(query))",
      "{heads_of(query)} heads of queries are not to be divided among {heads_of(key)} of keys"},
    {"enable_gqa || heads_of(query) == heads_of(key) || heads_of(query) == 1 || heads_of(key) == 1",
      "query is {query}, key {key}; where fewer heads of keys serve more of queries, enable_gqa = true says so"},
  },
  forms = {
    {
      when = "ndim_of(query) == 3 && suits_attention(query, key, value, attn_mask, is_causal, dropout_p)",
      "mask = given(attn_mask) ? unsqueeze(attn_mask, 0) : nil",
      "draw = dropout_p > 0 ? attention_draw(query, key) : nil",
      "y = attention(unsqueeze(query, 0), unsqueeze(key, 0), unsqueeze(value, 0), mask, is_causal, scale, "
        .. "dropout_p, draw)",
      "squeeze(y, 0)",
    },
    {
      when = "suits_attention(query, key, value, attn_mask, is_causal, dropout_p)",
      "draw = dropout_p > 0 ? attention_draw(query, key) : nil",
      "attention(query, key, value, attn_mask, is_causal, scale, dropout_p, draw)",
    },
  },
  formula = {
    "groups = enable_gqa && heads_of(key) > 0 ? heads_of(query) / heads_of(key) : 1",
    "weights = attention_weights(query, repeated_heads(key, groups), attn_mask, is_causal, scale)",
    "matmul(dropout_p > 0 ? dropout(weights, dropout_p, true) : weights, repeated_heads(value, groups))",
  },
  autocast = "lower",
  help = "Computes scaled dot product attention of query, key and value tensors.",
}
-- On a GPU each pass over [..., L, S] costs more than the products. Without a mask every query sees a key, and with one
-- the mask alone says which does not: nothing is asked of the scores.
op "attention_weights" {
  "query", "key", "attn_mask?", "is_causal = false", "scale: number?",
  forms = {
    {when = "!given(attn_mask) && size_of(key)[-2] > 0",
      "scores = matmul(query * scale_of(scale, query), transpose(key, -2, -1))",
      "softmax(is_causal ? scores + triu(zeros_of(scores, [size_of(query)[-2], size_of(key)[-2]]) - inf, 1) : scores, "
        .. "-1)"},
    {when = "!is_causal && ndim_of(attn_mask) > 0 && is_bool(attn_mask) && size_of(key)[-2] > 0",
      "scores = matmul(query * scale_of(scale, query), transpose(key, -2, -1))",
      "blind = logical_not(any(attn_mask, [-1], true))",
      "hidden = logical_not(logical_or(attn_mask, blind))",
      "masked_fill(softmax(masked_fill(scores, hidden, -inf), -1), blind, 0)"},
    {when = "!is_causal && ndim_of(attn_mask) > 0 && size_of(key)[-2] > 0",
      "scores = matmul(query * scale_of(scale, query), transpose(key, -2, -1))",
      "blind = amax(attn_mask, [-1], true) == -inf",
      "masked_fill(softmax(in_dtype_of(scores + masked_fill(attn_mask, blind, 0), scores), -1), blind, 0)"},
  },
  formula = {
    "scores = matmul(query * scale_of(scale, query), transpose(key, -2, -1))",
    "added = !given(attn_mask) || is_bool(attn_mask) ? scores : in_dtype_of(scores + attn_mask, scores)",
    "masked = given(attn_mask) && is_bool(attn_mask) ? masked_fill(added, logical_not(attn_mask), -inf) : added",
    "above = triu(zeros_of(scores, [size_of(query)[-2], size_of(key)[-2]]) - inf, 1)",
    "seen = is_causal ? masked + above : masked",
    "blind = size_of(key)[-2] > 0 ? amax(seen, [-1], true) == -inf : seen == -inf",
    "masked_fill(softmax(masked_fill(seen, blind, 0), -1), blind, 0)",
  },
  inner = true, help = "what scaled_dot_product_attention weights values by, [..., L, S]",
}
-- y1 is the logarithm of the sums that softmax divides by, less for the largest score: log sum exp(scores).
op "attention" {
  "query", "key", "value", "attn_mask?", "is_causal = false", "scale: number?", "dropout_p: number = 0",
  "draw?", hidden = 1,
  grad = {
    ["query, key, value"] =
      "attention_backward(g, query, key, value, y, y1, attn_mask, is_causal, scale, dropout_p, draw)",
  },
  inner = true,
  help = "scaled_dot_product_attention in blocks, of [N, H, L, E] and [N, heads that divide H, S, E]; with dropout_p "
    .. "of a draw, attention_draw's",
}
op "attention_backward" {
  "grad", "query", "key", "value", "out", "log_sum", "attn_mask?", "is_causal = false", "scale: number?",
  "dropout_p: number = 0", "draw?",
  results = 3,
  grad = "formula",
  formula = {
    "groups = heads_of(key) > 0 ? heads_of(query) / heads_of(key) : 1",
    "keys = repeated_heads(key, groups)",
    "values = repeated_heads(value, groups)",
    "weights = attention_weights(query, keys, attn_mask, is_causal, scale)",
    "left = dropout_p > 0 ? dropout_by_draw(weights, dropout_p, draw) : weights",
    "all = matmul(grad, transpose(values, -2, -1))",
    "slopes = dropout_p > 0 ? dropout_by_draw(all, dropout_p, draw) : all",
    "dscores = weights * (slopes - sum(slopes * weights, [-1], true)) * scale_of(scale, query)",
    "matmul(dscores, keys)",
    "summed_heads(matmul(transpose(dscores, -2, -1), query), groups)",
    "summed_heads(matmul(transpose(left, -2, -1), grad), groups)",
  },
  inner = true, help = "gradients of attention: query, key, value",
}
op "attention_draw" {
  "query", "key",
  grad = "none", inner = true,
  help = "random numbers reserved for the weights of query [..., L, E] and key [..., S, E], a number for each of "
    .. "[..., L, S]: the generator's seed and place, int64 [2]",
}
-- Weights are dropped block by block as this op drops them: each by its place in x.
op "dropout_by_draw" {
  "x", "p: number", "draw",
  grad = {x = "dropout_by_draw(g, p, draw)"}, inner = true,
  help = "dropout by reserved random numbers (attention_draw): the same elements at every call",
}
