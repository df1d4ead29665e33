--- Compares arguments with the other ranks' of a mesh of one dim, whose collectives compare dtypes and shapes alone.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local alike = require "luminary.distributed.same_on_all_ranks"

-- The lines that ranks of a group have compared, by group. Ranks thus pay once for each choice of options.
local compared = setmetatable({}, {__mode = "k"})

-- Returns a tensor's dtype, shape and checksum as text.
local function describe(t)
  local sum = core.no_grad(core.scope, function() return core.crc32c(t:detach():cpu():contiguous(), 0) end)
  return ("%s [%s] with checksum %08x"):format(t.dtype, table.concat(t.shape, ", "), sum)
end

--- agree(mesh, who, line, tensors): Fails on all ranks unless they pass the same line and equal tensors. Collective the
--- first time that a rank passes this line; does nothing later. Without `line`, collective always.
return function(mesh, who, line, tensors)
  local group, key = mesh.groups[1], who .. tostring(line)
  local known = compared[group] or {}
  if group.size == 1 or line and known[key] or lists.find(tensors, function(t) return t.device == "meta" end) then
    return
  end
  local lines = lists.map(tensors, function(t, i) return ("tensor %d, %s"):format(i, describe(t)) end)
  if line then table.insert(lines, 1, line) end
  mesh:call(alike, group, who, "call differs", table.concat(lines, "\n") .. "\n", "tensor")
  known[key], compared[group] = true, known
end
