--- Runs the command `luminary`: a script, alone or as several ranks, a chunk, or a prompt.
local debug, ffi = require "debug", require "ffi"
local USAGE = [[
usage: luminary [-e CHUNK | FILE] [argument ...]
       luminary run [option ...] FILE [argument ...]
       luminary th FILE [argument ...]
       luminary explain FILE [argument ...]
       luminary doctor [option ...]
       luminary inspect FILE
       luminary quantize FROM OUT.gguf [--kind KIND]
       luminary chat [option ...] FILE
       luminary serve FILE
       luminary help [NAME | WORD ... | environment]
       luminary ops [NAME]

  FILE         run a Lua script; `arg` holds its arguments
  run          run a script as several ranks; luminary run --help says more
  th           run a Torch7 script unchanged; needs the package luminary-torch7
  explain      run a script, and print what the steps of lm.compile record and run
  doctor       look for what keeps training from running on this machine; luminary doctor --help says more
  inspect      list what is in a file of weights; luminary inspect --help says more
  quantize     write a language model as a GGUF file of 4 to 16 bits; luminary quantize --help says more
  chat         talk with a language model of a GGUF file or a folder; luminary chat --help says more
  serve        answer requests of OpenAI's API with a language model; luminary serve --help says more
  help         explain a name, as in luminary help nn.Linear, or list names, sentences and pages with words;
               `environment`: the variables that luminary reads; docs/PAGE.md: a page
  ops          what runs where: each op's kind, dtypes, gradient, autocast class and devices; or all about one
  -            run what standard input holds
  -e CHUNK     run a chunk of Lua, with luminary as `lm`
  --version    print the version
  --help       print this

Without any, a prompt: values are printed, `_` is the last one, `?name` explains a name, `:help` lists commands, Tab
completes; nn, F, optim, data and dist are there beside lm.
]]

local error_hints = require "luminary.cli.error_hints"
local lists = require "luminary.base.lists"
local truncate_text = require "luminary.base.truncate_text"
local frames = require "luminary.base.script_frames"

local HINT = "hint: "
ffi.cdef "int lm_cli_ferror(void *file) __asm__(\"ferror\");"

local cli = {}
-- Locals, so that errors are reported whatever a script or the user at the prompt changes in the globals.
local pcall, tostring, type, rawget, find, gmatch, match = pcall, tostring, type, rawget, string.find,
  string.gmatch, string.match
local getmetatable_of, remove, concat, format, stack = debug.getmetatable, table.remove, table.concat, string.format,
  debug.traceback

local function say(text) io.stderr:write("luminary: ", text, "\n") end

-- Splits an error's message into its text and the frames that it passes on from a worker, which replace its own.
local function parts_of(message)
  local head, title, passed = match(message, "^(.-)\n(stack traceback of [^\n]*):\n(.*)$")
  return head or message, title, passed
end

