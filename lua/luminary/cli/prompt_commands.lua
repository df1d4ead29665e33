--- Implements the prompt's commands, :time and others. A session is a table of the prompt: run(text, chunk, problem)
--- evaluates a chunk and returns true if it succeeded, say(text) prints a line, read(prompt) and remember(text) are
--- line_editing's, last is the last input.
local lm = require "luminary"
local core = require "luminary.core"
local help = require "luminary.help"
local lists = require "luminary.base.lists"
local bytes_text = require "luminary.base.bytes_text"
local paths = require "luminary.paths"
local read_chunk = require "luminary.cli.read_chunk"

local globals, loaded = _G, package.loaded
local pcall, loadfile, tostring, next, require, rawequal = pcall, loadfile, tostring, next, require, rawequal
local rawset, type, ipairs = rawset, type, ipairs
local format, match, gsub, find = string.format, string.match, string.gsub, string.find
local open, execute, getenv, tmpname, remove = io.open, os.execute, os.getenv, os.tmpname, os.remove
local collectgarbage, concat, sort = collectgarbage, table.concat, table.sort

local commands = {}

local function seconds_text(seconds)
  if seconds < 1e-3 then return format("%.1f µs", seconds * 1e6) end
  if seconds < 1 then return format("%.1f ms", seconds * 1e3) end
  return format("%.2f s", seconds)
end

-- Waits for a device's kernels, which may still run when a call returns.
local function synchronize()
  if core.device_count "cuda" > 0 then core.synchronize() end
end

-- Returns a function that returns a text at its first call, and then nil.
local function once(text)
  return function()
    local line = text
    text = nil
    return line
  end
end

local function time(session, argument)
  if argument == "" then
    return session.say "time: CHUNK must be an expression or statements; write :time lm.ones(3):sum()"
  end
  local first = once(argument)
  local text, chunk, problem = read_chunk(function(mark)
    local line = first()
    if line then return line end
    return session.read(mark)
  end)
  if text == "" then return end -- Ctrl-C
  session.remember(":time " .. text)
  local timer
  local ok = session.run(text, chunk and function()
    synchronize()
    timer = lm.Timer()
    return (function(...)
      synchronize()
      timer:stop()
      return ...
    end)(chunk())
  end, problem)
  if not ok then return end
  local lap = timer:time()
  session.say(format("%s, %s of CPU", seconds_text(lap.real), seconds_text(lap.user + lap.sys)))
end

-- Returns a file's text; "" if it cannot be read.
local function text_of(path)
  local file = open(path)
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text
end

-- Returns a line of a file of /proc after its name and colon; nil on systems other than Linux.
local function proc_line(path, name) return match("\n" .. text_of(path), "\n" .. name .. "%s*:%s*([^\n]*)") end

local function process_bytes(name)
  local kilobytes = match(proc_line("/proc/self/status", name) or "", "^(%d+) kB")
  return kilobytes and bytes_text(kilobytes * 1024) or "?"
end

local function devices()
  local list = {"cpu"}
  for i = 1, core.device_count "cuda" do list[i + 1] = "cuda:" .. i - 1 end
  return list
end

local function mem(session)
  collectgarbage()
  session.say(format("tensors: %d", core.live_tensors()))
  for _, device in ipairs(devices()) do
    local line = format("  %s: %s, at most %s; %s reserved", device, bytes_text(core.memory_allocated(device)),
      bytes_text(core.max_memory_allocated(device)), bytes_text(core.memory_reserved(device)))
    if device ~= "cpu" then
      local free, total = core.device_memory(device)
      line = format("%s; %s of %s free", line, bytes_text(free), bytes_text(total))
    end
    session.say(line)
  end
  session.say("Lua: " .. bytes_text(collectgarbage "count" * 1024))
  session.say(format("process: %s resident, at most %s", process_bytes "VmRSS", process_bytes "VmHWM"))
end

