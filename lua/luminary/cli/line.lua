--- Reading lines at the prompt: with editing and history where libedit is there, plainly where not.
local ffi = require "ffi"

local line = {}

local ok = pcall(ffi.cdef, [[
  char *readline(const char *prompt);
  int add_history(const char *line);
  int read_history(const char *path);
  int write_history(const char *path);
  void stifle_history(int most);
  void free(void *p);
  int isatty(int fd);
  void *signal(int number, void *handler);
]])
local MOST_LINES = 1000

local function history_path()
  local home = os.getenv("HOME")
  return os.getenv("LUMINARY_HISTORY") or home and home .. "/.luminary_history"
end

-- read(prompt) and remember(text) by libedit; nil without it, or where the input is no terminal.
local function by_libedit()
  if not ok or ffi.C.isatty(0) == 0 then return nil end
  local found, edit = pcall(ffi.load, "libedit.so.2")
  if not found then return nil end
  local path = history_path()
  if not pcall(function()
    edit.stifle_history(MOST_LINES)
    if path then edit.read_history(path) end
  end) then
    return nil
  end
  local function read(prompt)
    local text = edit.readline(prompt)
    if text == nil then return nil end
    local copy = ffi.string(text)
    ffi.C.free(text)
    return copy
  end
  local function remember(text)
    edit.add_history(text)
    if path then edit.write_history(path) end
  end
  return read, remember
end

local function plainly()
  local function read(prompt)
    io.stdout:write(prompt)
    io.stdout:flush()
    return io.read("*l")
  end
  return read, function() end
end

--- Ctrl-C: line.guard() makes it do nothing while a line is read, and gives a function guarded(f, ...) inside which
--- it interrupts f as it did before. LuaJIT's own handler serves one Ctrl-C only, so it is set anew each time.
function line.guard()
  local SIGINT, ignore = 2, ffi.cast("void *", 1)
  local known, handler = pcall(function() return ffi.C.signal(SIGINT, ignore) end)
  if not known then return function(f, ...) return f(...) end end
  local function back(...)
    ffi.C.signal(SIGINT, ignore)
    return ...
  end
  return function(f, ...)
    ffi.C.signal(SIGINT, handler)
    return back(f(...))
  end
end

--- Two functions: read(prompt) gives a line, or nil at the end; remember(text) puts it in the history.
function line.reader()
  local read, remember = by_libedit()
  if read then return read, remember end
  return plainly()
end

return line
