--- Computes the cross entropy of a linear layer's results, with the logits of only some rows in memory at a time.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Function = require("luminary.autograd.function").Function

local ops = core.ops
local F = {}

local CHUNK_BYTES = 2 ^ 28 -- bytes of logits in memory, without chunk_size
local WIDTH = {float64 = 8, float32 = 4}

local function in_dtype(t, dtype) return t and t.dtype ~= dtype and t:to(dtype) or t end

-- Returns the sum of the losses of some rows of logits, or the loss of each row.
local function sum_of(logits, target, class_weight, o)
  return ops.cross_entropy_rows(logits, target, class_weight, o.ignore_index, o.label_smoothing,
    o.reduction == "none" and "none" or "sum")
end

local function total_weight(target, class_weight, ignore_index, dtype)
  local ignored = target:eq(ignore_index)
  if not class_weight then return ignored:logical_not():sum():to(dtype) end
  return class_weight:to(dtype):index_select(1, target:masked_fill(ignored, 1)):masked_fill(ignored, 0):sum()
end

-- Calls f(first row, number of rows) for each chunk in a scope, which frees its tensors.
local function each_chunk(rows, chunk_size, f)
  for first = 1, rows, chunk_size do core.scope(f, first, math.min(chunk_size, rows - first + 1)) end
end

-- Returns the logits' gradient by ops, for second derivatives. `grad`, 0-d or [N]: that of a row's unweighted loss.
local function gradient_by_ops(grad, logits, target, class_weight, o)
  local ignored, classes = target:eq(o.ignore_index), logits.shape[2]
  local at, counts = target:masked_fill(ignored, 1), ignored:logical_not():to(grad.dtype)
  local weights = class_weight and class_weight:to(grad.dtype)
  grad = grad:expand(ignored.shape):masked_fill(ignored, 0) -- a mean is not finite if all rows are ignored
  local own = weights and weights:index_select(1, at) * counts or counts
  local hit = (own * grad * (1 - o.label_smoothing)):unsqueeze(2)
  local even = (counts * grad * (o.label_smoothing / classes)):unsqueeze(2)
  local shares = ops.softmax(in_dtype(logits, grad.dtype), 2) * (hit + even * (weights and weights:sum() or classes))
  return shares - ops.one_hot(at, classes):to(grad.dtype) * hit - even * (weights or 1)
end

-- Takes arguments in their own dtypes, so that parameters' gradients are added in float32; products are in o.dtype.
local Chunked = Function:extend "LinearCrossEntropy"

