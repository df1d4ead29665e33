--- What goes wrong in a worker, as plain values for whoever started it.
local debug = require "debug"
local core = require "luminary.core"
local options = require "luminary.base.options"
local truncate_text = require "luminary.base.truncate_text"
local frames = require "luminary.base.script_frames"

local function text_of(problem)
  if type(problem) == "string" then return problem end
  local metatable = debug.getmetatable(problem)
  if metatable and metatable.__tostring then return tostring(problem) end
  return ("(error object is a %s value)"):format(type(problem))
end

-- The chunk that starts a worker is nobody's line.
local function without_start(message)
  return (message:gsub("^luminary%.mp:1: ", ""):gsub("^%(command line%):1: ", ""))
end

-- Globals are the worker's own: the usual stumble is a function that calls another one of its script.
local function with_hint(message)
  local name = message:match("global '([%w_]+)' %(a nil value%)")
  if not name then return message end
  return ("%s; global variables are not sent to workers: make '%s' local, or pass it in args"):format(message, name)
end

-- Where the error came from, up to the frames that run workers: the script's frames.
local function traceback(problem)
  local lines = {}
  local function is_ours(frame)
    return frame:find("luminary/mp/", 1, true) or frame:find("luminary/data/loader_workers.lua", 1, true)
      or frame:find("luminary/data/make_batch.lua", 1, true)
  end
  for frame in (core.traceback_of(problem) or debug.traceback("", 3)):gmatch("\n\t([^\n]*)") do
    if is_ours(frame) and #lines > 0 then
      if #lines > 1 and lines[#lines]:find("^%[C%]") then table.remove(lines) end -- xpcall, under whatever name
      break
    end
    if not is_ours(frame) then lines[#lines + 1] = frame end
  end
  return table.concat(frames.shown(table.concat(lines, "\n")), "\n\t")
end

local failure = {}

--- What os.exit raises in a thread.
failure.Exit = {}

local function handler(problem)
  if debug.getmetatable(problem) == failure.Exit then return problem end
  local ok, message = pcall(text_of, problem)
  message = ok and truncate_text(message) or "(an error whose __tostring failed)"
  return {message = with_hint(without_start(message)), traceback = traceback(problem)}
end

local function ended(ok, problem, ...)
  if ok or type(problem) == "table" then return ok, problem, ... end
  return false, {message = tostring(problem), traceback = ""} -- the handler itself failed: no stack, no memory
end

--- true and what f(…) returns; or false and {message, traceback}, or an Exit.
function failure.attempt(f, ...) return ended(xpcall(f, handler, ...)) end

local function outcome(ok, ...)
  if ok then return {values = options.pack(...)} end
  local problem = ...
  if getmetatable(problem) == failure.Exit then error(problem, 0) end
  return {problem = problem}
end

--- What f(…) returns as {values = a list with n}, or {problem = {message, traceback}}. os.exit in f ends the worker.
function failure.outcome(f, ...) return outcome(failure.attempt(f, ...)) end

--- The message and the traceback, if there is one, of `who`.
function failure.text(problem, who)
  if (problem.traceback or "") == "" then return problem.message end
  return ("%s\nstack traceback of %s:\n\t%s"):format(problem.message, who, problem.traceback)
end

return failure
