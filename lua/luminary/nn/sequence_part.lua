--- Knows which positions of each sequence this rank holds within nn.parallel.context_parallel.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops = core.ops
local part = {ranks = 1, rank = 0} -- the place in the scope that runs

--- Returns the positions, from 1, of the `length` tokens that rank `rank` of `ranks` holds of each sequence, int64
--- [length]. Of 2n chunks, n the number of ranks, rank r holds chunks r and 2n - 1 - r, from 0: causal attention is
--- then equal work for all ranks (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2).
function part.positions_of(rank, ranks, length, device)
  local chunk, last = length / 2, 2 * ranks - 1 - rank
  if chunk % 1 ~= 0 then
    options.fail("context_parallel: the number of tokens of a rank must be divisible by 2, got %d", length)
  end
  return ops.cat({
    ops.arange(rank * chunk + 1, (rank + 1) * chunk + 1, {dtype = "int64", device = device}),
    ops.arange(last * chunk + 1, (last + 1) * chunk + 1, {dtype = "int64", device = device}),
  }, 1)
end

--- Returns the positions of ids [N, L], which are this rank's tokens: int64 [N, L] within a scope of several ranks,
--- otherwise nil.
function part.positions(ids)
  if part.ranks == 1 then return nil end
  local n, l = unpack(ids.shape)
  return part.positions_of(part.rank, part.ranks, l, ids.device):view(1, l):expand(n, l)
end

--- Calls f(...) as rank `rank` of `ranks`.
function part.within(rank, ranks, f, ...)
  local before, before_ranks = part.rank, part.ranks
  part.rank, part.ranks = rank, ranks
  return options.restoring(function() part.rank, part.ranks = before, before_ranks end, f, ...)
end

return part
