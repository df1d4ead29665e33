--- lm.Timer: Measures time with a stopwatch that records every lap.
---   local timer = lm.Timer()      -- starts it
---   local seconds = timer:stop()  -- the lap; timer:start() begins the next
---   print(timer:time().real)      -- seconds so far; also .user and .sys
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local Timer = class.root("Timer")

local there, ffi = pcall(require, "ffi")
if there then
  ffi.cdef [[
    struct lm_timer_usage { long user_s, user_us, sys_s, sys_us, others[64]; };
    int lm_timer_usage(int who, struct lm_timer_usage *) __asm__("getrusage");]]
end

-- Returns user and system CPU seconds of all threads of this process.
local function processor_seconds()
  if not there then return require("os").clock(), 0 end
  local usage = ffi.new "struct lm_timer_usage"
  ffi.C.lm_timer_usage(0, usage)
  return tonumber(usage.user_s) + tonumber(usage.user_us) * 1e-6, tonumber(usage.sys_s) + tonumber(usage.sys_us) * 1e-6
end

function Timer:init() self:reset() end

--- Removes all laps and begins one; returns the timer.
function Timer:reset()
  self.times = {} -- seconds of each lap
  self.user, self.sys = 0, 0
  return self:start()
end

--- Begins a lap.
function Timer:start()
  self.began = core.time()
  self.user_began, self.sys_began = processor_seconds()
  return self
end

-- Returns the CPU seconds of all laps.
local function spent(self)
  if not self.began then return self.user, self.sys end
  local user, sys = processor_seconds()
  return self.user + user - self.user_began, self.sys + sys - self.sys_began
end

--- Returns the seconds of all laps as {real, user, sys}: of the clock, and of the CPU in the program and in the system.
function Timer:time()
  local user, sys = spent(self)
  return {real = self:sum() + (self.began and core.time() - self.began or 0), user = user, sys = sys}
end

--- Ends the lap; returns its seconds.
function Timer:stop()
  if not self.began then options.fail("Timer: call start() before stop()") end
  local seconds = core.time() - self.began
  self.user, self.sys = spent(self)
  self.began = nil
  self.times[#self.times + 1] = seconds
  return seconds
end

--- Returns the seconds of all laps.
function Timer:sum()
  local total = 0
  for _, seconds in ipairs(self.times) do total = total + seconds end
  return total
end

--- Returns the mean seconds of a lap; 0 before the first.
function Timer:avg()
  return #self.times == 0 and 0 or self:sum() / #self.times
end

function Timer:repr()
  return ("Timer(%d laps, %.6g s)"):format(#self.times, self:sum())
end

return Timer
