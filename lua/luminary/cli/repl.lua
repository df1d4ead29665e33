--- The prompt. A line is tried as an expression first, whose values are printed; an incomplete chunk goes
--- on with the next line. Errors and Ctrl-C leave the prompt running, also those of printing a value, and whatever is
--- done to the globals.
local lm = require "luminary"
local cli = require "luminary.cli"
local help = require "luminary.help"
local hints = require "luminary.cli.error_hints"
local line = require "luminary.cli.line_editing"
local complete = require "luminary.cli.completion"
local read_chunk = require "luminary.cli.read_chunk"

local repl = {}
local pcall, xpcall, select, rawset, type = pcall, xpcall, select, rawset, type
local find, match, gsub, gmatch, write = string.find, string.match, string.gsub, string.gmatch, io.stdout.write

local BANNER = [[
luminary %s, %s. lm, nn, F, optim, data and dist are there.
?name explains a name, Tab completes, Ctrl-D leaves.]]

local HELP = [[
?name explains a name: ?conv2d, ?nn.Linear, ?x:sum, ?x.shape, ?Module:parameters.
?words lists the names and first sentences with them: ?learning rate. help(value)
explains a value.
lm, nn, F, optim, data, dist show what they have; _ is the last value.
Tab completes names, what follows a dot or a colon too. A chunk may have several
lines. Ctrl-C drops what is typed, or ends what runs; Ctrl-D leaves.]]

local globals, stdout, to_text = _G, io.stdout, lm.repr

-- A line of output; where that cannot be written there is nobody to tell.
local function say(text) pcall(write, stdout, text, "\n") end

local function print_values(...)
  local n = select("#", ...)
  if n > 0 then rawset(globals, "_", (...)) end
  for i = 1, n do say(to_text((select(i, ...)), 40)) end
end

-- Printing is part of what may fail, and of what Ctrl-C interrupts.
local function evaluate(chunk, guarded)
  local ok, problem = guarded(xpcall, function() print_values(chunk()) end, cli.traceback)
  if not ok then say(type(problem) == "string" and problem or "an error in the error's own handling") end
end

--- What `?name` prints: what the name is, or the names that come near.
function repl.help(text)
  local asked = gsub(text, "%s*%b()%s*$", "") -- ?lm.sum(x) is ?lm.sum
  local path = match(asked, "^%s*%?%s*([%w_%.:%[%]]*[%w_%]])%s*$")
  if not path then
    local words = match(asked, "^%s*%?%s*(%w[%w_ ]*)$")
    local found, why = nil, nil
    if words then found, why = help.text(words) end
    return words and help.wrapped(found or why) or HELP
  end
  local owner = match(path, "^(.+)[%.:][%w_]+$")
  local found, why = help.text(path, owner and complete.value(owner, globals))
  local value = not found and complete.value((gsub(path, ":", ".")), globals)
  if value then found = help.value(path, value) end
  return help.wrapped(found or why)
end

-- The history has one line for a chunk of several, or each of them where a comment or a long string would not survive.
local function remember_chunk(remember, text)
  if not find(text, "--", 1, true) and not find(text, "%[=*%[") then return remember((gsub(text, "\n%s*", " "))) end
  for line_of in gmatch(text, "[^\n]*%S[^\n]*") do remember(line_of) end
end

-- What people type to leave or to learn more, where no global is called so.
local function word_of(text)
  local word = match(text, "^%s*(%l+)%s*%(?%s*%)?%s*$")
  local value = word and rawget(globals, word)
  return (value == nil or word == "help" and value == lm.help) and word
end

-- Reads a chunk and does what it says; false at the end of input.
local function serve(read, remember, guarded)
  local text, chunk, problem = read_chunk(read)
  if not text then
    say("")
    return false
  end
  local word = word_of(text)
  if word == "exit" or word == "quit" then return false end
  if word == "help" then
    say(HELP)
    return true
  end
  if find(text, "%S") then remember_chunk(remember, text) end
  hints.texts.prompt = text
  if chunk then
    evaluate(chunk, guarded)
  elseif problem then
    say(cli.hinted(problem))
  elseif find(text, "%S") then
    say(repl.help(text))
  end
  return true
end

--- Runs the prompt to the end of input; returns the exit status.
function repl.run()
  for name, value in pairs {
    lm = lm, nn = lm.nn, F = lm.nn.functional, optim = lm.optim, data = lm.data, dist = lm.dist, help = lm.help,
  } do
    rawset(globals, name, value)
  end
  help.show = function(text) say(help.wrapped(text)) end
  local read, remember = line.reader(function(text) return complete.words(text, globals) end)
  local guarded, quiet = line.guard()
  say(BANNER:format(lm.version, jit.version))
  -- What fails outside of a chunk's own evaluation, an interrupt just after it or a finalizer, ends the prompt only
  -- when it comes again and again.
  local failures, more = 0, true
  while more and failures < 10 do
    quiet()
    local ok, result = pcall(serve, read, remember, guarded)
    failures = ok and 0 or failures + 1
    if ok then more = result else say(cli.traceback(result)) end
  end
  return 0
end

return repl
