--- Parses options of a command: `--name value`, `--name=value`, `--flag`; dashes and underscores are equivalent.
local lists = require "luminary.base.lists"
local numbers = require "luminary.base.number_kinds"

local flags = {}

-- Kinds in addition to texts and flags: a name for messages, and a function that returns the number, or nil.
local kinds = {
  count = {"an integer of at least 1", numbers.integer(1, 2 ^ 31)[2]},
  natural = {"an integer of at least 0", numbers.integer(0, 2 ^ 31)[2]}, number = numbers.finite(0),
  port = {"a port from 0 to 65535", numbers.integer(0, 65535)[2]}, positive = numbers.above(0),
}

local function unknown(given, rows)
  local names = lists.sorted_keys(rows, function(_, row) return not row.refuse end)
  local loaded, core = pcall(require, "luminary.core") -- the doctor runs without the core, too
  local near = loaded and core.nearest(given:gsub("^%-+", ""), names)
  return ("unrecognized argument '%s'%s"):format(given, near and "; did you mean '--" .. near .. "'?" or "")
end

-- Returns the row of "--name", and its name.
local function find(given, rows)
  local name = given:gsub("^%-+", ""):gsub("_", "-")
  local row = rows[name]
  while row and row.same do name, row = row.same, rows[row.same] end
  return row, name
end

local NAMED = {seed = "natural", rank = "natural", ["local-rank"] = "natural", dtype = "dtype"}
local WORDS = {
  N = "count", X = "number", DEVICE = "device", DEVICES = "devices", -- in scripts
  K = "natural", R = "natural", S = "number", P = "port", -- in commands
}

-- Returns the options in the lines of a usage text, by name: {word, text} or {same = name}.
local function read_usage(usage)
  local lines, last = {}, nil
  for line in (usage .. "\n"):gmatch "(.-)\n" do
    local rest, names, separator = line:match "^  (%-%-?%w.*)$", {}, ", "
    while rest and separator == ", " do
      names[#names + 1], separator, rest = rest:match "^%-%-?([%w-]+)(,? ?)(.*)$"
    end
    if rest then
      local name = table.remove(names)
      local word, text = rest:match "^(%u%S*)(.*)$"
      last = {word = word, text = text or rest}
      lines[name] = last
      for _, alias in ipairs(names) do lines[alias] = {same = name} end
    elseif line == "" then
      last = nil
    elseif last then
      last.text = last.text .. " " .. line
    end
  end
  return lines
end

-- Returns the default at the end of an option's text, or nil.
local function default_of(kind, text)
  local value = text:match "%(([^()]*)%)%s*$"
  if not value or kind == "flag" then return nil end
  if kind == "count" or kind == "natural" or kind == "number" or kind == "port" then
    return (value == "no limit" or value == "never") and math.huge or tonumber(value)
  end
  return value:match "^[^%s$-][^%s$]*$"
end

--- Adds to rows, for flags.parse, the options of a usage text and --help: its words as kinds, and the defaults in
--- parentheses at the end of its texts, as script_options.lua describes; a row's own kind and default precede these.
function flags.complete(rows, usage)
  for name, line in pairs(read_usage(usage)) do
    local row = rows[name] or {}
    rows[name] = row
    if line.same then
      row.same = line.same
    elseif not (row.same or row.refuse) then
      row[1] = row[1] or NAMED[name] or WORDS[line.word] or (line.word and "text" or "flag")
      if row[2] == nil then row[2] = default_of(row[1], line.text) end
    end
  end
  rows.help = {"flag"}
end

--- Parses args from `first` on, up to the first argument that is no option. `rows` by name: {"kind" [, default]},
--- {"flag"}, which is false by default, {same = "other name"}, {refuse = "the reason and the remedy"}. Returns the
--- values by name, the position of the first remaining argument and the set of given names, or nil and the error. The
--- last of repeated options counts. words: an optional list that gets arguments that are no options, in any position.
function flags.parse(args, first, rows, words)
  local values, seen = {}, {}
  for name, row in pairs(rows) do
    values[name] = row[2]
    if row[1] == "flag" then values[name] = false end -- nil would be read as on, as in {enabled = nil}
  end
  local i = first
  while args[i] do
    while words and args[i] and not args[i]:match "^%-." do
      words[#words + 1], i = args[i], i + 1
    end
    if not args[i] or not args[i]:match "^%-." then break end
    if args[i] == "--" then
      i = i + 1
      while words and args[i] do words[#words + 1], i = args[i], i + 1 end
      break
    end
    local given, value = args[i]:match("^(%-%-[^=]+)=(.*)$")
    given = given or args[i]
    local row, name = find(given, rows)
    if not row then return nil, unknown(given, rows) end
    if row.refuse then return nil, given .. ": " .. row.refuse end
    seen[name] = true
    if row[1] == "flag" then
      if value then return nil, ("%s takes no value, got '%s'"):format(given, value) end
      values[name] = true
    else
      if not value then
        i = i + 1
        value = args[i]
      end
      if not value then return nil, given .. " requires a value" end
      local kind = kinds[row[1]]
      if row[1] ~= "text" then values[name] = kind[2](tonumber(value)) else values[name] = value end
      if values[name] == nil then return nil, ("%s must be %s, got '%s'"):format(given, kind[1], value) end
    end
    i = i + 1
  end
  return values, i, seen
end

--- Parses the options of `luminary COMMAND`, which its usage text lists, as flags.parse does. Prints that text for
--- --help, and errors, also one from check(values, position, args, given, words); then returns nil and the exit status.
--- words: as for flags.parse.
function flags.read(command, usage, args, first, rows, check, words)
  flags.complete(rows, usage)
  rows.h = {same = "help"}
  local values, at, given = flags.parse(args, first, rows, words)
  local problem = not values and at or not values.help and check(values, at, args, given, words)
  if problem then
    io.stderr:write(("luminary %s: %s\n      luminary %s --help lists the options\n"):format(command, problem, command))
    return nil, 2
  elseif values.help then
    io.stdout:write(usage)
    return nil, 0
  end
  return values, at
end

--- A check of flags.read for a command with one FILE among its options.
function flags.one_file(_, _, _, _, words)
  return #words == 0 and "FILE is required" or words[2] and ("expected one FILE, got '%s' too"):format(words[2])
end

return flags
