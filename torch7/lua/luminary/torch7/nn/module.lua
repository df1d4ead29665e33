--- Implements Torch7's nn.Module, the methods of all layers and containers.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local files = require "luminary.torch7.files"
local ours = require "luminary.nn"
local fail = options.fail

local Module = class.new "nn.Module"

function Module:__init()
  self.gradInput, self.output, self.train = tensor.new(tensor.default), tensor.new(tensor.default), true
end

function Module:parameters()
  if not self.weight and not self.bias then return {}, {} end
  local params, grads = {}, {}
  for _, name in ipairs {"weight", "bias"} do
    if self[name] then
      params[#params + 1], grads[#grads + 1] = self[name], self["grad" .. name:gsub("^%l", string.upper)]
    end
  end
  return params, grads
end

function Module:updateOutput() return self.output end
function Module:updateGradInput() return self.gradInput end
function Module:accGradParameters() end -- luacheck: ignore self
function Module:forward(input) return self:updateOutput(input) end
Module.__call = function(self, input) return self:forward(input) end

function Module:backward(input, gradOutput, scale)
  self:updateGradInput(input, gradOutput)
  self:accGradParameters(input, gradOutput, scale or 1)
  return self.gradInput
end

--- Writes the fields of a module for torch.save; torch.load reads them.
function Module:write(file) file:writeObject(files.fields_of(self)) end
Module.read = files.read_fields

function Module:children() return self.modules or {} end

--- Initializes parameters again, as for a new module; does nothing in this base class.
function Module:reset() -- luacheck: ignore self
end

function Module:apply(f)
  f(self)
  for _, child in ipairs(self:children()) do child:apply(f) end
  return self
end

local function set_train(on)
  return function(self)
    return self:apply(function(m)
      m.train = on
      if m.inner then m.inner:train(on) end
    end)
  end
end
Module.training, Module.evaluate = set_train(true), set_train(false)

--- Shares the tensors of these names, "weight", "bias", …, with another module of the same kind.
function Module:share(other, ...)
  for _, name in ipairs {...} do
    if tensor.is(rawget(self, name)) then self[name]:set(other[name]) end
  end
  if self.inner then self:adopt() end
  return self
end

function Module:backwardUpdate(input, gradOutput, rate)
  self:updateGradInput(input, gradOutput)
  self:accUpdateGradParameters(input, gradOutput, rate)
  return self.gradInput
end

--- Subtracts rate times this backward's gradients from the parameters; the accumulated gradients stay.
function Module:accUpdateGradParameters(input, gradOutput, rate)
  local params, grads = self:parameters()
  local before = lists.map(grads, function(g) return g:clone() end)
  self:zeroGradParameters()
  self:accGradParameters(input, gradOutput, 1)
  self:updateParameters(rate)
  for i in ipairs(params) do grads[i]:copy(before[i]) end
end

--- Replaces each module by f(module), children before their container.
function Module:replace(f)
  for i, child in ipairs(self:children()) do self.modules[i] = child:replace(f) end
  return f(self)
end

function Module:zeroGradParameters()
  local _, grads = self:parameters()
  for _, g in ipairs(grads) do g:zero() end
end

function Module:updateParameters(rate)
  local params, grads = self:parameters()
  for i, p in ipairs(params) do p:add(-rate, grads[i]) end
end

--- x, dx = net:getParameters(): Returns all parameters and all gradients as two vectors, and makes them views of these.
function Module:getParameters()
  local params, grads = self:parameters()
  if #params == 0 then fail("getParameters: the module has no parameters") end
  local vectors = {}
  for k, list in ipairs {params, grads} do
    local seen, parts, n = {}, {}, 0
    for _, t in ipairs(list) do
      if not seen[t] then
        parts[#parts + 1], seen[t], n = t, true, n + t:nElement()
      end
    end
    local flat, first = params[1].new(params[1], n), 1
    for _, t in ipairs(parts) do
      local place = flat:narrow(1, first, t:nElement()):viewAs(t)
      place:copy(t)
      t:set(place)
      first = first + t:nElement()
    end
    vectors[k] = flat
  end
  self:apply(function(m)
    if m.inner then m:adopt() end
  end)
  return vectors[1], vectors[2]
end

local function copy_of(v, made)
  if made[v] then return made[v] end
  if tensor.is(v) then
    made[v] = v:clone()
  elseif type(v) == "userdata" and ours.Module.is_module(v) then
    made[v] = v:clone()
  elseif type(v) == "table" and (getmetatable(v) == nil or class.typename(v)) then
    local new = setmetatable({}, getmetatable(v))
    made[v] = new
    for key, each in pairs(v) do
      if key ~= "taped" and key ~= "value" and key ~= "inputs" then new[key] = copy_of(each, made) end
    end
  else
    return v
  end
  return made[v]
end

Module.copy_of = copy_of

--- Returns a copy with its own parameters, except those named, "weight", "gradWeight", …, which both share.
function Module:clone(...)
  local twin = copy_of(self, {})
  local theirs, names = self:listModules(), {...}
  for i, m in ipairs(twin:listModules()) do m:share(theirs[i], unpack(names)) end
  return twin
end

function Module:listModules()
  local list = {self}
  for _, child in ipairs(self:children()) do lists.append(list, child:listModules()) end
  return list
end

function Module:findModules(name)
  return lists.filter(self:listModules(), function(m) return class.typename(m) == name end)
end

function Module:clearState()
  return self:apply(function(m) m.output, m.gradInput, m.taped = tensor.new "float32", tensor.new "float32", nil end)
end

function Module:type(name)
  if name == nil then
    local first = self:parameters()[1]
    return first and first:type() or "torch." .. (tensor.default == "float64" and "DoubleTensor" or "FloatTensor")
  end
  return self:apply(function(m)
    for _, v in pairs(m) do
      if tensor.is(v) and not v:type():find "Long" then v:set(v:type(name)) end
    end
    if not m.inner then return end
    m.inner:to(name == "torch.CudaTensor" and "cuda" or tensor.dtype_of(name))
    if name == "torch.CudaTensor" then m.inner:to "float32" end
    m:adopt()
  end)
end
for name, kind in pairs {float = "FloatTensor", double = "DoubleTensor", cuda = "CudaTensor"} do
  Module[name] = function(self) return self:type("torch." .. kind) end
end

return Module
