--- truncate_text(text [, max_bytes = 4096]): Returns an error's text for users and other ranks. NUL bytes are escaped,
--- since C's strings end there. A longer text keeps its two ends, since the cause may be at either.
local function is_inside(text, i) return (text:byte(i) or 0) >= 128 and text:byte(i) < 192 end -- within a character

-- Returns the position nearest to i, in steps of `by`, at which a character begins; i if none is near, as in text that
-- is not UTF-8.
local function at_character(text, i, by)
  for k = i, i + 3 * by, by do
    if not is_inside(text, k) then return k end
  end
  return i
end

return function(text, max_bytes)
  max_bytes = max_bytes or 4096
  if #text > max_bytes then
    local head = at_character(text, math.floor(max_bytes * 3 / 4) + 1, -1) - 1
    local tail = at_character(text, #text - math.floor(max_bytes / 4) + 1, 1)
    text = ("%s ...(%d bytes)... %s"):format(text:sub(1, head), tail - head - 1, text:sub(tail))
  end
  return (text:gsub("%z", "\\0"))
end
