--- mp: functions in other processes and threads, and what they share. Each runs in a Lua state of its own; values
--- travel by the carrier (carrier.lua), and tensors are shared.
local options = require "luminary.base.options"
local lock = require "luminary.mp.lock"
local semaphore = require "luminary.mp.semaphore"
return options.strict("mp", {
  spawn = require "luminary.mp.spawn",
  Process = require "luminary.mp.process",
  Pool = require "luminary.mp.pool",
  Queue = require "luminary.mp.queue",
  Pipe = require "luminary.mp.pipe",
  Lock = lock.Lock, RLock = lock.RLock, Event = lock.Event, Value = lock.Value, Array = lock.Array,
  Semaphore = semaphore.Semaphore, BoundedSemaphore = semaphore.BoundedSemaphore, Condition = semaphore.Condition,
  Barrier = semaphore.Barrier,
  set_executable = require("luminary.mp.worker").set_executable,
})
