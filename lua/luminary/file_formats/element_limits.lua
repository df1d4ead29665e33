--- Limits the number of elements of a file's tensors that may be read or copied. Tensors in torch.save's and Torch7's
--- files are views of storages: a file of a few bytes may describe views that repeat its elements to any size.
local core = require "luminary.core"
local Source = require "luminary.file_formats.source"

local KINDS = {"torch%.save", "Torch7"} -- the kinds, as formats.load names them, that may repeat elements

--- Returns take(tensor), for a file of formats.load: true if the tensor may be read in addition to the tensors taken
--- before. A rejected tensor does not count.
return function(file)
  local left = math.huge
  for _, kind in ipairs(KINDS) do
    if file.kind:find(kind) then
      left = Source.MOST_REPEATED + (file.lacking.bytes or select(2, core.file_kind(file.path)) or 0)
    end
  end
  return function(t)
    local fits = t:numel() <= left
    if fits then left = left - t:numel() end
    return fits
  end
end
