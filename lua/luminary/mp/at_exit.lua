--- Ends workers that still run when the program ends: waits for them, or ends daemons. (If the program is killed, its
--- processes die with it.)
local core = require "luminary.core"

local at_exit = {}

local LAST = 2 -- seconds for all open calls of lm.async and lm.serve together

local unfinished, count = {}, 0 -- maps an object to its number
local sentinel, deadline

local function newest()
  local found
  for object, number in pairs(unfinished) do
    if not found or number > unfinished[found] then found = object end
  end
  return found
end

--- Returns the seconds that open calls have left at the end.
function at_exit.seconds_left() return math.max(0, deadline - core.time()) end

-- Calls object:finish() of all objects, the newest first. Nobody can catch an error: prints it, but not in a
-- host, whose standard error is not ours.
local function finish_all()
  local object = newest()
  deadline = core.time() + LAST
  while object do
    unfinished[object] = nil
    local ok, problem = pcall(object.finish, object)
    if not ok and core.process_self():find "/luajit[^/]*$" then require("io").stderr:write(tostring(problem), "\n") end
    object = newest()
  end
end

--- Makes all objects end before the handles that exist now: finalizers run from the newest to the oldest.
function at_exit.renew()
  sentinel = newproxy(true)
  getmetatable(sentinel).__gc = function(ended)
    if ended == sentinel then finish_all() end
  end
end

--- Calls object:finish() when the Lua state closes, unless it is forgotten before. The object stays alive until then.
function at_exit.remember(object)
  if unfinished[object] then return end
  count = count + 1
  unfinished[object] = count
  at_exit.renew()
end

function at_exit.forget(object) unfinished[object] = nil end

return at_exit
