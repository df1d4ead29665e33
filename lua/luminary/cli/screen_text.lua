--- screen_text(value): Returns a value's text, fitted to the terminal. Without one, tables are cut to 40 entries.
local core = require "luminary.core"
local characters = require "luminary.base.characters"
local lists = require "luminary.base.lists"
local repr = require "luminary.repr"
local terminal = require "luminary.base.terminal"

local getmetatable_of, type, rawget, pcall, error = require("debug").getmetatable, type, rawget, pcall, error
local gmatch, gsub, concat, floor = string.gmatch, string.gsub, table.concat, math.floor
local max, min = math.max, math.min

local MOST = 40 -- entries of a table
local INPUT = 3 -- rows for the input and the next prompt

-- Returns a line cut to that number of columns, with the number of characters omitted.
local function cut_line(text, columns)
  if #text <= columns then return text end
  if characters.columns(text) <= columns then return text end
  local n = characters.count(text)
  local note = ("… (%d more)"):format(n) -- the longest possible note: the final number is at most n
  local head = characters.first_columns(text, max(columns - characters.count(note), 0))
  return ("%s… (%d more)"):format(head, n - characters.count(head))
end

-- Returns a text cut to the screen: of too many lines, it omits those in the middle.
local function cut_to_screen(text, columns, rows)
  local lines = lists.map(lists.parts(text .. "\n", "(.-)\n"), function(line) return cut_line(line, columns) end)
  if #lines <= rows then return concat(lines, "\n") end
  local head = floor(rows * 2 / 3)
  local tail = max(rows - head - 1, 0)
  local note = cut_line(("… (%d more lines)"):format(#lines - head - tail), columns)
  return concat(lines, "\n", 1, head) .. "\n" .. note .. (tail > 0 and "\n" or "")
    .. concat(lines, "\n", #lines - tail + 1)
end

local function count_lines(text)
  local _, n = gsub(text, "\n", "\n")
  return n + 1
end

-- Returns true for strings, which wrap, and libraries, whose overview scrolls as help does.
local function is_text(value)
  local mt = getmetatable_of(value)
  return type(value) == "string" or type(mt) == "table" and rawget(mt, "__library") ~= nil
end

-- Returns the columns of the longest line.
local function columns_of(text)
  local most = 0
  for line in gmatch(text, "[^\n]+") do most = max(most, characters.columns(line)) end
  return most
end

-- Fits a value: a tensor is first tried as lm.set_printoptions says, then with fewer and fewer elements at the edges; a
-- table is tried with half the entries each time.
local function fitted(value, columns, rows)
  local precision, threshold, edge, width, scientific = core.print_options()
  local function attempt()
    local entries = min(MOST, rows)
    local limit, line = threshold, min(width, columns)
    while true do
      core.print_options(precision, limit, edge, line, scientific)
      local text = repr(value, entries, columns)
      local excess = core.is_tensor(value) and columns_of(text) - columns or 0
      if excess > 0 and line > 1 then
        line = max(line - excess, 1) -- PyTorch does not count brackets and the dot of "0."
      elseif count_lines(text) <= rows or entries <= 2 then
        return cut_to_screen(text, columns, rows)
      else
        limit, entries, edge = 0, floor(entries / 2), max(edge - 1, 1)
      end
    end
  end
  local user_edge = edge
  local ok, text = pcall(attempt)
  core.print_options(precision, threshold, user_edge, width, scientific)
  if not ok then error(text, 0) end
  return text
end

return function(value)
  local columns, rows = terminal.known_size()
  if not columns or is_text(value) then return repr(value, MOST) end
  return fitted(value, max(columns, 20), max(rows - INPUT, 3))
end
