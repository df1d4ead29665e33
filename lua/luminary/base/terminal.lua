--- terminal: What is known of the terminal.
local ffi = require "ffi"

pcall(ffi.cdef, "int isatty(int fd);") -- somebody may have declared it before
pcall(ffi.cdef, [[
  struct lm_terminal_window { unsigned short rows, columns, x, y; };
  int lm_terminal_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");]])

local terminal = {}

local TIOCGWINSZ = 0x5413 -- of Linux

--- Returns whether a descriptor, standard output without it, is a terminal on which the cursor moves.
function terminal.is_terminal(fd) return ffi.C.isatty(fd or 1) == 1 and os.getenv "TERM" ~= "dumb" end

--- Returns whether a descriptor, standard output without it, is a terminal that shows colors.
function terminal.has_color(fd) return terminal.is_terminal(fd) and (os.getenv "NO_COLOR" or "") == "" end

--- Returns whether standard output is a terminal that shows 24-bit colors, by COLORTERM, which terminals set.
function terminal.has_true_color()
  local kind = os.getenv "COLORTERM"
  return terminal.has_color() and (kind == "truecolor" or kind == "24bit")
end

--- Returns the columns and rows of standard output's terminal; 80 and 24 where it does not say.
function terminal.size()
  local window = ffi.new "struct lm_terminal_window[1]"
  if ffi.C.lm_terminal_ioctl(1, TIOCGWINSZ, window) ~= 0 then return 80, 24 end
  local columns, rows = window[0].columns, window[0].rows
  return columns > 0 and columns or 80, rows > 0 and rows or 24
end

return terminal
