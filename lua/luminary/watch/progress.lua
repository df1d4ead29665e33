--- watch.progress: A progress bar of one line on a terminal.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local ffi = require "ffi"

pcall(ffi.cdef, "int isatty(int fd);")

local progress = {}

--- Returns whether standard output is a terminal.
function progress.on_terminal()
  local known, answer = pcall(function() return ffi.C.isatty(1) == 1 end)
  return known and answer and core.getenv("TERM") ~= "dumb"
end

--- Formats seconds as 1:15 or 1:01:40.
function progress.duration(seconds)
  seconds = math.floor(seconds + 0.5)
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then return ("%d:%02d:%02d"):format(hours, minutes, seconds % 60) end
  return ("%d:%02d"):format(minutes, seconds % 60)
end

local Progress = class.root("Progress")
local WIDTH, EVERY = 20, 0.1 -- characters of the bar, seconds between two drawings

--- `done` steps were made before (a resumed run): they do not count in the estimate of the remaining time.
function Progress:init(total, done)
  self.total = options.arg("progress", "total", total, "natural")
  self.skipped = done or 0
  self.began, self.drawn = core.time(), 0
  self.visible = progress.on_terminal()
end

--- Shows that `done` steps of the total are made, with text after the bar.
function Progress:update(done, text)
  local now = core.time()
  if not self.visible or (now - self.drawn < EVERY and done < self.total) then return end
  self.drawn = now
  local part = self.total > 0 and math.min(done / self.total, 1) or 1
  local filled = math.floor(part * WIDTH)
  local left = done > self.skipped and (now - self.began) / (done - self.skipped) * (self.total - done) or 0
  io.stdout:write(("\r\27[K[%s%s] %d/%d  %s  %s left"):format(("#"):rep(filled), ("."):rep(WIDTH - filled), done,
    self.total, text or "", progress.duration(left)))
  io.stdout:flush()
  self.shown = true
end

--- Removes the bar.
function Progress:clear()
  if self.shown then
    io.stdout:write("\r\27[K")
    io.stdout:flush()
    self.shown = false
  end
end

--- lm.watch.progress.new(total [, done = 0]): Creates a progress bar of `total` steps, of which `done` were made
--- before.
progress.new = Progress
return progress
