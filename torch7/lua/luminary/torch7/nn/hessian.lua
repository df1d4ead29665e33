--- Implements nn.hessian: estimates of the Hessian's diagonal by backward passes with squared weights and inputs
--- (LeCun et al., "Efficient BackProp"). nn.hessian.enable() adds the methods to modules and criterions.
local core = require "luminary.core"
local class = require "luminary.torch7.class"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local Module = require "luminary.torch7.nn.module"
local ops, nn, raw = core.ops, class.packages.nn, tensor.raw

local function squared(t) return tensor.wrap(ops.square(raw(t))) end

-- Calls f with other tensors in fields of a module; puts the old ones back.
local function with_fields(module, fields, f)
  local old = {}
  for name, v in pairs(fields) do old[name], module[name] = module[name], v end
  local ok, err = pcall(f)
  for name, v in pairs(old) do module[name] = v end
  if not ok then error(err, 0) end
end

-- For layers that are linear in the input, and for those of one element at a time.
local function by_squares(self, input, diagonal)
  local g = input:clone():zero()
  with_fields(self, {weight = squared(self.weight), gradInput = g}, function()
    self.diagHessianInput = self:updateGradInput(input, diagonal):clone()
  end)
  return self.diagHessianInput
end
local function by_elements(self, input, diagonal)
  with_fields(self, {gradInput = input:clone()}, function()
    local slope = self:updateGradInput(input, diagonal:clone():fill(1))
    self.diagHessianInput = squared(slope):cmul(diagonal)
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
  local x = squared(input)
  with_fields(self, {gradWeight = self.diagHessianWeight, gradBias = self.bias and self.diagHessianBias or nil,
    output = self.output:clone()}, function()
    self:forward(x)
    self:accGradParameters(x, diagonal, 1)
  end)
end

local function enable()
  function Module:updateDiagHessianInput()
    options.fail("%s:updateDiagHessianInput is not defined", class.typename(self))
  end
  function Module:accDiagHessianParameters() end -- luacheck: ignore self
  function Module:initDiagHessianParameters() end -- luacheck: ignore self
  for _, name in ipairs {"Linear", "SpatialConvolution", "SpatialConvolutionLocal", "SpatialFullConvolution",
    "SpatialConvolutionMap", "SpatialFullConvolutionMap"} do
    local layer = class.by_name["nn." .. name]
    layer.updateDiagHessianInput, layer.accDiagHessianParameters = by_squares, acc_parameters
    layer.initDiagHessianParameters = init_parameters
  end
  for _, name in ipairs {"Tanh", "TanhShrink", "Sigmoid", "Square", "Sqrt"} do
    class.by_name["nn." .. name].updateDiagHessianInput = by_elements
  end
  class.by_name["nn.Reshape"].updateDiagHessianInput = function(self, input, diagonal)
    self.diagHessianInput = diagonal:contiguous():viewAs(input)
    return self.diagHessianInput
  end
  local Sequential = class.by_name["nn.Sequential"]
  function Sequential:initDiagHessianParameters()
    for _, module in ipairs(self.modules) do module:initDiagHessianParameters() end
  end
  -- Calls f(module, its input, the diagonal of its output) from the last module to the first; f returns the next.
  local function backwards(self, input, diagonal, f)
    for i = #self.modules, 1, -1 do
      diagonal = f(self.modules[i], i > 1 and self.modules[i - 1].output or input, diagonal)
    end
    return diagonal
  end
  function Sequential:updateDiagHessianInput(input, diagonal)
    self.diagHessianInput = backwards(self, input, diagonal, function(m, x, d) return m:updateDiagHessianInput(x, d) end)
    return self.diagHessianInput
  end
  function Sequential:accDiagHessianParameters(input, diagonal)
    backwards(self, input, diagonal, function(m, x, d)
      m:accDiagHessianParameters(x, d)
      return m.diagHessianInput
    end)
  end
  local function constant_curvature(self, input)
    self.diagHessianInput = input:clone():fill(self.sizeAverage and 2 / input:nElement() or 2)
    return self.diagHessianInput
  end
  for _, name in ipairs {"MSECriterion", "WeightedMSECriterion"} do
    class.by_name["nn." .. name].updateDiagHessianInput = constant_curvature
  end
  -- x, dx, diagonal = net:getParameters(): the third vector has the diagonals.
  local flat = Module.getParameters
  function Module:getParameters()
    local diagonals = {}
    self:apply(function(m)
      for _, name in ipairs {"weight", "bias"} do
        local d = m["diagHessian" .. name:gsub("^%l", string.upper)]
        if m[name] and d then diagonals[#diagonals + 1] = d end
      end
    end)
    local x, dx = flat(self)
    return x, dx, #diagonals > 0 and Module.flatten(diagonals) or nil
  end
end

local enabled = false
nn.hessian = {enable = function()
  if not enabled then enable() end
  enabled = true
end}

-- ---- checks of it

local Jacobian = nn.Jacobian

--- Returns the largest difference between the diagonal of the Hessian of |y|² / 2 by nn.hessian and by squares of first
--- derivatives, which is right for a module that is linear in its input and parameters.
function Jacobian.testDiagHessian(module, input, grad, diagonal, minval, maxval)
  input:uniform(minval or -2, maxval or 2)
  module:initDiagHessianParameters()
  local ones = module:forward(input):clone():fill(1)
  for _, name in ipairs {"diagHessianWeight", "diagHessianBias"} do
    if module[name] then module[name]:zero() end
  end
  module:updateDiagHessianInput(input, ones)
  module:accDiagHessianParameters(input, ones)
  module:forward(input)
  local sum, g = raw(module[diagonal]):clone():zero_(), raw(ones):clone()
  for i = 1, g:numel() do
    g:zero_()
    g:view({-1}):narrow(1, i, 1):fill_(1)
    module:zeroGradParameters()
    module:updateGradInput(input, tensor.wrap(g))
    module:accGradParameters(input, tensor.wrap(g))
    sum:add_(ops.square(raw(module[grad])):reshape(sum.shape))
  end
  return ops.amax(ops.abs(ops.sub(sum, raw(module[diagonal])))):item()
end
for name, fields in pairs {Input = "gradInput diagHessianInput", Weight = "gradWeight diagHessianWeight",
  Bias = "gradBias diagHessianBias"} do
  local grad, diagonal = fields:match "(%S+) (%S+)"
  Jacobian["testDiagHessian" .. name] = function(module, input, minval, maxval)
    return Jacobian.testDiagHessian(module, input, grad, diagonal, minval, maxval)
  end
end
