--- Implements Torch7's nInputDims: a layer's dim counts within a sample, and an input with one more dim is a batch.
local options = require "luminary.base.options"

local sample = {}

--- Returns the layer's input; fails if it is not a tensor.
function sample.input_of(self, x) return options.arg(self.__name, "the input", x, "tensor") end

--- Returns the dim of x that self.dim means.
function sample.dim_in(self, x)
  local dim, dims = self.dim, self.nInputDims
  return dims and dim > 0 and x.ndim == dims + 1 and dim + 1 or dim
end

return sample
