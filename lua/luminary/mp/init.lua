--- mp: Runs functions in other processes and threads, and shares values and tensors with them.
local options = require "luminary.base.options"
local lock = require "luminary.mp.lock"
local semaphore = require "luminary.mp.semaphore"
local shared_numbers = require "luminary.mp.value_and_array"
return options.strict("mp", {
  spawn = require "luminary.mp.spawn",
  Process = require "luminary.mp.process",
  Pool = require "luminary.mp.pool",
  Queue = require "luminary.mp.queue",
  Pipe = require "luminary.mp.pipe",
  Lock = lock.Lock, RLock = lock.RLock, Event = require "luminary.mp.event",
  Value = shared_numbers.Value, Array = shared_numbers.Array,
  Semaphore = semaphore.Semaphore, BoundedSemaphore = semaphore.BoundedSemaphore,
  Condition = require "luminary.mp.condition",
  Barrier = require "luminary.mp.barrier",
  set_executable = require("luminary.mp.worker").set_executable,
})
