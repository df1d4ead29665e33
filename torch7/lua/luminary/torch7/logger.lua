--- optim.Logger(path): Logs rows of numbers into a file with a column for each name, which it can plot. Missing folders
--- of the path are created.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local fail = options.fail

local Logger = class.root("Logger")
local styles = {["-"] = "lines", ["."] = "points pt 7", ["+"] = "points", ["+-"] = "linespoints", ["|"] = "boxes",
  ["~"] = "lines smooth csplines"}

function Logger:init(path, timestamp)
  if path ~= nil then
    path = options.arg("Logger", "path", path, "string")
    paths.mkdir(paths.dirname(path))
    if timestamp then path = path .. os.date "-%Y_%m_%d_%X" end
    self.file = core.growing_file_open(path, false)
  end
  self.path, self.rows, self.styles, self.showPlot, self.logscale = path, {}, {}, false, {}
end

local function write(self, texts)
  if self.file then core.growing_file_write(self.file, table.concat(texts, "\t") .. "\t\n") end
end

--- Sets the names of the columns, a list, which are the file's first line; returns the logger.
function Logger:setNames(names)
  options.arg("Logger.setNames", "names", names, "table")
  for i, name in ipairs(names) do options.arg("Logger.setNames", "name " .. i, name, "string") end
  if self.names then fail("Logger.setNames: the columns already have names: %s", table.concat(self.names, ", ")) end
  self.names = lists.slice(names)
  write(self, self.names)
  return self
end

-- Returns {train = 0.9} as a list in the order of the columns.
local function in_order(self, values)
  if type(next(values)) ~= "string" then return values end
  if not self.names then self:setNames(options.sorted_keys(values)) end
  for name in pairs(values) do
    if not lists.index_of(self.names, name) then
      fail("Logger.add: no column '%s'; columns are %s", name, table.concat(self.names, ", "))
    end
  end
  return lists.pick(values, self.names)
end

--- Adds a row: numbers or strings, a list in the order of the names, or by name; returns the logger.
function Logger:add(values)
  local list = in_order(self, options.arg("Logger.add", "values", values, "table"))
  if self.names and #list ~= #self.names then
    fail("Logger.add: got %d values for %d columns: %s", #list, #self.names, table.concat(self.names, ", "))
  end
  local row, texts = {}, {}
  for i, v in ipairs(list) do
    if core.is_tensor(v) and v:numel() == 1 then v = v:item() end
    if type(v) ~= "number" and type(v) ~= "string" then
      options.must_be("Logger.add", ("value %d"):format(i), "a number or text", v)
    end
    row[i], texts[i] = v, type(v) == "number" and ("%11.4e"):format(v) or v
  end
  table.insert(self.rows, row)
  write(self, texts)
  return self
end

--- Sets how columns are drawn: "-" lines, "." or "+" points, "+-" both, "|" bars, "~" smooth; one for all or a list.
--- Returns the logger.
function Logger:style(style)
  local list = type(style) == "table" and style or {style}
  for _, each in ipairs(list) do
    if not styles[each] then fail("Logger.style: unknown style '%s'; styles are - . + +- | ~", tostring(each)) end
  end
  self.styles, self.one_style = list, type(style) ~= "table"
  return self
end

--- Sets whether plot shows a window, too (true by default); returns the logger.
function Logger:display(on)
  self.showPlot = on == nil or on
  return self
end

--- Sets which axes are logarithmic, {x = true}; the y axis without `axes`. Returns the logger.
function Logger:setlogscale(axes)
  self.logscale = axes or {y = true}
  return self
end

-- Returns a name in single quotes for gnuplot.
local function quoted(text) return "'" .. text:gsub("'", "''") .. "'" end

-- Returns the program for gnuplot, including the numbers.
local function program(self)
  local lines, columns, blocks = {}, {}, {}
  if self.logscale.x then lines[#lines + 1] = "set logscale x" end
  if self.logscale.y then lines[#lines + 1] = "set logscale y" end
  for i = 1, #(self.rows[1] or {}) do
    local style = styles[self.styles[self.one_style and 1 or i] or "+-"]
    local name = self.names and self.names[i] or "column " .. i
    columns[i] = ("'-' using 1:2 title %s with %s"):format(quoted(name), style)
    for x, row in ipairs(self.rows) do blocks[#blocks + 1] = ("%d %s"):format(x, tostring(row[i])) end
    blocks[#blocks + 1] = "e"
  end
  local plot = "plot " .. table.concat(columns, ", ") .. "\n" .. table.concat(blocks, "\n")
  if self.path then
    lines[#lines + 1] = "set terminal postscript eps color\nset output " .. quoted(self.path .. ".eps")
    lines[#lines + 1] = plot .. "\nset output"
  end
  if self.showPlot then lines[#lines + 1] = "set terminal pop\n" .. plot end
  return table.concat(lines, "\n") .. "\n"
end

local has_gnuplot

--- Draws all columns with the program gnuplot into the file's name plus .eps; returns whether it could.
function Logger:plot()
  if #self.rows == 0 then return false end
  if has_gnuplot == nil then
    has_gnuplot = os.execute "command -v gnuplot >/dev/null 2>&1" == 0
    if not has_gnuplot then core.warn "Logger.plot: gnuplot is not installed; nothing is drawn" end
  end
  if not has_gnuplot then return false end
  local pipe = io.popen("gnuplot -persist 2>/dev/null", "w")
  pipe:write(program(self))
  pipe:close()
  return true
end

--- Closes the file.
function Logger:close()
  if self.file then core.growing_file_close(self.file) end
  self.file = nil
end

return Logger
