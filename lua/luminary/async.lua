--- async: Runs a function, or a module's forward, on a worker thread.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Executor = require "luminary.mp.executor"
local Worker = require "luminary.mp.worker"

local async = {}

local executor -- made at the first call

-- Returns an executor for settings of set_async.
local function new_executor(opts)
  local most, max_queue = Executor.MOST_CALLS * opts.workers, opts.max_queue or 128 * opts.workers
  if max_queue > most then
    options.must_be("set_async", "max_queue", ("at most %d for %d workers"):format(most, opts.workers), max_queue)
  end
  return Executor {
    who = "async", workers = opts.workers, threads = opts.threads or Worker.share_of_threads(opts.workers),
    nice = opts.nice, max_queue = max_queue, socket_paths = opts.socket_paths,
  }
end

--- lm.set_async(…): Sets how lm.async runs calls from here on: on how many threads, with how many compute threads each
--- (default: the cores, shared equally), and how many calls may be open at a time (default: 128 for each worker). nice:
--- how far the threads yield to the host's when the cores are busy, 0 to 19. socket_paths: futures have
--- Future:socket_path(). Waits for the calls that are open.
async.set_async = signature.of(
  [[set_async({workers: integer(1, 256) = 1, threads: count, max_queue: count, nice: integer(0, 19) = 0,
  socket_paths = false})]], function(opts)
    local old = executor
    executor = new_executor(opts)
    if old then old:close() end
  end)

--- lm.async(f, ...): Calls f(...), a function or a module, on a worker thread with a Lua state of its own; returns a
--- future at once. Arguments and results are sent as those of lm.mp are; tensors, also a module's weights, are shared
--- and not copied. A module computes without gradients.
async.async = class.returned(Executor.Future, function(f, ...)
  local is_module = class.record(f) ~= nil
  if not is_module and type(f) ~= "function" then options.must_be("async", "f", "a function or a module", f) end
  executor = executor or new_executor {workers = 1, nice = 0}
  return executor:submit("async", f, {...}, select("#", ...), is_module)
end)

async.poll, async.send_part = Executor.poll, Executor.send_part

return async
