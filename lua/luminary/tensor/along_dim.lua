local ops = require("luminary.core").ops

--- Returns the entries of x as a tensor of `ndim` dims that has them along `dim`, and size 1 in all other dims.
return function(x, dim, ndim)
  local shape = {}
  for d = 1, ndim do shape[d] = d == dim and x:numel() or 1 end
  return ops.reshape(x, shape)
end
