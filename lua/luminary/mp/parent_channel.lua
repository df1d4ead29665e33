--- Holds a worker's `channel` to the state that started it; nil in the script itself.
local core = require "luminary.core"

local here = {}

--- Receives the next message: text, tensors, handles; nil if none will come. A thread asked to end does so in the wait.
function here.receive()
  local text, tensors, handles
  repeat
    text, tensors, handles = core.mp_receive(here.channel, -1)
  until text ~= false
  return text, tensors, handles
end

return here
