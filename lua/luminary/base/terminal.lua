--- terminal: What is known of the terminal.
local terminal_size = require "luminary.base.terminal_size"
local ffi = require "ffi"

pcall(ffi.cdef, "int isatty(int fd);") -- somebody may have declared it before

local terminal = {}

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
  local columns, rows = terminal_size()
  return columns or 80, rows or 24
end

return terminal
