--- log_file: Writes files that grow while a program runs.
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

-- Bytes to collect before another try to write a file that could not be written, and bytes to keep for it; further
-- entries are lost.
local BUFFER, KEPT = 65536, 1048576

--- log_file.open(who, path, keep, every): Opens a file, after making its folder; keep: true to keep its lines.
--- Entries are written at once. A failure warns and ends no training: every `every` seconds an entry tries again.
function LogFile:init(who, path, keep, every)
  self.who, self.path, self.every, self.tried = who, path, every, 0
  self.waiting, self.bytes, self.lost = {}, 0, 0
  local folder = path:match "^(.*)/[^/]*$"
  if folder and folder ~= "" then paths.mkdir(folder) end
  local former = keep and paths.filep(path) and require("io").open(path, "rb")
  local has_part = former and former:seek("end", -1) and former:read(1) ~= "\n"
  if former then former:close() end
  self.file = core.growing_file_open(path, keep)
  if has_part then self:write "\n" end
end

local function warn(self, format, ...)
  local text = format:format(self.who, options.shown_path(self.path), ...)
  core.warn(text, text)
end

local function fail(self, problem)
  problem = problem:match ": ([^:]*)$" or options.without_position(problem)
  if not self.has_failed then warn(self, "%s: cannot write '%s': %s; each further entry tries again", problem) end
  self.has_failed = true
  return false
end

local function succeed(self)
  if self.has_failed then warn(self, "%s: '%s' is written again; %d entries are lost", self.lost) end
  self.has_failed, self.lost = false, 0
  return true
end

--- Writes the waiting entries; returns false on failure.
function LogFile:flush()
  if self.is_closed or #self.waiting == 0 then return true end
  self.tried = core.time()
  local ok, problem = pcall(core.growing_file_write, self.file, table.concat(self.waiting))
  if not ok then return fail(self, problem) end
  self.waiting, self.bytes = {}, 0
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
  if not self.has_failed or core.time() - self.tried >= self.every or self.bytes > BUFFER then self:flush() end
end

--- Counts a lost entry.
function LogFile:lose() self.lost = self.lost + 1 end

--- Replaces the file's contents by a list of strings, atomically: after a failure, false, they are unchanged.
function LogFile:replace(pieces)
  local ok, problem = pcall(core.write_pieces, self.path, pieces)
  if not ok then return fail(self, problem) end
  core.growing_file_close(self.file)
  self.file = core.growing_file_open(self.path, true)
  return succeed(self)
end

function LogFile:close()
  if self.is_closed then return end
  if not self:flush() or self.lost > 0 then
    warn(self, "%s: '%s' is closed; %d entries are lost", self.lost + #self.waiting)
  end
  core.growing_file_close(self.file)
  self.is_closed = true
end

log_file.open = LogFile
return log_file
