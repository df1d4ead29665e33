--- mp: functions in other processes and threads. Each runs in a Lua state of its own; values travel by the carrier
--- (carrier.lua), and tensors are shared.
local options = require "luminary.options"
return options.strict("mp", {
  spawn = require "luminary.mp.context",
  Process = require "luminary.mp.process",
  set_executable = require("luminary.mp.worker").set_executable,
})
