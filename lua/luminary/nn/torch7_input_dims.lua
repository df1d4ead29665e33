--- Torch7's nInputDims: a layer's dim is meant in a sample, and an input of one dim more is a batch of these.
local options = require "luminary.base.options"

local sample = {}

--- The layer's input, which must be a tensor.
function sample.input_of(self, x) return options.arg(self.__name, "the input", x, "tensor") end

--- Where self.dim is in an input of x's dims.
function sample.dim_in(self, x)
  local dim, dims = self.dim, self.nInputDims
  return dims and dim > 0 and x.ndim == dims + 1 and dim + 1 or dim
end

return sample