local function list_devices(session)
  local name = proc_line("/proc/cpuinfo", "model name")
  session.say(format("cpu: %s%d cores, %d threads", name and name .. ", " or "", core.process_cores(),
    core.get_num_threads()))
  local found = lm.cuda.devices()
  session.say(#found > 0 and tostring(found) or help.wrapped(tostring(found)))
end

-- Returns why a file cannot be opened, in the form of all messages; nil if it can.
local function cannot_open(path)
  local file, why = open(path)
  if not file then return format("cannot open '%s': %s", path, match(why, "[^:]*$"):match "^%s*(.*)$") end
  local _, problem, code = file:read(0)
  file:close()
  return code and format("cannot open '%s': %s", path, problem) or nil
end

local function load_file(session, path)
  if path == "" then return session.say "load: FILE must be the path of a Lua file; write :load train.lua" end
  local why = cannot_open(path)
  if why then return session.say("load: " .. why) end
  session.run(nil, loadfile(path))
end

local of_lua = lists.copy(loaded) -- modules loaded before the user's

--- Returns a sorted list of the modules that :reload takes.
function commands.modules()
  return lists.sorted_keys(loaded, function(name)
    return type(name) == "string" and not find(name, "^luminary%f[^%w_]") and not of_lua[name]
  end)
end

local function reload(session, name)
  local known = loaded[name]
  if find(name, "^luminary%f[^%w_]") then
    return session.say(format("reload: MODULE must not be of the library, got '%s'; start the prompt again", name))
  elseif known == nil then
    local near = name ~= "" and core.nearest(name, commands.modules())
    return session.say(format("reload: MODULE must be a loaded module, got '%s'; %s", name,
      near and format("did you mean '%s'?", near) or "require it first"))
  end
  local new
  loaded[name] = nil
  if not session.run(nil, function() new = require(name) end) then
    loaded[name] = known
    return
  end
  local updated = {}
  for key, value in next, globals do
    if rawequal(value, known) and type(value) ~= "boolean" then updated[#updated + 1] = key end
  end
  for i, key in ipairs(updated) do
    rawset(globals, key, new)
    updated[i] = tostring(key)
  end
  sort(updated)
  session.say(format("reloaded '%s'%s", name, updated[1] and " in " .. concat(updated, ", ") or ""))
end

local function quoted(text) return "'" .. gsub(text, "'", "'\\''") .. "'" end

-- Runs the editor; returns true if it succeeded.
local function edited(session, path)
  local editor = "vi"
  for _, name in ipairs {"EDITOR", "VISUAL"} do editor = match(getenv(name) or "", "%S.*") or editor end
  local code = execute(editor .. " " .. quoted(path))
  if code == 0 then return true end
  session.say(format("edit: editor '%s' must exit with status 0, got %d; set EDITOR to an editor, such as nano", editor,
    code >= 256 and code / 256 or code))
end

local function edit(session, path)
  if path ~= "" then return edited(session, path) and load_file(session, path) end
  local unused = tmpname()
  path = unused .. ".lua" -- editors detect the language by it
  local ok, why = pcall(paths.write, path, (session.last or "") .. "\n")
  if not ok then return session.say("edit: " .. tostring(why)) end
  local text = edited(session, path) and match(text_of(path), "^(.-)%s*$") or ""
  remove(path)
  remove(unused)
  if not find(text, "%S") then return end
  session.say(text)
  session.serve(once(text))
end

local function list_commands(session) session.say(commands.HELP) end

-- Each command: how it is called, its line of :help, its function, and the kind of its argument, for completion.
local list, BY_NAME = {
  {"time CHUNK", "runs a chunk and prints how long it took", time, "chunk"},
  {"mem", "memory of tensors, of Lua and of the process", mem},
  {"devices", "the devices of tensors", list_devices},
  {"load FILE", "runs a file; its globals stay", load_file, "file"},
  {"reload MODULE", "requires a module again; globals that hold it get the new one", reload, "module"},
  {"edit [FILE]", "opens the last input, or a file, in $EDITOR, and runs it then", edit, "file"},
  {"help", "this list", list_commands},
}, {}
for _, row in ipairs(list) do BY_NAME[match(row[1], "%a+")] = row end

--- The text that :help prints.
commands.HELP = concat(lists.map(list, function(row) return format(":%-16s%s", row[1], row[2]) end), "\n")

--- The names of the commands.
commands.names = lists.sorted_keys(BY_NAME)

--- Returns the kind of a command's argument, "chunk", "file" or "module", and the argument so far; nil for other lines.
function commands.argument(text)
  local name, argument = match(text, "^%s*:(%a*)%s+(.*)$")
  return name and BY_NAME[name] and BY_NAME[name][4], argument
end

--- Runs the command of a line that begins with a colon.
function commands.run(text, session)
  local name, argument = match(text, "^%s*:(%a+)%s*(.-)%s*$")
  local command = name and BY_NAME[name]
  if not command then
    local near = core.nearest(name or "", commands.names)
    return session.say(format("no command ':%s'; %s", name or "", near and format("did you mean ':%s'?", near)
      or ":help lists them"))
  end
  if name ~= "time" then session.remember(match(text, "^%s*(.-)%s*$")) end
  return command[3](session, argument)
end

return commands
