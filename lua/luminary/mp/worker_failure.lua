--- Converts errors in a worker to plain values for the state that started it.
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

-- Removes the position of the chunk that starts a worker, which is no line of the script.
local function without_start(message)
  return (message:gsub("^luminary%.mp:1: ", ""):gsub("^%(command line%):1: ", ""))
end

-- Adds a hint about globals, which each worker has its own of: often a function calls another one of its script, or its
-- module, which the worker requires, uses the host's globals.
local function with_hint(message)
  local name = message:match("global '([%w_]+)' %(a nil value%)")
  if not name then return message end
  if debug.traceback():find "'require'" then
    return message .. "; the worker requires the function's module: keep the function in a module that uses no globals "
      .. "of the host"
  end
  return ("%s; global variables are not sent to workers: make '%s' local, or pass it in args"):format(message, name)
end

-- Returns the script's frames: those from the error to the frames that run workers.
local function traceback(problem)
  local lines = {}
  local function is_ours(frame)
    return frame:find("luminary/mp/", 1, true) or frame:find("luminary/data/loader_workers.lua", 1, true)
      or frame:find("luminary/data/make_batch.lua", 1, true)
  end
  for frame in (core.traceback_of(problem) or debug.traceback("", 3)):gmatch("\n\t([^\n]*)") do
    if is_ours(frame) and #lines > 0 then
      if #lines > 1 and lines[#lines]:find("^%[C%]") then table.remove(lines) end -- xpcall, under any name
      break
    end
    if not is_ours(frame) then lines[#lines + 1] = frame end
  end
  return table.concat(frames.shown(table.concat(lines, "\n")), "\n\t")
end

local failure = {}

--- The error that os.exit raises in a thread.
failure.Exit = {}

local function handler(problem)
  if debug.getmetatable(problem) == failure.Exit then return problem end
  local ok, message = pcall(text_of, problem)
  message = ok and truncate_text(message) or "(an error whose __tostring failed)"
  return {
    message = with_hint(without_start(message)), traceback = traceback(problem),
    value = type(problem) == "table" and problem or nil,
  }
end

local function ended(ok, problem, ...)
  if ok or type(problem) == "table" then return ok, problem, ... end
  return false, {message = tostring(problem), traceback = ""} -- the handler itself failed: stack or memory exhausted
end

--- Returns true and the results of f(…), or false and {message, traceback, value}, or an Exit. value: the error, if it
--- is a table.
function failure.attempt(f, ...) return ended(xpcall(f, handler, ...)) end

local function outcome(ok, ...)
  if ok then return {values = options.pack(...)} end
  local problem = ...
  if getmetatable(problem) == failure.Exit then error(problem, 0) end
  return {problem = problem}
end

--- Returns f(…)'s results as {values = a list with n}, or {problem = {message, traceback, value}}. os.exit ends the
--- worker.
function failure.outcome_with_value(f, ...) return outcome(failure.attempt(f, ...)) end

--- Returns the outcome without `value`, which the serializer may refuse.
function failure.outcome(f, ...)
  local result = failure.outcome_with_value(f, ...)
  if result.problem then result.problem.value = nil end
  return result
end

--- Returns the message and the traceback, if there is one, of `who`.
function failure.text(problem, who)
  if (problem.traceback or "") == "" then return problem.message end
  return ("%s\nstack traceback of %s:\n\t%s"):format(problem.message, who, problem.traceback)
end

return failure
