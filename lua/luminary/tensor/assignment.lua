--- Defines lm.linear_sum_assignment. Source: Crouse, "On implementing 2D rectangular assignment algorithms", 2016; of
--- equal sums SciPy's is found.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local INF = math.huge

-- Matches row i, along the shortest augmenting path over the m columns. s: costs by row, duals u of rows and v of
-- columns, the column of each row and the row of each column.
local function match_row(s, i, m)
  local row, least, path, shortest, remaining = i, 0, {}, {}, {}
  for j = 1, m do remaining[j], shortest[j] = m - j + 1, INF end
  for left = m, 1, -1 do
    local costs, offset, lowest, at = s.costs[row], least - s.u[row], INF, nil
    for k = 1, left do
      local j = remaining[k]
      local sum = offset + costs[j] - s.v[j]
      if sum < shortest[j] then path[j], shortest[j] = row, sum end
      if shortest[j] < lowest or shortest[j] == lowest and not s.row[j] then lowest, at = shortest[j], k end
    end
    if lowest == INF then options.fail "linear_sum_assignment: cost must allow an assignment with a finite sum" end
    least, remaining[at], remaining[left] = lowest, remaining[left], remaining[at]
    row = s.row[remaining[left]]
    if not row then -- the columns from `left` on are those of the path's search, this one free
      s.u[i] = s.u[i] + least
      for k = left, m do
        local j = remaining[k]
        if s.row[j] then s.u[s.row[j]] = s.u[s.row[j]] + least - shortest[j] end
        s.v[j] = s.v[j] - least + shortest[j]
      end
      local j = remaining[left]
      while row ~= i do
        row = path[j]
        s.row[j], s.column[row], j = row, j, s.column[row]
      end
      return
    end
  end
end

--- Solves the linear sum assignment problem: matches rows of a cost matrix [n, m] to columns with the least sum.
return signature.of("linear_sum_assignment(cost, {maximize = false})", function(cost, opts)
  cost = type(cost) == "table" and core.tensor(cost) or cost
  if not core.is_tensor(cost) or cost.ndim ~= 2 then
    options.wrong_shape("linear_sum_assignment", "cost", cost, "[n, m]")
  end
  local costs = cost:detach():to("cpu", "float64") * (opts.maximize and -1 or 1)
  if not costs:gt(-INF):all():item() then
    options.fail("linear_sum_assignment: cost must not be NaN or %sinf", opts.maximize and "" or "-")
  end
  local is_wide = costs.shape[1] <= costs.shape[2]
  if not is_wide then costs = costs:t() end
  local n, m = unpack(costs.shape)
  local s = {costs = costs:totable(), u = {}, v = {}, row = {}, column = {}}
  for j = 1, m do s.v[j], s.u[j] = 0, 0 end
  for i = 1, n do match_row(s, i, m) end
  local columns = core.tensor(s.column, {dtype = "int64"})
  if is_wide then return core.ops.arange(1, n + 1), columns end
  return columns:sort()
end)
