--- The command lines of the scripts: --name value or --name=value, with rows as command_options.lua has them.
---
---   local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
---     epochs = {"count", 10}, log = {"text"},
---   })
---
--- --help prints USAGE; what is wrong ends the script with exit code 2 and a line that says so. given: the names that
--- were on the command line. refuse(format, ...): the same end for what only the script can know. files has
--- try(option, path), that end where no file can be written, to know now and not after the training; log(option, path,
--- append), an lm.watch.JSONLogger, or that end; attempt(option, f, ...),
--- what f returns, or that end with its error's text; beside(name), what a Lua file returns that lies beside the
--- script, or that end. Kinds beside those of command_options.lua: {"dtype"}, one that a network can train in, and
--- {"devices"}, which returns a list: those named, separated by commas, else all CUDA devices, else the CPU; {"device"}
--- is the first of these. Lines are written as they come, into a pipe or file too. A third argument, values by name, is
--- what --selftest then sets wherever the line does not. A fourth, an empty list, gets the words that are not options;
--- without it such a word is refused.
local lm = require "luminary"
local flags = require "luminary.cli.command_options"

local dtypes = {float32 = true, float64 = true, bfloat16 = true, float16 = true}

local function files_of(refuse, finish)
  local files = {}

  function files.beside(name)
    local path = (arg[0]:match "^.*/" or "") .. name
    local chunk, problem = loadfile(path)
    if not chunk and lm.core.file_kind(path) then finish("%s", problem) end
    return (chunk or finish("%s has to lie beside it: it is a part of this program, in the same folder of Luminary's "
      .. "sources", name))()
  end

  function files.attempt(option, f, ...)
    local results = {pcall(f, ...)}
    if not results[1] then refuse("--%s: %s", option, (tostring(results[2]):gsub("^[^\n:]*:%d+: ", ""))) end
    return unpack(results, 2)
  end

  function files.try(option, path)
    local kind = lm.core.file_kind(path)
    if kind and kind ~= "a regular file" then refuse("--%s: %s is %s", option, path, kind) end
    local file, problem = io.open(path .. ".try", "w")
    if not file then refuse("--%s: %s", option, problem) end
    file:close()
    os.remove(path .. ".try")
  end

  function files.log(option, path, append)
    return files.attempt(option, lm.watch.JSONLogger, path, {append = append and true or false, wall_time = false})
  end

  return files
end

return function(usage, rows, selftest, words)
  io.stdout:setvbuf "line"
  local script, special = arg[0]:match("[^/]*$"), {}
  local function finish(...)
    io.stderr:write(script, ": ", string.format(...), "\n")
    os.exit(2, true)
  end
  local function refuse(...)
    io.stderr:write(script, ": ", string.format(...), "\n")
    finish "--help lists the options"
  end

  rows.help = {"flag"}
  if selftest then rows.selftest = {"flag"} end
  for name, row in pairs(rows) do
    if row[1] == "dtype" or row[1] == "device" or row[1] == "devices" then special[name], row[1] = row[1], "text" end
  end
  local options, at, given = flags.parse(arg, 1, rows, words)
  if not options then refuse("%s", at) end
  if options.help then
    io.write(usage)
    os.exit(0, true)
  end
  while words and arg[at] do -- after "--"
    words[#words + 1], at = arg[at], at + 1
  end
  if arg[at] then
    refuse("unrecognized argument '%s'%s", arg[at], rows.data and "; a folder of data follows --data" or "")
  end

  for name, value in pairs(options.selftest and selftest or {}) do
    if not given[name] then options[name] = value end
  end

  for name, kind in pairs(special) do
    local text = options[name]
    if kind == "dtype" then
      if not dtypes[text] then refuse("--%s: '%s' is none of float32, float64, bfloat16 and float16", name, text) end
    elseif text then
      local list = {}
      for device in text:gmatch("[^,]+") do
        local known, found = pcall(lm.core.device, device)
        if not known then refuse("--%s: %s", name, (tostring(found):gsub("^.*device: ", ""))) end
        list[#list + 1] = found
      end
      options[name] = #list > 0 and list or refuse("--%s names none", name)
    else
      options[name] = lm.try_all_gpus()
    end
    if kind == "device" then options[name] = options[name][1] end
  end
  return options, given, refuse, files_of(refuse, finish)
end
