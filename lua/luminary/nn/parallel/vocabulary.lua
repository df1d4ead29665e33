--- Computes embeddings and the cross entropy of a vocabulary that is divided over the ranks of a mesh.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local agree = require "luminary.distributed.agree"
local device_mesh = require "luminary.distributed.device_mesh"
local dist = require "luminary.distributed"
local functions = require "luminary.nn.parallel.collective_functions"

local ops = core.ops
local vocabulary = {}

-- Returns the indices of t within this rank's n of all, and where t is in another rank's. Those are 1; indices that no
-- rank has stay out of range.
local function localized(t, n, group)
  local first, total = group.rank * n, group.size * n
  local is_own = t:gt(first):logical_and(t:le(first + n))
  local is_foreign = t:ge(1):logical_and(t:le(total)):logical_and(is_own:logical_not())
  return (t - first):masked_fill(is_foreign, 1), is_foreign
end

-- Fails on the CPU for an index that no rank has; other devices find it later.
local function check_range(name, t, total, things)
  if t.device ~= "cpu" or t:numel() == 0 then return end
  local low, high = t:min():item(), t:max():item()
  if low < 1 or high > total then options.out_of_range(name, low < 1 and low or high, total, things) end
end

--- Returns this rank's term of the embeddings of ids: those of its rows, and zeros.
function vocabulary.embedding(layer, ids, mesh)
  local group = mesh.groups[1]
  local n = math.ceil(layer.num_embeddings / group.size)
  options.arg("embedding", "index", ids, "tensor")
  check_range("embedding", ids, layer.num_embeddings, "entries")
  local index, is_foreign = localized(ids, n, group)
  local padding = (layer.padding_idx or 0) - group.rank * n
  local y = ops.embedding(index, layer.weight, {padding_idx = padding > 0 and padding <= n and padding or 0})
  return y:masked_fill(is_foreign:unsqueeze(-1), 0)
end

-- Returns the largest of t over the ranks.
local function largest(t, mesh)
  local most = t:detach():clone()
  if mesh.groups[1].size > 1 then mesh:call(dist.all_reduce, most, {op = "max", group = mesh.groups[1]}) end
  return most
end

--- Computes the cross entropy of logits whose classes are divided over the ranks of a mesh.
vocabulary.cross_entropy = signature.of([[vocabulary_cross_entropy(logits: tensor, target: tensor, mesh,
  {ignore_index: integer = -100, reduction: "mean" | "sum" | "none" = "mean",
  label_smoothing: probability = 0})]], function(logits, target, mesh, opts)
  local who = "vocabulary_cross_entropy"
  device_mesh.check(who, mesh)
  local rows = lists.slice(logits.shape, 1, logits.ndim - 1)
  if logits.ndim == 0 or table.concat(target.shape, ",") ~= table.concat(rows, ",") then
    options.fail("%s: target must have the shape of logits without its last dim, the classes: logits is %s, target %s",
      who, options.describe(logits), options.describe(target))
  end
  if target:is_floating_point() then options.wrong_dtype(who, "target", "int64", target) end
  local group, d = mesh.groups[1], logits.ndim
  local n, is_ignored = logits:size(d), target:eq(opts.ignore_index)
  agree(mesh, who, ("%d classes a rank, ignore_index %d, reduction \"%s\", label_smoothing %g"):format(n,
    opts.ignore_index, opts.reduction, opts.label_smoothing), {target})
  target = target:masked_fill(is_ignored, 1)
  check_range(who, target, n * group.size, "classes")
  local x = logits.dtype == "float64" and logits or logits:float()
  local index, is_foreign = localized(target, n, group)
  -- With this rank's logarithm s of the sum of exponentials and the largest s of all ranks, m, the logarithm of the sum
  -- over all ranks is m + log(sum(exp(s - m))); m cancels, and needs no gradient.
  local s = ops.logsumexp(x, d)
  local m = largest(s, mesh)
  local terms = {(s - m):exp(), x:gather(d, index:unsqueeze(d)):squeeze(d):masked_fill(is_foreign, 0)}
  local smoothing = opts.label_smoothing
  local is_class = smoothing > 0 and x:ne(-math.huge)
  if is_class then terms[3], terms[4] = x:masked_fill(is_class:logical_not(), 0):sum(d), is_class:sum(d):to(x.dtype) end
  local sum, picked, all, count = unpack(functions.reduce(ops.stack(terms, 1), mesh):unbind(1))
  local loss = sum:log() + m
  loss = smoothing == 0 and loss - picked
    or loss - picked * (1 - smoothing) - all * smoothing / count
  loss = loss:masked_fill(is_ignored, 0)
  if opts.reduction == "none" then return loss end
  if opts.reduction == "sum" then return loss:sum() end
  return loss:sum() / is_ignored:logical_not():sum():to(loss.dtype)
end)

return vocabulary
