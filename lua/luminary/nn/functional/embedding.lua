--- Implements F.embedding with max_norm and scale_grad_by_freq, and F.embedding_bag.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Function = require("luminary.autograd.function").Function
local padding_row = require "luminary.nn.functional.padding_row"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops

local ByCount = Function:extend("EmbeddingByCount")
function ByCount.forward(ctx, rows, counts)
  ctx:save_for_backward(counts)
  return rows
end
function ByCount.backward(ctx, grad) return grad / ctx.saved_tensors[1], nil end

-- Returns, for each entry of index, the number of its occurrences in index: a tensor [..., 1].
local function counts_of(index, num, dtype)
  local flat = ops.reshape(index, {-1})
  local how = {dtype = dtype, device = index.device}
  local all = ops.scatter_add(ops.zeros({num}, how), 1, flat, ops.ones(flat.shape, how))
  return ops.unsqueeze(ops.reshape(ops.index_select(all, 1, flat), index.shape), -1)
end

-- Scales rows of weight whose norms exceed max_norm down to it, in place, for the rows in index.
local function shorten(weight, index, max_norm, norm_type)
  core.no_grad(function()
    local flat = ops.reshape(index, {-1})
    local rows = ops.index_select(weight, 1, flat)
    local norms = ops.norm(rows, norm_type, 2, {keepdim = true})
    weight:index_put_({flat}, ops.where(norms:gt(max_norm), rows * (max_norm / (norms + 1e-7)), rows))
  end)
end

-- Returns padding_idx as a row from 1, or 0 if there is none.
local function padding_of(who, pad, weight) return pad == 0 and 0 or padding_row(who, pad, weight.shape[1] or 0) end

--- F.embedding(…): Looks up rows of an embedding matrix by index.
local embedding = signature.of([[embedding(index: tensor, weight: tensor, {padding_idx: integer = 0, max_norm: positive,
  norm_type = 2, scale_grad_by_freq = false, sparse: lacks = false})]], function(index, weight, opts)
  local padding = {padding_idx = padding_of("embedding", opts.padding_idx, weight)}
  if opts.max_norm then shorten(weight, index, opts.max_norm, opts.norm_type) end
  local rows = ops.embedding(index, weight, padding)
  if not opts.scale_grad_by_freq then return rows end
  return ByCount(rows, counts_of(index, weight.shape[1], weight.dtype))
end)

-- ---- bags

local function check_integers(who, name, t)
  if t.dtype ~= "int64" and t.dtype ~= "int32" then
    options.wrong_dtype(who, name, "int64 or int32", t, "convert it with :long()")
  end
end

-- Returns the positions at which bags begin in the flattened index, and the number of its entries in bags. With `check`
-- it validates the values of offsets.
local function bags_of(who, index, o, check)
  local offsets, device = o.offsets, index.device
  if index.ndim == 2 then
    if offsets then options.fail("%s: offsets require a 1-d index, got %s", who, options.describe(index)) end
    local bags, each = index.shape[1], index.shape[2]
    local like = {dtype = "int64", device = device}
    if each == 0 then return ops.ones(bags, like), 0 end
    return ops.arange(1, bags * each + 1, each, like), bags * each
  end
  if index.ndim ~= 1 then options.wrong_shape(who, "index", index, "[bags, n] or [n] with offsets") end
  if not offsets then options.fail("%s: a 1-d index requires offsets", who) end
  check_integers(who, "offsets", offsets)
  local n, last = index.shape[1], offsets:numel()
  if offsets.ndim ~= 1 or (o.include_last_offset and last == 0) then
    options.wrong_shape(who, "offsets", offsets, o.include_last_offset and "[bags + 1]" or "[bags]")
  end
  if last > 0 and check then
    local first = offsets[1]
    if first ~= 1 then options.must_be(who, "offsets[1]", "1, where the first bag begins", first) end
    local falls = last > 1 and ops.any(ops.lt(offsets:narrow(1, 2, last - 1), offsets:narrow(1, 1, last - 1))):item()
    if falls or offsets[last] > n + 1 then
      options.fail("%s: offsets must not decrease and must be from 1 to %d", who, n + 1)
    end
  end
  if last == 0 and n > 0 then options.fail("%s: offsets is empty, but there are %d indices", who, n) end
  offsets = offsets:long()
  if not o.include_last_offset then return offsets, n end
  return offsets:narrow(1, 1, last - 1), tonumber(ops.select(offsets, 1, last):item()) - 1
end

