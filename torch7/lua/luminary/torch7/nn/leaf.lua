--- Implements Torch7's layers: a layer is a function of its input and of its fields, which runs under autograd in
--- forward; backward runs through the recorded graph.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local ops = core.ops
local wrap, raw, grad_name = tensor.wrap, tensor.raw, Module.grad_name

local Leaf = class.new("nn.Leaf", "nn.Module")

local tapes = setmetatable({}, {__mode = "k"}) -- module -> its last recorded forward
Leaf.tapes = tapes
Leaf.__defaults = {} -- values of absent fields

-- Returns the layer as its function reads it: fields in `values`, then its own, with luminary's tensors. A field that
-- the function sets is the layer's.
local function view_of(self, values)
  return setmetatable({}, {
    __index = function(view, key)
      local v = values[key]
      if v ~= nil then return v end
      v = self[key]
      if tensor.is(v) then return raw(v) end
      local default = v == nil and self.__defaults[key]
      if not default then return v end
      return default.like and view[default.like] or default.value
    end,
    __newindex = function(_, key, v) self[key] = core.is_tensor(v) and wrap(v) or v end,
  })
end

-- Raises an op's error again under the name of a layer.
local function renamed(self, ok, problem, ...)
  if ok then return problem, ... end
  local text = type(problem) == "string" and options.without_position(problem):match "^[%w_.]+: (.*)$"
  if not text then error(problem, 0) end
  core.error_at_caller(("%s: %s"):format(self.__typename, text), problem)
end
--- Returns f(…); errors of ops name the layer or criterion.
function Leaf.named(self, f, ...) return renamed(self, pcall(f, ...)) end
local named = Leaf.named

--- Returns the result of a layer's function for luminary's tensors, without recording a graph.
function Leaf.value_of(self, x) return named(self, self.__compute, x, view_of(self, {})) end

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

