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

-- Bytes that are kept until the next flush, and for a file that cannot be written just now; further entries are lost.
local BUFFER, KEPT = 65536, 1048576

local function open(self, mode)
  local file, problem = io.open(self.path, mode)
  if not file then options.fail_file("open", self.path, problem:match ": ([^:]*)$" or problem) end
  self.file, self.flushed, self.at = file, core.time(), file:seek "end" or 0
  file:setvbuf "full"
end

--- log_file.open(who, path, mode, every): Opens a file, after making its folder. mode: "w" or "a". every: seconds
--- between flushes, 0: at each write. A failure to write is a warning, and is tried again from the next flush on: it
--- ends no training.
function LogFile:init(who, path, mode, every)
  self.who, self.path, self.every = who, path, every
  self.waiting, self.bytes, self.lost = {}, 0, 0
  local folder = path:match "^(.*)/[^/]*$"
  if folder and folder ~= "" then paths.mkdir(folder) end
  open(self, mode)
end

local function warn(self, format, ...)
  local text = format:format(self.who, options.shown_path(self.path), ...)
  core.warn(text, text)
end

local function fail(self, problem)
  if self.file then self.file:close() end
  self.file = nil
  if not self.has_failed then warn(self, "%s: cannot write '%s': %s; each further entry tries again", problem) end
  self.has_failed = true
  return false
end

local function succeed(self)
  if self.has_failed then warn(self, "%s: '%s' is written again; %d entries are lost", self.lost) end
  self.has_failed, self.lost = false, 0
  return true
end

-- After a failure: at the place where what is known to be written ends, since the last write may have left a part. A
-- descriptor of a network file system may be stale, so that the file is opened again.
local function open_again(self)
  local file, problem = io.open(self.path, "r+b")
  if not file then file, problem = io.open(self.path, "ab") end
  if not file then return problem:match ": ([^:]*)$" or problem end
  self.file, self.at = file, math.min(self.at, file:seek "end" or 0)
  file:seek("set", self.at)
end

local function put(file, text, flushes)
  local ok, problem = file:write(text)
  if ok and flushes then ok, problem = file:flush() end
  return ok, problem
end

-- A trace that finds that fwrite or fflush failed calls it once more, which then finds nothing left to write. Nothing
-- else is in the function: after a call that is not compiled a trace may begin in spite of this.
jit.off(put)

--- Writes what waits; false if that failed.
function LogFile:flush()
  if self.is_closed or #self.waiting == 0 then return true end
  self.flushed = core.time()
  local rest = self.file and "" or table.concat(self.waiting)
  local problem = not self.file and open_again(self)
  if problem then return fail(self, problem) end
  local ok, reason = put(self.file, rest, true)
  if not ok then return fail(self, reason) end
  self.at, self.waiting, self.bytes = self.at + self.bytes, {}, 0
  return succeed(self)
end

--- Adds an entry.
function LogFile:write(...)
  if self.is_closed then
    return warn(self, "%s: cannot write '%s': the log is closed; nothing more is written to it")
  end
  local text = table.concat {...}
  if self.bytes + #text > KEPT and not self:flush() then return self:lose() end
  self.waiting[#self.waiting + 1], self.bytes = text, self.bytes + #text
  local ok, problem = true, nil
  if self.file then ok, problem = put(self.file, text) end -- so that it is there at the end without a close
  if not ok then return fail(self, problem) end
  if core.time() - self.flushed >= self.every or self.bytes > BUFFER then self:flush() end
end

--- Counts an entry that cannot be kept.
function LogFile:lose() self.lost = self.lost + 1 end

--- Replaces what the file has by a list of strings, at once: after a failure, false, it is as before.
function LogFile:replace(pieces)
  local ok, problem = pcall(core.write_pieces, self.path, pieces)
  if not ok then return fail(self, problem:match ": ([^:]*)$" or options.without_position(problem)) end
  if self.file then self.file:close() end
  open(self, "a")
  return succeed(self)
end

function LogFile:close()
  if self.is_closed then return end
  if not self:flush() or self.lost > 0 then
    warn(self, "%s: '%s' is closed; %d entries are lost", self.lost + #self.waiting)
  end
  if self.file then self.file:close() end
  self.file, self.is_closed = nil, true
end

log_file.open = LogFile
return log_file
