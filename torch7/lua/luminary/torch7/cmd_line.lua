--- lm.CmdLine(): A parser of the command line, as Torch7's.
---   local cmd = lm.CmdLine()
---   cmd:text "Trains a network"
---   cmd:option("-lr", 0.1, "learning rate") -- a number; others by the default
---   local params = cmd:parse(arg or {})          -- params.lr; -help shows all
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local fail = options.fail

local CmdLine = class.root("CmdLine")

function CmdLine:init(argseparator, keyseparator)
  self.argseparator, self.keyseparator = argseparator or ",", keyseparator or "="
  self.lines, self.arguments, self.options = {}, {}, {}
end

--- Adds a line to the help text; an empty one without `text`.
function CmdLine:text(text)
  table.insert(self.lines, {text = text == nil and "" or options.arg("CmdLine.text", "text", text, "string")})
end

-- Adds an option or an argument; one of the same name is replaced, as in Torch7.
local function add(self, row, list)
  self.options[row.name] = row
  table.insert(self.lines, row)
  if list then table.insert(list, row) end
end

--- cmd:option("-name", default, help [, type]): Adds an option, whose value is params.name.
--- A boolean is a flag, which negates the default; a number or string follows the name. `type`, "number", "string" or
--- "boolean", is needed only where it is not the default's.
function CmdLine:option(name, default, help, kind)
  local short = options.arg("CmdLine.option", "name", name, "string"):match "^%-+(.+)$"
  if not short then fail("CmdLine.option: the name must begin with a dash: \"-%s\"", name) end
  kind = kind or default == nil and "string" or type(default)
  options.arg("CmdLine.option", "type", kind, {"number", "string", "boolean"})
  add(self, {name = short, default = default, help = help or "", kind = kind, shown = name})
end

--- cmd:argument("name", help [, type = "string"]): Adds a required positional argument, params.name; dashes before the
--- name do not count.
function CmdLine:argument(name, help, kind)
  name = options.arg("CmdLine.argument", "name", name, "string"):match "^%-*(.*)$"
  kind = options.arg("CmdLine.argument", "type", kind or "string", {"number", "string"})
  add(self, {name = name, help = help or "", kind = kind, shown = "<" .. name .. ">"}, self.arguments)
end

