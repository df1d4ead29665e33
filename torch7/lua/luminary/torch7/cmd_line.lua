--- lm.CmdLine(): A parser of the command line, as Torch7's: cmd:option("-lr", 0.1, "learning rate"), cmd:parse(arg).lr.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local fail = options.fail

local CmdLine = class.root("CmdLine") -- its fields and __read… are Torch7's, for classes that extend torch.CmdLine

function CmdLine:init(argseparator, keyseparator)
  self.argseparator, self.keyseparator = argseparator or ",", keyseparator or "="
  self.helplines, self.arguments, self.options, self.silentio = {}, {}, {}, false
end

local function stripped(key) return key:match "^%-*(.*)$" end

--- Adds a line to the help text; an empty one without `text`.
function CmdLine:text(text)
  table.insert(self.helplines, text == nil and "" or options.arg("CmdLine.text", "text", text, "string"))
end

--- cmd:option("-name", default, help [, type]): Adds an option, whose value is params.name.
--- A boolean is a flag, which negates the default; a number or string follows the name. `type`, "number", "string" or
--- "boolean", is needed only where it is not the default's.
function CmdLine:option(name, default, help, kind)
  if not options.arg("CmdLine.option", "name", name, "string"):find "^%-+[^-]" then
    fail("CmdLine.option: the name must begin with a dash: \"-%s\"", name)
  end
  kind = kind or default == nil and "string" or type(default)
  options.arg("CmdLine.option", "type", kind, {"number", "string", "boolean", type(default) == "table" and "table"})
  self.options[name] = {key = name, default = default, help = help or "", type = kind}
  table.insert(self.helplines, self.options[name])
end

--- cmd:argument("name", help [, type = "string"]): Adds a required positional argument, params.name; dashes before the
--- name do not count.
function CmdLine:argument(name, help, kind)
  name = options.arg("CmdLine.argument", "name", name, "string")
  kind = options.arg("CmdLine.argument", "type", kind or "string", {"number", "string"})
  table.insert(self.arguments, {key = name, help = help or "", type = kind, shown = "<" .. stripped(name) .. ">"})
  table.insert(self.helplines, self.arguments[#self.arguments])
end

--- Prints the help text, as the options -help, --help and -h do.
function CmdLine:help(arguments)
  local script, width = (arguments or arg or {})[0] or "script.lua", 0
  io.write("Usage: ", script, #self.helplines > #self.arguments and " [options]" or "")
  for _, row in ipairs(self.arguments) do io.write(" ", row.shown) end
  io.write("\n")
  local function shown(line) return type(line) == "table" and (line.shown or line.key) or "" end
  for _, line in ipairs(self.helplines) do width = math.max(width, #shown(line)) end
  for _, line in ipairs(self.helplines) do
    if type(line) ~= "table" then
      io.write(line, "\n")
    else
      local default = line.default ~= nil and (" [%s]"):format(tostring(line.default)) or ""
      io.write(("  %-" .. width .. "s %s%s\n"):format(shown(line), line.help, default))
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
  local shown = row.shown or row.key
  if text == nil then self:error(("%s requires a value"):format(shown)) end
  if row.type == "string" then return text end
  local number = tonumber(text)
  if not number then self:error(("%s must be a number, got '%s'"):format(shown, text)) end
  return number
end

-- Returns the option of "-name" or "--name", and its text after "=", if any.
local function find(self, given)
  local name, value = given:match "^%-+([^=]+)=(.*)$"
  name = name or stripped(given)
  local row = self.options[given] or self.options["-" .. name] or self.options["--" .. name]
  return row and row.key and row, value, name
end

--- Reads the option at args[i] into params; returns the number of args that it takes.
function CmdLine:__readOption__(params, args, i)
  local row, value, name = find(self, args[i])
  if not row then
    local near = core.nearest(name, lists.map(options.sorted_keys(self.options), stripped))
    self:error(("unrecognized argument '%s'%s"):format(args[i], near and "; did you mean '-" .. near .. "'?" or ""))
  end
  if row.type == "boolean" then
    if value then self:error(("%s is a flag and takes no value, got '%s'"):format(row.key, value)) end
    params[stripped(row.key)] = not row.default
    return 1
  end
  params[stripped(row.key)] = value_of(self, row, value or args[i + 1])
  return value and 1 or 2
end

--- Reads the n-th positional argument, args[i], into params; returns 1.
function CmdLine:__readArgument__(params, args, i, n)
  local row = self.arguments[n]
  if not row then self:error(("unrecognized argument '%s'"):format(args[i])) end
  params[stripped(row.key)] = value_of(self, row, args[i])
  return 1
end

--- Returns the defaults by name.
function CmdLine:default()
  local params = {}
  for name, row in pairs(self.options) do params[stripped(name)] = row.default end
  return params
end

--- Reads a command line, a list such as `arg`; returns the values by name, with defaults.
function CmdLine:parse(arguments)
  options.arg("CmdLine.parse", "the command line", arguments, "table")
  local params, position, i = self:default(), 0, 1
  while i <= #arguments do
    local given = arguments[i]
    if (given == "-help" or given == "--help" or given == "-h") and not find(self, given) then
      self:help(arguments)
      os.exit(0, true)
    elseif given:match "^%-+%a" then
      i = i + self:__readOption__(params, arguments, i)
    else
      position = position + 1
      i = i + self:__readArgument__(params, arguments, i, position)
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
    local row = find(self, name)
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
function CmdLine:silent() self.silentio = true end

--- cmd:log(path [, params]): Makes print write to a file, too, which begins with the date and params.
function CmdLine:log(path, params)
  local file = core.growing_file_open(options.arg("CmdLine.log", "path", path, "string"), false)
  if self.logged then core.growing_file_close(self.logged) end
  if not self.logged then
    local print_before = print
    print = function(...) -- luacheck: ignore
      if not self.silentio then print_before(...) end
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
