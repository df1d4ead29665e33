--- printable_name(text [, max_bytes]): Returns a name from a file in a form for messages and tables, on one line.
--- Control characters become question marks; the middle of a name longer than max_bytes is cut; a name that is not
--- UTF-8 becomes its number of bytes.
local core = require "luminary.core"
local truncate_text = require "luminary.base.truncate_text"

return function(text, max_bytes)
  text = truncate_text(text, max_bytes)
  if not core.is_utf8_text(text) then return ("(%d bytes)"):format(#text) end
  return (core.printable(text):gsub("%c", "?"))
end
