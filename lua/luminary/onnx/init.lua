--- lm.onnx: Runs and trains models of ONNX files, and writes modules to ONNX files.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local signature = require "luminary.base.signature"
local nn = require "luminary.nn"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"
local prepare = require "luminary.prepare"
local graph = require "luminary.onnx.graph"
local tensors = require "luminary.onnx.tensors"
local is_tensor = core.is_tensor
local onnx = {}

local Model = class.define("OnnxModel", nn.Module)
local Tensors = class.define("OnnxTensors", nn.Module) -- a part of a model: tensors of names with one beginning

-- Returns the module that has a tensor of a dotted name, and the path to the tensor, a list of names. Names that a
-- module cannot have are changed; so are dots behind the 20th, and those for which `room`.modules has none left.
local function holder_of(self, name, room)
  local holder, parts = self, lists.parts(name == "" and "_" or name, "[^.]+")
  local most = room.modules > 0 and 20 or 0
  if #parts > most then
    parts[most + 1] = table.concat(parts, "_", most + 1)
    parts = lists.slice(parts, 1, most + 1)
  end
  for i, part in ipairs(parts) do
    local record, kind = records.of(holder), i == #parts and "buffer" or "child"
    while record.kind[part] and (kind == "buffer" or record.kind[part] ~= "child")
      or not record.kind[part] and (rawget(record.values, part) ~= nil
        or not pcall(records.check_name, record, kind, part)) do
      part = part .. "_"
    end
    parts[i] = part
    if kind == "buffer" then return holder, parts end
    if not record.kind[part] then
      holder:add_module(part, Tensors())
      room.modules = room.modules - 1
    end
    holder = record.values[part]
  end
  return holder_of(self, "_", room)
end

