--- shown(text [, most]): a name out of a file as messages and tables show it, on one line: what a terminal would obey
--- as question marks; of one longer than `most` bytes the two ends; of what is no UTF-8 how many bytes it is.
local excerpt = require "luminary.base.excerpt"
local is_text = require "luminary.base.is_text"

return function(text, most)
  text = excerpt(text, most)
  if not is_text(text) then return ("(%d bytes)"):format(#text) end
  return (text:gsub("\194[\128-\159]", "?"):gsub("[%c\127]", "?"))
end
