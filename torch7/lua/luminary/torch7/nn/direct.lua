--- Computes nn.Linear of matrices by formulas, since recording a graph takes most of the time of small layers.
local core = require "luminary.core"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local ops, is, raw = core.ops, tensor.is, tensor.raw
local Linear = class.by_name["nn.Linear"]

-- Returns a matrix of the weight's type, and the gradient of the output; nil for other inputs.
local function matrices(self, input, gradOutput)
  local x, g = is(input) and raw(input), gradOutput == nil or is(gradOutput) and raw(gradOutput)
  if not (x and g and x.ndim == 2 and x:numel() > 0 and raw(self.weight).dtype == x.dtype) then return nil end
  return (g == true or g.dtype == x.dtype) and x or nil, g
end
function Linear:updateOutput(input)
  local x = matrices(self, input)
  if not x then return Leaf.updateOutput(self, input) end
  return Leaf.keep(self, "output", Leaf.value_of(self, x))
end
function Linear:updateGradInput(input, gradOutput)
  local x, g = matrices(self, input, gradOutput)
  if not x or self.gradInput == nil then return Leaf.updateGradInput(self, input, gradOutput) end
  return Leaf.keep(self, "gradInput", Leaf.named(self, ops.mm, g, raw(self.weight)))
end
function Linear:accGradParameters(input, gradOutput, scale)
  local x, g = matrices(self, input, gradOutput)
  if not x then return Leaf.accGradParameters(self, input, gradOutput, scale) end
  local scaled = {alpha = scale or 1}
  if self.gradWeight then ops.add_(raw(self.gradWeight), Leaf.named(self, ops.mm, ops.t(g), x), scaled) end
  if self.bias and self.gradBias then ops.add_(raw(self.gradBias), ops.sum(g, 1), scaled) end
end
-- Torch7's Linear ignores an input of 3 dims or more in backward; of those that forward refuses, so does this one.
for name, result in pairs {updateGradInput = Leaf.zeroGradInput, accGradParameters = function() end} do
  local of = Linear[name]
  Linear[name] = function(self, input, ...)
    local x = is(input) and raw(input)
    if not x or x.ndim < 3 or x:size(x.ndim) == self.weight:size(2) then return of(self, input, ...) end
    core.warn "nn.Linear: backward ignores an input of 3 or more dims, as in Torch7"
    return result(self, input)
  end
end
