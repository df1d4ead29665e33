--- Implements the functions of Torch7's package xlua that scripts use.
local options = require "luminary.base.options"
local progress = require "luminary.watch.progress"

local xlua, bar, at = {}, nil, 0

--- xlua.progress(i, n): Shows step i of n on a line of the terminal, which ends with i = n.
function xlua.progress(i, n)
  options.arg("xlua.progress", "i", i, "natural")
  options.arg("xlua.progress", "n", n, "count")
  if not bar or bar.total ~= n or i < at then bar = progress.new(n, math.max(i - 1, 0)) end
  at = i
  bar:update(i)
  if i >= n then bar = nil end
end

--- Returns seconds as "1:02:03".
function xlua.formatTime(seconds)
  return progress.duration(options.arg("xlua.formatTime", "seconds", seconds, "number"))
end

return xlua
