--- An error's text as people and other ranks get it: zero bytes as Lua writes them, since C would end there; of one
--- longer than `most` bytes (4 KB) the two ends, since the reason may stand at either.
local function is_inside(text, i) return (text:byte(i) or 0) >= 128 and text:byte(i) < 192 end -- a character of UTF-8

-- The nearest place from i on, in steps of `by`, where a character begins; i, if none is near: then it is no UTF-8.
local function at_character(text, i, by)
  for k = i, i + 3 * by, by do
    if not is_inside(text, k) then return k end
  end
  return i
end

return function(text, most)
  most = most or 4096
  if #text > most then
    local head = at_character(text, math.floor(most * 3 / 4) + 1, -1) - 1
    local tail = at_character(text, #text - math.floor(most / 4) + 1, 1)
    text = ("%s ...(%d bytes)... %s"):format(text:sub(1, head), tail - head - 1, text:sub(tail))
  end
  return (text:gsub("%z", "\\0"))
end
