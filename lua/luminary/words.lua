--- An error's text as people and other ranks get it: zero bytes as Lua writes them, since C would end there; of one
--- longer than `most` bytes (4 KB) the two ends, since the reason may stand at either.
local function is_inside(text, i) return (text:byte(i) or 0) >= 128 and text:byte(i) < 192 end -- a character of UTF-8

return function(text, most)
  most = most or 4096
  if #text > most then
    local head, tail = math.floor(most * 3 / 4), #text - math.floor(most / 4) + 1
    while is_inside(text, head + 1) do head = head - 1 end
    while is_inside(text, tail) do tail = tail + 1 end
    text = ("%s ...(%d bytes)... %s"):format(text:sub(1, head), tail - head - 1, text:sub(tail))
  end
  return (text:gsub("%z", "\\0"))
end
