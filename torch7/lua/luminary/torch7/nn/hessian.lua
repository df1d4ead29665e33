--- Implements nn.hessian: estimates of the Hessian's diagonal by backward passes with squared weights and inputs
--- (LeCun et al., "Efficient BackProp"). nn.hessian.enable() adds the methods to modules and criterions.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local ops, nn, raw = core.ops, class.packages.nn, tensor.raw

local function squared(t) return tensor.wrap(ops.square(raw(t))) end

-- Calls f with other values in fields of a module; puts the old ones back.
local function with_fields(module, fields, f)
  local old = lists.copy(module)
  for name, v in pairs(fields) do module[name] = v end
  return options.restoring(function() for name in pairs(fields) do module[name] = old[name] end end, f)
end

-- For layers that are linear in the input, and for those of one element at a time.
local function update_input(self, input, diagonal)
  local fields = {gradInput = input:clone(), weight = self.weight and squared(self.weight)}
  self.diagHessianInput = with_fields(self, fields, function()
    if self.weight then return self:updateGradInput(input, diagonal):clone() end
    return squared(self:updateGradInput(input, diagonal:clone():fill(1))):cmul(diagonal)
  end)
  return self.diagHessianInput
end

local function init_parameters(self)
  for _, name in ipairs {"Weight", "Bias"} do
    local g = self["grad" .. name]
    if g then self["diagHessian" .. name] = self["diagHessian" .. name] or g:clone():zero() end
  end
end

local function acc_parameters(self, input, diagonal)
  init_parameters(self)
  with_fields(self, {gradWeight = self.diagHessianWeight, gradBias = self.bias and self.diagHessianBias,
    output = self.output:clone()}, function()
    self:forward(squared(input))
    self:accGradParameters(squared(input), diagonal, 1)
  end)
end

-- Calls f(module, its input, the diagonal of its output) from the last module to the first; f returns the next.
local function backwards(self, input, diagonal, f)
  for i = #self.modules, 1, -1 do
    diagonal = f(self.modules[i], i > 1 and self.modules[i - 1].output or input, diagonal)
  end
  self.diagHessianInput = diagonal
  return diagonal
end

local function enable()
  function Module:accDiagHessianParameters() end -- luacheck: ignore self
  Module.initDiagHessianParameters = init_parameters
  for name in ("Linear SpatialConvolution SpatialConvolutionLocal SpatialFullConvolution SpatialConvolutionMap " ..
    "SpatialFullConvolutionMap Tanh TanhShrink Sigmoid Square Sqrt"):gmatch "%S+" do
    local layer = class.by_name["nn." .. name]
    layer.updateDiagHessianInput = update_input
    layer.accDiagHessianParameters = name:find "^Li" and acc_parameters or name:find "Conv" and acc_parameters or nil
  end
  function nn.Reshape:updateDiagHessianInput(input, diagonal)
    self.diagHessianInput = diagonal:contiguous():viewAs(input)
    return self.diagHessianInput
  end
  function nn.Sequential:initDiagHessianParameters()
    for _, module in ipairs(self.modules) do module:initDiagHessianParameters() end
  end
  function nn.Sequential:updateDiagHessianInput(input, diagonal)
    return backwards(self, input, diagonal, function(m, x, d) return m:updateDiagHessianInput(x, d) end)
  end
  function nn.Sequential:accDiagHessianParameters(input, diagonal)
    backwards(self, input, diagonal, function(m, x, d)
      m:accDiagHessianParameters(x, d)
      return m.diagHessianInput
    end)
  end
  function nn.MSECriterion:updateDiagHessianInput(input)
    self.diagHessianInput = input:clone():fill(self.sizeAverage and 2 / input:nElement() or 2)
    return self.diagHessianInput
  end
  local flat = Module.getParameters
  -- x, dx, diagonal = net:getParameters()
  function Module:getParameters()
    local diagonals = {}
    self:apply(function(m)
      diagonals[#diagonals + 1] = m.weight and m.diagHessianWeight
      diagonals[#diagonals + 1] = m.bias and m.diagHessianBias
    end)
    local x, dx = flat(self)
    return x, dx, #diagonals > 0 and Module.flatten(diagonals) or nil
  end
end
nn.hessian = {enable = function()
  if enable then enable() end
  enable = nil
end}

local Jacobian = nn.Jacobian
-- Defines checks: they return the largest difference between the diagonal of the Hessian of |y|² / 2 by nn.hessian and
-- by squares of first derivatives, which is right for a module that is linear in its input and parameters.
for _, name in ipairs {"Input", "Weight", "Bias"} do
  Jacobian["testDiagHessian" .. name] = function(module, input, minval, maxval)
    input:uniform(minval or -2, maxval or 2)
    module:initDiagHessianParameters()
    local ones = module:forward(input):clone():fill(1)
    for _, field in ipairs {"diagHessianWeight", "diagHessianBias"} do
      if module[field] then module[field]:zero() end
    end
    module:updateDiagHessianInput(input, ones)
    module:accDiagHessianParameters(input, ones)
    local found = module["diagHessian" .. name]
    local rows = raw(Jacobian.backward(module, input, name ~= "Input" and found or nil, module["grad" .. name]))
    return ops.amax(ops.abs(ops.sub(ops.sum(ops.square(rows), 2), ops.reshape(raw(found), {-1})))):item()
  end
end
