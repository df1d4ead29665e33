--- Passes on a text that comes in pieces, up to the first of some strings.
local lists = require "luminary.base.lists"

--- cut_at(strings, cut, write [, may_open]): Returns a function that passes pieces of text, nil at the end, to
--- write(text) up to the first of `strings`, from which on the text is cut.rest. Text that may begin one waits.
--- may_open: text that begins with "{" is a rest, too. The function returns true from the rest on, and false if write
--- did.
return function(strings, cut, write, may_open)
  local waiting = ""
  return function(piece)
    if cut.rest then
      cut.rest = cut.rest .. (piece or "")
      return true
    end
    waiting = waiting .. (piece or "")
    local at, is_found = 1, may_open and waiting:find "^%s*{" ~= nil
    while at <= #waiting and not is_found and not (may_open and piece and not waiting:find "%S") do
      local tail = waiting:sub(at)
      local hit = lists.find(strings, function(each)
        return tail:sub(1, #each) == each or piece and each:sub(1, #tail) == tail
      end)
      if hit then
        is_found = #tail >= #hit
        break
      end
      at = at + 1
    end
    local text = waiting:sub(1, at - 1)
    waiting, cut.rest = waiting:sub(at), is_found and waiting:sub(at) or nil
    if text ~= "" then
      may_open = false
      if write(text) == false then return false end
    end
    return is_found or nil
  end
end
