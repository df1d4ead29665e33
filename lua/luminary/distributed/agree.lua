--- Compares arguments with the other ranks' of a mesh of one dim, whose collectives compare dtypes and shapes alone.
local core = require "luminary.core"
local alike = require "luminary.distributed.same_on_all_ranks"

-- The lines that ranks of a group have compared, by group. Ranks thus pay once for each choice of options.
local compared = setmetatable({}, {__mode = "k"})

--- agree(mesh, who, line, tensors): Fails on all ranks unless they pass the same line and equal tensors. Collective the
--- first time that a rank passes this line; does nothing later. Without `line`, collective always.
return function(mesh, who, line, tensors)
  local group, key = mesh.groups[1], who .. tostring(line)
  local known = compared[group] or {}
  if group.size == 1 or line and known[key] then return end
  local lines = {line}
  for i, t in ipairs(tensors) do
    local sum = core.no_grad(core.scope, function() return core.crc32c(t:detach():cpu():contiguous(), 0) end)
    lines[#lines + 1] = ("tensor %d, %s [%s] with checksum %08x"):format(i, t.dtype, table.concat(t.shape, ", "), sum)
  end
  mesh:call(alike, group, who, "call differs", lines, "tensor")
  known[key], compared[group] = true, known
end
