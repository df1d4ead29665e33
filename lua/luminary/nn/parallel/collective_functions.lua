--- Provides collectives over a mesh of one dim as differentiable functions, for layers that divide their work over
--- ranks.
---
--- A tensor is in one of three states. Replicated: all ranks have the same values, and the gradient of the one loss for
--- them. Divided: each rank has a part. Partial: each rank has a term of a sum, or uses equal values for a different
--- part of the work, so that its gradient is a term of a sum.
---
--- Each backward is another of these functions, so that gradients of gradients are right as well:
---   copy: replicated to partial, no communication | reduce: partial to replicated, a sum
---   split: replicated to divided, no communication | gather: divided to replicated
---   gather_partial: divided to partial | reduce_scatter: partial to divided, a sum
---   all_to_all: divided to divided | copy_near, reduce_near: as copy and reduce, within n ranks beside one another
---
--- Errors of a collective name this rank's place in the mesh.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local autograd = require "luminary.autograd.function"
local dist = require "luminary.distributed"

local ops = core.ops
local functions = {}

-- Defines functions[name](t, mesh, ...), whose result is compute(t, mesh, ...), and whose backward is the function
-- `back`, with the arguments that reversed(...) returns in place of ..., by default the same.
local function define(name, back, compute, reversed)
  local kind = autograd.Function:extend(name)
  function kind.forward(ctx, t, mesh, ...)
    ctx.mesh, ctx.arguments = mesh, options.pack(...)
    return compute(t, mesh, ...)
  end
  function kind.backward(ctx, grad)
    local arguments = ctx.arguments
    if reversed then arguments = options.pack(reversed(unpack(arguments, 1, arguments.n))) end
    local function run_backward() return {functions[back](grad, ctx.mesh, unpack(arguments, 1, arguments.n))} end
    return (core.is_grad_enabled() and run_backward() or autograd.in_backward({grad}, run_backward))[1]
  end
  functions[name] = function(t, mesh, ...)
    if mesh.groups[1].size == 1 then return t end
    return kind(t, mesh, ...)
  end
end

-- Returns the n ranks' parts of dim d, stacked in dim 1, as a view.
local function by_rank(who, t, d, n)
  options.divisible(who, "the size of dim " .. d, t:size(d), "the number of ranks", n)
  return t:unflatten(d, {n, t:size(d) / n}):movedim(d, 1)
end

--- stacked(t, mesh): Returns the tensors of all ranks, stacked in dim 1; no gradients are recorded.
function functions.stacked(t, mesh)
  local joined = ops.empty({mesh:size(), unpack(t.shape)}, {dtype = t.dtype, device = t.device})
  return mesh:call(dist.all_gather_into_tensor, joined, t, {group = mesh.groups[1]})
end

-- Returns the parts of all ranks, joined along dim d.
local function gathered(t, mesh, d) return functions.stacked(t, mesh):movedim(1, d):flatten(d, d + 1) end

--- copy(t, mesh): Returns t; backward sums the gradients of all ranks.
define("copy", "reduce", function(t) return t end)

--- reduce(t, mesh): Returns the sum of t over the ranks; backward passes the gradient on.
define("reduce", "copy", function(t, mesh)
  local sum = t:clone {memory_format = "contiguous"}
  mesh:call(dist.all_reduce, sum, {group = mesh.groups[1]})
  return sum
end)

--- copy_near(t, mesh, n): Returns t; backward sums the gradients of each n ranks beside one another.
define("copy_near", "reduce_near", function(t) return t end)

--- reduce_near(t, mesh, n): Returns the sum of t over this rank's n; backward passes the gradient on.
define("reduce_near", "copy_near", function(t, mesh, n)
  local rank = mesh.groups[1].rank
  return functions.stacked(t:contiguous(), mesh):narrow(1, rank - rank % n + 1, n):sum(1)
end)

--- split(t, mesh, d): Returns this rank's part of dim d; backward gathers the parts' gradients.
define("split", "gather", function(t, mesh, d)
  return by_rank("split", t, d, mesh.groups[1].size)[mesh.groups[1].rank + 1]:clone {memory_format = "contiguous"}
end)

--- gather(t, mesh, d): Returns the ranks' tensors joined along dim d; backward takes this rank's part of the gradient.
define("gather", "split", gathered)

--- gather_partial(t, mesh, d): Returns the ranks' tensors joined along dim d, for use in a part of the work; backward
--- sums the gradients of all ranks, and takes this rank's part.
define("gather_partial", "reduce_scatter", gathered)

--- reduce_scatter(t, mesh, d): Returns this rank's part, of dim d, of the sum over the ranks; backward gathers.
define("reduce_scatter", "gather_partial", function(t, mesh, d)
  local group = mesh.groups[1]
  local parts = by_rank("reduce_scatter", t, d, group.size):contiguous()
  local sum = ops.empty(parts[1].shape, {dtype = t.dtype, device = t.device})
  mesh:call(dist.reduce_scatter_tensor, sum, parts, {group = group})
  return sum
end)

--- all_to_all(t, mesh, sent, received): Sends rows of t, sent[r] of them to rank r - 1 after those of the ranks before.
--- Returns the received[r] rows of each rank, in the order of ranks. Without the lists all ranks exchange equal parts.
define("all_to_all", "all_to_all", function(t, mesh, sent, received)
  local rows = received and lists.sum(received) or t:size(1)
  local result = ops.empty({rows, unpack(t.shape, 2)}, {dtype = t.dtype, device = t.device})
  mesh:call(dist.all_to_all_single, result, t:contiguous(), {
    group = mesh.groups[1], input_split_sizes = sent, output_split_sizes = received,
  })
  return result
end, function(sent, received) return received, sent end)

return functions
