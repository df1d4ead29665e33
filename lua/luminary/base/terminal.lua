--- terminal: Reports the terminal's size and colors.
local ffi = require "ffi"

pcall(ffi.cdef, "int isatty(int fd);") -- a script may have declared it before
pcall(ffi.cdef, [[
  struct lm_terminal_window { unsigned short rows, columns, x, y; };
  int lm_terminal_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");]])

local TIOCGWINSZ = 0x5413 -- Linux's value

local terminal = {}

--- Returns true if a file descriptor (default: standard output) is a terminal with a movable cursor.
function terminal.is_terminal(fd) return ffi.C.isatty(fd or 1) == 1 and require("os").getenv "TERM" ~= "dumb" end

--- Returns true if a file descriptor (default: standard output) is a terminal that shows colors.
function terminal.has_color(fd) return terminal.is_terminal(fd) and (require("os").getenv "NO_COLOR" or "") == "" end

--- Returns true if standard output is a terminal with 24-bit colors, by COLORTERM, which terminals set.
function terminal.has_true_color()
  local kind = require("os").getenv "COLORTERM"
  return terminal.has_color() and (kind == "truecolor" or kind == "24bit")
end

--- Returns the columns and rows of standard output's terminal; nil if it is no terminal or does not report them.
function terminal.known_size()
  local window = ffi.new "struct lm_terminal_window[1]"
  if ffi.C.lm_terminal_ioctl(1, TIOCGWINSZ, window) ~= 0 or window[0].columns == 0 or window[0].rows == 0 then
    return nil
  end
  return window[0].columns, window[0].rows
end

--- Returns the columns and rows of the terminal, 80 and 24 where they are unknown.
function terminal.size()
  local columns, rows = terminal.known_size()
  return columns or 80, rows or 24
end

return terminal
