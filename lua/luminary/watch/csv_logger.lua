--- watch.CSVLogger(path, {append = false, all_ranks = false}): Writes a table with a row for each step, and a column
--- for each tag.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local read_file = require "luminary.base.read_file"
local paths = require "luminary.paths"
local signature = require "luminary.base.signature"
local log_file = require "luminary.watch.log_file"
local Logger = require "luminary.watch.logger"
local frombuffer = require("luminary.tensor.derived_functions").frombuffer

local CSVLogger = class.define("CSVLogger", Logger)

local function quoted(text) return text:find '[",]' and '"' .. text:gsub('"', '""') .. '"' or text end

local function number(v)
  local short = ("%.15g"):format(v)
  return tonumber(short) == v and short or ("%.17g"):format(v)
end

-- Returns the columns of a file's header line.
local function columns_of(path, line) return core.csv_fields(path, frombuffer(line, "uint8"), ",", 0, #line) end

local function read_all(path) return paths.filep(path) and read_file(path) or "" end -- a device may be endless

local function add_column(self, name)
  if self.index[name] then return end
  self.columns[#self.columns + 1], self.index[name], self.is_wider = name, #self.columns + 1, true
end

CSVLogger.init = signature.of("CSVLogger(path: string, {append = false, all_ranks = false})",
  function(self, path, opts)
  if not self:start(opts.all_ranks) then return end
  self.path, self.columns, self.index, self.row = path, {}, {}, nil
  local header = opts.append and read_all(path):match "^([^\r\n]+)"
  self.has_header = header and true or false
  self.file = log_file.open("CSVLogger", path, self.has_header, 0)
  for _, name in ipairs(header and columns_of(path, header) or {}) do add_column(self, name) end
  add_column(self, "step")
  add_column(self, "wall_time")
  self.is_wider = self.has_header and #self.columns > #columns_of(path, header)
end)

local function header_of(self) return table.concat(lists.map(self.columns, quoted), ",") .. "\n" end

-- Replaces the file by one with columns that its rows lack; returns false if it cannot be written.
local function widen(self)
  if not self.file:flush() then return false end
  local header, rows = read_all(self.path):match "^([^\n]*)\n(.*)$"
  self.has_header = rows ~= nil
  if not rows then return true end
  local lacking = (","):rep(#self.columns - #columns_of(self.path, header))
  return self.file:replace {header_of(self), (rows:gsub("\n", lacking .. "\n"))}
end

-- Writes the completed row.
local function write_row(self)
  local row = self.row
  self.row = nil
  if not row then return end
  if self.is_wider and self.has_header and not widen(self) then return self.file:lose() end
  local header = self.has_header and "" or header_of(self)
  self.is_wider, self.has_header = false, true
  local cells = lists.map(self.columns, function(name) return row[name] and number(row[name]) or "" end)
  self.file:write(header, table.concat(cells, ","), "\n")
end

--- Writes numbers by tag.
function CSVLogger:write_scalars(values, step, time, _style)
  if self.row and (self.row.step ~= step or step == nil) then write_row(self) end
  for _, tag in ipairs(options.sorted_keys(values)) do
    if tag == "step" or tag == "wall_time" or tag:find "%c" then
      options.must_be("CSVLogger", "a tag", "neither 'step' nor 'wall_time', and of one line", tag)
    end
    add_column(self, tag)
  end
  self.row = self.row or {step = step, wall_time = time}
  for tag, value in pairs(values) do self.row[tag] = value end
end

--- Writes all rows to the file, including the last step's.
function CSVLogger:flush()
  if not self.enabled then return end
  write_row(self)
  self.file:flush()
end

--- Writes all rows, and closes the file.
function CSVLogger:close()
  if not self.enabled then return end
  write_row(self)
  self.file:close()
end

return CSVLogger
