--- lm.onnx: Runs and trains models of ONNX files.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local signature = require "luminary.base.signature"
local nn = require "luminary.nn"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"
local graph = require "luminary.onnx.graph"
local tensors = require "luminary.onnx.tensors"

local is_tensor = core.is_tensor
local onnx = {}

local Model = class.define("OnnxModel", nn.Module)

-- Returns the module that has a tensor of a dotted name, and the tensor's name there. Names that a module cannot have are
-- changed.
local function holder_of(self, name)
  local holder, last = self, name
  for part, dot in name:gmatch "([^.]*)(%.?)" do
    if part == "" then part = "_" end
    if dot == "" then
      last = part
      break
    end
    local record = records.of(holder)
    if record.kind[part] ~= "child" then
      while record.kind[part] or not pcall(records.check_name, record, "child", part) do part = part .. "_" end
      holder:add_module(part, nn.Module())
    end
    holder = record.values[part]
  end
  local record = records.of(holder)
  while record.kind[last] or not pcall(records.check_name, record, "buffer", last) do last = last .. "_" end
  return holder, last
end

-- Adds the model's tensors as parameters and buffers; the frame of each call has them.
local function register(self, list)
  local holders, names, slots, others = {}, {}, {}, {}
  for i, each in ipairs(list) do
    if not is_tensor(each.value) then
      others[each.slot] = each.value
    else
      local is_constant = each.kind == "constant"
      local holder, name = holder_of(self, is_constant and ("constants.%d"):format(i) or each.name)
      if each.kind == "parameter" then
        holder:register_parameter(name, parameter.new(each.value, true))
      else
        holder:register_buffer(name, each.value, {persistent = not is_constant})
      end
      holders[#holders + 1], names[#names + 1], slots[#slots + 1] = holder, name, each.slot
    end
  end
  return holders, names, slots, others
end

-- Raises unless x, the input that `info` describes, is a tensor of its dtype and sizes.
local function check_input(info, x)
  if not is_tensor(x) then
    if info.kind ~= "tensor" or info.dtype == "string" and type(x) == "table" then return end
    options.must_be("onnx", "input '" .. info.name .. "'", "a tensor of " .. tensors.type_text(info), x)
  end
  local wanted, dims = info.dtype, info.dims
  if wanted and x.dtype ~= wanted and not (core.is_floating_point(x) and wanted:find "float") then
    options.fail("onnx: input '%s' must be %s, got %s; convert it with :to(\"%s\")", info.name, wanted, x.dtype, wanted)
  end
  if not dims then return end
  local fits = #dims == x.ndim
  for d = 1, fits and #dims or 0 do fits = fits and (type(dims[d]) ~= "number" or dims[d] == x.shape[d]) end
  if not fits then options.wrong_shape("onnx", "input '" .. info.name .. "'", x, "[" .. table.concat(dims, ", ") .. "]") end
end

-- Returns true if a call's only argument has inputs by name.
local function are_named(self, x)
  if not options.is_plain(x) or x.shape then return false end
  local key = next(x)
  return type(key) == "string" or key == nil and #self.inputs ~= 1
end

local function run(plan, frame)
  graph.run(plan.steps, frame)
  local results = {}
  for i, slot in ipairs(plan.outputs) do results[i] = frame[slot] end
  return results
end

-- The module is made by onnx.load alone. `source`: the file's path; plan: see graph.lua.
function Model:init(source, plan, inputs)
  self.inputs, self.outputs, self.source = inputs, {}, source
  for i, output in ipairs(plan.message.output or {}) do self.outputs[i] = tensors.described(output) end
  local holders, names, slots, others = register(self, plan.tensors)
  self.holders = holders
  local who = "onnx"

  -- Returns a frame with the model's tensors.
  function self.new_frame(now)
    local frame = {}
    for i = 1, #slots do frame[slots[i]] = records.of(now[i]).values[names[i]] end
    for slot, value in pairs(others) do frame[slot] = value end
    return frame
  end
  function self.run_plan(frame, named)
    for name in pairs(named or {}) do
      local slot = plan.overridable[name]
      if slot then frame[slot] = named[name] end
    end
    local ok, results = pcall(run, plan, frame)
    if not ok then graph.fail_in(who, frame, results) end
    return unpack(results, 1, #plan.outputs)
  end
  self.input_slots, self.overridable = plan.inputs, plan.overridable
end

function Model:forward(...)
  local n, first = select("#", ...), (...)
  local inputs, named = self.inputs, nil
  local frame = self.new_frame(self.holders)
  if n == 1 and are_named(self, first) then
    named = first
    for name in pairs(named) do
      local known = self.overridable[name]
      for _, info in ipairs(inputs) do known = known or info.name == name end
      if not known then options.unknown("onnx", name, self:names "inputs") end
    end
  elseif n > #inputs then
    options.too_many("onnx", #inputs, self:names "inputs", n)
  end
  for i, info in ipairs(inputs) do
    local x
    if named then x = named[info.name] else x = (select(i, ...)) end
    if x == nil and info.kind ~= "optional" then
      options.absent("onnx", "input '" .. info.name .. "'", tensors.type_text(info))
    end
    if x ~= nil then check_input(info, x) end
    frame[self.input_slots[i]] = x
  end
  return self.run_plan(frame, named)
end

--- Returns the names of the "inputs" or "outputs", in order.
function Model:names(side)
  local names = {}
  for i, info in ipairs(self[side]) do names[i] = info.name end
  return names
end

function Model:extra_repr()
  local parts = {}
  for _, info in ipairs(self.inputs) do parts[#parts + 1] = ("%s: %s"):format(info.name, tensors.type_text(info)) end
  return ("'%s', %s"):format(printable_name(self.source, 100), table.concat(parts, ", "))
end

-- Returns the graph's inputs that are no initializers, described.
local function inputs_of(model)
  local known, inputs = {}, {}
  for _, message in ipairs(model.graph and model.graph.initializer or {}) do known[message.name or ""] = true end
  for _, input in ipairs(model.graph and model.graph.input or {}) do
    if not known[input.name or ""] then inputs[#inputs + 1] = tensors.described(input) end
  end
  return inputs
end

local function failing_in(path) return function(...) options.fail_in_file(path, ...) end end

--- Reads the model of an ONNX file: returns a module, whose parameters and buffers have the names of the graph's
--- initializers. A call takes the graph's inputs in order, or in a table by name, and returns its outputs.
onnx.load = signature.of("load(path: string, {device: any?})", function(path, opts)
  local fail = failing_in(path)
  local model = tensors.read(path)
  local read_tensor, close = tensors.reader(path)
  local ok, net = pcall(function()
    local inputs = inputs_of(model)
    for _, info in ipairs(inputs) do
      if info.kind == "map" or info.dtype and tensors.absent[info.dtype] then
        fail("input '%s' is of the unsupported type %s", printable_name(info.name, 100), info.dtype or info.kind)
      end
    end
    return Model(path, graph.prepare(model, read_tensor, fail), inputs)
  end)
  close()
  if not ok then error(net, 0) end
  return opts.device and net:to(opts.device) or net
end)

return onnx
