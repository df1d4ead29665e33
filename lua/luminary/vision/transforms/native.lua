--- Runs transforms of C by name, on an image or on each of a batch. A result may be written to `out`, if it is passed;
--- compare the result with `out` to find if it was.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail, describe = options.fail, options.describe

local native = {}

--- Returns height, width and channels.
function native.size(x)
  local shape = x.shape
  local n = #shape
  return shape[n - 1], shape[n], n > 2 and shape[n - 2] or 1
end

--- native.run(name, x, numbers [, out]): Runs a transform of C by its name (src/image/transform.h).
native.run = core.image_transform

--- Returns the results of f(image, out) for each image of a batch, as a batch.
function native.each(who, x, f)
  local n = x.shape[1]
  if n == 0 then fail("%s: the batch must not be empty, got %s", who, describe(x)) end
  local all
  for i = 1, n do
    local to = all and all:select(1, i)
    local y = f(x:select(1, i), to)
    if not core.is_tensor(y) then
      fail("%s: image %d of the batch became %s; apply transforms that do not return images to one image at a time",
        who, i, describe(y))
    end
    if not all then
      all = core.ops.empty({n, unpack(y.shape)}, {dtype = y.dtype, device = y.device})
      to = all:select(1, i)
    end
    if y ~= to then
      if y.shape ~= to.shape or y.dtype ~= to.dtype then
        fail("%s: image %d of the batch became %s of %s, those before %s of %s", who, i, describe(y), y.dtype,
          describe(to), to.dtype)
      end
      to:copy_(y)
    end
  end
  return all
end

return native
