--- Reads lines at the prompt, by libedit with editing, history and completion, or plainly without libedit.
local characters = require "luminary.base.characters"
local core = require "luminary.core"
local ffi = require "ffi"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local paths = require "luminary.paths"

local match, sub = string.match, string.sub

local line = {}

local ok = pcall(ffi.cdef, [[
  char *readline(const char *prompt);
  int add_history(const char *line);
  int read_history(const char *path);
  void stifle_history(int most);
  typedef char **lm_complete(const char *word, int start, int finish);
  typedef char *lm_match(const char *word, int which);
  char **rl_completion_matches(const char *word, lm_match *next);
  extern lm_complete *rl_attempted_completion_function;
  extern int rl_attempted_completion_over, rl_completion_append_character, rl_completion_query_items;
  extern int rl_point, rl_end;
  extern const char *rl_basic_word_break_characters;
  extern char *rl_line_buffer;
  char *strdup(const char *text);
  void free(void *p);
  int isatty(int fd);
  char *setlocale(int category, const char *locale);
]])
local MOST_LINES, EINTR = 1000, 4
local HEADER = "_HiStOrY_V2_\n" -- the header of libedit's files

-- suffix: "" for the prompt's own.
local function history_path(suffix)
  local home = os.getenv("HOME")
  local path = os.getenv("LUMINARY_HISTORY") or home and home .. "/.luminary_history"
  return path and path .. suffix
end

