--- lm.onnx.export: Records the ops of a module's call and writes them as an ONNX file.
local core = require "luminary.core"
local in_mode = require "luminary.nn.in_mode"
local lists = require "luminary.base.lists"
local nested_tensors = require "luminary.base.nested_tensors"
local options = require "luminary.base.options"
local newest = require("luminary.onnx.graph").newest
local printable_name = require "luminary.base.printable_name"
local promote_types = require("luminary.tensor.dtype_info").promote_types
local records = require "luminary.nn.module_fields"
local PackedSequence = require("luminary.nn.utils.rnn").PackedSequence
local tensors = require "luminary.onnx.tensors"
local version = require "luminary.version"
local write_graph = require "luminary.onnx.write_graph"
local write_ops = require "luminary.onnx.write_ops"
local equal = require("luminary.tensor.methods").equal
local ops, is_tensor, fail = core.ops, core.is_tensor, options.fail

local MOST_BYTES = 2 ^ 31 - 2 ^ 24 -- protobuf's limit, with room for nodes; larger weights go into a file beside
local MOST_SIZES = 64 -- elements of a tensor whose values are computed one by one
local ALIGNMENT = 4096 -- bytes; weights there can be mapped

-- ---- arguments

-- Sets the names of found tensors: those given, then their own, then "input", "input_2", ….
local function set_names(what, found, given, noun)
  if given and #given > #found then
    fail("export: %s has %d names, the module has %d %ss", what, #given, #found, noun)
  end
  local seen = {}
  for i, each in ipairs(found) do
    local name = given and given[i] or each.name or i == 1 and noun or noun .. "_" .. i
    if type(name) ~= "string" or name == "" or not core.is_utf8_text(name) then
      options.must_be("export", what, "a list of names in UTF-8", name)
    end
    if seen[name] and given and given[i] then
      fail("export: %s has '%s' twice; names must differ", what, printable_name(name, 100))
    end
    while seen[name] do name = name .. "_" end
    each.name, seen[name] = name, true
  end
end

-- Returns the list of symbols {name, axes = {{input, axis}}, size} of dynamic_axes.
local function symbols_of(axes, inputs, output_names)
  local symbols, by_name = {}, {}
  for _, name in ipairs(lists.sorted_keys(axes or {})) do
    local at
    for i, each in ipairs(inputs) do at = each.name == name and i or at end
    if not at and not lists.index_of(output_names or {}, name) then
      fail("export: dynamic_axes names '%s', which is no input; inputs are %s", printable_name(tostring(name), 100),
        table.concat(lists.map(inputs, function(each) return each.name end), ", "))
    end
    if type(axes[name]) ~= "table" then
      options.must_be("export", "dynamic_axes." .. name, "a table of axes, as in {[1] = \"N\"}", axes[name])
    end
    for key, value in pairs(at and axes[name] or {}) do
      local axis, symbol = key, value
      if type(value) == "number" then axis, symbol = value, name .. "_dim_" .. value end
      local x = inputs[at].tensor
      if type(axis) ~= "number" or axis < 1 or axis > x.ndim or axis % 1 ~= 0 or type(symbol) ~= "string" then
        options.must_be("export", "dynamic_axes." .. name, ("axes from 1 to %d with names, as in {[1] = \"N\"}")
          :format(x.ndim), tostring(key) .. " = " .. tostring(value))
      end
      local size = x.shape[axis]
      if not by_name[symbol] then
        by_name[symbol] = {name = symbol, axes = {}, size = size}
        symbols[#symbols + 1] = by_name[symbol]
      elseif by_name[symbol].size ~= size then
        fail("export: the axes named '%s' have the sizes %d and %d in the example", printable_name(symbol, 100),
          by_name[symbol].size, size)
      end
      table.insert(by_name[symbol].axes, {input = at, axis = axis})
    end
  end
  table.sort(symbols, function(a, b) return a.name < b.name end)
  return symbols
end

-- Sizes of a dynamic axis in the second and third recording: factors of the first one's, by the number of the axis, or
-- numbers that are added. No two axes change alike, so that a size that follows one of them is not taken for another's.
local factors = {{2, 3}, {3, 2}, {2, 5}, {5, 2}, {3, 5}, {5, 3}}
local additions = {{1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 3}, {3, 2}}

-- Returns the examples with the sizes of a recording.
local function resized(inputs, symbols, recording)
  local list = lists.map(inputs, function(each) return each.tensor end)
  for _, symbol in ipairs(symbols) do
    local size = symbol.samples[recording]
    for _, each in ipairs(symbol.axes) do
      local x = list[each.input]
      if symbol.size == 0 then
        local sizes = {unpack(x.shape)}
        sizes[each.axis] = size
        list[each.input] = ops.ones(sizes, {dtype = x.dtype, device = x.device})
      else
        local index = ops.arange(0, size, {dtype = "int64", device = x.device}):remainder(symbol.size) + 1
        list[each.input] = ops.index_select(x, each.axis, index)
      end
    end
  end
  return list
end

-- ---- recording

-- Records a call in evaluation mode: {steps, values, tape, outputs, lengths = ids of recurrent layers' lengths by those
-- of their results}.
local function record(module, args, rebuild, list)
  local found, exported, lengths = {}, {}, {}
  PackedSequence.exported = exported
  local results = options.pack(options.restoring(function() PackedSequence.exported = nil end, in_mode, module, false,
    core.record_ops, function(recorded) return module(unpack(rebuild(recorded), 1, args.n)) end, list))
  local tape = results[1]
  local why = tape:refusal()
  if why then fail("export: %s", why) end
  local steps, values = tape:steps()
  for i = 2, results.n do nested_tensors(results[i], found) end
  if #found == 0 then fail "export: the module returns no tensor" end
  for _, each in ipairs(exported) do lengths[tape:id(each[1])] = tape:id(each[2]) end
  return {steps = steps, values = values, tape = tape, outputs = found, lengths = lengths}
end

-- Returns the list of the ids of a step's inputs, by the arguments' names in order; false for those left out of a list.
local function ids_of(step)
  local ids = {}
  for _, id in lists.sorted_pairs(step.inputs) do
    lists.append(ids, type(id) == "table" and id or {id})
  end
  return ids
end

local function text_of(step) return step.op .. " " .. table.concat(lists.map(ids_of(step), tostring), " ") end

-- Raises unless two recordings have the same steps.
local function compare(a, b)
  for k = 1, math.max(#a.steps, #b.steps) do
    local one, other = a.steps[k], b.steps[k]
    if not one or not other or text_of(one) ~= text_of(other) then
      local step = one or other
      fail("export: %s%s is called for some sizes of the dynamic axes only; leave that axis out of dynamic_axes",
        step.line and step.line .. ": " or "", step.op)
    end
  end
  if #a.outputs ~= #b.outputs then fail "export: the number of outputs depends on the dynamic axes" end
end

-- Returns a value that all recordings have: lists of sizes, or a number, with Varying for what differs.
local function merged(all)
  if type(all[1]) == "number" then return write_graph.size_from(all) end
  local out = {}
  for _, each in ipairs(all) do
    if type(each) ~= type(all[1]) or type(each) ~= "table" and each ~= all[1] or type(each) == "table"
      and #each ~= #all[1] then
      error("an argument other than a size depends on the dynamic axes", 0)
    end
  end
  if type(all[1]) ~= "table" then return all[1] end
  for i = 1, #all[1] do out[i] = write_graph.size_from(lists.map(all, function(each) return each[i] end)) end
  return out
end

-- ---- steps to nodes

local Export = {}
Export.__index = Export

-- Returns the value of a tensor that Lua made of sizes, such as those of a shape, which differ between recordings.
function Export:sizes(id)
  local all = lists.map(self.recordings, function(recording) return recording.values[id].tensor end)
  for _, t in ipairs(all) do
    if t:numel() > MOST_SIZES or table.concat(t.shape, " ") ~= table.concat(all[1].shape, " ") then
      fail "export: a tensor that no op of the recording made depends on the dynamic axes"
    end
  end
  local list = self.graph:ints(merged(lists.map(all, function(t) return t:double():reshape(-1):totable() end)))
  return (all[1].ndim == 1 and list or self.graph.Reshape(list, all[1].shape)):to(all[1].dtype):with(self.shapes[id])
end

-- Returns the value of an id: an input, a parameter, a constant, or the result of a step, which is added if it was not.
function Export:value(id)
  if self.done[id] then return self.done[id] end
  local info, t = self.info[id], self.info[id].tensor
  local depends, varies = info.step and self.from_parameter[info.step], false
  for _, recording in ipairs(self.recordings) do
    local other = recording.values[id].tensor
    varies = varies or not rawequal(t, other) and not equal(t, other)
  end
  if info.step and (depends or varies or self.written[id]) then
    self:add(self.steps[info.step])
  elseif varies then
    self.done[id] = self:sizes(id)
  else
    self.done[id] = self.graph:initializer(t, self.names[id])
  end
  return self.done[id]
end

-- Returns a step's arguments by name, as rows take them.
function Export:arguments(k, step)
  local args, numbers = {}, {}
  for _, recording in ipairs(self.recordings) do numbers[#numbers + 1] = recording.steps[k].attributes end
  for name in pairs(step.attributes) do
    args[name] = merged(lists.map(numbers, function(each) return each[name] end))
  end
  local is_view, index = write_ops.views[step.op], write_ops.indices[step.op]
  local all, some = true, false
  local function take(id)
    local value = self:value(id)
    all, some = all and (value.zero_based or false), some or value.zero_based or false
    return value
  end
  for name, id in lists.sorted_pairs(step.inputs) do -- the order of initializers and nodes in the file
    if type(id) == "table" then
      args[name] = {n = #id}
      for i, each in ipairs(id) do args[name][i] = each and take(each) end
    else
      args[name] = take(id)
    end
  end
  local keeps = is_view and all and some and not self.info[step.outputs[1]].dtype:find "float"
  for name in lists.sorted_pairs(keeps and {} or step.inputs) do
    local value = args[name]
    if name ~= index and write_graph.is_value(value) then
      args[name] = value:from_one()
    elseif name ~= index then
      for i = 1, value.n do value[i] = value[i] and value[i]:from_one() end
    end
  end
  return args, keeps
end

-- Elementwise ops of several tensors, which promote dtypes.
local promotes = lists.set [[
  add sub rsub mul div floor_divide remainder fmod pow maximum minimum where masked_fill clamp lerp addcmul addcdiv
  eq ne lt gt ge le prelu
]]

local function promote(self, step, args, dtype)
  local common = dtype
  if dtype == "bool" then
    common = nil
    for name in pairs(step.inputs) do
      local own = args[name].dtype
      common = common and promote_types(common, own) or own
    end
    for name, v in pairs(args) do
      if type(v) == "number" and name ~= "alpha" and v % 1 ~= 0 and common:find "int" then common = "float32" end
    end
  end
  for name in lists.sorted_pairs(step.inputs) do
    if name ~= "condition" and name ~= "mask" then args[name] = args[name]:to(common):with(args[name].shape) end
  end
  if step.op == "where" then
    for _, name in ipairs {"x", "other"} do
      if type(args[name]) == "number" then args[name] = self.graph:constant(args[name], common) end
    end
  end
end

local function rank(x) return #x.shape end

-- Adds the nodes of a step.
function Export:add(step)
  local k = step.index
  local row = write_ops.rows[step.op]
  if not row or self.failed[k] then
    if not self.failed[k] then self:lacks(step, nil) end
    self.failed[k] = true
  end
  local outputs = {}
  local ok, problem = pcall(function()
    if self.failed[k] then error("", 0) end
    local args, keeps = self:arguments(k, step)
    local infos = lists.map(step.outputs, function(id) return id and self.info[id] end)
    if promotes[step.op] then promote(self, step, args, infos[1].dtype) end
    local context = {dtype = infos[1].dtype, shape = self.shapes[step.outputs[1]], rank = rank}
    local lengths = self.recordings[1].lengths[step.outputs[1]]
    context.lengths = lengths and self:value(lengths):from_one():to "int32"
    outputs = {row(self.graph, args, context)}
    outputs[1] = outputs[1]:with(nil, keeps or outputs[1].zero_based)
  end)
  if not ok and not self.failed[k] then
    self:lacks(step, options.without_position(problem))
    self.failed[k] = true
  end
  for i, id in ipairs(step.outputs) do
    if id then
      local value, dtype = outputs[i] or self.graph:value("?", self.info[id].dtype), self.info[id].dtype
      if not value.zero_based then value = value:to(dtype) end
      self.done[id] = value:with(self.shapes[id], value.zero_based)
    end
  end
end

function Export:lacks(step, why)
  why = why and why:gsub("^export: ", "")
  if why and (why:find "arithmetic on" or why:find "compare" or why:find "a number" or why:find "got table") then
    why = "its sizes depend on a dynamic axis in a way that has no counterpart"
  end
  local text = ("%s%s%s"):format(step.op, why and why ~= "" and " (" .. why .. ")" or "",
    step.line and " at " .. step.line or "")
  if not self.lacking[text] then table.insert(self.lacking, text) end
  self.lacking[text] = (self.lacking[text] or 0) + 1
end

-- Marks steps that need no node unless another needs them: those that depend neither on inputs nor on random numbers.
-- Marks the inputs that are indices, or the sources of such: the graph has them from 0.
function Export:scan()
  local wanted = {}
  for k, step in ipairs(self.steps) do
    step.index = k
    for _, id in ipairs(ids_of(step)) do
      local made = id and self.info[id].step
      if self.names[id] or self.from_parameter[made] then self.from_parameter[k] = true end
    end
  end
  for k = #self.steps, 1, -1 do
    local step = self.steps[k]
    local index = write_ops.indices[step.op]
    local function mark(id)
      for _, each in ipairs(type(id) == "table" and id or {id}) do
        if each then wanted[each] = true end
      end
    end
    if index and step.inputs[index] then mark(step.inputs[index]) end
    if write_ops.views[step.op] and wanted[step.outputs[1]] then
      mark(step.inputs.x)
      mark(step.inputs.tensors)
    end
  end
  return wanted
end

-- Raises if a step writes to memory that another value shares, which is read later.
function Export:check_writes()
  local base, last = {}, {}
  for k, step in ipairs(self.steps) do
    if write_ops.aliases[step.op] and step.inputs.x then
      base[step.outputs[1]] = base[step.inputs.x] or step.inputs.x
    end
    for _, id in ipairs(ids_of(step)) do last[id or 0] = k end
  end
  for _, each in ipairs(self.recordings[1].outputs) do last[self.tape:id(each.tensor) or 0] = math.huge end
  for k, step in ipairs(self.steps) do
    local written = step.in_place and step.outputs[1]
    if written then
      local root = base[written] or written
      self.written[root] = true
      if self.info[root].input or not self.info[root].step then
        self:lacks(step, "it writes to an input, a parameter or a tensor from outside")
        self.failed[k] = true
      end
      for id, until_step in pairs(last) do
        if id ~= written and id > 0 and (base[id] or id) == root and until_step > k then
          self:lacks(step, "it writes to memory that another tensor shares")
          self.failed[k] = true
          break
        end
      end
    end
  end
end

-- ---- the file

local ir_versions = {[13] = 7, [14] = 7, [19] = 9, [20] = 9, [21] = 10, [22] = 10, [23] = 11, [24] = 12, [28] = 14}

local function type_of(value, sizes)
  local dims = lists.map(sizes, function(v)
    return type(v) == "number" and {dim_value = v} or {dim_param = v}
  end)
  return {tensor_type = {elem_type = tensors.number_of[value.dtype], shape = {dim = dims}}}
end

-- Returns the name of the node's result that a value is.
local function name_of(value) return value and value.ref.name or "" end

-- Returns the messages of the initializers; those of more than MOST_BYTES in all go to a file beside the model.
local function write_initializers(path, list, external)
  local bytes, pieces, offset, messages = 0, {}, 0, {}
  for i, each in ipairs(list) do
    messages[i] = write_graph.message_of(each.tensor, each.value.ref.name)
    bytes = bytes + messages[i].raw_data.nbytes
  end
  if not external and bytes <= MOST_BYTES then return messages end
  local file = path:match "[^/]*$" .. ".data"
  for _, message in ipairs(messages) do
    local raw = message.raw_data
    if raw.nbytes >= 1024 then
      local gap = -offset % ALIGNMENT
      if gap > 0 then pieces[#pieces + 1] = ("\0"):rep(gap) end
      pieces[#pieces + 1], offset = raw, offset + gap
      message.external_data = {
        {key = "location", value = file}, {key = "offset", value = ("%.0f"):format(offset)},
        {key = "length", value = ("%.0f"):format(raw.nbytes)},
      }
      message.data_location, message.raw_data, offset = 1, nil, offset + raw.nbytes
    end
  end
  core.write_pieces(path .. ".data", pieces, "export")
  return messages
end

local function write(self, path, o)
  local graph, outputs, results = self.graph, {}, {}
  for i, each in ipairs(self.recordings[1].outputs) do
    local id = self.tape:id(each.tensor)
    local value = id and self:value(id)
    if not value then -- a tensor that no step of the recording used
      local names = lists.sorted_keys(self.by_name, function(_, p) return rawequal(p, each.tensor) end)
      value = graph:initializer(each.tensor, names[1])
    end
    local sizes = lists.map(id and self.shapes[id] or each.tensor.shape, function(v) return graph:size_text(v) end)
    if value.ref.made and not value.ref.is_output then
      value.ref.name, value.ref.is_output = each.name, true
    else
      value = graph.Identity(value)
      value.ref.name = each.name
    end
    results[i] = value
    outputs[i] = {name = each.name, type = type_of(value, sizes)}
  end
  if #self.lacking > 0 then
    local list = lists.map(self.lacking, function(text) return ("%d × %s"):format(self.lacking[text], text) end)
    fail("export: cannot write %d kind%s of steps: %s", #list, #list == 1 and "" or "s", table.concat(list, ", "))
  end
  graph:prune(results)
  local nodes = lists.map(graph.nodes, function(node)
    return {
      op_type = node.op_type, name = node.name, attribute = node.attribute, input = lists.map(node.inputs, name_of),
      output = lists.map(node.outputs, name_of),
    }
  end)
  local trains = lists.sorted_keys(self.by_name, function(_, t) return t.requires_grad end)
  core.onnx_write(path, {
    metadata_props = {{key = tensors.TRAINS, value = table.concat(trains, "\n")}}, -- see roles.lua
    ir_version = ir_versions[o.opset] or o.opset > 24 and 13 or 8, producer_name = "luminary",
    producer_version = version, opset_import = {{domain = "", version = o.opset}},
    graph = {
      name = "main", node = nodes, input = self.inputs, output = outputs,
      initializer = write_initializers(path, graph.initializers, o.external_data),
    },
  })
end

-- Returns recording k, with sizes that are no multiples of the example's, which show how a size such as a half is
-- rounded; nil if the module does not run with them, or, with a warning, has other steps then.
local function recording_between(module, args, rebuild, inputs, symbols, first, k)
  local sizes = {}
  for i, symbol in ipairs(symbols) do
    local most = math.max(unpack(symbol.samples, 1, 3))
    local size = most - 1
    while lists.index_of(symbol.samples, size) do size = size - 1 end
    symbol.samples[k] = size > 0 and k < 7 and size or most + (k < 7 and k - 2 or 7)
    sizes[i] = ("%s = %d"):format(printable_name(symbol.name, 100), symbol.samples[k])
  end
  local runs, found = pcall(record, module, args, rebuild, resized(inputs, symbols, k))
  if runs and pcall(compare, first, found) then return found end
  for _, symbol in ipairs(symbols) do symbol.samples[k] = nil end
  if runs and k == 4 then
    core.warn(("export: with %s the module has other steps than with the example's sizes and their multiples; the file "
      .. "has the latter"):format(table.concat(sizes, ", ")))
  end
end

-- Returns the shape of the first recording's value of an id, with Varying for sizes that differ in others.
local function shape_of(all, id) return merged(lists.map(all, function(each) return each.values[id].shape end)) end

-- Returns true if a size of a value does not follow from the recordings.
local function has_unknown(all, symbols)
  local graph = write_graph.new(0, symbols)
  for id in ipairs(all[1].values) do
    for _, v in ipairs(shape_of(all, id)) do
      if tostring(graph:size_text(v)):find "^unknown_" then return true end
    end
  end
end

-- Records the module with its example, and with the other sizes of dynamic axes.
local function recordings_of(module, args, rebuild, inputs, symbols)
  local examples = lists.map(inputs, function(each) return each.tensor end)
  local all = {record(module, args, rebuild, examples)}
  if #symbols == 0 then return all end
  local problem
  local is_empty = lists.find(symbols, function(symbol) return symbol.size == 0 end)
  for _, way in ipairs(is_empty and {"additions"} or {"factors", "additions"}) do
    for i, symbol in ipairs(symbols) do
      local size, steps = symbol.size, (way == "factors" and factors or additions)[i]
        or fail("export: at most %d dynamic axes of different names are supported", #factors)
      local first, second = steps[1], steps[2]
      symbol.samples = way == "factors" and {size, size * first, size * second} or {size, size + first, size + second}
    end
    local ok
    ok, problem = pcall(function()
      for k = 2, 3 do
        all[k] = record(module, args, rebuild, resized(inputs, symbols, k))
        compare(all[1], all[k])
      end
    end)
    if ok then
      for k = 4, 7 do
        if k == 4 or all[k - 1] and has_unknown(all, symbols) then
          all[k] = recording_between(module, args, rebuild, inputs, symbols, all[1], k)
        end
      end
      return all
    end
  end
  fail("export: the module does not run with other sizes of its dynamic axes: %s", options.without_position(problem))
end

return function(module, example, path, o)
  if not records.is_module(module) then options.must_be("export", "module", "an nn.Module", module) end
  if o.opset < 13 or o.opset > newest[""] then
    options.must_be("export", "opset", ("from 13 to %d"):format(newest[""]), o.opset)
  end
  if not is_tensor(example) and not (options.is_plain(example) and #example > 0) then
    options.must_be("export", "example_inputs", "a tensor or a list of the call's arguments", example)
  end
  local args, inputs = is_tensor(example) and {example} or example, {}
  local n = 0
  for key in pairs(args) do n = type(key) == "number" and math.max(n, key) or n end
  local rebuild = nested_tensors(args, inputs)
  if #inputs == 0 then options.must_be("export", "example_inputs", "arguments with at least one tensor", example) end
  set_names("input_names", inputs, o.input_names, "input")
  local symbols = symbols_of(o.dynamic_axes, inputs, o.output_names)
  local recordings = recordings_of(module, {n = n}, rebuild, inputs, symbols)
  local first = recordings[1]
  set_names("output_names", first.outputs, o.output_names, "output")

  local graph = write_graph.new(o.opset, symbols)
  local self = setmetatable({
    graph = graph, recordings = recordings, steps = first.steps, info = first.values, tape = first.tape, done = {},
    names = {}, by_name = {}, shapes = {}, written = {}, from_parameter = {}, failed = {}, lacking = {}, inputs = {},
  }, Export)
  local taken = {}
  local function register(name, t)
    local id = self.tape:id(t)
    self.by_name[name], taken[name] = t, true
    if id and not self.names[id] then self.names[id] = name end
  end
  for name, p in module:named_parameters() do register(name, p) end
  for name, b in module:named_buffers() do register(name, b) end
  for side, found in ipairs {inputs, first.outputs} do
    local what = side == 1 and "input_names" or "output_names"
    for _, each in ipairs(found) do
      if taken[each.name] and o[what] and lists.index_of(o[what], each.name) then
        fail("export: %s: '%s' is the name of another tensor", what, printable_name(each.name, 100))
      end
      while taken[each.name] do each.name = each.name .. "_" end
      taken[each.name], graph.names[each.name] = true, true
    end
  end
  for id in ipairs(self.info) do
    self.shapes[id] = shape_of(recordings, id)
  end
  local indices = self:scan()
  for i, each in ipairs(inputs) do -- which are the recording's first values
    local value = graph:value(each.name, each.tensor.dtype, self.shapes[i])
    value.zero_based = indices[i] and not each.tensor.dtype:find "float" or nil
    self.done[i] = value
    for _, symbol in ipairs(symbols) do
      for _, at in ipairs(symbol.axes) do
        if at.input == i and not symbol.input then symbol.input, symbol.axis = value, at.axis - 1 end
      end
    end
    local sizes = lists.map(value.shape, function(v) return graph:size_text(v) end)
    self.inputs[i] = {name = each.name, type = type_of(value, sizes)}
  end
  self:check_writes()
  for _, step in ipairs(self.steps) do
    if step.dynamic then self:add(step) end
  end
  write(self, path, o)
end
