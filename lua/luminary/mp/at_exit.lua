--- Ends workers that still run when the program ends: waits for them, or ends daemons. (If the program is killed, its
--- processes die with it.)
local core = require "luminary.core"

local at_exit = {objects = {}} -- objects to finish, the oldest first

local LAST = 2 -- seconds for all open calls of lm.async and lm.serve together

local sentinel, deadline

--- Returns the seconds that open calls have left at the end.
function at_exit.seconds_left() return math.max(0, deadline - core.time()) end

-- Calls object:finish() of all objects, the newest first. Nobody can catch an error: prints it, but not in a host,
-- whose standard error is not ours.
local function finish_all()
  deadline = core.time() + LAST
  while #at_exit.objects > 0 do
    local object = table.remove(at_exit.objects)
    local ok, problem = pcall(object.finish, object)
    if not ok and core.process_self():find "/luajit[^/]*$" then require("io").stderr:write(tostring(problem), "\n") end
  end
end

--- Makes all objects end before the handles that exist now: finalizers run from the newest to the oldest.
function at_exit.renew()
  sentinel = newproxy(true)
  getmetatable(sentinel).__gc = function(ended)
    if ended == sentinel then finish_all() end
  end
end

function at_exit.forget(object)
  for i = #at_exit.objects, 1, -1 do
    if at_exit.objects[i] == object then table.remove(at_exit.objects, i) end
  end
end

--- Calls object:finish() when the Lua state closes, unless it is forgotten before. The object stays alive until then.
function at_exit.remember(object)
  at_exit.forget(object)
  table.insert(at_exit.objects, object)
  at_exit.renew()
end

return at_exit