-- Returns true if the file is libedit's, or does not exist; libedit would append to other files. A file that is too
-- long is cut to the lines that were read.
local function is_history(edit, path)
  local file = paths.filep(path) and io.open(path)
  local size = file and file:seek "end"
  local text = size and size > 0 and file:seek "set" and file:read "*a" or ""
  if file then file:close() end
  if size == 0 or not core.file_kind(path) then return true end
  if file and edit.read_history(path) == 0 then
    local lines = lists.parts(text:sub(#HEADER + 1), "[^\n]*\n")
    if #lines > 2 * MOST_LINES then
      pcall(core.write_pieces, path, {HEADER, table.concat(lines, "", #lines - MOST_LINES + 1)})
    end
    return true
  end
  local shown = options.shown_path(path)
  io.stderr:write(("luminary: '%s' is no history of a prompt; this one is not saved\n"):format(shown))
  return false
end

-- Appends an input to the file, in libedit's form. libedit itself would rewrite all lines: one of two prompts would
-- lose its lines, and a paste of a thousand lines would take seconds.
local function append_history(path, text)
  local found, size = core.file_kind(path)
  if found and found ~= "a regular file" then return end
  local encoded = text:gsub("[%z\1-\32\\\127-\255]", function(c) return ("\\%03o"):format(c:byte()) end)
  pcall(function()
    local file = core.growing_file_open(path, true, 384) -- 0600: only the user may read it
    core.growing_file_write(file, ((size or 0) == 0 and HEADER or "") .. encoded .. "\n")
  end)
end

-- Sets the locale by which libedit reads characters and their columns. Lua leaves it at "C", where libedit drops
-- characters other than ASCII; UTF-8 is the default if the environment names no other. Only LC_CTYPE is set, on which
-- neither LuaJIT nor numbers depend.
local function use_characters()
  local LC_CTYPE = 0
  local set = ffi.C.setlocale(LC_CTYPE, "")
  local name = set ~= nil and ffi.string(set) or "C"
  if name == "C" or name == "POSIX" then
    local _ = ffi.C.setlocale(LC_CTYPE, "C.UTF-8") ~= nil or ffi.C.setlocale(LC_CTYPE, "C.utf8")
  end
end

local held_by_c = {} -- values that the collector must not free

local function hold_for_c(value)
  held_by_c[#held_by_c + 1] = value
  return value
end

-- Returns the text before the cursor. Versions of libedit differ in counting bytes or characters.
local function before_cursor(edit)
  local text, n = ffi.string(edit.rl_line_buffer), edit.rl_point
  if edit.rl_end == #text then return text:sub(1, n) end
  return characters.first(text, n)
end

-- Completes on Tab: a result of complete(text before the cursor, its last word) replaces the word, which begins after
-- the last of WORD_BREAKS.
local WORD_BREAKS = " \t\n\"\\'`@$><=;|&{(}).:,+-*/%^#~[]?!"

local function use_completion(edit, complete)
  local list, at
  local next_match = hold_for_c(ffi.cast("lm_match *", function()
    at = at + 1
    return list[at] and ffi.C.strdup(list[at]) or nil
  end))
  edit.rl_attempted_completion_function = hold_for_c(ffi.cast("lm_complete *", function(word)
    edit.rl_attempted_completion_over = 1 -- libedit's own completion would offer files everywhere
    local done, found = pcall(function()
      list, at = complete(before_cursor(edit), ffi.string(word)), 0
      return edit.rl_completion_matches(word, next_match)
    end)
    return done and found or nil
  end))
  edit.rl_basic_word_break_characters = hold_for_c(WORD_BREAKS)
  edit.rl_completion_append_character = 0
  edit.rl_completion_query_items = 1000
end

--- Returns true if standard input is a terminal.
function line.is_terminal() return ok and ffi.C.isatty(0) ~= 0 end

-- Returns read(prompt) and remember(text) by libedit; nil without libedit or if the input is no terminal.
local function by_libedit(complete, suffix)
  if not line.is_terminal() then return nil end
  local found, edit = pcall(ffi.load, "libedit.so.2")
  if not found then return nil end
  local path = history_path(suffix)
  use_characters()
  if not pcall(function()
    edit.stifle_history(MOST_LINES)
    if path and not is_history(edit, path) then path = nil end
  end) then
    return nil
  end
  pcall(use_completion, edit, complete)
  local function read_line(prompt)
    ffi.errno(0)
    local text = edit.readline(prompt)
    if text == nil then
      local interrupted = ffi.errno() == EINTR
      if interrupted then io.stdout:write("^C\n") end
      return nil, interrupted
    end
    local copy = ffi.string(text)
    ffi.C.free(text)
    return copy
  end
  jit.off(read_line) -- C cannot call back from a compiled call
  local function remember(text)
    edit.add_history(text)
    if path then append_history(path, text) end
  end
  return read_line, remember
end

--- Handles Ctrl-C: returns a function guarded(f, ...) in which Ctrl-C interrupts f as usual, and quiet(), after which
--- it only ends the reading of a line. LuaJIT's own handler serves one Ctrl-C; the second would end the process.
function line.guard()
  local function quiet(...)
    core.handle_interrupts(false)
    return ...
  end
  return function(f, ...)
    core.handle_interrupts(true)
    return quiet(f(...))
  end, quiet
end

--- Makes LuaJIT interpret all Lua loaded from now on, except the library's: compiled loops run no hooks, so that Ctrl-C
--- would wait for their end. A user's jit.on(f, true) compiles f again.
function line.interpret_loops()
  local library = match(require("debug").getinfo(1, "S").source, "^(.*/)cli/")
  local info, jit_off = require("jit.util").funcinfo, jit.off
  jit.attach(function(proto)
    if sub(info(proto).source or "", 1, #library) ~= library then jit_off(proto) end
  end, "bc")
end

--- Returns two functions: read(prompt) returns a line, nil at the end, or nil and true after Ctrl-C; remember(text)
--- adds an input of one or several lines to the history. complete(text before the cursor, its last word) returns the
--- list of replacements for the word. suffix: added to the path of the history's file.
function line.reader(complete, suffix)
  local read, remember = by_libedit(complete, suffix or "")
  if read then return read, remember end
  return function(prompt)
    io.stdout:write(prompt)
    io.stdout:flush()
    local text, _, problem = io.read("*l")
    if problem == EINTR then io.stdout:write("\n") end
    return text, problem == EINTR
  end, function() end
end

return line
