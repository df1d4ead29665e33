--- Ends workers that still run when the program ends: waits for them, or ends daemons. (If the program is killed, its
--- processes die with it.)
local Worker = require "luminary.mp.worker"

local at_exit = {}

local unfinished = {} -- maps an object to its sentinel

-- Calls object:finish(). Nobody can catch an error: prints it, but not in a host, whose standard error is not ours.
local function finish(object)
  unfinished[object] = nil
  local ok, problem = pcall(object.finish, object)
  if ok then return end
  local known, _, is_luajit = pcall(Worker.program)
  if known and is_luajit then require("io").stderr:write(tostring(problem), "\n") end
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
