--- Ends workers that still run when the program ends: waits for them, or ends daemons. (If the program is killed, its
--- processes die with it.)
local core = require "luminary.core"
local lists = require "luminary.base.lists"

local at_exit = {}

local LAST = 2 -- seconds for all open calls of lm.async and lm.serve together

local unfinished = {} -- the objects, the newest last
local sentinel, deadline

--- Returns the seconds that open calls have left at the end.
function at_exit.seconds_left() return math.max(0, deadline - core.time()) end

-- Calls object:finish() of all objects, the newest first. Nobody can catch an error: prints it, but not in a
-- host, whose standard error is not ours.
local function finish_all()
  deadline = core.time() + LAST
  while #unfinished > 0 do
    local object = table.remove(unfinished)
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

--- Calls object:finish() when the Lua state closes, unless it is forgotten before. The object stays alive until then.
function at_exit.remember(object)
  if lists.index_of(unfinished, object) then return end
  table.insert(unfinished, object)
  at_exit.renew()
end

function at_exit.forget(object) table.remove(unfinished, lists.index_of(unfinished, object) or #unfinished + 1) end

--- Returns the list of the objects.
function at_exit.remembered() return lists.slice(unfinished) end

return at_exit