-- Adds the model's tensors as parameters and buffers. Returns lists of their paths and of their slots, and other values
-- by slot. size: of the file, in bytes.
local function register(self, list, size)
  local paths, slots, others, room = {}, {}, {}, {modules = 1000 + size / 1024}
  for i, each in ipairs(list) do
    if is_tensor(each.value) then
      local is_constant = each.kind == "constant"
      local holder, path = holder_of(self, is_constant and "constants." .. i or each.name, room)
      local name = path[#path]
      if each.kind == "parameter" then
        holder:register_parameter(name, parameter.new(each.value, true))
      else
        holder:register_buffer(name, each.value, {persistent = not is_constant})
      end
      paths[#paths + 1], slots[#slots + 1] = path, each.slot
    else
      others[each.slot] = each.value
    end
  end
  return paths, slots, others
end

-- Returns the parameter or buffer at a path, of the module that is there now.
local function tensor_at(self, path)
  local value = self
  for i = 1, #path do value = value and records.of(value).values[path[i]] end
  return value or options.fail("onnx: the module has no parameter or buffer '%s'", table.concat(path, "."))
end

-- Raises unless x, the input that `info` describes, is a tensor of its dtype and sizes. first: for each name of a size
-- that inputs before it had, that size and the input's name.
local function check_input(info, x, first)
  local wanted, dims, what = info.dtype, info.dims, "input '" .. info.name .. "'"
  if x == nil and info.kind ~= "optional" then options.absent("onnx", what, tensors.type_text(info)) end
  if not is_tensor(x) then
    if info.kind ~= "tensor" or wanted == "string" and type(x) == "table" then return end
    options.must_be("onnx", what, "a tensor of " .. tensors.type_text(info), x)
  end
  if wanted and x.dtype ~= wanted and not (core.is_floating_point(x) and wanted:find "float") then
    options.wrong_dtype("onnx", what, wanted, x, "convert it with :to(\"%s\")", wanted)
  end
  local fits = not dims or #dims == x.ndim
  for d = 1, fits and dims and #dims or 0 do fits = fits and (type(dims[d]) ~= "number" or dims[d] == x.shape[d]) end
  if not fits then options.wrong_shape("onnx", what, x, "[" .. table.concat(dims, ", ") .. "]") end
  for d, name in ipairs(dims or {}) do
    if type(name) == "string" and name ~= "?" then
      local seen, size = first[name], x.shape[d]
      if seen and seen.size ~= size then
        options.fail("onnx: size '%s' must be equal in all inputs, got %d in input '%s' and %d in %s", name,
          seen.size, seen.input, size, what)
      end
      first[name] = seen or {size = size, input = info.name}
    end
  end
end

-- Returns f(...), with this device (nil, false: no change) as that of tensors that f makes without a device.
local function on_device(device, f, ...)
  local before = core.get_default_device()
  if not device or device == before then return f(...) end
  core.set_default_device(device)
  return options.restoring(function() core.set_default_device(before) end, f, ...)
end

-- Initializes a model, for onnx.load alone. source: the file's path; plan: see graph.lua; size: of the file, in bytes;
-- is_stated: true if the caller or the file said which tensors train.
function Model:init(source, plan, inputs, size, is_stated)
  local paths, slots, others
  self.is_training_stated = is_stated
  self.source, self.inputs, self.node_count = source, inputs, #(plan.message.node or {})
  self.outputs = lists.map(plan.message.output or {}, tensors.described)

  -- Runs the plan with the tensors of `now`, this module or a clone, and inputs, a function of their numbers. context:
  -- see parts.lua, or nil.
  function self.run_plan(now, context, input, named)
    local frame = context and context.base or {}
    for i = 1, context and context.base and 0 or #slots do frame[slots[i]] = tensor_at(now, paths[i]) end
    for slot, value in pairs(others) do frame[slot] = value end
    if context then
      context.base, frame = frame, setmetatable({parts = context}, {__index = frame})
      context.noted = frame
    end
    for i, slot in ipairs(plan.inputs) do frame[slot] = input(i) end
    for name, slot in pairs(named and plan.overridable or {}) do
      if named[name] ~= nil then frame.parts, frame[slot] = nil, named[name] end -- parts have the model's tensors
    end
    local some = frame[slots[1] or lists.find(plan.inputs, function(slot) return is_tensor(frame[slot]) end)]
    local ok, problem = pcall(on_device, some and some.device, graph.run, plan, frame)
    if plan.cuts then records.of(now).in_parts = true end
    if not ok then graph.fail_in("onnx", frame, problem) end
    local results = {}
    for i, slot in ipairs(plan.outputs) do
      results[i] = frame[slot]
      if results[i] == nil and self.outputs[i].kind ~= "optional" then
        options.fail("onnx: no node computed the output '%s'", printable_name(self.outputs[i].name, 100))
      end
    end
    return unpack(results, 1, #plan.outputs)
  end
  function self.has_input(name) return plan.overridable[name] or lists.index_of(self:names "inputs", name) end
  paths, slots, others = register(self, plan.tensors, size) -- whose names are none of the fields above
end

-- Calls the graph; without gradients, records it for each set of shapes, and runs the recording afterward, or parts of
-- it if it reads values.
function Model:forward(...)
  local record, context = records.of(self), nil
  if not core.is_grad_enabled() and not core.is_recording_ops() then
    context = record.context
    if not context or context.module ~= self or not context.unchanged() then -- a clone's record has the original's
      context = setmetatable({module = self, unchanged = prepare.watch(self)}, prepare.of_this_thread)
      record.context = context
    end
  end
  local inputs, given = self.inputs, {...}
  local n, first = select("#", ...), given[1]
  local key = n == 1 and options.is_plain(first) and (not first.shape or is_tensor(first.shape)) and next(first)
  local named = (type(key) == "string" or key == nil and #inputs ~= 1) and first or nil
  for name in pairs(named or {}) do
    if not self.has_input(name) then
      local known = table.concat(self:names "inputs", ", ")
      options.fail("onnx: unknown input '%s'; inputs are %s", printable_name(tostring(name), 100), known)
    end
  end
  if not named and n > #inputs then options.too_many("onnx", #inputs, self:names "inputs", n) end
  local sizes = {}
  return self.run_plan(self, context, function(i)
    local x = given[i]
    if named then x = named[inputs[i].name] end
    check_input(inputs[i], x, sizes)
    return x
  end, named)
end

--- Returns the names of the "inputs" or "outputs", in order.
function Model:names(side)
  options.choice("names", "side", side, {"inputs", "outputs"})
  return lists.map(self[side], function(info) return info.name end)
end

-- Returns the text of a list of {name, kind, dtype, dims}, of which it shows at most 8.
local function infos_text(infos)
  local parts = lists.map({unpack(infos, 1, 8)}, function(info)
    return printable_name(info.name, 60) .. ": " .. tensors.type_text(info)
  end)
  if #infos > 8 then parts[9] = ("%d more"):format(#infos - 8) end
  return table.concat(parts, ", ")
end

-- Returns the list of parameters; warns if the rule found none, as someone who trains the network wants them.
function Model:parameters(...)
  local list = nn.Module.parameters(self, ...)
  if #list == 0 and not self.is_training_stated and #nn.Module.parameters(self) == 0 then
    core.warn(("onnx: no tensor of '%s' trains, since no node reads a floating one as a weight of a layer; the option "
      .. "trainable of lm.onnx.load can name some"):format(printable_name(self.source, 100)))
  end
  return list
end

function Model:extra_repr()
  local count = lists.sum(nn.Module.parameters(self), core.methods.numel)
  return ("'%s', %s -> %s, %d nodes, %d parameters"):format(printable_name(self.source, 100), infos_text(self.inputs),
    infos_text(self.outputs), self.node_count, count)
end

function Tensors:extra_repr()
  local record = records.of(self)
  return infos_text(lists.map(lists.joined(record.param, record.buffer), function(name)
    local t = record.values[name]
    return {name = name, kind = "tensor", dtype = t and t.dtype, dims = t and t.shape}
  end))
end

--- Reads the model of an ONNX file: returns a module in evaluation mode, whose parameters and buffers have the names of
--- the graph's initializers. A call takes the graph's inputs in order, or in a table by name, and returns its outputs.
onnx.load = signature.of("load(path: string, {device: any?, trainable: any?})", function(path, opts)
  local function fail(...) options.fail_in_file(path, ...) end
  local function unsupported(...) options.unsupported_file(path, ...) end
  local model, size = tensors.read(path)
  local read_tensor, close = tensors.reader(path)
  local ok, net = pcall(on_device, "cpu", function()
    local inputs = tensors.inputs_of(model.graph or {})
    for _, info in ipairs(inputs) do
      if info.kind == "map" or info.dtype and tensors.absent[info.dtype] then
        unsupported("input '%s' is of the unsupported type %s", printable_name(info.name, 100), info.dtype or info.kind)
      end
    end
    local _, is_stated = tensors.mark(model, size, read_tensor, opts.trainable)
    return Model(path, graph.prepare(model, size, read_tensor, fail, unsupported), inputs, size, is_stated):eval()
  end)
  close()
  if not ok then error(net, 0) end
  return opts.device and net:to(opts.device) or net
end)

--- Writes a module as an ONNX file: records the ops of its call with example_inputs, in evaluation mode.
onnx.export = signature.of([[export(module: any, example_inputs: any, path: string, {input_names: table?,
  output_names: table?, dynamic_axes: table?, opset: count = 18, external_data = false})]], function(...)
  return load_module "luminary.onnx.export"(...)
end)

return onnx
