--- Waits in nginx's Lua module for futures of lm.async and lm.serve, while the worker process serves other requests.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

local nginx = {}

local PERIOD = 0.001 -- seconds between two looks at the open calls, the resolution of nginx's timers
local waiting, last, is_polling = 0, 0, false -- last: the latest deadline

-- Runs as a light thread of its own while requests wait, one for all of them.
local function poll(ngx)
  while waiting > 0 and core.time() < last do
    pcall(load_module("luminary.async").poll) -- an error of another callback has no request here
    ngx.sleep(PERIOD)
  end
  is_polling = false
end

-- Waits until the future is done or the deadline is over, or less.
local function wait(ngx, future, deadline)
  last = math.max(last, deadline)
  is_polling = is_polling or ngx.timer.at(0, function() poll(ngx) end)
  if not is_polling then return ngx.sleep(PERIOD) end -- nginx has no timer left
  local semaphore = require("ngx.semaphore").new()
  waiting = waiting + 1
  future:on_done(function()
    waiting = waiting - 1
    semaphore:post()
  end)
  semaphore:wait(math.max(0, deadline - core.time()))
end

--- await(future, seconds = 60): Returns the results of a future, as future:get does, and lets other requests run until
--- they have come. After `seconds` it cancels the call and raises a timeout. Runs where nginx allows ngx.sleep: in
--- content_by_lua_block, in timers. A Batcher without workers computes the rows of all connections that were readable.
function nginx.await(future, seconds)
  local ngx = rawget(_G, "ngx")
  if not ngx then options.fail "nginx.await: there is no nginx in this process; use future:get()" end
  load_module("luminary.mp.executor").need_future("nginx.await", future)
  seconds = load_module("luminary.mp.shared_handle").seconds("nginx.await", seconds) or 60
  if not future.socket then
    ngx.sleep(0)
    return future:get()
  end
  local deadline = core.time() + seconds
  while not future:done() do
    if core.time() >= deadline then
      future:cancel()
      options.fail("nginx.await: timeout: no result within %g s", seconds)
    end
    wait(ngx, future, deadline)
  end
  return future:get()
end

return options.strict("serve.nginx", nginx)
