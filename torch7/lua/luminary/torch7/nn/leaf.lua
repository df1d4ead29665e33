--- Implements Torch7's layers over luminary's: a layer runs luminary's layer under autograd, and its backward runs
--- through the recorded graph.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local files = require "luminary.torch7.files"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local storage = require "luminary.torch7.storage"
local ours = require "luminary.nn"
local meta = require "luminary.nn.meta"
local fail, ops = options.fail, core.ops
local wrap, raw = tensor.wrap, tensor.raw

local Leaf = class.new("nn.Leaf", "nn.Module")

-- Attaches luminary's layer: sets weight, bias, their gradients and running values as tensors over its memory.
function Leaf:attach(inner)
  self.inner = inner:is(ours.Module) and inner:to(tensor.default) or inner
  for name, p in inner:named_parameters() do
    self[name] = wrap(p.data)
    self["grad" .. name:gsub("^%l", string.upper)] = wrap(ops.zeros_like(p.data))
  end
  for name, b in inner:named_buffers() do
    if core.is_floating_point(b) then self[name] = wrap(b) end
  end
  return self
end

-- Sets the inner layer's parameters and buffers from weight, bias and running values.
function Leaf:adopt()
  for name, p in self.inner:named_parameters() do p.data = raw(self[name]) end
  for name, b in self.inner:named_buffers() do
    if self[name] then self[name]:set(wrap(b)) end
  end
end

-- Constructor arguments of layers written by Torch7, from their fields.
local function refuse(name, v, kind)
  fail("%s must be a %s, got a %s", name, kind, class.typename(v) or type(v))
end
local function listed(v)
  return storage.is(v) and v:totable() or type(v) == "table" and v or refuse("size", v, "LongStorage")
