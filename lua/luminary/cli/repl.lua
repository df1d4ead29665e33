--- Runs the prompt. A line with a colon is a command of prompt_commands.lua. Other lines are first tried as an
--- expression, whose values are printed; read_chunk.lua prompts "> " and reads a chunk. After errors, also those of
--- printing, after Ctrl-C, and after any change of the globals, the prompt continues.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local cli = require "luminary.cli"
local help = require "luminary.help"
local hints = require "luminary.cli.error_hints"
local line = require "luminary.cli.line_editing"
local complete = require "luminary.cli.completion"
local commands = require "luminary.cli.prompt_commands"
local read_chunk = require "luminary.cli.read_chunk"
local screen_text = require "luminary.cli.screen_text"

local repl = {}
local pcall, xpcall, select, rawset, rawget, type = pcall, xpcall, select, rawset, rawget, type
local rawequal = rawequal
local find, match, gsub, write = string.find, string.match, string.gsub, io.stdout.write

local BANNER = [[
luminary %s, %s. lm, nn, F, optim, data and dist are there.
?name explains a name, :help lists commands, Tab completes, Ctrl-D leaves.]]

local HELP = [[
?name explains a name: ?conv2d, ?nn.Linear, ?x:sum, ?x.shape, ?Module:parameters.
?words lists the names and first sentences with them: ?learning rate. help(value)
explains a value.
lm, nn, F, optim, data, dist show what they have; _ is the last value. What is
longer than the screen is cut; print(value) prints all of it.
Tab completes names, what follows a dot or a colon, the options of a call and, in
strings, files. Up recalls inputs, Ctrl-R searches them. A chunk may have several
lines. Ctrl-C drops what is typed, or ends what runs; Ctrl-D leaves.
]] .. commands.HELP

local globals, stdout = _G, io.stdout
local known = lists.copy(globals) -- the globals that no input has assigned

-- Prints a line; ignores errors, which could not be printed either.
local function print_line(text) pcall(write, stdout, text, "\n") end

local function print_values(...)
  local n = select("#", ...)
  if n > 0 then rawset(globals, "_", (...)) end
  for i = 1, n do print_line(screen_text((select(i, ...)))) end
end

-- Evaluates a chunk and prints its values, both with errors caught and open to Ctrl-C. Returns true if all succeeded.
local function evaluate(chunk, guarded)
  local ok, problem = guarded(xpcall, function() print_values(chunk()) end, cli.traceback)
  if not ok then print_line(type(problem) == "string" and problem or "an error in the error's own handling") end
  return ok
end

-- Returns the value of a path of the session's own variables; nil for others, for methods and for fields of tensors.
local function own_value(path)
  local first, owner = match(path, "^[%a_][%w_]*"), match(path, "^(.+)[%.:][%w_]+$")
  local value = first and not rawequal(rawget(globals, first), known[first]) and complete.value(path, globals)
  local is_field = owner and (type(value) == "function" or lm.is_tensor(complete.value(owner, globals)))
  return not is_field and value or nil
end

--- Returns the answer to `?name`: what the session's variable is, the help of the name, or names that are near.
function repl.help(text)
  local asked = gsub(text, "%s*%b()%s*$", "") -- ?lm.sum(x) means ?lm.sum
  local path = match(asked, "^%s*%?%s*([%w_%.:%[%]]*[%w_%]])%s*$")
  if not path or find(path, "^:") then -- ?:reload names a command
    local words = match(asked, "^%s*%?%s*(%w[%w_ ]*)$")
    local found, why = nil, nil
    if words then found, why = help.text(words) end
    return words and help.wrapped(found or why) or HELP
  end
  local own = own_value(path)
  if own then return help.wrapped(help.value(path, own)) end
  local owner = match(path, "^(.+)[%.:][%w_]+$")
  local found, why = help.text(path, owner and complete.value(owner, globals))
  local value = not found and complete.value((gsub(path, ":", ".")), globals)
  if value then found = help.value(path, value) end
  return help.wrapped(found or why)
end

-- Returns the answer to words that people type to leave or to learn more, unless a global has that name.
local function word_of(text)
  local word = match(text, "^%s*(%l+)%s*%(?%s*%)?%s*$")
  local value = word and rawget(globals, word)
  return (value == nil or word == "help" and value == lm.help) and word
end

-- Reads a chunk or a command and runs it; returns false at the end of input.
local function serve(session, read)
  local text, chunk, problem = read_chunk(read)
  if not text then
    print_line("")
    return false
  end
  local word = word_of(text)
  if word == "exit" or word == "quit" then return false end
  if word == "help" then
    print_line(HELP)
    return true
  elseif find(text, "^%s*:%a") then
    commands.run(text, session)
    return true
  end
  if find(text, "%S") then session.remember(text) end
  if chunk or problem then
    session.run(text, chunk, problem)
  elseif find(text, "%S") then
    print_line(repl.help(text))
  end
  return true
end

-- Returns the part of the prompt that its commands need.
local function new_session(read, remember, guarded)
  local session = {say = print_line, read = read, remember = remember}
  function session.run(text, chunk, problem)
    if text then hints.texts.prompt, session.last = text, text end
    if chunk then return evaluate(chunk, guarded) end
    print_line(cli.hinted(problem))
    return false
  end
  function session.serve(from) return serve(session, from) end
  return session
end

--- Runs the prompt to the end of input; returns the exit status.
function repl.run()
  for name, value in pairs {
    lm = lm, nn = lm.nn, F = lm.nn.functional, optim = lm.optim, data = lm.data, dist = lm.dist, help = lm.help,
  } do
    rawset(globals, name, value)
    known[name] = value
  end
  help.show = function(text) print_line(help.wrapped(text)) end
  local read, remember = line.reader(function(text, word) return complete.words(text, globals, word) end)
  local guarded, quiet = line.guard()
  line.interpret_loops()
  local session = new_session(read, remember, guarded)
  print_line(BANNER:format(lm.version, jit.version))
  -- Failures outside of a chunk's evaluation, such as an interrupt just after it or a finalizer, end the prompt only
  -- after ten in a row.
  local failures, more = 0, true
  while more and failures < 10 do
    quiet()
    local ok, result = pcall(serve, session, read)
    failures = ok and 0 or failures + 1
    if ok then more = result else print_line(cli.traceback(result)) end
  end
  return 0
end

return repl
