--- Prepares the graph of an ONNX file to be run: a list of steps, each a function over slots of a frame, a table of
--- values. Names are resolved, functions of the model expanded, nodes of constants computed and attributes read once.
---
--- A step is {run = function(frame) that returns the node's results, or a list of them if it has `list`, outputs =
--- their slots, o1, …, o4 the first of them, drop = slots that no later step reads, or nil, node = its text for errors,
--- blocks = graphs that it runs, or nil}. Slot 0 is nil: an input left out. Slot -1 takes results that nobody reads.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local patterns = require "luminary.onnx.patterns"
local Source = require "luminary.file_formats.source"
local tensors = require "luminary.onnx.tensors"
local check_rules = require "luminary.onnx.node_rules"
local helpers = require "luminary.onnx.ops.sizes"
local ops, is_tensor, is_float, free = core.ops, core.is_tensor, core.is_floating_point, core.methods.free
local graph = {}

--- The newest versions of sets of operators whose operators are known.
graph.newest = {[""] = 28, ["ai.onnx.ml"] = 6, ["ai.onnx.training"] = 1, ["ai.onnx.preview.training"] = 1}

local DEEPEST = 100 -- graphs in one another, and functions that call functions
-- Returns the most nodes and initializers of a file of `size` bytes, and the most elements that are computed while it
-- is read, where an element of a result, which is kept, counts as KEPT. Each node or initializer takes 3 KB, and
-- functions can be expanded without end: these bounds keep reading below 4 times the size, the elements of tensors, and
-- 96 MiB; of a small file, 4 MiB and 160 times the size.
local function limits_of(size) return tensors.most_nodes(size), math.min(2 ^ 23, 2 ^ 21 + 64 * size) end
-- Limits on nodes that are computed while the file is read, in elements: of each input and result; computed for one.
local MOST_ARGUMENTS = 4000 -- inputs of a node, and outputs of the graph, which Lua passes as arguments
local MOST_FOLDED, MOST_COMPUTED, KEPT = 4096, 2 ^ 16, 16

-- ---- running

-- Returns r, a result of a step, as another tensor with its memory if it is an input of the step, or its result a, b or
-- c, so that freeing one leaves the other.
local function apart(r, step, frame, a, b, c)
  local is_same = r ~= nil and (rawequal(r, a) or rawequal(r, b) or rawequal(r, c))
  for i = 1, r ~= nil and #step.inputs or 0 do is_same = is_same or rawequal(r, frame[step.inputs[i]]) end
  return is_same and is_tensor(r) and ops.view(r, r.shape) or r
end

-- Returns a function(frame) that calls f with the values of slots. how: see ops/init.lua.
local function runner(f, slots, how)
  local n, list, a, b, c, d = #slots, {}, slots[1] or 0, slots[2] or 0, slots[3] or 0, slots[4] or 0
  if not how and n == 1 then return function(frame) return f(frame[a]) end end
  if not how and n == 2 then return function(frame) return f(frame[a], frame[b]) end end
  if not how and n <= 4 then return function(frame) return f(frame[a], frame[b], frame[c], frame[d]) end end
  return function(frame)
    for i = 1, n do list[i] = frame[slots[i]] end
    local r1, r2, r3, r4
    if how == "list" then
      r1, r2, r3, r4 = f(list, n)
    elseif how == "frame" then
      r1, r2, r3, r4 = f(frame, unpack(list, 1, n))
    else
      r1, r2, r3, r4 = f(unpack(list, 1, n))
    end
    for i = 1, n do list[i] = nil end
    return r1, r2, r3, r4
  end
end

