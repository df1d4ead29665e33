--- Counts of a server, in the text form of Prometheus.
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"

local BUCKETS = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60} -- seconds

local Metrics = class.root "Metrics"

function Metrics:init() self.counts = {} end

--- Adds n, 1 by default, to a counter with its labels.
function Metrics:add(key, n) self.counts[key] = (self.counts[key] or 0) + (n or 1) end

--- Adds seconds to a histogram.
function Metrics:observe(name, seconds)
  for _, le in ipairs(BUCKETS) do self:add(('%s_bucket{le="%g"}'):format(name, le), seconds <= le and 1 or 0) end
  self:add(name .. '_bucket{le="+Inf"}')
  self:add(name .. "_sum", seconds)
  self:add(name .. "_count")
end

--- Returns the text of all counts, and of gauges by name.
function Metrics:text(gauges)
  local lines, last = {}, nil
  for key, v in lists.sorted_pairs(self.counts) do
    local name, kind = key:match "^([%w_]+_seconds)_", "histogram"
    if not name then name, kind = key:match "^[%w_]+", "counter" end
    if name ~= last then lines[#lines + 1] = ("# TYPE %s %s"):format(name, kind) end
    last, lines[#lines + 1] = name, ("%s %.10g"):format(key, v)
  end
  for name, v in lists.sorted_pairs(gauges) do
    lines[#lines + 1] = ("# TYPE %s gauge\n%s %.10g"):format(name, name, v)
  end
  return table.concat(lines, "\n") .. "\n"
end

return Metrics
