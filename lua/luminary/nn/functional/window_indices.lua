--- Makes lm.gather_weighted's tables of positions: the elements of sliding windows along one dim.
local core = require "luminary.core"

local ops = core.ops
local windows = {}

-- A position outside of the input: so far below 0 that its sum with a valid position stays negative.
local NOWHERE = -2 ^ 50

--- Returns index (int64, from 0) times step, and NOWHERE for an index outside 0 to size - 1.
function windows.within(index, size, step)
  return ops.where(ops.logical_and(ops.ge(index, 0), ops.lt(index, size)), index * step, NOWHERE)
end

--- Returns the positions, times step, of each window's elements along a dim of `size`: [kernel, out], int64.
function windows.of_windows(size, out, kernel, stride, padding, dilation, step, device)
  local how = {device = device, dtype = "int64"}
  local index = (ops.arange(kernel, how) * dilation):unsqueeze(2) + (ops.arange(out, how) * stride - padding)
  return windows.within(index, size, step)
end

--- Returns the number of windows along a dim of `size`; fails if none fits.
function windows.count(who, size, kernel, stride, padding, dilation)
  local room = size + 2 * padding - dilation * (kernel - 1) - 1
  if room < 0 then
    core.error_at_caller(("%s: the window (%d) must be at most the padded size of x (%d)"):format(who,
      dilation * (kernel - 1) + 1, size + 2 * padding))
  end
  return math.floor(room / stride) + 1
end

return windows
