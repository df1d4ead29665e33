--- F.embedding with rows that are kept short and gradients that are divided by counts.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local Function = require("luminary.autograd.function").Function

local ops = core.ops

local ByCount = Function:extend("EmbeddingByCount")
function ByCount.forward(ctx, rows, counts)
  ctx:save_for_backward(counts)
  return rows
end
function ByCount.backward(ctx, grad) return grad / ctx.saved_tensors[1], nil end

-- How often each entry's value occurs in index: a tensor [..., 1].
local function counts_of(index, num, dtype)
  local flat = ops.reshape(index, {-1})
  local how = {dtype = dtype, device = index.device}
  local all = ops.scatter_add(ops.zeros({num}, how), 1, flat, ops.ones(flat.shape, how))
  return ops.unsqueeze(ops.reshape(ops.index_select(all, 1, flat), index.shape), -1)
end

-- Shortens the named rows of weight, in place, to max_norm where they are longer.
local function shorten(weight, index, max_norm, norm_type)
  core.no_grad(function()
    local flat = ops.reshape(index, {-1})
    local rows = ops.index_select(weight, 1, flat)
    local norms = ops.norm(rows, norm_type, 2, {keepdim = true})
    weight:index_put_({flat}, ops.where(norms:gt(max_norm), rows * (max_norm / (norms + 1e-7)), rows))
  end)
end

local how = {
  {"padding_idx", "integer", 0}, {"max_norm", "positive"}, {"norm_type", "number", 2},
  {"scale_grad_by_freq", "boolean", false},
  {"sparse", function(who, _, v)
    if v then options.fail("%s: gradients are dense here; leave sparse out", who) end
    return false
  end},
}

--- F.embedding(index, weight [, {padding_idx, max_norm, norm_type = 2, scale_grad_by_freq = false}]): rows of
--- weight [num, features] by index, which counts from 1: [..., features]. The row padding_idx gets no gradient. Rows
--- that are looked up and longer than max_norm are first shortened to it, in place; scale_grad_by_freq divides a
--- row's gradient by how often it occurs in index.
local function embedding(index, weight, ...)
  if select("#", ...) == 0 then return ops.embedding(index, weight) end
  local opts = arguments.options("embedding", how, ...)
  options.arg("embedding", "index", index, "tensor")
  options.arg("embedding", "weight", weight, "tensor")
  local padding = {padding_idx = opts.padding_idx < 0 and weight.shape[1] + opts.padding_idx + 1 or opts.padding_idx}
  if opts.max_norm then shorten(weight, index, opts.max_norm, opts.norm_type) end
  local rows = ops.embedding(index, weight, padding)
  if not opts.scale_grad_by_freq then return rows end
  return ByCount(rows, counts_of(index, weight.shape[1], weight.dtype))
end

return {embedding = embedding}
