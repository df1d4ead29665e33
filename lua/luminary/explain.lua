--- Prints what compiled steps run: the steps of their segments as recorded and as planned.
local explain = {}

--- True within `luminary explain SCRIPT`, where each compiled step is explained.
explain.every_step = false

-- Returns the numbers of lines of a text by op.
local function count_ops(text)
  local counts, all = {}, 0
  for op in text:gmatch " = ([^(\n]+)%(" do counts[op], all = (counts[op] or 0) + 1, all + 1 end
  return counts, all
end

-- Returns "2 transpose, view" for the ops of one count that another does not have.
local function missing(from, to)
  local list = {}
  for op, n in pairs(from) do
    local lost = n - (to[op] or 0)
    if lost > 0 then list[#list + 1] = (lost > 1 and lost .. " " or "") .. op end
  end
  table.sort(list)
  return #list > 0 and table.concat(list, ", ") or "nothing"
end

--- Returns a function that prints the segments of a function's recordings that it has not printed yet.
function explain.printer(compiled)
  local printed = {}
  compiled:set_explained()
  return function()
    for i = 1, math.huge do
      local recorded, line = compiled:explain(i, false)
      if not recorded then return end
      local planned = compiled:explain(i, true)
      if not printed[recorded] then
        printed[recorded] = true
        local before, all = count_ops(recorded)
        local after, left = count_ops(planned)
        local _, joined = planned:gsub("\n  %+", "")
        io.stderr:write(("compile: a segment that ends after %s\n  as recorded, %d steps:\n%s"):format(
          line or "an unknown line", all, recorded))
        io.stderr:write(("  as planned, %d steps, %d of them (+) computed with that before:\n%s  dropped: %s\n"):format(
          left, joined, planned, missing(before, after)))
      end
    end
  end
end

return explain
