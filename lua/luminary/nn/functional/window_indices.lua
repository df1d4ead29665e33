--- Tables of positions for lm.gather_weighted: where windows lie in a line of positions.
local core = require "luminary.core"

local ops = core.ops
local places = {}

-- A place so far before the first that no sum with others leads back.
local NOWHERE = -2 ^ 50

--- index (int64, from 0) times step, and nowhere where it is not one of 0 to size - 1.
function places.within(index, size, step)
  return ops.where(ops.logical_and(ops.ge(index, 0), ops.lt(index, size)), index * step, NOWHERE)
end

--- [kernel, out], int64: the places, times step, of each window's elements in a line of `size`.
function places.of_windows(size, out, kernel, stride, padding, dilation, step, device)
  local how = {device = device, dtype = "int64"}
  local index = (ops.arange(kernel, how) * dilation):unsqueeze(2) + (ops.arange(out, how) * stride - padding)
  return places.within(index, size, step)
end

--- How many windows there are in a line of `size` positions; fails if none fits.
function places.count(who, size, kernel, stride, padding, dilation)
  local room = size + 2 * padding - dilation * (kernel - 1) - 1
  if room < 0 then
    core.error_at_caller(("%s: the window (%d) must be at most the padded size of x (%d)"):format(who,
      dilation * (kernel - 1) + 1, size + 2 * padding))
  end
  return math.floor(room / stride) + 1
end

return places
