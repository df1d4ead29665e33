--- aligned_columns(rows, right_from): Returns lists of texts as lines of columns, two blanks apart, and the width of
--- the longest line. Columns from number `right_from` on are flush right, those before it flush left.
local lists = require "luminary.base.lists"

return function(rows, right_from)
  local widths, total = {}, -2
  for _, row in ipairs(rows) do
    for c, cell in ipairs(row) do widths[c] = math.max(widths[c] or 0, #cell) end
  end
  for _, width in ipairs(widths) do total = total + width + 2 end
  local lines = lists.map(rows, function(row)
    local cells = lists.map(row, function(cell, c)
      local gap = (" "):rep(widths[c] - #cell)
      return c < right_from and cell .. gap or gap .. cell
    end)
    return (table.concat(cells, "  "):gsub("%s+$", ""))
  end)
  return lines, total
end