end
local from_fields = {
  ["nn.Linear"] = function(f) return f.weight:size(2), f.weight:size(1), f.bias ~= nil end,
  ["nn.LookupTable"] = function(f) return f.weight:size(1), f.weight:size(2) end,
  ["nn.View"] = function(f) return listed(f.size) end,
  ["nn.Reshape"] = function(f) return listed(f.size) end,
  ["nn.Transpose"] = function(f)
    return unpack(type(f.permutations) == "table" and f.permutations or refuse("permutations", f.permutations, "table"))
  end,
  ["nn.Narrow"] = function(f) return f.dimension, f.index or f.offset, f.length end,
}
local layers_by_fields = {
  ["nInputPlane nOutputPlane kW kH dW dH padW padH"] = "SpatialConvolution SpatialConvolutionMM",
  ["nInputPlane nOutputPlane kW kH dW dH padW padH adjW adjH"] = "SpatialFullConvolution",
  ["kW kH dW dH padW padH"] = "SpatialMaxPooling SpatialAveragePooling",
  ["pad_l pad_r pad_t pad_b"] = "SpatialZeroPadding SpatialReflectionPadding SpatialReplicationPadding",
  ["scale_factor"] = "SpatialUpSamplingNearest", ["size alpha beta k"] = "SpatialCrossMapLRN",
  ["dimension nInputDims"] = "JoinTable SplitTable Mean Sum Max Min", ["dimension index"] = "Select",
  ["index"] = "SelectTable", ["offset length"] = "NarrowTable", ["nfeatures dim ndim"] = "Replicate",
  ["dim pad nInputDim value index"] = "Padding", ["p"] = "Dropout SpatialDropout", ["p eps"] = "Normalize",
  ["threshold val"] = "Threshold", ["min_val max_val"] = "HardTanh", ["negval"] = "LeakyReLU", ["alpha"] = "ELU",
  ["nOutputPlane"] = "PReLU", ["pow"] = "Power", ["constant_scalar"] = "MulConstant AddConstant",
}
for fields, layers in pairs(layers_by_fields) do
  local names = lists.parts(fields)
  for name in layers:gmatch "%S+" do
    from_fields["nn." .. name] = function(f) return unpack(lists.pick(f, names), 1, #names) end
  end
end
for _, name in ipairs {"BatchNormalization", "SpatialBatchNormalization", "VolumetricBatchNormalization"} do
  from_fields["nn." .. name] = function(f) return f.running_mean:size(1), f.eps, f.momentum, f.affine end
end

-- Returns the input as leaves of a new graph, and collects these in `list`.
local function leaves(input, list)
  if type(input) == "table" then
    return lists.map(input, function(v) return leaves(v, list) end)
  end
  local x = raw(input, "forward"):detach()
  if core.is_floating_point(x) then
    x:requires_grad_()
    list[#list + 1] = x
  end
  return x
end

function Leaf:updateOutput(input)
  local list, params = {}, self.inner:parameters()
  local dims, single = self.dims, false
  local output = core.enable_grad(function()
    local x = leaves(input, list)
    single = dims and x.ndim == dims - 1
    local y = self.inner(single and ops.unsqueeze(x, 1) or x)
    return single and ops.squeeze(y, 1) or y
  end)
  self.taped = {inputs = list, params = params, output = output, n = #list}
  self.output = tensor.wrap_all(output)
  return self.output
end

-- Flattens outputs that require grad and their gradients, which may be tables, into two lists.
local function flatten(output, weight, outputs, weights)
  if type(output) == "table" then
    for i, y in ipairs(output) do flatten(y, weight[i], outputs, weights) end
  elseif output.requires_grad then
    outputs[#outputs + 1] = output
    weights[#weights + 1] = raw(weight, "backward"):to(output.dtype):reshape(output.shape)
  end
end

-- Returns the gradients of the last forward's inputs and parameters.
local function gradients(self, gradOutput)
  local taped = self.taped or fail("%s: call forward before backward", class.typename(self))
  local outputs, weights, wanted = {}, {}, lists.joined(taped.inputs, taped.params)
  flatten(taped.output, gradOutput, outputs, weights)
  if #wanted == 0 or #outputs == 0 then return {} end
  return core.grad(outputs, wanted, {grad_outputs = weights, retain_graph = true, allow_unused = true})
end

-- Returns the gradients in the form of the input.
local function as_input(input, grads, taped, at)
  if type(input) == "table" then
    return lists.map(input, function(v) return as_input(v, grads, taped, at) end)
  end
  if not core.is_floating_point(raw(input)) then return wrap(ops.zeros_like(raw(input))) end
  at.i = at.i + 1
  local g = grads[at.i]
  return wrap(g and ops.contiguous(g) or ops.zeros_like(taped.inputs[at.i]))
end

function Leaf:updateGradInput(input, gradOutput)
  local grads = gradients(self, gradOutput)
  self.taped.grads, self.taped.gradOutput = grads, gradOutput -- for accGradParameters
  self.gradInput = as_input(input, grads, self.taped, {i = 0})
  return self.gradInput
end

function Leaf:accGradParameters(_, gradOutput, scale)
  local taped = self.taped
  local grads = taped and taped.gradOutput == gradOutput and taped.grads or gradients(self, gradOutput)
  local i = self.taped.n
  for name in self.inner:named_parameters() do
    i = i + 1
    if grads[i] then
      raw(self["grad" .. name:gsub("^%l", string.upper)]):add_(grads[i], {alpha = scale or 1})
    end
  end
  self.taped.grads = nil -- the same gradOutput may have other values next time
end

local FEW = 2 ^ 20 -- elements

-- Limits the size of layers read from a file by the file's size, since their fields may have any sizes. (Torch7 writes
-- shared parameters once; here each layer gets its own.)
local function check_size(self, make, file)
  local inner, elements = meta.of(make, unpack(self.made_with, 1, self.made_with.n)), file.elements or 0
  local bytes = files.size_of(file)
  for _, list in ipairs {inner:parameters(), inner:buffers()} do
    for _, t in ipairs(list) do elements = elements + t:numel() end
  end
  file.elements = elements
  if elements > FEW + 16 * bytes then
    fail("torch.load: malformed file: the sizes of a %s need %.0f elements, more than a file of %.0f bytes holds",
      class.typename(self), elements, bytes)
  end
end

--- Restores a layer from its fields for file:readObject; for a layer written by Torch7, finds its arguments in them.
function Leaf:read(file)
  Module.read(self, file)
  if not self.made_with then
    local found = from_fields[class.typename(self):gsub("^cudnn%.", "nn.")]
    local args = found and {found(self)} or {}
    self.made_with = {n = found and select("#", found(self)) or 0, unpack(args)}
  end
  local weight = rawget(self, "weight") or rawget(self, "running_mean")
  local of = class.by_name[class.typename(self)]
  if of.make then check_size(self, of.make, file) end
  local made = of.fresh(self)
  for name, own in pairs(made) do
    if tensor.is(own) and tensor.is(rawget(self, name)) and name ~= "output" and name ~= "gradInput" then
      local read = rawget(self, name)
      if read:nElement() ~= own:nElement() then -- it may be a view with more elements than memory holds
        fail("%s has %.0f elements, expected %.0f", name, read:nElement(), own:nElement())
      end
      own:copy(read:type(own:type()))
    end
  end
  local kept = {train = self.train, made_with = self.made_with}
  for k, v in pairs(made) do rawset(self, k, v) end
  for k, v in pairs(kept) do rawset(self, k, v) end
  self.inner:train(self.train ~= false)
  if self.restored then self:restored() end
  if tensor.is(weight) and weight:type() ~= self:type() then self:type(weight:type()) end
end

--- Initializes the parameters again; with stdv from a uniform distribution of this standard deviation.
function Leaf:reset(stdv)
  local params = self:parameters()
  if stdv then
    for _, p in ipairs(params) do p:uniform(-stdv * math.sqrt(3), stdv * math.sqrt(3)) end
  elseif #params > 0 then
    for i, p in ipairs(class.by_name[class.typename(self)].fresh(self):parameters()) do params[i]:copy(p) end
  end
  return self
end

Leaf.__tostring = function(self) return class.typename(self) end

-- Defines nn.name(…): make(…) returns luminary's layer, and the number of dims of a batch if it also takes single
-- samples.
function Leaf.layer(name, make)
  local new = class.new("nn." .. name, "nn.Leaf")
  new.make = make
  function new:__init(...)
    Module.__init(self)
    local inner, dims = make(...)
    self.dims, self.made_with = dims, {n = select("#", ...), ...}
    self:attach(inner)
  end
  function new:fresh() -- luacheck: ignore
    local made = setmetatable({}, new)
    made:__init(unpack(self.made_with, 1, self.made_with.n))
    return made
  end
  return new
end

-- Returns a luminary module that calls f(x, self).
function Leaf.around(f)
  local Around = ours.Module:extend "Around"
  function Around:forward(x) return f(x, self) end -- luacheck: ignore self
  return Around()
end

-- Defines nn.name(…), which computes f(x, …) with the constructor's arguments; dims as in Leaf.layer.
function Leaf.computed(name, f, dims)
  return Leaf.layer(name, function(...)
    local given, n = {...}, select("#", ...)
    return Leaf.around(function(x) return f(x, unpack(given, 1, n)) end), dims
  end)
end

-- Returns a luminary module around f(x, self) with parameters of these sizes, uniform in ±1/√fan as in Torch7.
function Leaf.with(sizes, fan, f)
  local module = Leaf.around(f)
  for name, size in pairs(sizes) do
    module[name] = ours.Parameter(meta.empty(size))
    ours.init.uniform_(module[name], -1 / math.sqrt(fan), 1 / math.sqrt(fan))
  end
  return module
end

Leaf.leaves, Leaf.as_input = leaves, as_input
return Leaf