--- Prints the help text, as the options -help, --help and -h do.
function CmdLine:help(arguments)
  local script, width = (arguments or arg or {})[0] or "script.lua", 0
  io.write("Usage: ", script, #self.lines > #self.arguments and " [options]" or "")
  for _, row in ipairs(self.arguments) do io.write(" ", row.shown) end
  io.write("\n")
  for _, line in ipairs(self.lines) do width = math.max(width, line.shown and #line.shown or 0) end
  for _, line in ipairs(self.lines) do
    if line.text then
      io.write(line.text, "\n")
    else
      local default = line.default ~= nil and (" [%s]"):format(tostring(line.default)) or ""
      io.write(("  %-" .. width .. "s %s%s\n"):format(line.shown, line.help, default))
    end
  end
end

--- Prints a message and the help text, and ends the script with exit code 1, as parse does after an error.
function CmdLine:error(message)
  io.stderr:write(message, "\n\n")
  self:help()
  os.exit(1, true)
end

local function value_of(self, row, text)
  if text == nil then self:error(("%s requires a value"):format(row.shown)) end
  if row.kind == "string" then return text end
  local number = tonumber(text)
  if not number then self:error(("%s must be a number, got '%s'"):format(row.shown, text)) end
  return number
end

-- Returns the option of "-name" or "--name", and its text after "=", if any.
local function find(self, given)
  local name, value = given:match "^%-+([^=]+)=(.*)$"
  name = name or given:match "^%-+(.+)$"
  local row = self.options[name]
  if row and row.shown:sub(1, 1) == "-" then return row, value end
  local near = core.nearest(name, options.sorted_keys(self.options, function(_, other)
    return other.shown:sub(1, 1) == "-"
  end))
  self:error(("unrecognized argument '%s'%s"):format(given, near and "; did you mean '-" .. near .. "'?" or ""))
end

--- Returns the defaults by name.
function CmdLine:default()
  local params = {}
  for name, row in pairs(self.options) do params[name] = row.default end
  return params
end

--- Reads a command line, a list such as `arg`; returns the values by name, with defaults.
function CmdLine:parse(arguments)
  options.arg("CmdLine.parse", "the command line", arguments, "table")
  local params, position, i = self:default(), 0, 0
  while i < #arguments do
    i = i + 1
    local given = arguments[i]
    if (given == "-help" or given == "--help" or given == "-h") and not self.options[given:match "^%-+(.+)$"] then
      self:help(arguments)
      os.exit(0, true)
    elseif given:match "^%-+%a" then
      local row, value = find(self, given)
      if row.kind == "boolean" then
        if value then self:error(("%s is a flag and takes no value, got '%s'"):format(row.shown, value)) end
        params[row.name] = not row.default
      else
        if not value then
          i = i + 1
          value = arguments[i]
        end
        params[row.name] = value_of(self, row, value)
      end
    else
      position = position + 1
      local row = self.arguments[position]
      if not row then self:error(("unrecognized argument '%s'"):format(given)) end
      params[row.name] = value_of(self, row, given)
    end
  end
  if position < #self.arguments then self:error(("%s is missing"):format(self.arguments[position + 1].shown)) end
  return params
end

--- cmd:string(prefix, params [, ignore]): Returns a name for an experiment, the prefix and
--- the options that differ from the defaults, sorted: "run,fast=t,lr=0.2"; booleans are t and f. Names that are true in
--- `ignore` are left out.
function CmdLine:string(prefix, params, ignore)
  options.arg("CmdLine.string", "prefix", prefix, "string")
  options.arg("CmdLine.string", "params", params, "table")
  local parts = {}
  for name, value in pairs(params) do
    local row = self.options[name]
    if row and value ~= row.default and not (ignore and ignore[name]) then
      local text = type(value) == "boolean" and (value and "t" or "f") or tostring(value):gsub("/", "_")
      parts[#parts + 1] = name .. self.keyseparator .. text
    end
  end
  table.sort(parts)
  table.insert(parts, 1, prefix)
  return table.concat(parts, self.argseparator)
end

--- cmd:addTime([name = ""] [, format = "%F %T"]): Begins each line of the log file with the time and a name.
function CmdLine:addTime(name, format)
  self.time_name = options.arg("CmdLine.addTime", "name", name or "", "string")
  self.time_format = options.arg("CmdLine.addTime", "format", format or "%F %T", "string")
end

--- cmd:silent(): Makes print write to the log file alone.
function CmdLine:silent() self.is_silent = true end

--- cmd:log(path [, params]): Makes print write to a file, too, which begins with the date and params.
function CmdLine:log(path, params)
  local file = core.growing_file_open(options.arg("CmdLine.log", "path", path, "string"), false)
  if self.logged then core.growing_file_close(self.logged) end
  if not self.logged then
    local print_before = print
    print = function(...) -- luacheck: ignore
      if not self.is_silent then print_before(...) end
      local texts = {...}
      for i = 1, select("#", ...) do texts[i] = tostring(texts[i]) end
      local time = self.time_format and ("%s[%s]: "):format(os.date(self.time_format), self.time_name) or ""
      core.growing_file_write(self.logged, time .. table.concat(texts, "\t") .. "\n")
    end
  end
  self.logged = file
  local lines = {("[program started on %s]\n[command line arguments]\n"):format(os.date())}
  for _, name in ipairs(options.sorted_keys(params or {})) do
    lines[#lines + 1] = ("%s\t%s\n"):format(name, tostring(params[name]))
  end
  core.growing_file_write(file, table.concat(lines) .. "[----------------------]\n")
end

return CmdLine
