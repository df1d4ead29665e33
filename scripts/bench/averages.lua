-- Averages of measurements, which the benches share.
local averages = {}

--- Returns the middle of a list, or the mean of its two middles.
function averages.median(list)
  local sorted, n = {unpack(list)}, #list
  table.sort(sorted)
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

--- Calls step() three times, then `count` times, and returns the lower middle of the latter's seconds.
function averages.of_steps(count, step)
  local now, times = require("luminary").time, {}
  for i = 1, 3 + count do
    local began = now()
    step()
    times[i - 3] = now() - began
  end
  table.sort(times)
  return times[math.ceil(#times / 2)]
end

function averages.geometric_mean(ratios)
  local sum = 0
  for _, ratio in ipairs(ratios) do sum = sum + math.log(ratio) end
  return math.exp(sum / #ratios)
end

--- Words the row about runs that undisturbed leaves out: the row's name, their count, and the count of all.
averages.THROWN = "%s: %d of PyTorch's %d runs are thrown away: times of multiples of 4 ms, its threads lost cores"

local TICK = 4e-3 -- seconds of a scheduler's time slice, at 250 Hz

local function is_ticks(seconds)
  local n = math.floor(seconds / TICK + 0.5)
  return n > 0 and math.abs(seconds - n * TICK) < 0.03e-3
end

--- Returns the times of a list, in seconds, without those of runs whose threads lost their cores to others for whole
--- time slices: multiples of 4 ms that are well above the least time, or all where that is a few slices itself.
function averages.undisturbed(list)
  local kept, least = {}, math.min(math.huge, unpack(list))
  local all = is_ticks(least) and least < 5.5 * TICK
  for _, seconds in ipairs(list) do
    if not (is_ticks(seconds) and (all or seconds > 1.25 * least)) then kept[#kept + 1] = seconds end
  end
  return kept
end

return averages
