--- nn.parallel.context_parallel(…): Divides sequences over ranks, whose attention passes keys and values around a ring.
--- Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
---
--- In step s each rank computes attention to the keys that were s ranks before it, while the next ones arrive. Results
--- for parts of the keys are merged by log_sum, the logarithms of their sums of exponentials. In backward the gradients
--- of keys and values travel one step behind them, so that they end at their owner. The balanced order of
--- sequence_part makes a causal block after step 0 one without a mask: of all queries to the first half of keys that
--- come before, or of the second half of queries to all keys that come after.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local autograd = require "luminary.autograd.function"
local agree = require "luminary.distributed.agree"
local dist = require "luminary.distributed.collectives"
local device_mesh = require "luminary.distributed.device_mesh"
local functions = require "luminary.nn.parallel.collective_functions"
local part = require "luminary.nn.sequence_part"
local shapes = require "luminary.tensor.shapes"

local ops, fail, describe, who = core.ops, options.fail, options.describe, "context_parallel"

-- Starts to send two tensors to the next rank, and to receive two like them from the one before. Returns a function
-- that waits for both, and on a GPU for no later message, and returns those received, which no scope drops.
local function pass(mesh, a, b)
  local group, messages, received = mesh.groups[1], {}, {}
  local after, before = group.ranks[(group.rank + 1) % group.size + 1], group.ranks[(group.rank - 1) % group.size + 1]
  for i, t in ipairs {a, b} do
    received[i] = core.keep(ops.empty(t.shape, {dtype = t.dtype, device = t.device}))
    lists.append(messages, {
      {op = "isend", tensor = t, peer = after, group = group},
      {op = "irecv", tensor = received[i], peer = before, group = group},
    })
  end
  local works = mesh:call(dist.batch_isend_irecv, messages)
  return function()
    for i, work in ipairs(works) do mesh:call(core.dist_wait, work, messages[i].tensor) end
    return unpack(received)
  end
end

local function half(t, i) return t:narrow(3, (i - 1) * t:size(3) / 2 + 1, t:size(3) / 2) end

-- Returns functions that return the parts of queries and of keys, which are dim 3, of the block of a step.
local function parts_of(ring, step)
  local function all(t) return t end
  if not ring.is_causal or step == 0 then return all, all end
  if step > ring.mesh.place[1] then return function(t) return half(t, 2) end, all end
  return all, function(t) return half(t, 1) end
end

-- Returns what the op attention and its backward take after their tensors, for the block of a step.
local function attention_options(ring, step, draw)
  return {is_causal = ring.is_causal and step == 0, scale = ring.scale, dropout_p = ring.dropout_p, draw = draw}
end

-- Merges results y and log_sum for a block of keys into those for others.
local function merge(out, out_log_sum, y, log_sum)
  local sum = ops.logaddexp(out_log_sum, log_sum)
  out:mul_((out_log_sum - sum):exp():unsqueeze(4)):add_(y * (log_sum - sum):exp():unsqueeze(4))
  out_log_sum:copy_(sum)
end

local function free(a, b)
  a:free()
  b:free()
end

-- Calls f(step, key, value) for the blocks of all ranks, in a scope each, while the next keys and values travel.
local function walk_ring(ring, key, value, f)
  local last, k, v = ring.mesh:size() - 1, core.scope(function() -- no copies by messages, for which ops would wait
    return key:detach():contiguous(), value:detach():contiguous()
  end)
  for step = 0, last do
    local arrive = step < last and pass(ring.mesh, k, v)
    core.scope(f, step, k, v)
    local next_k, next_v
    if arrive then next_k, next_v = arrive() end
    free(k, v)
    k, v = next_k, next_v
  end
end

local Ring = autograd.Function:extend "ContextParallelAttention"

