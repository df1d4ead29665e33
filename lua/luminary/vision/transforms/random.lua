--- Draws random numbers for transforms, from the CPU's generator.
local core = require "luminary.core"

local draw = {}

local uniform_number = core.uniform_number

function draw.uniform(low, high) return low + (high - low) * uniform_number() end

--- Returns an integer from 0 to n - 1.
function draw.below(n) return math.floor(n * uniform_number()) end

function draw.chance(p) return uniform_number() < p end

--- Returns 1 to n in a random order.
function draw.order(n)
  local order = {}
  for i = 1, n do order[i] = i end
  for i = n, 2, -1 do
    local j = 1 + draw.below(i)
    order[i], order[j] = order[j], order[i]
  end
  return order
end

return draw
