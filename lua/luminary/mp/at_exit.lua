--- Ends workers that still run when the program ends: waits for them, or ends daemons. (If the program is killed, its
--- processes die with it.)
local at_exit = {}

local unfinished = {} -- maps an object to its sentinel

local function finish(object)
  unfinished[object] = nil
  local ok, problem = pcall(object.finish, object)
  if not ok then require("io").stderr:write(tostring(problem), "\n") end
end

--- Calls object:finish() when the Lua state closes, unless it is forgotten before. The object stays alive until then.
function at_exit.remember(object)
  if unfinished[object] then return end
  local sentinel = newproxy(true)
  getmetatable(sentinel).__gc = function()
    if unfinished[object] then finish(object) end
  end
  unfinished[object] = sentinel
end

function at_exit.forget(object) unfinished[object] = nil end

return at_exit
