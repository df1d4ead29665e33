--- lm.Timer: a stopwatch that remembers every lap.
---   local timer = lm.Timer()      -- runs at once
---   local seconds = timer:stop()  -- the lap; timer:start() begins the next
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local Timer = class.root("Timer")

function Timer:init()
  self.times = {} -- seconds of each lap
  self:start()
end

--- Begin a lap.
function Timer:start()
  self.began = core.time()
  return self
end

--- End the lap; gives its seconds.
function Timer:stop()
  if not self.began then options.fail("Timer: stop without start") end
  local seconds = core.time() - self.began
  self.began = nil
  self.times[#self.times + 1] = seconds
  return seconds
end

--- Seconds of all laps together.
function Timer:sum()
  local total = 0
  for _, seconds in ipairs(self.times) do total = total + seconds end
  return total
end

--- Mean seconds of a lap; 0 before the first.
function Timer:avg()
  return #self.times == 0 and 0 or self:sum() / #self.times
end

function Timer:repr()
  return ("Timer(%d laps, %.6g s)"):format(#self.times, self:sum())
end

return Timer
