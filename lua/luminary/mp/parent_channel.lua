--- Holds a worker's `channel` to the state that started it, a connection; nil in the script itself.
local core = require "luminary.core"
local shared = require "luminary.mp.shared_handle"

local here = {}

--- Receives the next message: text, tensors, handles; nil if none will come. A thread asked to end does so in the wait.
function here.receive() return shared.wait(nil, core.mp_get, here.channel) end

return here
