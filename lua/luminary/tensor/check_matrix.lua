local core = require "luminary.core"
local options = require "luminary.base.options"

--- x, an argument of `who`, as float32 or float64 matrices [..., m, n]; with `square`, m and n are the same.
return function(who, name, x, square)
  options.arg(who, name, x, "tensor")
  if x.dtype ~= "float32" and x.dtype ~= "float64" and not core.is_autocast_enabled() then
    options.fail("%s: %s has to be float32 or float64, got %s; use :float()", who, name, x.dtype)
  end
  if x.ndim < 2 or square and x.shape[x.ndim] ~= x.shape[x.ndim - 1] then
    options.fail("%s: %s is %s; it has to be a %smatrix or a batch of them", who, name, options.describe(x),
      square and "square " or "")
  end
  return x
end
