--- Finds kinds of quantized blocks, and puts blocks of files into the layers of a net.
local block_kinds = require "luminary.block_kinds"
local core = require "luminary.core"
local options = require "luminary.base.options"

local block_weights = {}

--- Returns the row of a kind in luminary.block_kinds, which the argument `name` of `who` is.
function block_weights.kind_of(who, kind, name)
  return block_kinds[kind]
    or options.must_be(who, name or "kind", ("one of '%s'"):format(table.concat(block_kinds.names, "', '")), kind)
end

--- Returns true if rows of n numbers consist of blocks of the kind.
function block_weights.divides(n, kind) return n % block_kinds[kind].elements == 0 end

--- Replaces the layers of a net whose weights `weights` has as blocks, {kind, blocks, transposed}, by name: the values
--- become the layers' own tensors, whose bytes are returned. Weights of other modules or shapes are expanded.
function block_weights.put(net, weights)
  local bytes = 0
  for name, value in pairs(weights) do
    if options.is_plain(value) and value.blocks then
      local kind = block_kinds[value.kind]
      local rows, columns = value.blocks:size(1), value.blocks:size(2) / kind.bytes * kind.elements
      local path = name:match "^(.*)%.weight$"
      local ok, module = pcall(net.get_submodule, net, path or "")
      local shape = ok and module.to_blocks and value.blocks.ndim == 2 and module.weight.shape or {}
      local first, second = rows, columns
      if value.transposed then first, second = columns, rows end
      if shape[1] == first and shape[2] == second then
        net:set_submodule(path, module:to_blocks(value.kind, value.blocks))
        weights[name], bytes = value.blocks, bytes + value.blocks:numel()
      else
        local expanded = core.ops.expand_blocks(value.blocks, value.kind)
        weights[name] = value.transposed and expanded:t() or expanded
      end
    end
  end
  return bytes
end

return block_weights
