--- Computes frequent layers by formulas instead of a recorded graph, whose recording takes most of the time of small
--- layers. Inputs that a formula does not cover go through the graph.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local shared = require "luminary.torch7.shared_layers"
local Leaf = require "luminary.torch7.nn.leaf"
local ops, is, raw, keep = core.ops, tensor.is, tensor.raw, Leaf.keep

-- Conditions of inputs, which return luminary's tensors or nil.
local function one(self, input)
  local x = is(input) and not self.inplace and raw(input)
  return x and core.is_floating_point(x) and x:numel() > 0 and x
end
local function matrix(self, input)
  local x = one(self, input)
  return x and x.ndim == 2 and (not self.weight or raw(self.weight).dtype == x.dtype) and x
end
local function alike(self, input)
  if type(input) ~= "table" or self.inplace or #input < 2 then return nil end
  local list = {}
  for i, v in ipairs(input) do
    local x = is(v) and raw(v)
    if not x or not core.is_floating_point(x) or i > 1 and (x.shape ~= list[1].shape or x.dtype ~= list[1].dtype) then
      return nil
    end
    list[i] = x
  end
  return list
end
local function pair(self, input) return #input == 2 and alike(self, input) end

local function first(v) return type(v) == "table" and v[1] or v end

-- Defines the layer's input_gradient(self, x, g) and accumulate(self, x, g, {alpha}), where `fits` returns the input's
-- tensors; g is a tensor of the output's sizes, or a list.
local function direct(name, fits, input_gradient, accumulate)
  local Class = class.by_name["nn." .. name]
  function Class:updateOutput(input)
    local x = fits(self, input)
    if not x then return Leaf.updateOutput(self, input) end
    return keep(self, "output", Leaf.value_of(self, x))
  end
  -- Returns the tensors of the input and of the gradient if the formula covers these.
  local function covered(self, input, gradOutput)
    local x, g = fits(self, input), is(gradOutput) and raw(gradOutput)
    if name == "SplitTable" then g = alike({}, gradOutput) end
    return x and g and first(g).dtype == first(x).dtype and x, g
  end
  function Class:updateGradInput(input, gradOutput)
    local x, g = covered(self, input, gradOutput)
    if not x or self.gradInput == nil then return Leaf.updateGradInput(self, input, gradOutput) end
    return keep(self, "gradInput", Leaf.named(self, input_gradient, self, x, g))
  end
  function Class:accGradParameters(input, gradOutput, scale)
    if not accumulate then return end
    local x, g = covered(self, input, gradOutput)
    if not x then return Leaf.accGradParameters(self, input, gradOutput, scale) end
    Leaf.named(self, accumulate, self, x, g, {alpha = scale or 1})
  end
end

-- Returns f with the gradient in x's sizes.
local function of_elements(f)
  return function(self, x, g) return f(self, x, tensor.fitted("nn: gradOutput", first(x), g)) end
end

direct("Linear", matrix, function(self, _, g) return ops.mm(g, raw(self.weight)) end, function(self, x, g, scaled)
  if self.gradWeight then ops.add_(raw(self.gradWeight), ops.mm(ops.t(g), x), scaled) end
  if self.bias and self.gradBias then ops.add_(raw(self.gradBias), ops.sum(g, 1), scaled) end
end)
-- Torch7's Linear ignores an input of 3 dims or more in backward; of those that forward refuses, so does this one.
local Linear = class.by_name["nn.Linear"]
for name, result in pairs {updateGradInput = Leaf.zeroGradInput, accGradParameters = function() end} do
  local of = Linear[name]
  Linear[name] = function(self, input, ...)
    local x = is(input) and raw(input)
    if not x or x.ndim < 3 or x:size(x.ndim) == self.weight:size(2) then return of(self, input, ...) end
    core.warn "nn.Linear: backward ignores an input of 3 or more dims, as in Torch7"
    return result(self, input)
  end
end
direct("CAddTable", alike, of_elements(function(_, x, g) return lists.map(x, function() return ops.clone(g) end) end))
direct("CMulTable", pair, of_elements(function(_, x, g) return {ops.mul(g, x[2]), ops.mul(g, x[1])} end))
for _, name in ipairs {"Reshape", "View"} do
  direct(name, one, function(_, x, g) return ops.reshape(g, x.shape) end)
end
direct("SplitTable", one, function(self, x, g)
  return ops.stack(g, shared.dim_in(x, self.dimension, self.nInputDims))
end)
