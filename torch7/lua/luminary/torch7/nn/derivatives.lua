--- Implements nn.Jacobian, which compares the gradients of a module with central differences, and nn.hessian: estimates
--- of the Hessian's diagonal by backward passes with squared weights and inputs (LeCun et al., "Efficient BackProp").
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local files = require "luminary.torch7.files"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local ops, nn, raw = core.ops, class.packages.nn, tensor.raw

local function values(n) return tensor.new(tensor.default, n):zero() end
local function flat(t) return t:dim() == 1 and t or t:view(t:nElement()) end

-- Fills a tensor with numbers from low to high.
local function fill(t, low, high) flat(t):copy(values(t:nElement()):uniform(low or -2, high or 2)) end

-- Returns a matrix whose i-th column is column(gradOutput), with gradOutput 1 at element i of the output and else 0.
local function by_columns(module, input, rows, column)
  local g = module:forward(input):clone():zero()
  local ones, matrix = flat(g), values(rows * g:nElement()):view(rows, g:nElement())
  for i = 1, ones:nElement() do
    ones:zero()
    ones[i] = 1
    matrix:select(2, i):copy(flat(column(g):contiguous()))
  end
  return matrix
end

local function largest(a, b) return (a - b):abs():max() end

-- Returns a table of checks; part(input) is the part of an input that has values.
local function checks(part)
  local Jacobian = {}
  --- Returns the Jacobian [elements of input, elements of output] by backward; that of a parameter if param and dparam
  --- are given.
  function Jacobian.backward(module, input, param, dparam)
    return by_columns(module, input, (param or part(input)):nElement(), function(g)
      module:zeroGradParameters()
      local dx = module:updateGradInput(input, g)
      module:accGradParameters(input, g)
      return param and dparam or part(dx)
    end)
  end

  --- Returns the change of a parameter by accUpdateGradParameters with rate 1, with its sign changed.
  function Jacobian.backwardUpdate(module, input, param)
    local before = param:clone()
    local all = {}
    for i, p in ipairs((module:parameters())) do all[i] = p:clone() end
    local function restore()
      for i, p in ipairs((module:parameters())) do p:copy(all[i]) end
    end
    local matrix = by_columns(module, input, param:nElement(), function(g)
      restore()
      module:forward(input)
      module:updateGradInput(input, g)
      module:accUpdateGradParameters(input, g, 1)
      return before - param
    end)
    restore()
    return matrix
  end

  --- Returns the Jacobian by central differences.
  function Jacobian.forward(module, input, param, perturbation)
    param = param or part(input)
    local e, rows, elements = perturbation or 1e-6, param:nElement(), flat(param)
    local matrix
    for i = 1, rows do
      local before = elements[i]
      elements[i] = before + e
      local up = flat(module:forward(input):contiguous()):clone()
      elements[i] = before - e
      local down = flat(module:forward(input):contiguous()):clone()
      elements[i] = before
      matrix = matrix or values(rows * up:nElement()):view(rows, up:nElement())
      matrix:select(1, i):copy((up - down) / (2 * e))
    end
    return matrix
  end
  Jacobian.forwardUpdate = Jacobian.forward

  -- Returns a check of a Jacobian by backward: the largest difference from that by central differences, for an input,
  -- and a parameter if it is given, of numbers from minval to maxval.
  local function compared(backward)
    return function(module, input, param, dparam, minval, maxval, perturbation)
      fill(part(input), minval, maxval)
      if param then fill(param, minval, maxval) end
      local found = backward(module, input, param, dparam)
      return largest(found, Jacobian.forward(module, input, param, perturbation))
    end
  end
  Jacobian.testJacobianParameters = compared(Jacobian.backward)
  local updated = compared(Jacobian.backwardUpdate)
  function Jacobian.testJacobian(module, input, ...)
    return Jacobian.testJacobianParameters(module, input, nil, nil, ...)
  end
  function Jacobian.testJacobianUpdateParameters(module, input, param, ...)
    return updated(module, input, param, nil, ...)
  end

  --- Saves a module and loads it again; returns the largest differences of its output and of its gradient.
  function Jacobian.testIO(module, input, minval, maxval)
    fill(part(input), minval, maxval)
    local g = module:forward(input):clone():uniform()
    module:zeroGradParameters()
    local copy = files.deserialize(files.serialize(module))
    local dx = module:backward(input, g):clone()
    local y = copy:forward(input)
    copy:zeroGradParameters()
    return largest(y, module.output), largest(copy:backward(input, g), dx)
  end

  --- Returns the errors of steps of a parameter by accGradParameters and accUpdateGradParameters, by name.
  function Jacobian.testAllUpdate(module, input, weight, gradWeight)
    local rate, scale = 0.1, 0.7
    local g, start, found, step = module:forward(input):clone():uniform(), module[weight]:clone(), {}, nil
    for _, name in ipairs {"accGradParameters", "accUpdateGradParameters"} do
      module:zeroGradParameters()
      module:forward(input)
      module:updateGradInput(input, g)
      module[name](module, input, g, step and rate or scale)
      if not step then
        step = module[gradWeight] * (rate / scale)
        module:updateParameters(rate / scale)
      end
      found[name] = (start - module[weight] - step):norm()
      module[weight]:copy(start)
    end
    return found
  end
  return Jacobian
end

nn.Jacobian = checks(function(x) return x end)
--- nn.SparseJacobian: the same checks of inputs whose second column has the values.
nn.SparseJacobian = checks(function(x) return x:select(2, 2) end)

-- ---- the Hessian's diagonal

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
local parameters_alone = Module.getParameters
-- x, dx, diagonal = net:getParameters()
function Module:getParameters()
  local diagonals = {}
  self:apply(function(m)
    diagonals[#diagonals + 1] = m.weight and m.diagHessianWeight
    diagonals[#diagonals + 1] = m.bias and m.diagHessianBias
  end)
  if #diagonals == 0 then return parameters_alone(self) end
  local x, dx = parameters_alone(self)
  return x, dx, Module.flatten(diagonals)
end
nn.hessian = {enable = function() end} -- scripts call it first

-- Defines checks: they return the largest difference between the diagonal of the Hessian of |y|² / 2 by nn.hessian and
-- by squares of first derivatives, which is right for a module that is linear in its input and parameters.
for _, name in ipairs {"Input", "Weight", "Bias"} do
  nn.Jacobian["testDiagHessian" .. name] = function(module, input, minval, maxval)
    input:uniform(minval or -2, maxval or 2)
    module:initDiagHessianParameters()
    local ones = module:forward(input):clone():fill(1)
    for _, field in ipairs {"diagHessianWeight", "diagHessianBias"} do
      if module[field] then module[field]:zero() end
    end
    module:updateDiagHessianInput(input, ones)
    module:accDiagHessianParameters(input, ones)
    local found = module["diagHessian" .. name]
    local rows = raw(nn.Jacobian.backward(module, input, name ~= "Input" and found or nil, module["grad" .. name]))
    return ops.amax(ops.abs(ops.sub(ops.sum(ops.square(rows), 2), ops.reshape(raw(found), {-1})))):item()
  end
end
