--- What a worker knows of itself: `channel`, to whoever started it; nil where the script itself runs.
local core = require "luminary.core"

local here = {}

--- The next that comes: text, tensors, handles; nil if nothing will. A thread that is asked to end does so meanwhile.
function here.receive()
  local text, tensors, handles
  repeat
    text, tensors, handles = core.mp_receive(here.channel, -1)
  until text ~= false
  return text, tensors, handles
end

return here
