--- Tables of positions for lm.gather_weighted: the elements of sliding windows along one dim.
local core = require "luminary.core"

local ops = core.ops
local windows = {}

-- Marks a position outside of the input: so far below 0 that sums with valid positions stay negative.
local NOWHERE = -2 ^ 50

--- index (int64, from 0) times step, and NOWHERE where index is not within 0 to size - 1.
function windows.within(index, size, step)
  return ops.where(ops.logical_and(ops.ge(index, 0), ops.lt(index, size)), index * step, NOWHERE)
end

--- [kernel, out], int64: the positions, times step, of each window's elements along a dim of `size`.
function windows.of_windows(size, out, kernel, stride, padding, dilation, step, device)
  local how = {device = device, dtype = "int64"}
  local index = (ops.arange(kernel, how) * dilation):unsqueeze(2) + (ops.arange(out, how) * stride - padding)
  return windows.within(index, size, step)
end

--- The number of windows along a dim of `size`; fails if none fits.
function windows.count(who, size, kernel, stride, padding, dilation)
  local room = size + 2 * padding - dilation * (kernel - 1) - 1
  if room < 0 then
    core.error_at_caller(("%s: the window (%d) must be at most the padded size of x (%d)"):format(who,
      dilation * (kernel - 1) + 1, size + 2 * padding))
  end
  return math.floor(room / stride) + 1
end

return windows
