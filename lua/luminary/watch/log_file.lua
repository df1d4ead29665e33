--- log_file: Files that grow while a program runs.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local ffi = require "ffi"

ffi.cdef [[
  struct lm_watch_time { long s, ns; };
  int lm_watch_clock(int, struct lm_watch_time *) __asm__("clock_gettime");]]

local log_file = {}

--- Returns seconds since 1970, with fractions.
function log_file.wall_time()
  local now = ffi.new "struct lm_watch_time"
  ffi.C.lm_watch_clock(0, now)
  return tonumber(now.s) + tonumber(now.ns) * 1e-9
end

local LogFile = class.root "LogFile"

local function open(self, mode)
  local file, problem = io.open(self.path, mode)
  if not file then options.fail_file("open", self.path, problem:match ": ([^:]*)$" or problem) end
  self.file, self.flushed = file, core.time()
  file:setvbuf "full"
end

--- log_file.open(who, path, mode, every): Opens a file, after making its folder. mode: "w" or "a". every: seconds
--- between flushes, 0: at each write. A failure to write is a warning, after which nothing is written: it ends no
--- training.
function LogFile:init(who, path, mode, every)
  self.who, self.path, self.every = who, path, every
  local folder = path:match "^(.*)/[^/]*$"
  if folder and folder ~= "" then paths.mkdir(folder) end
  open(self, mode)
end

local function give_up(self, problem)
  core.warn(("%s: cannot write '%s': %s; nothing more is written to it"):format(self.who,
    options.shown_path(self.path), problem))
  self.file, self.is_closed = nil, false
end

function LogFile:write(...)
  if self.is_closed then give_up(self, "the log is closed") end
  if not self.file then return end
  local ok, problem = self.file:write(...)
  if not ok then return give_up(self, problem) end
  if core.time() - self.flushed >= self.every then self:flush() end
end

function LogFile:flush()
  if not self.file then return end
  local ok, problem = self.file:flush()
  if not ok then return give_up(self, problem) end
  self.flushed = core.time()
end

--- Replaces what the file has by a list of strings, at once: after a failure it is as before.
function LogFile:replace(pieces)
  if not self.file then return end
  local ok, problem = pcall(core.write_pieces, self.path, pieces)
  if not ok then return give_up(self, options.without_position(problem)) end
  self.file:close()
  open(self, "a")
end

function LogFile:close()
  self:flush()
  if not self.file then return end
  self.file:close()
  self.file, self.is_closed = nil, true
end

log_file.open = LogFile
return log_file
