--- Runs the worker's side of lm.mp: receives a function and its arguments, calls it, and reports the outcome.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local serializer = require "luminary.mp.serialization"
local failure = require "luminary.mp.worker_failure"
local here = require "luminary.mp.parent_channel"
local shared = require "luminary.mp.shared_handle"
require "luminary.tensor.methods" -- defines tensors' methods, if the function does not load the library

local Exit = failure.Exit

-- Returns the rank whose failure caused this one, if the process group reports another rank.
local function blame()
  local groups = package.loaded["luminary.distributed.groups"]
  local cause = groups and groups.cause()
  if not cause or groups.default and cause.rank == groups.default.rank then return nil end
  return cause.rank
end

-- Publishes the error to the other ranks before this one ends.
local function publish(report)
  if not package.loaded["luminary.distributed"] then return end
  report.cause_rank = blame()
  pcall(load_module("luminary.distributed.publish_error"), report.message, report.message .. "\n\t" .. report.traceback)
end

-- Sets a thread's own environment variables, arguments and exit; those of the C library are the process's.
local function prepare_thread(boot)
  for name, value in pairs(boot.environment) do core.setenv(name, value or nil) end
  if boot.threads then core.set_num_threads(boot.threads) end
  if boot.own_streams then core.streams_own() end
  os.getenv = function(name) return core.getenv(name) end -- luacheck: ignore
  os.exit = function(code) -- luacheck: ignore
    if code == nil or code == true then code = 0 elseif code == false then code = 1 end
    error(setmetatable({code = code}, Exit), 0)
  end
end

--- Runs the job received through a thread's connection, or a process's file descriptor, and reports its outcome.
--- Returns the exit code.
return function(channel, thread)
  if not thread then channel = core.mp_parent(channel) end
  here.channel = channel
  local function receive()
    local text, tensors, handles = here.receive()
    if not text then error("the process that started this worker has exited", 0) end
    return serializer.decode(text, tensors, handles)
  end

  local name
  local ok, problem = failure.attempt(function()
    local boot = receive()
    name = boot.name
    _G.arg = {[0] = boot.script}
    if thread then prepare_thread(boot) end
    local job = receive()
    if boot.index then return job.fn(boot.index, unpack(job.args, 1, job.n)) end
    return job.fn(unpack(job.args, 1, job.n))
  end)

  local code, report = 0, {ok = true}
  if not ok and require("debug").getmetatable(problem) == Exit then
    code, report = problem.code, {ok = problem.code == 0, code = problem.code}
  elseif not ok then
    code, report = 1, {ok = false, message = problem.message, traceback = problem.traceback}
    publish(report)
    report.cause_rank = report.cause_rank or blame()
    if name then
      io.stderr:write(("%s: %s\nstack traceback:\n\t%s\n"):format(name, problem.message, problem.traceback))
    end
  end
  pcall(shared.send, channel, (serializer.encode("mp", report, {processes = not thread})), {})
  return code
end
