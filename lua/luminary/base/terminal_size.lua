--- terminal_size(): Returns the columns and rows of the terminal on standard output; nil where it is no terminal or
--- does not say.
local ffi = require "ffi"

pcall(ffi.cdef, [[
  struct lm_terminal_window { unsigned short rows, columns, x, y; };
  int lm_terminal_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");]])

local TIOCGWINSZ = 0x5413 -- of Linux

return function()
  local window = ffi.new "struct lm_terminal_window[1]"
  if ffi.C.lm_terminal_ioctl(1, TIOCGWINSZ, window) ~= 0 or window[0].columns == 0 or window[0].rows == 0 then
    return nil
  end
  return window[0].columns, window[0].rows
end