--- F.embedding_bag(…): Computes sums, means or maxima of bags of rows of an embedding matrix.
local embedding_bag = signature.of([[embedding_bag(index: tensor, weight: tensor, {offsets: tensor,
  max_norm: positive, norm_type = 2, scale_grad_by_freq = false, mode: "sum" | "mean" | "max" = "mean",
  sparse: lacks = false, per_sample_weights: tensor, include_last_offset = false,
  padding_idx: integer = 0})]], function(index, weight, o)
  local who = "embedding_bag"
  check_integers(who, "index", index)
  shapes.check(who, "weight", weight, {"num_embeddings", "embedding_dim"})
  if o.mode == "max" and o.scale_grad_by_freq then
    options.fail("%s: scale_grad_by_freq requires mode 'sum' or 'mean'", who)
  end
  local each = o.per_sample_weights
  if each then
    if o.mode ~= "sum" then options.fail("%s: per_sample_weights requires mode 'sum'", who) end
    if table.concat(each.shape, ",") ~= table.concat(index.shape, ",") or each.dtype ~= weight.dtype then
      options.fail("%s: per_sample_weights must have the dtype of weight and the shape of index, %s %s, got %s %s", who,
        weight.dtype, options.describe(index), each.dtype, options.describe(each))
    end
    each = ops.flatten(each)
  end
  local at_once = index.device == "cpu" and o.mode ~= "max" and not o.scale_grad_by_freq
    and core.is_floating_point(weight) -- runs one kernel, which validates offsets
  local begins, n = bags_of(who, index, o, index.device == "cpu" and not at_once)
  local line, padding = ops.flatten(index):long(), padding_of(who, o.padding_idx, weight)
  if o.include_last_offset then
    if n < 0 or n > line:numel() then
      options.fail("%s: offsets must not decrease and must be from 1 to %d", who, line:numel() + 1)
    end
    line, each = line:narrow(1, 1, n), each and each:narrow(1, 1, n)
  end
  local kept = padding ~= 0 and (o.max_norm or not at_once) and ops.select(ops.nonzero(ops.ne(line, padding)), 2, 1)
  local function of_kept(t) return kept and ops.index_select(t, 1, kept) or t end
  local line_kept = of_kept(line)
  if o.max_norm then shorten(weight, line_kept, o.max_norm, o.norm_type) end
  if at_once then
    return ops.embedding_bag_sums(line, weight, begins, each, {padding_idx = padding, means = o.mode == "mean"})
  end
  local at = ops.arange(1, n + 1, {dtype = "int64", device = index.device})
  local bags, bag_kept = begins:numel(), of_kept(ops.searchsorted(begins, at, {right = true}) - 1)
  local like = {dtype = weight.dtype, device = weight.device}
  local none = ops.zeros({bags, weight.shape[2]}, like)
  local rows = embedding(line_kept, weight, {scale_grad_by_freq = o.scale_grad_by_freq})
  if o.mode == "max" then -- the first of equal maxima has the gradient; index 1 is a row of zeros for empty bags
    local where = ops.expand(ops.unsqueeze(bag_kept, 2), rows.shape)
    local values, own = rows:detach(), {include_self = false}
    local most = ops.gather(ops.scatter_reduce(none, 1, where, values, "amax", own), 1, where)
    local after = ops.arange(2, rows.shape[1] + 2, {dtype = "int64", device = index.device}):unsqueeze(2)
    local hit = ops.logical_or(ops.eq(values, most), ops.isnan(values))
    local at_hit = ops.where(hit, after, rows.shape[1] + 2)
    local first = ops.scatter_reduce(ops.ones_like(none, {dtype = "int64"}), 1, where, at_hit, "amin", own)
    return ops.gather(ops.cat({ops.zeros({1, none.shape[2]}, like), rows}, 1), 1, first)
  end
  local sums = ops.index_add(none, 1, bag_kept, each and rows * ops.unsqueeze(of_kept(each), 2) or rows)
  if o.mode == "sum" then return sums end
  if index.ndim == 2 and not kept then return sums / math.max(index.shape[2], 1) end
  local exact = {dtype = "float32", device = index.device} -- float16 counts to 2048
  local counts = ops.index_add(ops.zeros({bags}, exact), 1, bag_kept, ops.ones(bag_kept.shape, exact))
  return (sums / ops.unsqueeze(ops.clamp(counts, 1), 2)):to(weight.dtype)
end)

return options.exact_all {embedding = embedding, embedding_bag = embedding_bag}
