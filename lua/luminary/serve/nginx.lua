--- Waits in nginx's Lua module for futures of lm.async and lm.serve, while the worker process serves other requests.
local core = require "luminary.core"
local options = require "luminary.base.options"

local nginx = {}

--- await(future, seconds = 60): Returns the results of a future, as future:get does, and lets other requests run until
--- they have come. After `seconds` it cancels the call and raises a timeout. Futures need a path: {socket_paths = true}
--- in lm.set_async or lm.serve.Batcher. Runs where nginx allows ngx.socket.tcp: in content_by_lua_block, in timers.
function nginx.await(future, seconds)
  local ngx = rawget(_G, "ngx")
  if not ngx then options.fail "nginx.await: there is no nginx in this process; use future:get()" end
  local deadline = core.time() + (seconds or 60)
  while not future:done() do
    local left = deadline - core.time()
    if left <= 0 then
      future:cancel()
      options.fail("nginx.await: timeout: no result within %g s", seconds or 60)
    end
    local socket = ngx.socket.tcp()
    socket:settimeout(math.max(1, left * 1000))
    if socket:connect("unix:" .. future:socket_path()) then
      socket:receive(1) -- returns at the end of the call
      socket:close()
    elseif not future:done() then
      ngx.sleep(0.001) -- the path has just gone, or nginx has no connection left
    end
  end
  return future:get()
end

return nginx