-- Returns the frames of a traceback before the command's own.
local function before_command(text)
  local lines = {}
  for frame in gmatch(text, "\n(\t[^\n]*)") do
    if find(frame, "luminary/cli/", 1, true) and #lines > 0 then
      remove(lines) -- xpcall, under any name
      break
    end
    local own = find(frame, "luminary/cli/", 1, true) or find(frame, "[builtin#", 1, true)
    if not own then lines[#lines + 1] = frame end
  end
  return concat(lines, "\n")
end

-- Returns a message with its hint on a separate line.
local function hinted(message)
  local hint = error_hints.of(message)
  return hint and message .. "\n" .. HINT .. hint or message
end
cli.hinted = hinted

-- Handles errors: returns the message, a hint, and the script's frames; with LM_LOG=trace also those of the library.
local function traceback(message)
  if type(message) ~= "string" then
    local kind, mt = type(message), getmetatable_of(message)
    local ok, text = pcall(tostring, message) -- may itself raise an error
    message = type(mt) == "table" and rawget(mt, "__tostring") and ok and text
      or format("(error object is a %s value)", kind)
  end
  local core = package.loaded["luminary.core"]
  local text = core and core.traceback_of(message) or stack("", 2) -- the error's origin, if it passed a scope of ours
  local head, title, passed = parts_of(truncate_text(message))
  local shown = concat(frames.shown(passed or before_command(text)), "\n")
  if passed and frames.all() then shown = shown .. "\nstack traceback:\n" .. before_command(text) end
  head = hinted(head)
  return shown == "" and head or head .. "\n" .. (title or "stack traceback") .. ":\n" .. shown
end
cli.traceback = traceback

-- Prints an uncaught error, and notifies the launcher and the other ranks of the job.
local function report_uncaught_error(trouble)
  say(trouble)
  if package.loaded["luminary.core"] or os.getenv "LM_ERROR_FILE" or os.getenv "TORCHELASTIC_ERROR_FILE" then
    local message = match(trouble, "^(.-)\nstack traceback") or trouble
    message = match(message, "^(.-)\n" .. HINT) or message
    local published, problem = pcall(function() require "luminary.distributed.publish_error"(message, trouble) end)
    if not published then say(tostring(problem)) end
  end
end

-- Runs a chunk to its end; returns the exit status.
local function run(chunk, problem, ...)
  if not chunk then
    report_uncaught_error(hinted(problem))
    return 1
  end
  local arguments, n = {...}, select("#", ...)
  local ok, trouble = xpcall(function() return chunk(unpack(arguments, 1, n)) end, traceback)
  if not ok then report_uncaught_error(trouble) end
  return ok and 0 or 1
end

-- Sets `arg` as Lua's own command does: the script at 0, its arguments from 1.
local function set_arg(args, at)
  local arg = {}
  for i = 0, #args do arg[i - at] = args[i] end
  rawset(_G, "arg", arg)
  return unpack(arg, 1, #args - at)
end

local COMMANDS = {"run", "th", "explain", "doctor", "inspect", "quantize", "chat", "serve", "help", "ops"}
local OPTIONS = {"--version", "--help"}
local HAS_FILE = lists.set "run doctor inspect quantize chat serve ops" -- commands with a file here

-- Returns "; did you mean 'luminary doctor'?" for a word that is near one in the list; else `otherwise`.
local function near(word, list, before, otherwise)
  local there, core = pcall(require, "luminary.core")
  local name = there and core.nearest(word, list)
  return name and format("; did you mean '%s%s'?", before, name) or otherwise
end

local function run_command(args)
  local first = args[1]
  if first == nil then return require("luminary.cli.repl").run() end
  if first == "--help" or first == "-h" or first == "th" and args[2] == "--help" then
    io.stdout:write(USAGE)
    return 0
  elseif first == "--version" or first == "-v" then
    print("luminary " .. require("luminary").version .. ", " .. jit.version)
    return 0
  elseif HAS_FILE[first] then
    return require("luminary.cli." .. first).main(args, 2)
  elseif first == "help" then
    if args[2] == "environment" then
      io.stdout:write(require("luminary.environment_variables").text())
      return 0
    elseif args[2] then
      local help = require "luminary.help"
      local text, why = help.text(table.concat(args, " ", 2))
      print(help.wrapped(text or why))
      return text and 0 or 1
    end
    io.stdout:write(USAGE)
    return 0
  elseif first == "-e" then
    if not args[2] then
      say("-e needs a chunk of Lua")
      return 1
    end
    rawset(_G, "lm", require "luminary")
    error_hints.texts["(command line)"] = args[2]
    local chunk, problem = loadstring(args[2], "=(command line)")
    return run(chunk, problem, set_arg(args, 2))
  elseif first ~= "-" and first:sub(1, 1) == "-" then
    say(("unrecognized argument '%s'%s\n%s"):format(first, near(first, OPTIONS, "", ""), USAGE))
    return 1
  end
  if os.getenv "LM_ERROR_FILE" then io.stdout:setvbuf "line" end -- the launcher shows lines at once
  local at = (first == "th" or first == "explain") and 2 or 1
  if first == "th" then
    local ok, why = pcall(require, "luminary.torch7.globals")
    if not ok then
      say(find(why, "'luminary.torch7.globals' not found", 1, true)
        and "luminary th needs the package luminary-torch7; docs/from_torch7.md says how to install it" or why)
      return 1
    end
  elseif first == "explain" then
    require("luminary.explain").every_step = true
  end
  first = args[at]
  if not first then
    say(("luminary %s needs a script"):format(args[1]))
    return 1
  end
  local chunk, problem = loadfile(first ~= "-" and first or nil)
  if not chunk and not find(first, "[./]") and find(problem, "^cannot open") then
    problem = problem .. near(first, COMMANDS, "luminary ", "; luminary --help lists commands")
  end
  return run(chunk, problem, set_arg(args, at))
end

--- Runs the command on a list of arguments; returns the exit status, which is not 0 if output could not be written.
function cli.main(args)
  local status = run_command(args)
  if status ~= 0 or io.type(io.stdout) ~= "file" then return status end
  local flushed, why = io.stdout:flush()
  if flushed and ffi.C.lm_cli_ferror(io.stdout) == 0 then return status end
  if flushed then why = io.stdout:setvbuf "no" and select(2, io.stdout:write "\n") end -- as an earlier write failed
  say("the output could not be written" .. (why and ": " .. why or ""))
  return 1
end

return cli
