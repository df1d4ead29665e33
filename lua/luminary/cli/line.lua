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
  char *setlocale(int category, const char *locale);
]])
local MOST_LINES = 1000

local function history_path()
  local home = os.getenv("HOME")
  return os.getenv("LUMINARY_HISTORY") or home and home .. "/.luminary_history"
end

-- libedit takes bytes for characters, and knows their columns, by the process's locale, which Lua leaves at "C": there
-- it would drop what is not ASCII. Where the environment names no other, the characters are UTF-8's. Only LC_CTYPE
-- is set, on which neither LuaJIT nor numbers depend.
local function use_characters()
  local LC_CTYPE = 0
  local set = ffi.C.setlocale(LC_CTYPE, "")
  local name = set ~= nil and ffi.string(set) or "C"
  if name == "C" or name == "POSIX" then
    local _ = ffi.C.setlocale(LC_CTYPE, "C.UTF-8") ~= nil or ffi.C.setlocale(LC_CTYPE, "C.utf8")
  end
end

-- read(prompt) and remember(text) by libedit; nil without it, or where the input is no terminal.
local function by_libedit()
  if not ok or ffi.C.isatty(0) == 0 then return nil end
  local found, edit = pcall(ffi.load, "libedit.so.2")
  if not found then return nil end
  local path = history_path()
  use_characters()
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

--- Ctrl-C: line.guard() gives a function guarded(f, ...) inside which it interrupts f as it did before, and quiet(),
--- after which it does nothing, as while a line is read. LuaJIT's own handler serves one Ctrl-C only, so it is set anew
--- each time.
function line.guard()
  local SIGINT, ignore = 2, ffi.cast("void *", 1)
  local known, handler = pcall(function() return ffi.C.signal(SIGINT, ignore) end)
  if not known then return function(f, ...) return f(...) end, function() end end
  local function quiet() ffi.C.signal(SIGINT, ignore) end
  local function back(...)
    quiet()
    return ...
  end
  return function(f, ...)
    ffi.C.signal(SIGINT, handler)
    return back(f(...))
  end, quiet
end

--- Two functions: read(prompt) gives a line, or nil at the end; remember(text) puts it in the history.
function line.reader()
  local read, remember = by_libedit()
  if read then return read, remember end
  return plainly()
end

return line
