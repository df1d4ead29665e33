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

-- Lets lm.poll() run until the deadline is over or nobody waits; returns false if nginx has no timer left.
local function keep_polling(ngx, deadline)
  last = math.max(last, deadline)
  is_polling = is_polling or ngx.timer.at(0, function() poll(ngx) end)
  return is_polling
end

-- Waits until the future is done or the deadline is over, or less.
local function wait(ngx, future, deadline)
  if not keep_polling(ngx, deadline) then return ngx.sleep(PERIOD) end
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

-- Sends a reply as it comes, until its end or the client's. semaphore: has a post when there is more.
local function send(ngx, reply, semaphore)
  local text, why = "", nil
  repeat
    if not keep_polling(ngx, core.time() + 1) then ngx.sleep(PERIOD) end
    semaphore:wait(1)
    if reply.status and not ngx.headers_sent then
      ngx.status, ngx.header.content_type, ngx.header["X-Accel-Buffering"] = reply.status, reply.kind, "no"
      ngx.header["Retry-After"] = reply.status == 503 and 1 or nil
    end
    if reply.status then text = reply:read() end
    if text and text ~= "" then
      ngx.print(text)
      why = select(2, ngx.flush(true)) -- "buffering": nginx keeps the text until the end (HTTP/1.0)
    end
  until not text or why and why ~= "buffering"
end

--- answer(server): Answers nginx's request by an lm.serve.OpenAI, and lets other requests run meanwhile. Runs in
--- content_by_lua_block; `lua_check_client_abort on` ends answers whose clients have gone.
function nginx.answer(server)
  local ngx = rawget(_G, "ngx") or options.fail "nginx.answer: there is no nginx in this process; use luminary serve"
  ngx.req.read_body()
  local semaphore = require("ngx.semaphore").new(1)
  local reply = server:request {
    method = ngx.req.get_method(), path = ngx.var.uri, body = ngx.req.get_body_data(),
    on_change = function() if semaphore:count() < 1 then semaphore:post() end end,
  }
  pcall(ngx.on_abort, function() reply:cancel() end) -- fails without lua_check_client_abort
  waiting = waiting + 1
  local ok, problem = pcall(send, ngx, reply, semaphore)
  waiting = waiting - 1
  reply:cancel()
  if not ok then error(problem, 0) end
end

return options.strict("serve.nginx", nginx)
