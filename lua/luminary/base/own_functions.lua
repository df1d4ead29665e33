--- Distinguishes the library's functions, which keep no results of others, from those of scripts.
local debug = require "debug"
local core = require "luminary.core"

local folder = debug.getinfo(1, "S").source:match "^(@.*)base/own_functions%.lua$"
local own = {}

-- Returns the method that a function of class.lua guards, also in a Lua state that it was sent to; other functions as
-- they are.
local function unguarded(f)
  local i, name, value = 1, debug.getupvalue(f, 1)
  while name and name ~= "method" do
    i = i + 1
    name, value = debug.getupvalue(f, i)
  end
  return name and debug.getinfo(f, "S").source == folder .. "base/class.lua" and value or f
end

--- own.is[f] is true if f is a Lua function of the library's files. Such a function spares a result that it stores
--- (core.keep).
own.is = setmetatable({}, {__mode = "k", __index = function(known, f)
  local is = folder ~= nil and type(f) == "function"
    and debug.getinfo(unguarded(f), "S").source:sub(1, #folder) == folder
  known[f] = is
  return is
end})

--- Returns f(…) for a function that a script passed to a module.
function own.call(f, ...)
  if own.is[f] or not core.in_call_of_own() then return f(...) end
  return core.call_foreign(f, ...)
end

return own