-- Returns the layer's present parameters and their names.
local function parameters_of(self)
  local list, names = {}, {}
  for _, name in ipairs(self.__names) do
    if self[name] then list[#list + 1], names[#names + 1] = self[name], name end
  end
  return list, names
end

-- Runs the layer under autograd; returns the record, a tape. again: true if it repeats a forward, which draws no new
-- noise and changes no running values.
local function run(self, input, again)
  local tape, values, dims = {inputs = {}, params = {}, seen = {}, sizes_only = self.__sizes_only, again = again},
    {again = again}, self.__dims
  local list, names = parameters_of(self)
  for i, p in ipairs(list) do values[names[i]] = leaves(p, tape.params, tape.seen) end
  tape.names = names
  tape.output = named(self, core.enable_grad, function()
    local x = leaves(input, tape.inputs, tape.seen, self.inplace == true)
    local single = dims and x.ndim == dims - 1
    if single then x = ops.unsqueeze(x, 1) end
    local y = self.__compute(x, view_of(self, values))
    return single and ops.squeeze(y, 1) or y
  end)
  return tape
end

-- Returns a value, which may be a table of any depth, with f(t) in place of each of luminary's tensors.
local function each_tensor(v, f)
  if type(v) == "table" then return lists.map(v, function(one) return each_tensor(one, f) end) end
  return core.is_tensor(v) and f(v) or v
end

-- Returns a result in Torch7's form, with at least one dim.
local function result(y) return (y.ndim == 0 and ops.unsqueeze(y, 1) or ops.contiguous(y)):detach() end

--- Stores luminary's tensors in a field and returns it: in the tensor that is there if the types are the same, as
--- Torch7's layers do.
function Leaf.keep(self, field, y)
  local old = self[field]
  if core.is_tensor(y) and tensor.is(old) and raw(old).dtype == y.dtype then
    tensor.rebind(old, y)
  else
    self[field] = each_tensor(y, wrap)
  end
  return self[field]
end
local keep = Leaf.keep

function Leaf:updateOutput(input)
  local tape = self.__of_output and {output = Leaf.value_of(self, tensor.raw_all(input))} or run(self, input)
  tapes[self] = not self.__of_output and tape or nil
  if self.inplace == true and tensor.is(input) then
    raw(input):copy_(tape.output:detach())
    self.output = input
  else
    keep(self, "output", each_tensor(tape.output, result))
  end
  return self.output
end

-- Returns true if the leaves of a record have the sizes of these inputs.
local function has_sizes_of(tape, input)
  local list = {}
  leaves(input, list)
  for i, x in ipairs(list) do if not tape.inputs[i] or tape.inputs[i].shape ~= x.shape then return false end end
  return #list == #tape.inputs
end

-- Returns the tape of the last forward if its input was this one and its parameters are the present ones, or if the
-- gradient does not depend on what the input holds now; else a new tape.
local function tape_of(self, input)
  local tape, at = tapes[self], {i = 0}
  if tape and (self.inplace == true and input == self.output or self.__by_forward
    and unchanged(parameters_of(self), tape.seen, {i = 0}) and has_sizes_of(tape, input)) then
    return tape
  end
  if not (tape and unchanged({parameters_of(self), input}, tape.seen, at) and at.i == #tape.seen) then
    tape = run(self, input, true)
    tapes[self] = tape
  end
  return tape
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

-- Returns the gradients in the form of the input.
local function as_input(input, grads, tape, at)
  if type(input) == "table" then
    return lists.map(input, function(v) return as_input(v, grads, tape, at) end)
  end
  if not core.is_floating_point(raw(input)) then return ops.zeros_like(raw(input)) end
  at.i = at.i + 1
  local g = grads[at.i]
  if not g and tape.sizes_only then return core.tensor({0}, {dtype = raw(input).dtype}) end
  return g and ops.contiguous(g) or ops.zeros_like(tape.inputs[at.i])
end

-- Computes the gradient of the input by the layer's formula, from what the output holds now, as Torch7's layer does.
local function by_output(self, input, gradOutput)
  local function fitted(y, g)
    if type(y) == "table" then return lists.map(y, function(v, i) return fitted(v, g[i]) end) end
    return tensor.fitted(self.__typename .. ": gradOutput", y, raw(g, "backward"):to(y.dtype))
  end
  local y = tensor.raw_all(self.output)
  local g = named(self, self.__of_output, y, fitted(y, gradOutput), view_of(self, {}), tensor.raw_all(input))
  return keep(self, "gradInput", each_tensor(g, ops.contiguous))
end

-- Computes the gradients of the input, if for_input, and adds those of the parameters multiplied by scale, if
-- for_params. Returns gradInput.
local function differentiate(self, input, gradOutput, for_input, for_params, scale)
  if self.__of_output then return for_input and by_output(self, input, gradOutput) or self.gradInput end
  local tape, outputs, weights, grads, ok = tape_of(self, input), {}, {}, {}, true
  named(self, flatten, tape.output, gradOutput, outputs, weights)
  local wanted = lists.joined(for_input and tape.inputs or {}, for_params and tape.params or {})
  if #wanted > 0 and #outputs > 0 then
    ok, grads = pcall(core.grad, outputs, wanted, {grad_outputs = weights, retain_graph = true, allow_unused = true})
  end
  if not ok then -- a later layer may have changed an output that was saved: computes it again
    if tape.again then error(grads, 0) end
    tapes[self] = run(self, input, true)
    return differentiate(self, input, gradOutput, for_input, for_params, scale)
  end
  for i, name in ipairs(for_params and tape.names or {}) do
    local g, to = grads[(for_input and #tape.inputs or 0) + i], self[grad_name(name)]
    if g and to then
      to = raw(to)
      to:add_(g:reshape(to.shape), {alpha = scale or 1})
    end
  end
  return for_input and keep(self, "gradInput", as_input(input, grads, tape, {i = 0})) or self.gradInput
end

function Leaf:updateGradInput(input, gradOutput)
  if self.gradInput ~= nil then return differentiate(self, input, gradOutput, true) end
end

function Leaf:accGradParameters(input, gradOutput, scale)
  if #parameters_of(self) > 0 then differentiate(self, input, gradOutput, false, true, scale) end
end

function Leaf:backward(input, gradOutput, scale)
  if self.gradInput == nil or self.updateGradInput ~= Leaf.updateGradInput
    or self.accGradParameters ~= Leaf.accGradParameters then
    return Module.backward(self, input, gradOutput, scale)
  end
  differentiate(self, input, gradOutput, true, true, scale)
  if self.restores and self.inplace == true then raw(input):copy_(tapes[self].inputs[1]:detach()) end
  return self.gradInput
end

--- Reads a layer's fields; fails if a layer with parameters has none, or one with more elements than its memory.
function Leaf:read(file)
  Module.read(self, file)
  for name, field in pairs(rawget(self, "made_with") and self.__defaults or {}) do -- arguments, in older files
    if rawget(self, name) == nil then self[name] = self.made_with[field.index] end
  end
  self.made_with = nil
  for _, name in ipairs(self.__sizes and self.__names or {}) do
    for _, field in ipairs {name, grad_name(name)} do
      local x = tensor.is(self[field]) and raw(self[field])
      if x and x:numel() > x:storage_size() then
        error(("%s has %.0f elements, its storage %.0f"):format(field, x:numel(), x:storage_size()), 0)
      end
    end
  end
  if self.__sizes and self.affine ~= false and #parameters_of(self) == 0 then
    error("it has no " .. table.concat(self.__names, " or "), 0)
  end
end

--- Sets gradInput to zeros, for layers whose input has no gradient; a method to use as updateGradInput.
function Leaf:zeroGradInput(input)
  self.gradInput = input:clone():zero()
  return self.gradInput
end

--- Makes accUpdateGradParameters the only way to update parameters: removes their gradients.
function Leaf:accUpdateOnly()
  for _, name in ipairs(self.__names) do self[grad_name(name)] = nil end
  return self
end

--- Removes the bias; returns the layer.
function Leaf:noBias()
  self.bias, self.gradBias = nil, nil
  return self
end

--- Initializes the parameters again, uniformly within 1 / √fan; with stdv of this standard deviation.
function Leaf:reset(stdv)
  local params = parameters_of(self)
  if #params == 0 then return self end
  local fan = self.__fan and self.__fan(self) or params[1]:nElement() / params[1]:size(1)
  local bound = stdv and stdv * math.sqrt(3) or 1 / math.sqrt(fan)
  for _, p in ipairs(params) do p:uniform(-bound, bound) end
  return self
end

local constants = {["true"] = true, ["false"] = false}

-- Returns the fields in a text as a list of {index =, name =, kept =, is_count =, value = a default, like = a field
-- with it}.
local function fields_in(text)
  local list = {}
  for hidden, name, count, default in (text or ""):gmatch "(_?)([%w_]+)(#?)=?(%S*)" do
    local value = constants[default]
    if value == nil then value = tonumber(default) end
    list[#list + 1] = {index = #list + 1, name = name, kept = hidden == "", is_count = count ~= "", value = value,
      like = value == nil and default ~= "" and default or nil}
  end
  return list
end

--- Defines nn.name(…): compute(x, o) returns its output for x, a tensor or a table, where o has the layer's fields,
--- with luminary's tensors. `fields` names the fields that hold the constructor's arguments, in their order, with
--- defaults, which may be fields: "kW# kH=kW dW=1"; # marks a count, which is required, and _ before the name an
--- argument that is not kept.
--- `how` has what few layers have:
---   dims             number of dims of a batch, if single samples are accepted, too
---   init(self, …)    sets further fields
---   sizes(self, …)   returns the sizes of the parameters by name; the constructor's arguments follow self
---   names            the fields that are parameters, if not weight and bias
---   fan(self)        the number of inputs of an output, if not that in a row of the weight
---   reset(self)      initializes the parameters, if they are not uniform
---   of_output(y, g, o, x)  returns the gradient of the input from the output's content; no graph is recorded
---   by_forward       true if the gradient depends on the last forward alone, whatever the input holds by then; the ops
---                    of `compute` may save neither the input nor the output
function Leaf.layer(name, fields, compute, how)
  local new, list = class.new("nn." .. name, "nn.Leaf"), fields_in(fields)
  how = how or {}
  new.__compute, new.__dims, new.__sizes, new.__fan = compute, how.dims, how.sizes, how.fan
  new.__names, new.reset, new.__defaults = how.names, how.reset, {}
  new.__of_output, new.__by_forward = how.of_output, how.by_forward
  for _, field in ipairs(list) do new.__defaults[field.name] = field.kept and field or nil end
  function new:__init(...)
    Module.__init(self)
    for i, field in ipairs(list) do
      local v = select(i, ...)
      if v == nil then v = field.value end
      if v == nil and field.like then v = self[field.like] end
      if field.is_count then options.arg("nn." .. name, field.name, v, "count") end
      if field.kept then self[field.name] = v end
    end
    if how.init then how.init(self, ...) end
    for key, size in pairs(how.sizes and how.sizes(self, ...) or {}) do
      size = tensor.sizes(size)
      self[key], self[grad_name(key)] = tensor.new(tensor.default, size), tensor.new(tensor.default, size):zero()
    end
    if how.sizes then self:reset() end
  end
  return new
end

Leaf.leaves, Leaf.as_input, Leaf.each_tensor = leaves, as_input, each_tensor
return Leaf
