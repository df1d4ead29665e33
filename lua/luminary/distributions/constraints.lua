--- What parameters and values of distributions must be.
local core = require "luminary.core"
local options = require "luminary.base.options"
local ops = core.ops

local function whole(x) return ops.eq(x, ops.floor(x)) end

-- name: what messages say, and which elements are right.
local known = {
  real = {"real numbers", function(x) return ops.eq(x, x) end},
  real_vector = {"real numbers", function(x) return ops.eq(x, x) end},
  positive = {"above 0", function(x) return x:gt(0) end},
  nonnegative = {"at least 0", function(x) return x:ge(0) end},
  unit_interval = {"from 0 to 1", function(x) return ops.logical_and(x:ge(0), x:le(1)) end},
  boolean = {"0 or 1", function(x) return ops.logical_or(x:eq(0), x:eq(1)) end},
  natural = {"integers of at least 0", function(x) return ops.logical_and(x:ge(0), whole(x)) end},
  category = {"integers from 1 to the number of categories", function(x, d)
    return ops.logical_and(ops.logical_and(x:ge(1), x:le(d.num_events)), whole(x))
  end},
  within = {"from low to high", function(x, d) return ops.logical_and(x:ge(d.low), x:le(d.high)) end},
  above_scale = {"at least scale", function(x, d) return x:ge(d.scale) end},
  simplex = {"at least 0 with the sum 1 along the last dim", function(x)
    return ops.logical_and(x:ge(0), (x:sum(-1, {keepdim = true}) - 1):abs():lt(1e-5))
  end},
  weights = {"at least 0, not all 0 along the last dim", function(x)
    return ops.logical_and(x:ge(0), x:sum(-1, {keepdim = true}):gt(0))
  end},
  one_hot = {"one 1 and else 0 along the last dim", function(x)
    return ops.logical_and(ops.logical_or(x:eq(0), x:eq(1)), x:sum(-1, {keepdim = true}):eq(1))
  end},
}

--- An error unless all elements of x are what the constraint of that name says, for the distribution d.
local function check(who, name, x, constraint, d)
  local row = known[constraint]
  if x:numel() == 0 or core.no_grad(function() return row[2](x:detach(), d):all():item() end) then return end
  options.must_be(who, name, row[1], x:numel() == 1 and x:item() or x)
end

return {check = check}
