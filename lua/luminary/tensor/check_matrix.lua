local core = require "luminary.core"
local options = require "luminary.base.options"

--- Returns x, an argument of `who`; fails unless it is float32 or float64 matrices [..., m, n], with `square` m = n;
--- any_dtype: true to accept other dtypes.
return function(who, name, x, square, any_dtype)
  options.arg(who, name, x, "tensor")
  if not any_dtype and x.dtype ~= "float32" and x.dtype ~= "float64" and not core.is_autocast_enabled() then
    options.wrong_dtype(who, name, "float32 or float64", x, "convert it with :float()")
  end
  if x.ndim < 2 or square and x.shape[x.ndim] ~= x.shape[x.ndim - 1] then
    options.must_be(who, name, square and "a square matrix or a batch of them" or "a matrix or a batch of them", x)
  end
  return x
end
