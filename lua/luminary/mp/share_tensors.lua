--- Moves tensors to memory that other processes see.
local core = require "luminary.core"

-- Frees unreferenced tensors, which may still share the memory; compiled traces may hold references.
local function collect()
  jit.flush()
  collectgarbage()
  collectgarbage()
end

--- Moves a list of tensors together. Calls refuse(i, why) for one that shares memory with a tensor outside the list,
--- which would not move.
return function(list, refuse)
  if #list == 0 then return end
  local i = core.mp_share(list)
  if i then
    collect()
    i = core.mp_share(list)
  end
  if i then
    refuse(i, "this tensor shares memory with another tensor in use that is not sent; call share_memory_() on the "
      .. "tensor it is a view of, before making views, or send x:clone()")
  end
end
