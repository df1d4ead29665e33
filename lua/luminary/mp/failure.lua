--- A handler for xpcall in a worker: what was raised, as plain values for whoever started it: {message, traceback}.
local core = require "luminary.core"
local words = require "luminary.words"

local function text_of(problem)
  if type(problem) == "string" then return problem end
  local metatable = debug.getmetatable(problem)
  if metatable and metatable.__tostring then return tostring(problem) end
  return ("(error object is a %s value)"):format(type(problem))
end

-- Globals are the worker's own: the usual stumble is a function that calls another one of its script.
local function with_hint(message)
  local name = message:match("global '([%w_]+)' %(a nil value%)")
  if not name then return message end
  return ("%s; global variables are not sent to workers: make '%s' local, or pass it in args"):format(message, name)
end

-- Where the error came from, up to the frames that run workers.
local function traceback(problem)
  local lines = {}
  local function is_ours(frame)
    return frame:find("luminary/mp/", 1, true) or frame:find("luminary/data/workers.lua", 1, true)
  end
  for frame in (core.traceback_of(problem) or debug.traceback("", 3)):gmatch("\n\t([^\n]*)") do
    if is_ours(frame) and #lines > 0 then
      table.remove(lines) -- xpcall, under whatever name it was called
      break
    end
    if not is_ours(frame) then lines[#lines + 1] = frame end
  end
  return table.concat(lines, "\n\t")
end

return function(problem)
  local ok, message = pcall(text_of, problem)
  message = ok and words(message) or "(an error whose __tostring failed)"
  return {message = with_hint(message), traceback = traceback(problem)}
end
