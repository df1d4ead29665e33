--- Parses the command lines of scripts: --name value or --name=value, as their usage text lists them.
---
---   local options, given, refuse, files = require "luminary.cli.script_options" [[
---   usage: luajit script.lua [options]
---
---     -e, --epochs N  passes over the data  (10)
---     --lr X          learning rate         (0.1)
---     --log FILE      write the losses
---     --amp           mixed precision
---   ]]
---
--- In the usage text, the word after an option sets its kind: N is an integer of at least 1, X a number of at least 0,
--- DEVICE or DEVICES these kinds, any other word in capitals a text, none a flag; options in the table NAMED of
--- command_options.lua always have the kinds listed there. Parentheses at the end of the text hold the default: a
--- number, "no limit" or "never" (both math.huge), or one word. Earlier names on a line are aliases.
---
--- The second argument, `rows` by name, has what the text cannot express: rows of command_options.lua, whose kind and
--- default precede the text's, and {"choice", of = names}, in upper or lower case: a list, a table by name, or a text
--- such as "a, b and c"; {"dtype"}, one that a network can train in; {"devices"}, a list: those named, separated by
--- commas, else all CUDA devices, else the CPU; {"device"}, the first of these. {…, excludes = "other"}: not with that
--- option.
---
--- --help prints the text; an error ends the script with exit code 2 and a line about it. Output is line buffered, also
--- to a pipe or file. The third argument has the values by name that --selftest sets unless the command line does. The
--- fourth, an empty list, gets the words that are not options; without it such a word is refused.
---
--- Returns the values by name, the names on the command line, refuse(format, ...), which ends the script in the same
--- way for errors that only the script can detect, and the functions of script_files.lua.
local lm = require "luminary"
local flags = require "luminary.cli.command_options"
local script_files = require "luminary.cli.script_files"
local lists = require "luminary.base.lists"

local DTYPES = "float32, float64, bfloat16 and float16"

-- Kinds in addition to those of command_options.lua; they are read as text and checked later.
local checked_later = {choice = true, dtype = true, device = true, devices = true}

-- Returns the names that a row allows, and the text that lists them in messages.
local function choices_of(of)
  if type(of) ~= "string" then
    local names = #of > 0 and of or lists.sorted_keys(of)
    return names, table.concat(names, ", ")
  end
  return lists.parts(of:gsub(" and ", ", "), "[^, ]+"), of
end

return function(usage, rows, selftest, words)
  io.stdout:setvbuf "line"
  rows = rows or {}
  local script, special = arg[0]:match("[^/]*$"), {}
  local function exit_with_text(...)
    io.stderr:write(script, ": ", string.format(...), "\n")
    os.exit(2, true)
  end
  local function refuse(format, ...) exit_with_text("%s\n%s: --help lists the options", format:format(...), script) end

  flags.complete(rows, usage)
  if selftest then rows.selftest = {"flag"} end
  local parsed = {}
  for name, row in pairs(rows) do
    parsed[name] = row
    if checked_later[row[1]] then special[name], parsed[name] = row, {"text", row[2]} end
  end
  local options, at, given = flags.parse(arg, 1, parsed, words)
  if not options then refuse("%s", at) end
  if options.help then
    io.write(usage)
    os.exit(0, true)
  end
  if words then -- arguments after "--"
    lists.append(words, {unpack(arg, at)})
  elseif arg[at] then
    refuse("unrecognized argument '%s'%s", arg[at], rows.data and "; a folder of data follows --data" or "")
  end
  for name, row in pairs(rows) do
    if row.excludes and given[name] and given[row.excludes] then
      refuse("--%s and --%s: one of the two", name, row.excludes)
    end
  end

  for name, value in pairs(options.selftest and selftest or {}) do
    if not given[name] then options[name] = value end
  end

  local function devices_of(name, text)
    if not text then return lm.try_all_gpus() end
    local list = {}
    for device in text:gmatch("[^,]+") do
      local known, found = pcall(lm.core.device, device)
      if not known then refuse("--%s: %s", name, (tostring(found):gsub("^.*device: ", ""))) end
      list[#list + 1] = found
    end
    return #list > 0 and list or refuse("--%s names none", name)
  end

  for name, row in pairs(special) do
    local kind, text = row[1], options[name]
    if kind == "device" or kind == "devices" then
      local list = devices_of(name, text)
      options[name] = kind == "device" and list[1] or list
    elseif text then
      local names, all = choices_of(kind == "dtype" and DTYPES or row.of)
      options[name] = lists.find(names, function(each) return each:lower() == text:lower() end)
        or refuse("--%s: '%s' is none of %s", name, text, all)
    end
  end
  return options, given, refuse, script_files(options, given, refuse, exit_with_text)
end