function Chunked.forward(ctx, x, weight, bias, target, class_weight, o)
  local rows, low_weight, low_bias = in_dtype(x, o.dtype), in_dtype(weight, o.dtype), in_dtype(bias, o.dtype)
  local losses, total = {}, nil
  each_chunk(x.shape[1], o.chunk_size, function(first, n)
    local logits = ops.linear(rows:narrow(1, first, n), low_weight, low_bias)
    losses[#losses + 1] = core.keep(sum_of(logits, target:narrow(1, first, n), class_weight, o))
  end)
  local loss = o.reduction == "none" and ops.cat(losses, 1) or ops.stack(losses, 1):sum()
  if o.reduction == "mean" then
    total = total_weight(target, class_weight, o.ignore_index, loss.dtype)
    loss = loss / total
  end
  ctx:save_for_backward(x, weight, bias, target, class_weight, total)
  ctx.o = o
  return loss
end

function Chunked.backward(ctx, grad)
  local o, needs = ctx.o, ctx.needs_input_grad
  local x, weight, bias, target, class_weight, total = unpack(ctx.saved_tensors, 1, 6)
  local rows, low_weight, low_bias = in_dtype(x, o.dtype), in_dtype(weight, o.dtype), in_dtype(bias, o.dtype)
  local each = total and grad / total or grad
  if core.is_grad_enabled() then -- create_graph
    local logits = ops.linear(rows, low_weight, low_bias)
    local dlogits = in_dtype(gradient_by_ops(each, logits, target, class_weight, o), o.dtype)
    return dlogits:mm(low_weight), dlogits:t():mm(rows), bias and dlogits:sum(1), nil, nil
  end
  local dx, dweight, dbias = needs[1] and ops.empty_like(x), nil, nil
  local function add(sum, part) -- `sum` outlives the chunk
    return sum and sum:add_(part) or core.keep(in_dtype(part, o.dtype == "float64" and "float64" or "float32"))
  end
  each_chunk(x.shape[1], o.chunk_size, function(first, n)
    local chunk = rows:narrow(1, first, n)
    local logits = ops.linear(chunk, low_weight, low_bias):requires_grad_()
    local loss = core.enable_grad(sum_of, logits, target:narrow(1, first, n), class_weight, o)
    local given = o.reduction == "none" and each:narrow(1, first, n) or each
    local dlogits = core.grad(loss, logits, {grad_outputs = given})[1]
    if dx then dx:narrow(1, first, n):copy_(dlogits:mm(low_weight)) end
    if needs[2] then dweight = add(dweight, dlogits:t():mm(chunk)) end
    if needs[3] then dbias = add(dbias, dlogits:sum(1, {dtype = each.dtype})) end
  end)
  return dx or nil, in_dtype(dweight, weight.dtype), bias and in_dtype(dbias, bias.dtype), nil, nil
end

-- Returns the sizes before D of weight [C, …, D] if all logits are computed at once, for several losses per row or
-- probabilities.
local function check(who, x, weight, target, o)
  local function wrong(name, t, shape) options.wrong_shape(who, name, t, shape) end
  if weight.ndim < 2 then wrong("linear_weight", weight, "[C, …, D]") end
  local shape = lists.slice(weight.shape)
  local width = table.remove(shape)
  if x.ndim < 1 or x.shape[x.ndim] ~= width or #shape > 1 and x.ndim ~= 2 then
    wrong("input", x, ("[%s, %d] for linear_weight [%s, %d]"):format(#shape > 1 and "N" or "*", width,
      table.concat(shape, ", "), width))
  end
  if o.linear_bias and table.concat(o.linear_bias.shape, ",") ~= table.concat(shape, ",") then
    wrong("linear_bias", o.linear_bias, shape)
  end
  if #shape > 1 then return shape end
  local expected = lists.slice(x.shape, 1, x.ndim - 1)
  local of_classes = target:is_floating_point()
  if of_classes then expected[x.ndim] = shape[1] end
  if table.concat(target.shape, ",") ~= table.concat(expected, ",") then wrong("target", target, expected) end
  return of_classes and shape
end

-- Computes the loss with all logits at once: for several losses per row, and targets that are probabilities.
local function loss_of_all_logits(x, weight, target, o, shape)
  local rows = ops.linear(x, weight:reshape(-1, x.shape[x.ndim]), o.linear_bias and o.linear_bias:reshape(-1))
  local logits, dims = x.ndim > 2 and rows:reshape(-1, shape[1]) or rows, {rows.shape[1], unpack(shape)}
  if #shape > 1 then logits = rows:reshape(dims) end
  local labels = x.ndim > 2 and target:reshape(-1, shape[1]) or target
  local loss = ops.cross_entropy(logits, labels, {
    weight = o.weight, reduction = o.reduction, ignore_index = o.ignore_index, label_smoothing = o.label_smoothing,
  })
  return x.ndim > 2 and o.reduction == "none" and loss:reshape {unpack(x.shape, 1, x.ndim - 1)} or loss
end

--- Computes the cross entropy between a linear transformation of input and target classes, in chunks of rows.
F.linear_cross_entropy = signature.of([[linear_cross_entropy(input: tensor, linear_weight: tensor, target: tensor,
  {*, linear_bias: tensor?, weight: tensor?, reduction = "mean" | "sum" | "none", ignore_index: integer = -100,
  label_smoothing: probability = 0, chunk_size: count?})]], function(x, weight, target, o)
  local shape = check("linear_cross_entropy", x, weight, target, o)
  if shape then return loss_of_all_logits(x, weight, target, o, shape) end
  local low = core.get_autocast_dtype(x.device)
  local dtype = low and x.dtype ~= "float64" and low or x.dtype
  local classes = weight.shape[1]
  local rows = x:reshape(-1, weight.shape[2])
  local n = rows.shape[1]
  local chunk_size = o.chunk_size
  if not chunk_size then -- chunks of equal sizes
    local chunks = math.max(1, math.ceil(n * classes * (WIDTH[dtype] or 2) / CHUNK_BYTES))
    chunk_size = math.max(1, math.ceil(n / chunks))
  end
  local call = {
    dtype = dtype, chunk_size = chunk_size, reduction = o.reduction, ignore_index = o.ignore_index,
    label_smoothing = o.label_smoothing,
  }
  local labels = target:reshape(-1)
  local loss
  if n == 0 then
    loss = ops.cross_entropy_rows(ops.linear(rows, weight, o.linear_bias), labels, o.weight, {reduction = o.reduction})
  else
    loss = Chunked(rows, weight, o.linear_bias, labels, o.weight, call)
  end
  if o.reduction == "none" then loss = loss:reshape(target.shape) end
  return low and loss or in_dtype(loss, x.dtype)
end)

return F
