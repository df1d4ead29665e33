--- Broadcasts several tensors.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, describe = core.ops, options.describe

-- Returns the tensors of a list as views of the common shape.
return function(who, list)
  local n, sizes = 0, {}
  for _, x in ipairs(list) do n = math.max(n, x.ndim) end
  for d = 1, n do sizes[d] = 1 end
  for _, x in ipairs(list) do
    local shape = x.shape
    for d, size in ipairs(shape) do
      local at = n - #shape + d
      if size ~= 1 then
        if sizes[at] ~= 1 and sizes[at] ~= size then
          local all = {}
          for i, each in ipairs(list) do all[i] = describe(each) end
          options.fail("%s: %s do not broadcast: dim %d is %d and %d", who, table.concat(all, ", "), at, sizes[at],
            size)
        end
        sizes[at] = size
      end
    end
  end
  local wide = {}
  for i, x in ipairs(list) do wide[i] = ops.expand(x, sizes) end
  return wide
end
