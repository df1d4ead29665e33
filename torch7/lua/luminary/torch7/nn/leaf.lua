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

local made_of = setmetatable({}, {__mode = "k"}) -- layer -> luminary's layer, with the names of its tensors
local tapes = setmetatable({}, {__mode = "k"}) -- module -> its last recorded forward
Leaf.tapes = tapes

local function grad_name(name) return "grad" .. name:gsub("^%l", string.upper) end

-- Returns a record of luminary's layer: its parameters and buffers by name, and the dims of a batch.
local function record_of(inner, dims)
  local made = {inner = inner, dims = dims, names = {}, buffers = {}, held = {}}
  for name in inner:named_parameters() do made.names[#made.names + 1] = name end
  for name, b in inner:named_buffers() do
    if core.is_floating_point(b) then made.buffers[#made.buffers + 1] = name end
  end
  return made
end

-- Sets weight, bias, their gradients and running values of a new layer to those of luminary's.
function Leaf:attach(inner, dims)
  local made = record_of(inner:is(ours.Module) and inner:to(tensor.default) or inner, dims)
  made_of[self] = made
  for name, p in inner:named_parameters() do
    self[name], self[grad_name(name)] = wrap(p.data), wrap(ops.zeros_like(p.data))
  end
  for _, name in ipairs(made.buffers) do self[name] = wrap(inner[name]) end
end

local arguments

-- Returns the record of the layer, with its present parameters, running values and mode.
local function current(self)
  local made = made_of[self]
  if not made then
    local given = arguments(self)
    made = record_of(self.make(unpack(given, 1, given.n)))
    made_of[self] = made
  end
  local inner, held = made.inner, made.held
  for _, name in ipairs(made.names) do
    local now = self[name] and raw(self[name], name) or nil
    if now ~= held[name] or now == nil then
      held[name], inner[name] = now, now and ours.Parameter(now) or nil
    end
  end
  for _, name in ipairs(made.buffers) do
    local now = self[name] and raw(self[name], name) or nil
    if now ~= held[name] then
      held[name], inner[name] = now, now
    end
  end
  if inner.training ~= (self.train ~= false) then inner:train(self.train ~= false) end
  if self.configure then self:configure(inner) end
  return made
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

-- Returns the layer's constructor arguments; finds those of a layer that Torch7 wrote, or whose class does not call the
-- __init of its parent, in its fields.
function arguments(self)
  local of = getmetatable(self)
  while not self.made_with and of do
    local found = from_fields[of.__typename:gsub("^cudnn%.", "nn.")]
    self.made_with, of = found and options.pack(found(self)), of.__parent
  end
  self.made_with = self.made_with or {n = 0}
  return self.made_with
end

-- Returns the input as leaves of a new graph, and collects these in `list`, and the input's versions in `seen`; with
-- `kept` they are copies.
local function leaves(input, list, seen, kept)
  if type(input) == "table" then
    return lists.map(input, function(v) return leaves(v, list, seen, kept) end)
  end
  local source = raw(input, "forward")
  local x = kept and ops.clone(source) or source:detach()
  if core.is_floating_point(x) then
    x:requires_grad_()
    list[#list + 1] = x
  end
  if seen then seen[#seen + 1] = {source = source, version = source._version} end
  return x
end

-- Returns true if the input's tensors are those in `seen` and have not changed; else false.
local function unchanged(input, seen, at)
  if type(input) == "table" then
    for _, v in ipairs(input) do
      if not unchanged(v, seen, at) then return false end
    end
    return true
  end
  at.i = at.i + 1
  local one = seen[at.i]
  return one ~= nil and raw(input, "backward") == one.source and one.source._version == one.version
end

-- Runs the layer under autograd; returns the record, a tape.
local function run(self, input)
  local made = current(self)
  local inner, dims, params = made.inner, made.dims, {}
  local tape = {inputs = {}, seen = {}, params = params, names = {}, versions = {}, sizes_only = inner.sizes_only}
  for _, name in ipairs(made.names) do
    local p, i = self[name] and inner[name], #params + 1
    if p then params[i], tape.names[i], tape.versions[i] = p, name, p._version end
  end
  tape.output = core.enable_grad(function()
    local x = leaves(input, tape.inputs, tape.seen, self.inplace == true)
    local single = dims and x.ndim == dims - 1
    if single then x = ops.unsqueeze(x, 1) end
    local y
    if inner.around then y = inner(x, self) else y = inner(x) end
    return single and ops.squeeze(y, 1) or y
  end)
  return tape
end

-- Returns tensors of a result in Torch7's form, with at least one dim.
local function results(v)
  if type(v) == "table" then return lists.map(v, results) end
  return core.is_tensor(v) and wrap(v.ndim == 0 and ops.unsqueeze(v, 1) or ops.contiguous(v)) or v
end

-- Returns the old tensor with the content of the new one, as Torch7's layers keep their output and gradInput.
local function same_object(old, new)
  if tensor.is(old) and tensor.is(new) and old:type() == new:type() then return old:set(new) end
  return new
end

function Leaf:updateOutput(input)
  local tape = run(self, input)
  tapes[self] = tape
  if self.inplace == true and tensor.is(input) then
    raw(input):copy_(tape.output:detach())
    self.output = input
  else
    self.output = same_object(self.output, results(tape.output))
  end
  return self.output
end

-- Returns the tape of the last forward if its input was this one and its parameters are the present ones; else a new
-- tape. Running values do not change then.
local function tape_of(self, input)
  local tape = tapes[self]
  if tape and self.inplace == true and input == self.output then return tape end
  if tape and unchanged(input, tape.seen, {i = 0}) then
    local made, n, same = current(self), 0, true
    for _, name in ipairs(made.names) do
      local p = self[name] and made.inner[name]
      if p then
        n = n + 1
        same = same and p == tape.params[n] and p._version == tape.versions[n]
      end
    end
    if same and n == #tape.params then return tape end
  end
  local before = {}
  for _, name in ipairs(current(self).buffers) do before[name] = self[name] and self[name]:clone() end
  self.again = true
  local ok, result = pcall(run, self, input)
  self.again = nil
  for name, v in pairs(before) do self[name]:copy(v) end
  if not ok then error(result, 0) end
  tapes[self] = result
  return result
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

-- Returns the gradients of the tape's leaves in the list `wanted`.
local function gradients(tape, gradOutput, wanted)
  local outputs, weights = {}, {}
  flatten(tape.output, gradOutput, outputs, weights)
  if #wanted == 0 or #outputs == 0 then return {} end
  return core.grad(outputs, wanted, {grad_outputs = weights, retain_graph = true, allow_unused = true})
end

-- Returns the gradients in the form of the input.
local function as_input(input, grads, tape, at)
  if type(input) == "table" then
    return lists.map(input, function(v) return as_input(v, grads, tape, at) end)
  end
  if not core.is_floating_point(raw(input)) then return wrap(ops.zeros_like(raw(input))) end
  at.i = at.i + 1
  local g = grads[at.i]
  if not g and tape.sizes_only then return tensor.new(raw(input).dtype, {0}) end
  return wrap(g and ops.contiguous(g) or ops.zeros_like(tape.inputs[at.i]))
end

-- Adds gradients from index `first` + 1 on to the layer's, multiplied by scale.
local function accumulate(self, tape, grads, first, scale)
  for i, name in ipairs(tape.names) do
    local g, to = grads[first + i], self[grad_name(name)]
    if g and to then
      to = raw(to)
      to:add_(g:reshape(to.shape), {alpha = scale or 1})
    end
  end
end

function Leaf:updateGradInput(input, gradOutput)
  if self.gradInput == nil then return nil end
  local tape = tape_of(self, input)
  self.gradInput = same_object(self.gradInput, as_input(input, gradients(tape, gradOutput, tape.inputs), tape, {i = 0}))
  return self.gradInput
end

function Leaf:accGradParameters(input, gradOutput, scale)
  if #current(self).names == 0 then return end
  local tape = tape_of(self, input)
  accumulate(self, tape, gradients(tape, gradOutput, tape.params), 0, scale)
end

function Leaf:backward(input, gradOutput, scale)
  if self.gradInput == nil or self.updateGradInput ~= Leaf.updateGradInput
    or self.accGradParameters ~= Leaf.accGradParameters then
    return Module.backward(self, input, gradOutput, scale)
  end
  local tape = tape_of(self, input)
  local grads = gradients(tape, gradOutput, lists.joined(tape.inputs, tape.params))
  accumulate(self, tape, grads, #tape.inputs, scale)
  self.gradInput = same_object(self.gradInput, as_input(input, grads, tape, {i = 0}))
  if self.restores and self.inplace == true then raw(input):copy_(tape.inputs[1]:detach()) end
  return self.gradInput
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
  arguments(self)
  if self.make then check_size(self, self.make, file) end
  local made = self:fresh()
  for name, own in pairs(made) do
    local read = rawget(self, name)
    if read == nil and not tensor.is(own) then
      rawset(self, name, own)
    elseif tensor.is(own) and tensor.is(read) and own:nElement() > 0 and name ~= "output" and name ~= "gradInput" and
      read:nElement() ~= own:nElement() then -- it may be a view with more elements than memory holds
      fail("%s has %.0f elements, expected %.0f", name, read:nElement(), own:nElement())
    end
  end
end

--- Makes accUpdateGradParameters the only way to update parameters: removes their gradients.
function Leaf:accUpdateOnly()
  for _, name in ipairs(current(self).names) do self[grad_name(name)] = nil end
  return self
end

--- Removes the bias; returns the layer.
function Leaf:noBias()
  self.bias, self.gradBias = nil, nil
  return self
end

--- Initializes the parameters again; with stdv from a uniform distribution of this standard deviation.
function Leaf:reset(stdv)
  local params = self:parameters()
  if stdv then
    for _, p in ipairs(params) do p:uniform(-stdv * math.sqrt(3), stdv * math.sqrt(3)) end
  elseif #params > 0 then
    local new = self:fresh()
    for _, name in ipairs(current(self).names) do if self[name] then self[name]:copy(new[name]) end end
  end
  return self
end

local constants = {["true"] = true, ["false"] = false}

-- Defines nn.name(…): make(…) returns luminary's layer, and the number of dims of a batch if it also takes single
-- samples. `fields` names the layer's fields that hold its arguments, in their order, with defaults, which may be
-- fields: "kW kH dW=1 dH=dW"; "_" is an argument that is not kept. configure(self, inner), if the class has it, sets
-- luminary's layer from fields before each call.
function Leaf.layer(name, make, fields)
  local new, kept = class.new("nn." .. name, "nn.Leaf"), {}
  for field, default in (fields or ""):gmatch "([%w_]+)=?(%S*)" do
    local number, constant = tonumber(default), constants[default]
    if constant == nil then constant = number end
    table.insert(kept, {name = field, default = constant, like = constant == nil and default or nil})
  end
  new.make = make
  function new:__init(...)
    Module.__init(self)
    self.made_with = {n = select("#", ...), ...}
    self:attach(make(...))
    for i, field in ipairs(kept) do
      local v = self.made_with[i]
      if v == nil then v = field.default end
      if v == nil and field.like then v = self[field.like] end
      if field.name ~= "_" then self[field.name] = v end
    end
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
  Around.around = true
  function Around:forward(x, layer) return f(x, self, layer) end -- luacheck: ignore self
  return Around()
end

-- Defines nn.name(…), which computes f(x, …) with the constructor's arguments; dims as in Leaf.layer.
function Leaf.computed(name, f, dims, fields)
  return Leaf.layer(name, function(...)
    local given, n = {...}, select("#", ...)
    return Leaf.around(function(x) return f(x, unpack(given, 1, n)) end), dims
  end, fields)
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

Leaf.leaves, Leaf.as_input, Leaf.current = leaves, as_input, current
return Leaf
