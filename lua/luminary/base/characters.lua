--- characters: The characters of UTF-8 texts.
local find, gsub, sub = string.find, string.gsub, string.sub

local characters = {}

--- Returns the number of characters of a text.
function characters.count(text)
  local _, n = gsub(text, "[^\128-\191]", "")
  return n
end

--- Returns the first n characters of a text, or all.
function characters.first(text, n)
  local at = find(text, "[^\128-\191]")
  for _ = 1, n do
    if not at then return text end
    at = find(text, "[^\128-\191]", at + 1)
  end
  return at and sub(text, 1, at - 1) or text
end

return characters