function Ring.forward(ctx, query, key, value, ring)
  local out, log_sum, draws = nil, nil, {}
  walk_ring(ring, key, value, function(step, k, v)
    local queries, keys = parts_of(ring, step)
    local q = queries(query)
    k, v = keys(k), keys(v)
    draws[step + 1] = ring.dropout_p > 0 and core.keep(ops.attention_draw(q, k)) or nil
    local y, block_log_sum = core.run_op("attention", q, k, v, attention_options(ring, step, draws[step + 1]))
    if out then
      merge(queries(out), queries(log_sum), y, block_log_sum)
    else
      out, log_sum = core.keep(y:to(block_log_sum.dtype)), core.keep(block_log_sum)
    end
  end)
  local y = out:to(query.dtype)
  ctx.ring = ring
  ctx:save_for_backward(query, key, value, y, log_sum, unpack(draws))
  return y
end

-- Computes a block's part of the gradients from the result and log_sum over all keys (Dao et al., "FlashAttention",
-- 2022, algorithm 4): weights are exp(scores - log_sum), in any block.
local function backward(ctx, grad)
  local ring, saved = ctx.ring, ctx.saved_tensors
  local query, key, value, y, log_sum = unpack(saved, 1, 5)
  local like = {dtype = log_sum.dtype, device = log_sum.device}
  local dquery, dkey, dvalue, arrive = ops.zeros(query.shape, like), nil, nil, nil
  walk_ring(ring, key, value, function(step, k, v)
    local queries, keys = parts_of(ring, step)
    local dq, dk, dv = ops.attention_backward(queries(grad), queries(query), keys(k), keys(v), queries(y),
      queries(log_sum), attention_options(ring, step, saved[6 + step]))
    queries(dquery):add_(dq)
    local sent_k, sent_v = dkey, dvalue
    if step == 0 then
      dkey, dvalue = core.keep(ops.zeros(key.shape, like)), core.keep(ops.zeros(value.shape, like))
    else
      dkey, dvalue = arrive()
      free(sent_k, sent_v)
    end
    keys(dkey):add_(dk)
    keys(dvalue):add_(dv)
    arrive = pass(ring.mesh, dkey, dvalue)
  end)
  local sent_k, sent_v = dkey, dvalue
  dkey, dvalue = arrive()
  free(sent_k, sent_v)
  return {dquery:to(query.dtype), dkey:to(key.dtype), dvalue:to(value.dtype)}
end

function Ring.backward(ctx, grad)
  if core.is_grad_enabled() then fail("%s: create_graph is not supported", who) end
  return unpack(autograd.in_backward({grad}, backward, ctx, grad), 1, 3)
end

local function in_dtype(t, dtype) return dtype and t.dtype ~= "float64" and t:to(dtype) or t end

-- Returns what replaces scaled_dot_product_attention.
local function ring_attention(mesh)
  return signature.of([[scaled_dot_product_attention(query: tensor, key: tensor, value: tensor, {attn_mask,
    dropout_p: probability = 0, is_causal = false, scale: number, enable_gqa = false})]], function(query, key, value, o)
    if o.attn_mask ~= nil then
      fail("%s: attn_mask, a sliding window and a cache of keys are not supported; use is_causal", who)
    end
    local dtype = core.get_autocast_dtype(query.device)
    local q, k, v = in_dtype(query, dtype), in_dtype(key, dtype), in_dtype(value, dtype)
    if q.ndim == 3 and k.ndim == 3 and v.ndim == 3 then q, k, v = q:unsqueeze(1), k:unsqueeze(1), v:unsqueeze(1) end
    local fits = q.ndim == 4 and k.ndim == 4 and v.ndim == 4
    if fits then
      local n, h, l, e = unpack(q.shape)
      local groups = k:size(2)
      fits = k:size(1) == n and v:size(1) == n and v:size(2) == groups and k:size(4) == e and k:size(3) == l
        and v:size(3) == l and (h == groups or o.enable_gqa and groups > 0 and h % groups == 0)
        and (l % 2 == 0 or not o.is_causal)
    end
    if not fits then
      fail("%s: expected query [N, H, L, E], key [N, G, L, E] and value [N, G, L, Ev], where G is H or, with "
        .. "enable_gqa, divides H, and L is even if is_causal, got %s, %s and %s", who, describe(query), describe(key),
        describe(value))
    end
    agree(mesh, who, ("attention with is_causal %s, scale %s, dropout_p %g"):format(tostring(o.is_causal),
      o.scale or "by default", o.dropout_p), {})
    local y = Ring(q, k, v, {mesh = mesh, is_causal = o.is_causal, scale = o.scale, dropout_p = o.dropout_p})
    return query.ndim == 3 and y:squeeze(1) or y
  end)
