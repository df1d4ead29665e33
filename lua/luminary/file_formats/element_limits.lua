--- How many elements of a file's tensors may be read or copied. Tensors of torch.save's and Torch7's files are views of
--- storages: a file of a few bytes may describe views that repeat its elements to any size.
local core = require "luminary.core"
local Source = require "luminary.file_formats.source"

local KINDS = {"torch%.save", "Torch7"} -- of files that may repeat elements, as formats.load names them

--- take(tensor) for a file as formats.load returns it: whether the tensor, with those taken before, may be read whole.
--- One that may not is not counted.
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
