--- shown(text [, most]): a name out of a file as messages and tables show it, on one line: what a terminal would obey
--- as question marks; of one longer than `most` bytes the two ends; of what is no UTF-8 how many bytes it is.
local truncate_text = require "luminary.base.truncate_text"
local is_utf8_text = require "luminary.base.is_utf8_text"

return function(text, most)
  text = truncate_text(text, most)
  if not is_utf8_text(text) then return ("(%d bytes)"):format(#text) end
  return (text:gsub("\194[\128-\159]", "?"):gsub("[%c\127]", "?"))
end