--- Runs steps first … last of a block over a frame. frame.noted, or the frame itself, gets the current one as `step`,
--- for the message of an error; slots in frame.held are not freed. While ops are recorded, block.cuts gets the indices
--- of steps that a recording cannot follow.
function graph.run_steps(block, frame, first, last)
  local steps, noted, held, recording, refusals = block.steps, frame.noted or frame, frame.held, core.is_recording_ops()
  for k = first, last do
    local step = steps[k]
    noted.step = step
    local r1, r2, r3, r4 = step.run(frame)
    if step.list then
      local seen = {}
      if is_tensor(r1) then error(("it makes one result, %d are declared"):format(#step.outputs), 0) end
      for i, slot in ipairs(step.outputs) do
        local r = apart(r1[i], step, frame)
        frame[slot], seen[r or false] = seen[r or false] and apart(r, step, frame, r) or r, true
      end
    else
      r1, r2 = apart(r1, step, frame), step.o2 and apart(r2, step, frame, r1)
      if step.o2 then r3, r4 = apart(r3, step, frame, r1, r2), apart(r4, step, frame, r1, r2, r3) end
      frame[step.o1] = r1
      if step.o2 then frame[step.o2], frame[step.o3], frame[step.o4] = r2, r3, r4 end
    end
    local drop = step.drop
    for i = 1, drop and #drop or 0 do
      local t = frame[drop[i]]
      frame[drop[i]] = nil
      if t and is_tensor(t) and not (held and held[drop[i]]) then free(t) end
    end
    if recording then
      local _, now = core.is_recording_ops()
      if now > refusals then block.cuts, refusals = lists.joined(block.cuts or {}, {k}), now end
    end
  end
end

--- Runs a block, {steps, …}, over a frame: in parts, of which most are plans, if the frame has `parts`.
function graph.run(block, frame)
  if frame.parts and not core.is_grad_enabled() and not core.is_recording_ops() then
    return load_module("luminary.onnx.parts").run(block, frame)
  end
  graph.run_steps(block, frame, 1, #block.steps)
end

-- Returns the end of a message about an index as the file has it: from 0, or from -1 at the end. i counts from 1.
local function as_in_file(i, rest, size)
  i = tonumber(i)
  return ("index %d %s%s entries (ONNX's indices start at 0)"):format(i > 0 and i - 1 or i - size - 1, rest, size)
end

-- Returns the text of an error, without position; for one of Lua itself, a sentence before it.
local function text_of(problem)
  local text = options.without_position(problem)
  local is_own = text:find "^attempt to " or text:find "^bad argument #" or text:find "^too many results to unpack"
  return is_own and "its attributes, or the shapes or number of its inputs, do not fit it (" .. text .. ")" or text
end

--- Fails with an error of the frame's current node.
function graph.fail_in(who, frame, problem)
  local text = text_of(problem)
    :gsub("index (%-?%d+) (at position %d+ is out of range for )(%d+) entries %(indices start at 1.-%)", as_in_file)
  core.error_at_caller(("%s: node %s: %s"):format(who, frame.step and frame.step.node or "?", text), problem)
end

-- ---- scopes: {names = slots by name, parent = the scope around it, graph}

-- Returns the slot of a name in a scope or one around it; 0 for "".
local function find_slot(scope, name)
  if name == "" then return 0 end
  local inner = scope
  while scope do
    local slot = scope.names[name]
    if slot then
      -- A value from outside of a graph that runs conditionally or repeatedly is read at an unknown time.
      if scope ~= inner then scope.graph.kept[slot] = true end
      return slot
    end
    scope = scope.parent
  end
end

-- ---- nodes

--- Node: what the functions of entries get. Its fields are the attributes and op, domain, version (of the domain's set
--- of operators), inputs and outputs (slots), results (number of outputs), scope, graph.
local Node = {}
Node.__index = Node

local unsupported = {} -- marks the errors of Node:unsupported

--- Fails, as for a node that cannot be run; `what` completes its name in the list of such nodes.
function Node.unsupported(_, what) error({unsupported, what}, 0) end
function Node:fail(format, ...) self.graph.fail("node %s: " .. format, self.text, ...) end

--- Returns input k if it is a known tensor, else nil.
function Node:const(k)
  local value = self.graph.constants[self.inputs[k] or 0]
  return is_tensor(value) and value or nil
end

--- Returns the number of input k if it is known and has no dims, else nil.
function Node:scalar(k)
  local known = self:const(k)
  return known and known.ndim == 0 and tonumber(known:item()) or nil
end

--- Returns the number of input k, t, of one element; nil if it is left out.
function Node:number(k, t)
  if t == nil then return nil end
  local known = self.known[k]
  if known and known.is_current(t) then return known.number end
  if t:numel() ~= 1 then
    helpers.refuse("input %d must have one element, got shape [%s]", k, table.concat(t.shape, ", "))
  end
  local number = tonumber(t:item())
  if self:const(k) then self.known[k] = {number = number, is_current = helpers.watch(t)} end
  return number
end

--- Returns the elements of input k, t, as a list of numbers that nobody may change; nil if it is left out.
function Node:ints(k, t)
  if t == nil then return nil end
  local list = self.lists[k]
  if list then return list end
  if t.ndim > 1 then helpers.refuse("input %d must have 1 dim, got shape [%s]", k, table.concat(t.shape, ", ")) end
  list = t.ndim == 0 and {t:item()} or t:totable() -- no op, since recordings of later calls have none
  for i = 1, #list do list[i] = tonumber(list[i]) end -- integers above 2^53 come as others
  if self:const(k) then self.lists[k] = list end
  return list
end

--- Returns the tensor of an attribute, or nil.
function Node:tensor(name) return self[name] and self.graph.read_tensor(self[name], self.graph.fail) end

--- Returns the dtype of the number of an element type; nil for 0 and nil.
function Node:dtype_of(number)
  if not number or number == 0 then return nil end
  local dtype = tensors.dtypes[number]
  if not dtype or tensors.absent[dtype] then self:unsupported("of " .. (dtype or tostring(number))) end
  return dtype
end

--- Prepares the graph of an attribute: {inputs = slots, outputs = slots, steps}. Its nodes see the node's scope.
function Node:subgraph(name)
  local block = self.graph:prepare(self[name] or self:fail("attribute '%s' is missing", name), self.scope)
  self.blocks = lists.joined(self.blocks or {}, {block})
  return block
end

--- Returns the steps before this node that compute the value of a name from those of other names, with the slot of that
--- value and the slots of the others. Their values stay in the frame.
function Node:steps_from(name, others)
  local wanted, slots, chosen = {}, {}, {}
  local function slot_of(of) return find_slot(self.scope, of) or self:fail("unknown value '%s'", of) end
  local target, given = slot_of(name), {}
  for i, other in ipairs(others) do
    slots[i] = slot_of(other)
    given[slots[i]] = true
  end
  wanted[target] = true
  for k = #self.steps, 1, -1 do
    local step = self.steps[k]
    if lists.find(step.outputs, function(slot) return wanted[slot] and not given[slot] end) then
      table.insert(chosen, 1, setmetatable({drop = false}, {__index = step}))
      for _, slot in ipairs(step.inputs) do wanted[slot], self.graph.kept[slot] = true, true end
    end
  end
  self.reads = lists.sorted_keys(wanted)
  return chosen, target, slots
end

-- Fields of an attribute by the number of its type.
local fields = {"f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs", "sparse_tensor", nil, "tp"}
local defaults = {f = 0, i = 0, s = "", floats = {}, ints = {}, strings = {}, tensors = {}, graphs = {}}

local function value_of(attribute)
  local field = fields[attribute.type or 0]
  for i = 1, field and 0 or 13 do -- old files have no types
    field = field or fields[i] and attribute[fields[i]] ~= nil and fields[i]
  end
  if not field then return nil end
  return attribute[field] == nil and defaults[field] or attribute[field]
end

-- ---- preparing

local Graph = {}
Graph.__index = Graph

local function domain_of(name) return (name == nil or name == "ai.onnx") and "" or name end

local function versions_of(list)
  local versions = {}
  for _, entry in ipairs(list or {}) do versions[domain_of(entry.domain)] = entry.version or 1 end
  return versions
end

-- Counts n more nodes or initializers; fails if the file has too many.
function Graph:count(n)
  self.nodes = self.nodes + n
  if self.nodes > self.most then
    self.fail("it has more than %d nodes and initializers, with functions expanded, the most for its size", self.most)
  end
end

local function key_of(domain, name, overload) return domain .. "\0" .. name .. "\0" .. (overload or "") end

function Graph:new_slot()
  self.slots = self.slots + 1
  return self.slots
end

-- Adds a tensor of the model: a "parameter", a "buffer" or a "constant". Those that do not change are known. label: its
-- name in the module, nil: the same.
function Graph:add_tensor(scope, name, value, kind, known, label)
  local slot = self:new_slot()
  scope.names[name], self.kept[slot] = slot, true
  if known or not (is_tensor(value) and is_float(value)) then self.constants[slot] = value end
  self.tensors[#self.tensors + 1] = {name = label or name, slot = slot, value = value, kind = kind}
  return slot
end

-- Inputs that are settings, which are known once the file is read, unless they train.
local settings = {
  Clip = {2, 3}, Resize = {2, 3}, Upsample = {2}, Pad = {3}, Dropout = {2}, Range = {1, 2, 3}, Pow = {2},
}

-- Adds a graph's initializers: those that train (roles.lua) as parameters, others as buffers.
function Graph:add_initializers(g, scope)
  local known, inputs = {}, {}
  for _, node in ipairs(g.node or {}) do
    for _, k in ipairs(settings[node.op_type] or {}) do known[(node.input or {})[k] or ""] = true end
  end
  for _, input in ipairs(g.input or {}) do inputs[input.name or ""] = true end
  local function add_initializer(message, value)
    local name, kind = message.name or "", message.trains and "parameter" or "buffer"
    if scope.names[name] then self.fail("two initializers are named '%s'", printable_name(name, 100)) end
    return self:add_tensor(scope, name, value, kind, known[name] and not message.trains, message.label)
  end
  for _, message in ipairs(g.initializer or {}) do
    local name, slot = message.name or "", add_initializer(message, self.read_tensor(message, self.fail))
    if inputs[name] and self.ir_version >= 4 then self.constants[slot], self.overridable[name] = nil, slot end
  end
  for _, sparse in ipairs(g.sparse_initializer or {}) do add_initializer(sparse.values or {}, self:dense(sparse)) end
end

--- Returns the dense tensor of a sparse one's message: values at indices, flat [n] or [n, dims], from 0.
function Graph:dense(sparse)
  local values = self.read_tensor(sparse.values or {}, self.fail)
  local indices, dims = self.read_tensor(sparse.indices or {}, self.fail), sparse.dims or {}
  local numel, flat = lists.product(dims), indices
  self.dense_elements = self.dense_elements + math.max(numel, 0)
  if not (numel >= 0 and self.dense_elements <= self.most_dense) then
    self.fail("its sparse tensors have more than %d elements, the most for its size, or sizes below 0", self.most_dense)
  end
  if indices.ndim == 2 then
    flat = ops.zeros({indices.shape[1]}, {dtype = "int64"})
    for d, size in ipairs(dims) do flat = flat * size + ops.select(indices, 2, d) end
  end
  if flat:numel() == 0 then return ops.zeros(dims, {dtype = values.dtype}) end
  return ops.scatter(ops.zeros({numel}, {dtype = values.dtype}), 1, flat + 1, values):reshape(dims)
end

-- Ops that are computed while the file is read, if their inputs are known: those that shapes are computed by.
local foldable = lists.set [[
  Abs Add And Cast CastLike Ceil Concat Div Equal Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual
  Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pow ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round
  ScatterElements ScatterND Size Slice Split Sqrt Squeeze Sub Sum Transpose Unsqueeze Where
]]

-- Foldable ops whose result has at most the sum of its inputs' elements; results of others can have their product.
local joins = lists.set "Concat ScatterElements ScatterND"

-- Returns the results of a node whose inputs are known; nil if it is run each time.
local function fold(node, run, how)
  if not foldable[node.op] or #node.inputs == 0 then return nil end
  local frame, numel, most, left = {}, 0, 1, node.graph.left_to_compute
  for k, slot in ipairs(node.inputs) do
    local value = node:const(k)
    if slot ~= 0 and not value then return nil end
    numel, frame[slot] = numel + (value and value:numel() or 0), value
    most = most * math.max(value and value:numel() or 1, 1)
  end
  if joins[node.op] then most = numel end
  if numel > MOST_FOLDED or most > math.min(MOST_COMPUTED, left) then return nil end
  node.graph.left_to_compute = left - most
  local results = {pcall(core.no_grad, run, frame)}
  if not table.remove(results, 1) then -- the error comes when the model runs
    node.graph.failed = nil
    return nil
  end
  if how == "results" then results = results[1] end
  for _, result in ipairs(results) do
    if result:numel() > MOST_FOLDED then return nil end
    node.graph.left_to_compute = node.graph.left_to_compute - KEPT * result:numel()
  end
  return results
end

-- Returns f(inputs...) of an entry, and its `how`; calls its `prepare`.
local function bind(entry, node)
  if type(entry) == "function" then return entry end
  for name, value in pairs(entry) do
    if node[name] == nil then node[name] = value end
  end
  if entry.dtype_in then node.dtype = node:dtype_of(node[entry.dtype_in]) end
  if entry.prepare then entry.prepare(node) end
  local f, how = entry.choose and entry.choose(node) or nil, entry.how
  if f then return f, how end
  f = entry[1]
  if how == "frame" or how == "list" or #node.inputs > 4 then return function(...) return f(node, ...) end, how end
  return function(x, y, z, w) return f(node, x, y, z, w) end, how
end

-- Adds the steps of a node. references: attributes of the function that it is in.
function Graph:add_node(message, scope, steps, versions, references)
  local domain, op, names = domain_of(message.domain), message.op_type or "", lists.copy(message.output or {})
  while names[#names] == "" do names[#names] = nil end
  local node = setmetatable({
    op = op, domain = domain, version = versions[domain] or 1, inputs = {}, outputs = {}, results = #names,
    graph = self, scope = scope, steps = steps, given = {}, known = {}, lists = {},
    text = ("'%s' (%s)"):format(printable_name(message.name or "", 100), printable_name(op, 60)),
  }, Node)
  for _, attribute in ipairs(message.attribute or {}) do
    local name, value = attribute.name or "", value_of(attribute)
    if attribute.ref_attr_name then value = references and references[attribute.ref_attr_name] end
    node.given[name] = value
    if node[name] == nil then node[name] = value end -- no field or method of Node
  end
  for i, name in ipairs(message.input or {}) do
    node.inputs[i] = find_slot(scope, name) or self.fail("node %s: no node before it makes its input '%s'", node.text,
      printable_name(name, 100))
  end
  while node.inputs[#node.inputs] == 0 do node.inputs[#node.inputs] = nil end
  local called = self.functions[key_of(domain, op, message.overload)]
  if called then return self:add_function(called, node, names, versions) end

  for i, name in ipairs(names) do node.outputs[i] = name == "" and -1 or self:new_slot() end
  local function name_outputs()
    for i, name in ipairs(names) do
      if name ~= "" then scope.names[name] = node.outputs[i] end
    end
  end
  local entry = self.find_op(domain, op)
  if not entry then
    self:lacks(domain, op)
    return name_outputs()
  end
  check_rules(node)
  local is_constant = type(entry) == "table" and entry.constant
  local ok, f, how = pcall(is_constant or bind, is_constant and node or entry, node)
  if not ok and type(f) == "table" and f[1] == unsupported then
    self:lacks(domain, op, f[2])
    return name_outputs()
  elseif not ok then
    if self.failed then error(f, 0) end -- an error of self.fail
    self.fail("node %s: %s", node.text, text_of(f))
  end
  local weight = is_constant and (node.value or (node.sparse_value or {}).values)
  if weight and weight.trains then -- once for all calls of a function that has it
    local slot = self.weights[weight]
      or self:add_tensor(scope, names[1] or "", f, "parameter", false, weight.label)
    scope.names[names[1] or ""], self.weights[weight] = slot, slot
    return
  end
  if how ~= "list" and #node.inputs > MOST_ARGUMENTS then node:fail("it has more than %d inputs", MOST_ARGUMENTS) end
  local run = not is_constant and runner(f, node.inputs, how)
  local values = is_constant and {f} or fold(node, run, how)
  for i, name in ipairs(values and names or {}) do
    if name ~= "" and values[i] ~= nil then self:add_tensor(scope, name, values[i], "constant", true) end
  end
  if values then return end
  name_outputs()
  local o = node.outputs
  steps[#steps + 1] = {
    run = run, list = how == "results" or #o > 4, o1 = o[1] or -1, o2 = o[2], o3 = o[3] or -1, o4 = o[4] or -1,
    outputs = o, inputs = node.inputs, node = node.text, blocks = node.blocks, reads = node.reads,
  }
  if how == "frame" or how == "holds" or type(entry) == "table" and entry.holds then
    for _, slot in ipairs(lists.joined(node.inputs, o)) do self.kept[slot] = true end
  end
end

-- Expands a call of one of the model's functions.
function Graph:add_function(f, node, names, versions)
  local inner, references = {names = {}, graph = self}, {}
  if self.depth > DEEPEST then self.fail("function '%s' calls itself", printable_name(f.name or "", 100)) end
  for _, attribute in ipairs(f.attribute_proto or {}) do references[attribute.name or ""] = value_of(attribute) end
  for name, value in pairs(node.given) do references[name] = value end
  for i, name in ipairs(f.input or {}) do inner.names[name] = node.inputs[i] or 0 end
  local own = versions_of(f.opset_import)
  for domain, version in pairs(versions) do own[domain] = own[domain] or version end
  self:count(#(f.node or {}))
  self.depth = self.depth + 1
  for _, message in ipairs(f.node or {}) do self:add_node(message, inner, node.steps, own, references) end
  self.depth = self.depth - 1
  for i, name in ipairs(names) do node.scope.names[name] = find_slot(inner, (f.output or {})[i] or "") or 0 end
end

-- Counts a node that cannot be run.
function Graph:lacks(domain, op, what)
  local name = printable_name((domain == "" and "" or domain .. ".") .. op .. (what and " " .. what or ""), 100)
  if not self.lacking[name] then table.insert(self.lacking, name) end
  self.lacking[name] = (self.lacking[name] or 0) + 1
end

-- Sets the slots that steps drop: those whose last reader is that step, or that nobody reads.
function Graph:set_drops(steps)
  local last = {}
  for k, step in ipairs(steps) do
    for _, slot in ipairs(step.outputs) do last[slot] = k end
    for _, slot in ipairs(step.inputs) do last[slot] = last[slot] and k end
  end
  for slot, k in pairs(last) do
    if slot > 0 and not self.kept[slot] then
      steps[k].drop = steps[k].drop or {}
      table.insert(steps[k].drop, slot)
    end
  end
end

--- Prepares a graph's nodes: {inputs = slots, outputs = slots, steps, message}. `parent`: the scope around it.
function Graph:prepare(g, parent)
  local scope, plan = {names = {}, parent = parent, graph = self}, {inputs = {}, outputs = {}, steps = {}, message = g}
  if self.depth > DEEPEST then self.fail "graphs are nested too deeply" end
  self:count(#(g.node or {}) + #(g.initializer or {}))
  self.depth = self.depth + 1
  self:add_initializers(g, scope)
  for _, input in ipairs(g.input or {}) do
    if not scope.names[input.name or ""] then
      local slot = self:new_slot()
      scope.names[input.name or ""], self.kept[slot] = slot, true
      table.insert(plan.inputs, slot)
    end
  end
  local joined = patterns.joined(g, function(message) return self.read_tensor(message, self.fail) end,
    self.versions[""] or 1)
  for _, message in ipairs(joined) do self:add_node(message, scope, plan.steps, self.versions) end
  for i, output in ipairs(g.output or {}) do
    local slot = find_slot(scope, output.name or "")
      or self.fail("no node makes the output '%s'", printable_name(output.name or "", 100))
    plan.outputs[i], self.kept[slot] = slot, true
  end
  table.insert(self.plans, plan)
  self.depth = self.depth - 1
  return plan
end

--- Prepares a model: {inputs, outputs, steps, tensors = list of {name, slot, value, kind}, overridable = slots by
--- name}. size: bytes of its file; read_tensor(message, fail): see tensors.lua. fail(format, ...), and, for a valid
--- file, unsupported_model(format, ...) raise an error that begins with the file's name.
function graph.prepare(model, size, read_tensor, fail, unsupported_model)
  local self = setmetatable({
    slots = 0, nodes = 0, depth = 0, dense_elements = 0, constants = {}, kept = {}, tensors = {}, functions = {},
    lacking = {}, plans = {}, weights = {}, overridable = {}, versions = versions_of(model.opset_import),
    read_tensor = read_tensor, ir_version = model.ir_version or 3,
    find_op = load_module("luminary.onnx.ops").find,
  }, Graph)
  self.most, self.left_to_compute = limits_of(size)
  self.most_dense = Source.MOST_REPEATED + size
  function self.fail(...)
    self.failed = true
    fail(...)
  end
  for domain, version in pairs(self.versions) do
    if version > (graph.newest[domain] or math.huge) then
      unsupported_model("its operators %s are of version %.0f; the newest known is %d",
        domain == "" and "of ONNX" or "'" .. domain .. "'", version, graph.newest[domain])
    end
  end
  for _, f in ipairs(model.functions or {}) do
    self.functions[key_of(domain_of(f.domain), f.name or "", f.overload)] = f
  end
  local plan, lacking = self:prepare(model.graph or fail "it has no graph"), self.lacking
  local outputs = #plan.outputs
  if outputs > MOST_ARGUMENTS then fail("it has %d outputs, at most %d are allowed", outputs, MOST_ARGUMENTS) end
  if #lacking > 0 then
    table.sort(lacking, function(a, b) return lacking[a] > lacking[b] or lacking[a] == lacking[b] and a < b end)
    local list = lists.map(lacking, function(name) return ("%d × %s"):format(lacking[name], name) end)
    unsupported_model("cannot run %d kind%s of nodes: %s", #list, #list == 1 and "" or "s", table.concat(list, ", "))
  end
  for _, part in ipairs(self.plans) do self:set_drops(part.steps) end
  plan.tensors, plan.overridable = self.tensors, self.overridable
  return plan
end

return graph
