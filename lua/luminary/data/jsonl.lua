--- Reads files of JSON lines.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Dataset = require("luminary.data.dataset").Dataset
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

--- data.JSONLinesDataset(…): Loads a file with one JSON value on each line.
local JSONLinesDataset = class.define("JSONLinesDataset", Dataset)
JSONLinesDataset.__makes = "path"

JSONLinesDataset.init = signature.of([[JSONLinesDataset(path: string, {fields: table, transform: callable, null,
  on_error = "raise" | "skip"})]], function(self, path, opts)
  self.path = path
  signature.assign(self, opts)
  records.begin(self, self.on_error)
  self.starts = core.keep(core.file_lines((records.source(self)))) -- byte offsets of lines, from 0, and of the end
end)

function JSONLinesDataset:len() return self.starts.shape[1] - 1 end
--- Returns the file of sample i.
function JSONLinesDataset:file_of(_i) return self.path end

local NULL = {}

local function has_null(v)
  if type(v) ~= "table" or v == NULL then return v == NULL end
  for _, inner in pairs(v) do
    if has_null(inner) then return true end
  end
  return false
end

-- Returns the number of the line that contains byte `at`.
local function line_of(source, at)
  local line, piece = 1, 2 ^ 18
  for from = 0, at - 1, piece do
    line = line + select(2, core.file_text(source, from, math.min(piece, at - from)):gsub("\n", ""))
  end
  return line
end

local function read_record(self, i)
  local source, from, to = records.source(self), self.starts[i], self.starts[i + 1]
  local function fail_bad_line(why)
    fail("JSONLinesDataset: '%s': line %d: %s", self.path, line_of(source, from), why)
  end
  local ok, value = pcall(core.json_decode, core.file_text(source, from, to - from),
    self.null == nil and NULL or self.null)
  if not ok then fail_bad_line(records.reason(value, "json_decode")) end
  local function check_no_null(v, name)
    if self.null ~= nil or not has_null(v) then return end
    fail_bad_line(name .. " has no value in Lua; pass {null = false} to read it as false")
  end
  if not self.fields then
    check_no_null(value, "null")
    return value
  end
  if type(value) ~= "table" then fail_bad_line(("expected a JSON object, got a %s"):format(type(value))) end
  local values = {}
  for k, name in ipairs(self.fields) do
    values[k] = value[name]
    if value[name] == nil then fail_bad_line(("it has no field '%s'"):format(tostring(name))) end
    check_no_null(value[name], ("null in field '%s'"):format(tostring(name)))
  end
  return unpack(values, 1, #self.fields)
end

function JSONLinesDataset:get(i)
  i = self:index(i)
  if self.transform then return self.transform(records.sample(self, i, read_record)) end
  return records.sample(self, i, read_record)
end

return {JSONLinesDataset = JSONLinesDataset}
