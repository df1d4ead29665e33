--- Workers that still run when the program ends: they are waited for, or ended if they are daemons. (Where the program
--- is killed, its processes go with it.)
local at_exit = {}

local unfinished = {} -- object -> its sentinel

local function finish(object)
  unfinished[object] = nil
  local ok, problem = pcall(object.finish, object)
  if not ok then io.stderr:write(tostring(problem), "\n") end
end

--- object:finish() is called when the Lua state closes, unless it is forgotten before. It is kept alive until then.
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
