-- Defines attention: softmax(scale * query keyᵀ + mask) value.
local op = ...

local shapes = "expected query, key and value to have shapes [..., L, E], [..., S, E] and [..., S, Ev], "
  .. "got {query}, {key} and {value}"

op("scaled_dot_product_attention(query, key, value, attn_mask?, dropout_p: number = 0, is_causal = false, "
  .. "{scale: number?, enable_gqa = false})") {
  draws = "dropout_p",
  needs = {
    {"ndim_of(query) >= 2 && ndim_of(key) >= 2 && ndim_of(value) >= 2", shapes},
    {"size_of(query)[-1] == size_of(key)[-1] && size_of(key)[-2] == size_of(value)[-2]", shapes},
    {"is_float(query) && is_float(key) && is_float(value)",
      "query, key and value must be floating point, got {dtype_of(query)}, {dtype_of(key)} and {dtype_of(value)}"},
    {"same_dtype(query, key) && same_dtype(query, value)",
      "dtype mismatch: query is {dtype_of(query)}, key is {dtype_of(key)}, value is {dtype_of(value)}; convert them "
        .. "with "
        .. ":to()"},
    {"!given(attn_mask) || is_bool(attn_mask) || is_float(attn_mask)",
      "attn_mask must be bool (true: attended to) or floating point (added), got {dtype_of(attn_mask)}"},
    {"!given(attn_mask) || is_bool(attn_mask) || epsilon_of(attn_mask) >= epsilon_of(query)",
      "dtype mismatch: attn_mask is {dtype_of(attn_mask)}, query is {dtype_of(query)}; convert it with "
        .. "attn_mask:to(\"{dtype_of(query)}\") or pass a bool mask"},
    {"!(is_causal && given(attn_mask))", "attn_mask must be left out with is_causal = true; pass one of the two"},
    {"!given(attn_mask) || ndim_of(attn_mask) < 1 || size_of(attn_mask)[-1] == 1 "
      .. "|| size_of(attn_mask)[-1] == size_of(key)[-2]",
      "attn_mask of shape {attn_mask} does not broadcast to [..., {size_of(query)[-2]}, {size_of(key)[-2]}]"},
    {"!given(attn_mask) || ndim_of(attn_mask) < 2 || size_of(attn_mask)[-2] == 1 "
      .. "|| size_of(attn_mask)[-2] == size_of(query)[-2]",
      "attn_mask of shape {attn_mask} does not broadcast to [..., {size_of(query)[-2]}, {size_of(key)[-2]}]"},
    {"dropout_p >= 0 && dropout_p <= 1", "dropout_p must be from 0 to 1, got {dropout_p}"},
    {"!enable_gqa || heads_of(query) == heads_of(key) || divides(heads_of(key), heads_of(query))",
      "heads of query ({heads_of(query)}) must be divisible by heads of key ({heads_of(key)})"},
    {"!enable_gqa || heads_of(query) == heads_of(value) || divides(heads_of(value), heads_of(query))",
      "heads of query ({heads_of(query)}) must be divisible by heads of value ({heads_of(value)})"},
    {"enable_gqa || heads_of(query) == heads_of(key) || heads_of(query) == 1 || heads_of(key) == 1",
      "heads of query and key must match, got {query} and {key}; use enable_gqa = true for grouped queries"},
    {"enable_gqa || heads_of(query) == heads_of(value) || heads_of(query) == 1 || heads_of(value) == 1",
      "heads of query and value must match, got {query} and {value}; use enable_gqa = true for grouped queries"},
  },
  forms = {
    -- cuDNN adds the mask. It has no -inf in it: a query that may attend to no key attends to all of them.
    {
      when = "given(attn_mask) && attention_is_fused(query, key, value, attn_mask, is_causal, dropout_p) "
        .. "&& attention_is_supported(query, key, value, attn_mask, is_causal, dropout_p)",
      "hidden = is_bool(attn_mask) ? logical_not(attn_mask) : attn_mask == -inf",
      "added = is_bool(attn_mask) ? zeros_of(query, size_of(attn_mask)) : attn_mask",
      "draw = dropout_p > 0 ? attention_draw(query, key) : nil",
      "y = attention(query, key, value, masked_fill(added, hidden, -65504), is_causal, scale, dropout_p, draw, true)",
      "masked_fill(y, all(hidden, [-1], true), 0)",
    },
    {
      when = "ndim_of(query) == 3 && attention_is_supported(query, key, value, attn_mask, is_causal, dropout_p)",
      "mask = given(attn_mask) ? unsqueeze(attn_mask, 0) : nil",
      "draw = dropout_p > 0 ? attention_draw(query, key) : nil",
      "fused = !given(attn_mask) && attention_is_fused(query, key, value, attn_mask, is_causal, dropout_p)",
      "y = attention(unsqueeze(query, 0), unsqueeze(key, 0), unsqueeze(value, 0), mask, is_causal, scale, "
        .. "dropout_p, draw, fused)",
      "squeeze(y, 0)",
    },
    {
      when = "attention_is_supported(query, key, value, attn_mask, is_causal, dropout_p)",
      "draw = dropout_p > 0 ? attention_draw(query, key) : nil",
      "fused = !given(attn_mask) && attention_is_fused(query, key, value, attn_mask, is_causal, dropout_p)",
      "attention(query, key, value, attn_mask, is_causal, scale, dropout_p, draw, fused)",
    },
    -- Products would round scores to query's dtype, so halves are computed in float32, as in PyTorch.
    {
      when = "is_half(query) && !attention_is_possible(query, key, value, attn_mask)",
      "y = scaled_dot_product_attention(widened(query), widened(key), widened(value), "
        .. "given(attn_mask) ? widened(attn_mask) : nil, dropout_p, is_causal, scale, enable_gqa)",
      "in_dtype_of(y, query)",
    },
  },
  formula = {
    "key_groups = enable_gqa && heads_of(key) > 0 ? heads_of(query) / heads_of(key) : 1",
    "value_groups = enable_gqa && heads_of(value) > 0 ? heads_of(query) / heads_of(value) : 1",
    "weights = attention_weights(query, repeated_heads(key, key_groups), attn_mask, is_causal, scale)",
    "matmul(dropout_p > 0 ? dropout(weights, dropout_p, true) : weights, repeated_heads(value, value_groups))",
  },
  autocast = "lower",
  help = "Computes scaled dot product attention of query, key and value tensors.",
}
-- Each pass over [..., L, S] costs more on a GPU than the products. Without a mask every query sees a key; with one the
-- mask alone decides: scores are not examined.
op "attention_weights(query, key, attn_mask?, is_causal = false, scale: number?)" {
  forms = {
    {when = "is_half(query) && on_cpu(query)", -- on a GPU half-precision products are many times faster
      "wide_mask = given(attn_mask) ? widened(attn_mask) : nil",
      "in_dtype_of(attention_weights(widened(query), widened(key), wide_mask, is_causal, scale), query)"},
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
  internal = true, help = "what scaled_dot_product_attention weights values by, [..., L, S]",
}
-- y1 is the logarithm of softmax's sums of exponentials: log sum exp(scores). `fused`: the mask has no -inf; if cuDNN
-- computes this, it draws dropout's masks in both passes from `draw`.
op("attention(query, key, value, attn_mask?, is_causal = false, scale: number?, dropout_p: number = 0, draw?, "
  .. "fused = false)") {
  operands = {
    "query: [N, H, L, E] float in attention(query) layout(rows)",
    "key: [N, G, S, E] of query in attention(query) layout(rows)",
    "value: [N, G, S, V] of query in attention(query) layout(rows)", "heads(H, G)", "scale(&scale, E)",
    "dropout_p: from 0 to 1", "draw(dropout_p, &draw)", "draw: [2] int64", "mask(attn_mask, query)",
    "attn_mask: layout(mask, query, key)",
  },
  results = {"y: [N, H, L, V] of query in attention(query) near query", "log_sum: [N, H, L] stat of query"},
  hidden = 1, host = true,
  grad = {
    ["query, key, value"] =
      "attention_backward(g, query, key, value, y, y1, attn_mask, is_causal, scale, dropout_p, draw, fused)",
  },
  internal = true,
  flops = "2 * (numel_of(query) + numel_of(y)) * size_of(key)[-2]",
  help = "scaled_dot_product_attention in blocks, of [N, H, L, E] and [N, heads that divide H, S, E]; with dropout_p "
    .. "of a draw, attention_draw's",
}
op("attention_backward(grad, query, key, value, out, log_sum, attn_mask?, is_causal = false, scale: number?, "
  .. "dropout_p: number = 0, draw?, fused = false)") {
  operands = {
    "query: [N, H, L, E] float in attention(query) layout(rows)",
    "key: [N, G, S, E] of query in attention(query) layout(rows)",
    "value: [N, G, S, V] of query in attention(query) layout(rows)", "heads(H, G)", "scale(&scale, E)",
    "dropout_p: from 0 to 1", "draw(dropout_p, &draw)", "draw: [2] int64",
    "grad: [N, H, L, V] float in attention(query) layout(rows)",
    "out: [N, H, L, V] float in attention(query) layout(rows)", "log_sum: [N, H, L] in stat of query",
    "mask(attn_mask, query)", "attn_mask: layout(mask, query, key)",
  },
  results = {
    "dquery: [N, H, L, E] of query in attention(query) near query",
    "dkey: [N, G, S, E] of query in attention(query) near key",
    "dvalue: [N, G, S, V] of query in attention(query) near value",
  },
  host = true,
  grad = "formula",
  formula = {
    "groups = heads_of(key) > 0 ? heads_of(query) / heads_of(key) : 1",
    "queries = widened(query)",
    "keys = repeated_heads(widened(key), groups)",
    "values = repeated_heads(widened(value), groups)",
    "grads = widened(grad)",
    "weights = attention_weights(queries, keys, given(attn_mask) ? widened(attn_mask) : nil, is_causal, scale)",
    "left = dropout_p > 0 ? dropout_by_draw(weights, dropout_p, draw, fused) : weights",
    "all = matmul(grads, transpose(values, -2, -1))",
    "slopes = dropout_p > 0 ? dropout_by_draw(all, dropout_p, draw, fused) : all",
    "dscores = weights * (slopes - sum(slopes * weights, [-1], true)) * scale_of(scale, query)",
    "in_dtype_of(matmul(dscores, keys), query)",
    "in_dtype_of(summed_heads(matmul(transpose(dscores, -2, -1), queries), groups), query)",
    "in_dtype_of(summed_heads(matmul(transpose(left, -2, -1), grads), groups), query)",
  },
  flops = "(6 * numel_of(query) + 4 * numel_of(grad)) * size_of(key)[-2]",
  widens = true, internal = true, help = "gradients of attention: query, key, value",
}
op "attention_draw(query, key)" {
  operands = {"query: [from..., L, E] strided", "key: [to..., S, D] strided"}, results = {"draw: [2] int64"},
  grad = "none", draws = true, internal = true,
  help = "random numbers reserved for the weights of query [..., L, E] and key [..., S, E], a number for each of "
    .. "[..., L, S]: the generator's seed and place, int64 [2]",
}
-- Drops weights by block as attention does, each by its position in x.
op "dropout_by_draw(x, p: number, draw, fused = false)" {
  operands = {"x: float", "p: from 0 to 1", "draw: [2] int64", "own_draw(fused)"}, results = {"y: like x"}, host = true,
  grad = {x = "dropout_by_draw(g, p, draw)"}, internal = true,
  help = "dropout by reserved random numbers (attention_draw): the same elements at every call",
}
-- Tokens of several sequences at once, each of which has its keys and values in pages of a common memory: as floats, or
-- as uint8, blocks of the kind.
op("paged_attention(query, keys, values, pages, sequence, position, page_size: int, "
  .. "{scale: number?, window: int = 0, cap: number = 0, kind: block_kind = q8_0})") {
  operands = {
    "keys: [S, G, A]", "floats_or_blocks(keys, A, kind, E)", "query: [T, H, E] float in float32",
    "values: [S, G, B] of keys", "floats_or_blocks(values, B, kind, V)", "pages: [R, P] index",
    "sequence: [T] index", "position: [T] index", "heads(H, G)", "scale(&scale, E)", "page_size: at least 1",
    "window: at least 0", "cap: at least 0",
  },
  results = {"y: [T, H, V] of query in float32"},
  forms = { -- float64 has no kernel of its own
    {
      when = "is_float(query) && epsilon_of(query) < 1e-10 && !is_float(keys) && !is_float(values)",
      "paged_attention(query, in_dtype_of(expand_blocks(keys, kind), query), "
        .. "in_dtype_of(expand_blocks(values, kind), query), pages, sequence, position, page_size, scale, window, cap)",
    },
    {
      when = "is_float(query) && is_float(keys) && (epsilon_of(query) < 1e-10 || epsilon_of(keys) < 1e-10) "
        .. "&& ndim_of(query) == 3 && ndim_of(keys) == 3 && ndim_of(values) == 3 && ndim_of(pages) == 2 "
        .. "&& page_size > 0 && page_size <= size_of(keys)[1] && size_of(keys)[2] > 0 "
        .. "&& divides(size_of(keys)[2], size_of(query)[2])",
      "tokens = size_of(query)[1]",
      "offsets = in_dtype_of(cumsum(zeros_of(query, [page_size]) + 1, 0), pages)",
      "slots = unsqueeze((index_select(pages, 0, sequence) - 1) * page_size, -1) + offsets",
      "all = size_of(pages)[2] * page_size",
      "key = transpose(reshape(index_select(keys, 0, reshape(slots, [-1])), "
        .. "[tokens, all, size_of(keys)[2], size_of(keys)[3]]), 1, 2)",
      "value = transpose(reshape(index_select(values, 0, reshape(slots, [-1])), "
        .. "[tokens, all, size_of(values)[2], size_of(values)[3]]), 1, 2)",
      "groups = size_of(query)[2] / size_of(keys)[2]",
      "ahead = cumsum(zeros_of(query, [all]) + 1, 0) - unsqueeze(position, -1)",
      "hidden = window > 0 ? logical_or(ahead > 0, ahead <= -window) : ahead > 0",
      "scores = matmul(unsqueeze(query, 2) * scale_of(scale, query), "
        .. "transpose(repeated_heads(in_dtype_of(key, query), groups), -2, -1))",
      "capped = cap > 0 ? tanh(scores / cap) * cap : scores",
      "weights = softmax(masked_fill(capped, unsqueeze(unsqueeze(hidden, 1), 1), -inf), -1)",
      "squeeze(matmul(weights, repeated_heads(in_dtype_of(value, query), groups)), [2])",
    },
  },
  grad = "none", autocast = "lower", values = "fail",
  help = "Computes attention of tokens [T, H, E] of several sequences to the keys and values of their positions so "
    .. "far, which lie in pages of page_size positions.",
}