end

local function refuse_weights() fail("%s: weights are not available; pass need_weights = false", who) end

-- Calls f(...) while other functions replace ops, by name.
local function replacing(replacements, f, ...)
  local before = {}
  for name, replacement in pairs(replacements) do before[name] = core.replace_op(name, replacement) or false end
  return options.restoring(function()
    for name, replacement in pairs(before) do core.replace_op(name, replacement or nil) end
  end, f, ...)
end

-- Returns a list of tensors and their dims, checked.
local function read(name, mesh, opts)
  device_mesh.check(name, mesh)
  local o = options.check(name, opts, "{buffers: tensor[], dims: integer[]}")
  if not o.buffers or not o.dims then fail("%s: expected options {buffers = {…}, dims = {…}}", name) end
  if #o.buffers ~= #o.dims then options.wrong_length(name, "dims", #o.buffers, "buffer", #o.dims) end
  return o.buffers, lists.map(o.buffers, function(t, i) return shapes.dim_of(name, t, o.dims[i]) end)
end

local public = {}

--- Divides tensors along the dim of their positions over the ranks of a mesh, and calls a function with this rank's
--- parts; attention within it is that of the full sequences.
public.context_parallel = signature.of("context_parallel(mesh, options: table, f: callable)", function(mesh, opts, f)
  local buffers, dims = read(who, mesh, opts)
  local size, own = mesh:size(), {}
  if part.ranks > 1 then fail("%s: a scope within another is not supported", who) end
  if size == 1 then return f(unpack(buffers)) end
  agree(mesh, who, "dims {" .. table.concat(dims, ", ") .. "}", buffers)
  for i, t in ipairs(buffers) do
    local length = t:size(dims[i])
    if length % (2 * size) ~= 0 then
      options.must_be(who, ("the size of buffer %d in dim %d"):format(i, dims[i]),
        ("divisible by %d, twice the number of ranks"):format(2 * size), length)
    end
    own[i] = t:index_select(dims[i], part.positions_of(mesh.place[1], size, length / size, t.device))
  end
  local replacements = {scaled_dot_product_attention = ring_attention(mesh), attention_weights = refuse_weights}
  return part.within(mesh.place[1], size, replacing, replacements, f, unpack(own))
end)

--- Gathers tensors that are divided as context_parallel does, in the order of positions. Collective, without gradients.
public.context_unshard = signature.of("context_unshard(mesh, options: table)", function(mesh, opts)
  local buffers, dims = read("context_unshard", mesh, opts)
  local size, full = mesh:size(), {}
  for i, t in ipairs(buffers) do
    full[i] = core.no_grad(core.scope, function()
      local own, positions = t:detach():transpose(1, dims[i]):contiguous(), {}
      local length, joined = own:size(1), functions.stacked(own, mesh):flatten(1, 2)
      for rank = 0, size - 1 do positions[rank + 1] = part.positions_of(rank, size, length, t.device) end
      if size == 1 then return joined:transpose(1, dims[i]) end
      return joined:index_select(1, ops.cat(positions, 1):argsort(1)):transpose(1, dims[i])
    end)
  end
  return unpack(full)
end)

return public
