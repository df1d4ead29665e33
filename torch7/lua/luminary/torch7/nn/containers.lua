--- Defines Torch7's containers, which call their modules' updateOutput, updateGradInput and accGradParameters.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local fail, ops = options.fail, core.ops
local wrap, added = tensor.wrap, tensor.added

local Container = Module.define("Container", "Module", function(self) self.modules = {} end)
-- Makes net[i] the i-th module of a Sequential, so that #net is their number: LuaJIT ignores __len of tables.
local function numbered(self)
  if type(self.modules) == "table" and class.isTypeOf(self, "nn.Sequential") then
    for i = 1, math.max(#self, #self.modules) do rawset(self, i, self.modules[i]) end
  end
  return self
end
function Container:read(file)
  Module.read(self, file)
  numbered(self)
end
function Container:add(module)
  if module == nil then return self end -- as in Torch7, where programs rely on it
  if type(module) ~= "table" or not class.isTypeOf(module, "nn.Module") then
    options.expected(class.typename(self) .. ":add", "a module", module)
  end
  table.insert(self.modules, module)
  return numbered(self)
end
function Container:get(i) return self.modules[i] end
function Container:size() return #self.modules end
-- Returns index, or n without it; fails unless it is from 1 to n.
local function place_of(self, who, index, n)
  index = options.arg(class.typename(self) .. ":" .. who, "index", index or n, "integer")
  if n > 0 and (index < 1 or index > n) then
    options.must_be(class.typename(self) .. ":" .. who, "index", "from 1 to " .. n, index)
  end
  return index
end
function Container:insert(module, at)
  table.insert(self.modules, place_of(self, "insert", at, #self.modules + 1), module)
  numbered(self)
end
function Container:remove(at)
  local module = table.remove(self.modules, place_of(self, "remove", at, #self.modules))
  numbered(self)
  return module
end
function Container:parameters()
  local params, grads = {}, {}
  for _, module in ipairs(self.modules) do
    local p, g = module:parameters()
    for i, each in ipairs(p or {}) do params[#params + 1], grads[#grads + 1] = each, g[i] end
  end
  return params, grads
end
--- Returns module[name](module, …), which containers of scripts call this way.
function Container.rethrowErrors(_, module, _, name, ...) return module[name](module, ...) end
function Container:reset(stdv)
  for _, module in ipairs(self.modules) do module:reset(stdv) end
end
-- Defines a container by its constructor, forward and backward: init(self, …), run(self, input), back(self, input,
-- gradOutput, go). go(module, input, gradOutput) is the module's updateGradInput, accGradParameters or both. Its
-- backward goes over the modules once: always if `in_one_pass`, else unless a script's class has one of the two itself.
local function container(name, init, run, back, in_one_pass)
  local new = Module.define(name, "Container", init, run, function(self, input, gradOutput)
    return back(self, input, gradOutput, function(m, x, g) return m:updateGradInput(x, g) end)
  end)
  function new:accGradParameters(input, gradOutput, scale)
    back(self, input, gradOutput, function(m, x, g)
      m:accGradParameters(x, g, scale)
      return m.gradInput
    end)
  end
  function new:backward(input, gradOutput, scale)
    if not in_one_pass and (self.updateGradInput ~= new.updateGradInput
      or self.accGradParameters ~= new.accGradParameters) then
      return Module.backward(self, input, gradOutput, scale)
    end
    self.gradInput = back(self, input, gradOutput, function(m, x, g) return m:backward(x, g, scale) end)
    return self.gradInput
  end
  return new
end

container("Sequential", nil, function(self, x)
  for _, module in ipairs(self.modules) do x = module:forward(x) end
  return x
end, function(self, input, grad, go)
  for i = #self.modules, 1, -1 do grad = go(self.modules[i], i > 1 and self.modules[i - 1].output or input, grad) end
  return grad
end, true)

-- Returns the list of the modules' results.
local function to_each(self, input)
  return lists.map(self.modules, function(module) return module:forward(input) end)
end

container("ConcatTable", nil, to_each, function(self, input, grads, go)
  local sum
  for i, module in ipairs(self.modules) do sum = added(sum, go(module, input, grads[i])) end
  return sum
end, true)
container("ParallelTable", nil, function(self, input)
  return lists.map(self.modules, function(module, i) return module:forward(input[i]) end)
end, function(self, input, grads, go)
  return lists.map(self.modules, function(module, i) return go(module, input[i], grads[i]) end)
end)
local function set_dimension(self, dimension)
  self.dimension = dimension and options.arg(self.__typename, "dimension", dimension, "count")
end
-- Returns the middle of a larger tensor with the sizes of `part`, from `first` on along the joined dim.
local function middle(whole, part, dimension, first)
  for d = 1, part:dim() do
    local n = part:size(d)
    whole = whole:narrow(d, d == dimension and first or math.floor((whole:size(d) - n) / 2) + 1, n)
  end
  return whole
end
-- Calls go for each module with its part of the gradient; returns the sum of the results.
local function by_parts(self, input, grad, go)
  local sum, first = nil, 1
  for _, module in ipairs(self.modules) do
    sum = added(sum, go(module, input, middle(grad, module.output, self.dimension, first)))
    first = first + module.output:size(self.dimension)
  end
  return sum
end
container("Concat", set_dimension, function(self, input)
  return wrap(ops.cat(tensor.raw_all(to_each(self, input)), self.dimension))
end, by_parts, true)

container("Parallel", function(self, input, output)
  self.inputDimension = input and options.arg("nn.Parallel", "inputDimension", input, "count")
  self.outputDimension = output and options.arg("nn.Parallel", "outputDimension", output, "count")
end, function(self, input)
  local out = {}
  for i = 1, input:size(self.inputDimension) do
    out[i] = self.modules[i]:forward(input:select(self.inputDimension, i))
  end
  return wrap(ops.cat(tensor.raw_all(out), self.outputDimension))
end, function(self, input, grad, go)
  local result, first = input:clone():zero(), 1
  for i = 1, input:size(self.inputDimension) do
    local module = self.modules[i]
    local n = module.output:size(self.outputDimension)
    result:select(self.inputDimension, i):copy(go(module, input:select(self.inputDimension, i),
      grad:narrow(self.outputDimension, first, n)))
    first = first + n
  end
  return result
end)

-- Concatenates as Concat; results that are smaller in other dims are centered and padded with zeros.
container("DepthConcat", set_dimension, function(self, input)
  local out = to_each(self, input)
  local sizes = {}
  for _, y in ipairs(out) do
    for d = 1, y:dim() do
      sizes[d] = d == self.dimension and (sizes[d] or 0) + y:size(d) or math.max(sizes[d] or 0, y:size(d))
    end
  end
  local whole, first = tensor.wrap(ops.zeros(sizes, {dtype = out[1]:raw().dtype, device = out[1]:raw().device})), 1
  for _, y in ipairs(out) do
    middle(whole, y, self.dimension, first):copy(y)
    first = first + y:size(self.dimension)
  end
  return whole
end, by_parts, true)

-- Runs a copy of the module for each entry of a table; all share its parameters, unless `shared` is false.
local Map = container("MapTable", function(self, module, shared)
  self.shared = shared ~= false
  if module then self:add(module) end
end, function(self, input)
  self:resize(math.max(#input, #self.modules))
  return lists.map(input, function(x, i) return self.modules[i]:forward(x) end)
end, function(self, input, grads, go)
  return lists.map(input, function(x, i) return go(self.modules[i], x, grads[i]) end)
end)
function Map:add(module)
  self.modules = {}
  return Container.add(self, module)
end
--- Sets the number of copies of the module.
function Map:resize(n)
  for i = #self.modules + 1, n do
    self.modules[i] = self.shared and self.modules[1]:clone("weight", "bias", "gradWeight", "gradBias")
      or self.modules[1]:clone()
  end
  for i = #self.modules, n + 1, -1 do self.modules[i] = nil end
end
function Map:parameters()
  if not self.shared then return Container.parameters(self) end
  if self.modules[1] then return self.modules[1]:parameters() end
  return {}, {}
end
function Map:clearState()
  self:resize(math.min(#self.modules, 1))
  return Container.clearState(self)
end

local Decorator = container("Decorator", Container.add, function(self, input) return self.modules[1]:forward(input) end,
  function(self, input, grad, go) return go(self.modules[1], input, grad) end)
--- nn.Decorator.decorate(class): Makes a class without forward or backward of its own call its first module.
function Decorator.decorate(to)
  for _, name in ipairs {"updateOutput", "updateGradInput", "accGradParameters", "backward"} do
    to[name] = rawget(Decorator, name)
  end
end

-- Returns sizes that flatten the input's leading dims so that it has nInputDim dims, and those leading sizes.
local function bottled(input, dims)
  local sizes, extra, n = input:size(), input:dim() - dims, 1
  if extra < 1 then return nil end
  for d = 1, extra + 1 do n = n * sizes[d] end
  return {n, unpack(sizes, extra + 2)}, {unpack(sizes, 1, extra + 1)}
end
container("Bottle", function(self, module, inputs, outputs)
  self:add(module)
  self.nInputDim = inputs or 2
  self.nOutputDim = outputs or self.nInputDim
end, function(self, input)
  local flat, lead = bottled(input, self.nInputDim)
  if not flat then return self.modules[1]:forward(input) end
  local y = self.modules[1]:forward(input:reshape(flat))
  local sizes = y:size()
  if #sizes == self.nOutputDim then for d = 2, #sizes do lead[#lead + 1] = sizes[d] end
  else fail("nn.Bottle: expected an output of %d dims, got %d", self.nOutputDim, #sizes) end
  return y:reshape(lead)
end, function(self, input, grad, go)
  local flat = bottled(input, self.nInputDim)
  if not flat then return go(self.modules[1], input, grad) end
  return go(self.modules[1], input:reshape(flat), grad:reshape(self.modules[1].output:size())):reshape(input:size())
end)

--- nn.Maxout(in, out, n): Computes the maximum of n linear layers.
local nn = class.packages.nn
Module.define("Maxout", "Sequential", function(self, i, o, n)
  self:add(nn.Linear(i, o * n)):add(nn.View(n, o)):add(nn.Max(1, 2))
end)
