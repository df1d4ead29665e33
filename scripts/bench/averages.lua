-- Averages of measurements, which the benches share.
local averages = {}

--- The middle of a list, or the mean of its two middles.
function averages.median(list)
  local sorted, n = {unpack(list)}, #list
  table.sort(sorted)
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

function averages.geometric_mean(ratios)
  local sum = 0
  for _, ratio in ipairs(ratios) do sum = sum + math.log(ratio) end
  return math.exp(sum / #ratios)
end

return averages
