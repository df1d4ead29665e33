--- Prepares the graph of an ONNX file to be run: a list of steps, each a function over slots of a frame, a table of
--- values. Names are resolved, functions of the model expanded, nodes of constants computed and attributes read once.
---
--- A step is {run = function(frame) that returns the node's results, n = number of results, o1, …, o4 = their slots, drop
--- = slots that are not read afterwards, or nil, node = the node's text for errors}. Slot 0 is nil: an input left out. Slot
--- -1 takes results that nobody reads.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local tensors = require "luminary.onnx.tensors"

local ops, is_tensor, free = core.ops, core.is_tensor, core.methods.free
local graph = {}

--- The newest versions of sets of operators whose operators are known.
graph.newest = {[""] = 28, ["ai.onnx.ml"] = 6, ["ai.onnx.training"] = 1, ["ai.onnx.preview.training"] = 1}

-- Number of nodes, and that for each one in the file: functions that call functions can be expanded without end.
local MOST_NODES, MOST_REPEATED = 2 ^ 14, 64
local MOST_FOLDED = 4096 -- elements of the inputs of a node that is computed while it is loaded

-- ---- running

-- Returns x as another tensor with its memory, so that freeing one leaves the other.
local function alias(x) return is_tensor(x) and ops.view(x, x.shape) or x end

-- Returns a function(frame) that calls f with the values of slots. how: "frame" passes the frame first, "list" passes all
-- values as one list, "results" means that f returns a list.
local function runner(f, slots, how)
  local a, b, c, d = slots[1], slots[2], slots[3], slots[4]
  local n, list = #slots, {}
  local as_list = how == "list" or how == "list results"
  if as_list or n > 4 or how == "frame" and n > 2 then
    return function(frame)
      for i = 1, n do list[i] = frame[slots[i]] end
      local r1, r2, r3, r4
      if as_list then
        r1, r2, r3, r4 = f(list, n)
      elseif how == "frame" then
        r1, r2, r3, r4 = f(frame, unpack(list, 1, n))
      else
        r1, r2, r3, r4 = f(unpack(list, 1, n))
      end
      for i = 1, n do
        local x = list[i]
        if rawequal(r1, x) then r1 = alias(x) end
        list[i] = nil
      end
      return r1, r2, r3, r4
    end
  end
  if how == "frame" then return function(frame) return f(frame, frame[a], frame[b or 0]) end end
  if n == 0 then return function() return f() end end
  if n == 1 then
    return function(frame)
      local x = frame[a]
      local r1, r2, r3, r4 = f(x)
      return rawequal(r1, x) and alias(x) or r1, r2, r3, r4
    end
  end
  if n == 2 then
    return function(frame)
      local x, y = frame[a], frame[b]
      local r1, r2, r3, r4 = f(x, y)
      return (rawequal(r1, x) or rawequal(r1, y)) and alias(r1) or r1, r2, r3, r4
    end
  end
  return function(frame)
    local x, y, z, w = frame[a], frame[b], frame[c], frame[d or 0]
    local r1, r2, r3, r4 = f(x, y, z, w)
    return (rawequal(r1, x) or rawequal(r1, y) or rawequal(r1, z)) and alias(r1) or r1, r2, r3, r4
  end
end

--- Runs steps over a frame. frame.step is the current one, for the message of an error.
function graph.run(steps, frame)
  for k = 1, #steps do
    local step = steps[k]
    frame.step = step
    local r1, r2, r3, r4 = step.run(frame)
    local n = step.n
    if n <= 4 then
      frame[step.o1] = r1
      if n > 1 then
        frame[step.o2] = r2
        if n > 2 then frame[step.o3], frame[step.o4] = r3, r4 end
      end
    else
      for i = 1, n do frame[step.outputs[i]] = r1[i] end
    end
    local drop = step.drop
    if drop then
      for i = 1, #drop do
        local slot = drop[i]
        local t = frame[slot]
        frame[slot] = nil
        if t and is_tensor(t) then free(t) end
      end
    end
  end
end

-- ---- nodes

-- Returns the slot of a name in a scope or one around it; 0 for "".
local function find(scope, name)
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

--- Node: what a function of the table of ops gets. Fields: op, domain, version (of the domain's set of ops), a
--- (attributes by name), inputs and outputs (slots), graph.
local Node = {}
Node.__index = Node

local unsupported = {} -- marks the errors of Node:unsupported

--- Fails, as for a node that cannot be run; `what` completes its name in the list of such nodes.
function Node:unsupported(what) error({unsupported, self.domain, self.op, what}, 0) end
function Node:fail(format, ...) self.graph.fail("node %s: " .. format, self.text, ...) end

--- Returns true if input k is given.
function Node:has(k) return (self.inputs[k] or 0) ~= 0 end
--- Returns true if result k is read.
function Node:wants(k) return (self.outputs[k] or -1) ~= -1 end

--- Returns input k if it is known, else nil.
function Node:const(k) return self.graph.constants[self.inputs[k] or 0] end

--- Returns the tensor of an attribute.
function Node:tensor(name)
  return self.a[name] and self.graph.read_tensor(self.a[name], self.graph.fail)
end

local function totable(t)
  if t == nil then return nil end
  local list = t:totable()
  return type(list) == "table" and list or {list}
end

--- Returns a function(t) that returns the elements of input k, t, as a list, or nil if it is left out. If the input is
--- known the list is made once; nobody may change it.
function Node:list(k)
  local known = self:const(k)
  if not known or not is_tensor(known) then return totable end
  local list = totable(known)
  return function() return list end
end

--- Returns a function(t) as Node:list does, for a list that versions before `since` have as an attribute.
function Node:list_or(name, k, since)
  if self.version >= since then return self:list(k) end
  local list = self.a[name]
  return function() return list end
end

--- Returns the dtype of the number of an element type.
function Node:dtype(number, default)
  if number == nil then return default end
  local dtype = tensors.dtypes[number]
  if not dtype or tensors.absent[dtype] then self:unsupported("of " .. (dtype or tostring(number))) end
  return dtype
end

--- Prepares the graph of an attribute: {inputs = slots, outputs = slots, steps}. Its nodes see the node's scope.
function Node:subgraph(name)
  local g = self.a[name]
  if not g then self:fail("attribute '%s' is missing", name) end
  return self.graph:prepare(g, self.scope)
end

--- Returns the steps before this node that compute the value of a name from those of other names, with the slot of that
--- value and the slots of the others. Their values stay in the frame.
function Node:steps_from(name, others)
  local wanted, slots, chosen = {}, {}, {}
  local target = find(self.scope, name) or self:fail("unknown value '%s'", name)
  for i, other in ipairs(others) do slots[i] = find(self.scope, other) or self:fail("unknown value '%s'", other) end
  wanted[target] = true
  for k = #self.steps, 1, -1 do
    local step, needed = self.steps[k], false
    for _, slot in ipairs(step.outputs) do needed = needed or wanted[slot] end
    for _, slot in ipairs(slots) do
      for _, made in ipairs(step.outputs) do needed = needed and made ~= slot end
    end
    if needed then
      table.insert(chosen, 1, setmetatable({drop = false}, {__index = step}))
      for _, slot in ipairs(step.inputs) do wanted[slot], self.graph.kept[slot] = true, true end
    end
  end
  return chosen, target, slots
end

-- Fields of an attribute by the number of its type.
local fields = {"f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs", "sparse_tensor", nil, "tp"}
local is_list = {floats = true, ints = true, strings = true, tensors = true, graphs = true}

local function value_of(attribute)
  local field = fields[attribute.type or 0]
  if field then
    local value = attribute[field]
    if value == nil and is_list[field] then return {} end
    if value == nil then return (field == "f" or field == "i") and 0 or field == "s" and "" or nil end
    return value
  end
  for i = 1, 13 do
    if fields[i] and attribute[fields[i]] ~= nil then return attribute[fields[i]] end
  end
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

local function key_of(domain, name, overload) return domain .. "\0" .. name .. "\0" .. (overload or "") end

function Graph:new_slot()
  self.slots = self.slots + 1
  return self.slots
end

-- Adds a tensor of the model, a parameter or a buffer, or a constant.
function Graph:add_tensor(scope, name, value, kind)
  local slot = self:new_slot()
  scope.names[name] = slot
  self.kept[slot] = true
  local is_floating = is_tensor(value) and core.is_floating_point(value)
  if kind == "constant" or not is_floating then self.constants[slot] = value end
  self.tensors[#self.tensors + 1] = {name = name, slot = slot, value = value, kind = kind}
  return slot
end

-- Inputs that are not trained: statistics, which stay inputs, and settings, which are known once the file is read.
local untrained = {
  BatchNormalization = {[4] = "statistics", [5] = "statistics"}, Clip = {[2] = "setting", [3] = "setting"},
  Resize = {[2] = "setting", [3] = "setting"}, Upsample = {[2] = "setting"}, Pad = {[3] = "setting"},
  Dropout = {[2] = "setting"}, QuantizeLinear = {[2] = "statistics"}, DequantizeLinear = {[2] = "statistics"},
  Range = {"setting", "setting", "setting"}, Pow = {[2] = "setting"},
}

-- Reads the initializers of a graph. Floating ones become parameters, except what is not trained.
function Graph:add_initializers(g, scope)
  local uses, inputs = {}, {}
  for _, node in ipairs(g.node or {}) do
    for k, use in pairs(untrained[node.op_type] or {}) do uses[(node.input or {})[k] or ""] = use end
  end
  for _, input in ipairs(g.input or {}) do inputs[input.name or ""] = true end
  for _, message in ipairs(g.initializer or {}) do
    local name = message.name or ""
    if scope.names[name] then self.fail("two initializers are named '%s'", printable_name(name, 100)) end
    local value = self.read_tensor(message, self.fail)
    local trains = is_tensor(value) and core.is_floating_point(value) and not uses[name]
    local slot = self:add_tensor(scope, name, value, trains and "parameter" or "buffer")
    if uses[name] == "setting" then self.constants[slot] = value end
    if inputs[name] and self.ir_version >= 4 then self.constants[slot], self.overridable[name] = nil, slot end
  end
  for _, sparse in ipairs(g.sparse_initializer or {}) do
    local values, indices = sparse.values or {}, sparse.indices or {}
    local x = self.read_tensor(values, self.fail)
    local name = values.name or ""
    local dense = graph.dense(x, self.read_tensor(indices, self.fail), sparse.dims or {}, self.fail)
    self:add_tensor(scope, name, dense, core.is_floating_point(dense) and "parameter" or "buffer")
  end
end

local MOST_DENSE = 2 ^ 31 -- elements of a sparse tensor, which is small in the file

--- Returns the dense tensor of values at indices: flat ones [n], or [n, dims], from 0.
function graph.dense(values, indices, dims, fail)
  local numel, flat = 1, indices
  for _, size in ipairs(dims) do numel = numel * size end
  if not (numel >= 0 and numel <= MOST_DENSE) then fail("a sparse tensor has %.0f elements", numel) end
  if indices.ndim == 2 then
    flat = ops.zeros({indices.shape[1]}, {dtype = "int64"})
    for d, size in ipairs(dims) do flat = flat * size + ops.select(indices, 2, d) end
  end
  if flat:numel() == 0 then return ops.zeros(dims, {dtype = values.dtype}) end
  return ops.scatter(ops.zeros({numel}, {dtype = values.dtype}), 1, flat + 1, values):reshape(dims)
end

-- Ops that are not computed while loading: random ones, those with graphs, and those that make much of little.
local unfolded = {}
for name in ([[
  Bernoulli ConstantOfShape Dropout Expand EyeLike If Loop MelWeightMatrix Multinomial OneHot Optional Pad RandomNormal
  RandomNormalLike RandomUniform RandomUniformLike Range Resize Scan SequenceMap Tile Upsample HannWindow HammingWindow
  BlackmanWindow CenterCropPad GridSample AffineGrid Gradient RoiAlign Col2Im
]]):gmatch "%S+" do unfolded[name] = true end

-- Returns the results of a node whose inputs are known, few elements; nil if it is to be run each time.
function Graph:fold(node, run, how)
  if unfolded[node.op] or how == "frame" or #node.inputs == 0 then return nil end
  local frame, numel = {}, 0
  for _, slot in ipairs(node.inputs) do
    local value = self.constants[slot]
    if slot ~= 0 and not is_tensor(value) then return nil end
    numel, frame[slot] = numel + (value and value:numel() or 0), value
  end
  if numel > MOST_FOLDED then return nil end
  local results = {pcall(core.no_grad, run, frame)}
  if not table.remove(results, 1) then return nil end -- the error comes when the model runs
  return (how == "results" or how == "list results") and results[1] or results
end

-- Adds the steps of a node.
function Graph:add_node(message, scope, steps, versions, references)
  local domain, op = domain_of(message.domain), message.op_type or ""
  self.count = self.count + 1
  if self.count > self.most then self.fail("its functions expand to more than %d nodes", self.most) end
  local node = setmetatable({
    op = op, domain = domain, version = versions[domain] or 1, a = {}, inputs = {}, outputs = {}, graph = self,
    scope = scope, versions = versions, steps = steps,
  }, Node)
  node.text = ("'%s' (%s)"):format(printable_name(message.name or "", 100), printable_name(op, 60))
  for _, attribute in ipairs(message.attribute or {}) do
    local name = attribute.name or ""
    if attribute.ref_attr_name then
      node.a[name] = references and references[attribute.ref_attr_name]
    else
      node.a[name] = value_of(attribute)
    end
  end
  for i, name in ipairs(message.input or {}) do
    node.inputs[i] = find(scope, name) or self.fail("node %s: no node before it makes its input '%s'", node.text,
      printable_name(name, 100))
  end
  while node.inputs[#node.inputs] == 0 do node.inputs[#node.inputs] = nil end
  local names = message.output or {}
  local key = key_of(domain, op, message.overload)
  if self.functions[key] then return self:add_function(self.functions[key], node, names, scope, steps) end

  local make = self.ops(domain, op)
  if not make then
    for i, name in ipairs(names) do
      if name ~= "" then scope.names[name] = self:new_slot() end
      node.outputs[i] = 0
    end
    return self:lacks(domain, op)
  end
  for i, name in ipairs(names) do node.outputs[i] = name == "" and -1 or self:new_slot() end
  local ok, f, how = pcall(make, node)
  if not ok and type(f) == "table" and f[1] == unsupported then
    self:lacks(domain, op, f[4])
    f, how = function() end, "frame"
  elseif not ok then
    local why = options.without_position(f)
    if why:find("^'") then error(f, 0) end -- an error of self.fail
    self.fail("node %s: an attribute is missing or of the wrong kind: %s", node.text, why)
  end
  local run, folded = nil, nil
  if type(f) ~= "function" then -- a constant
    folded = {f}
  else
    run = runner(f, node.inputs, how)
    if #self.lacking == 0 then folded = self:fold(node, run, how) end
  end
  if folded then
    for i, name in ipairs(names) do
      if name ~= "" and folded[i] ~= nil then self:add_tensor(scope, name, folded[i], "constant") end
    end
    return
  end
  for i, name in ipairs(names) do
    if name ~= "" then scope.names[name] = node.outputs[i] end
  end
  local o, gives_list = node.outputs, how == "results" or how == "list results"
  local step = {
    run = run, n = gives_list and math.max(#o, 5) or #o, o1 = o[1] or -1, o2 = o[2] or -1, o3 = o[3] or -1,
    o4 = o[4] or -1, outputs = o, inputs = node.inputs, node = node.text,
  }
  if gives_list then
    for i = #o + 1, 5 do o[i] = -1 end
  elseif #o > 4 and how ~= "frame" then
    self.fail("node %s: %d results are more than it has", node.text, #o)
  end
  steps[#steps + 1] = step
  if how == "frame" or how == "holds" then
    for _, list in ipairs {node.inputs, o} do
      for _, slot in ipairs(list) do self.kept[slot] = true end
    end
  end
end

-- Expands a call of one of the model's functions.
function Graph:add_function(f, node, names, scope, steps)
  local inner, references = {names = {}, graph = self}, {}
  if self.depth > 100 then self.fail("function '%s' calls itself", printable_name(f.name or "", 100)) end
  for _, attribute in ipairs(f.attribute_proto or {}) do references[attribute.name or ""] = value_of(attribute) end
  for name, value in pairs(node.a) do references[name] = value end
  for i, name in ipairs(f.input or {}) do inner.names[name] = node.inputs[i] or 0 end
  local versions = versions_of(f.opset_import)
  for domain, version in pairs(node.versions) do versions[domain] = versions[domain] or version end
  self.depth = self.depth + 1
  for _, message in ipairs(f.node or {}) do self:add_node(message, inner, steps, versions, references) end
  self.depth = self.depth - 1
  for i, name in ipairs(names) do
    local slot = find(inner, (f.output or {})[i] or "")
    if name ~= "" then scope.names[name] = slot or 0 end
  end
end

function Graph:lacks(domain, op, what)
  local name = (domain == "" and "" or domain .. ".") .. op .. (what and " " .. what or "")
  name = printable_name(name, 100)
  if not self.lacking[name] then self.lacking[#self.lacking + 1] = name end
  self.lacking[name] = (self.lacking[name] or 0) + 1
end

-- Sets the slots that steps drop: those whose last reader is that step, or that nobody reads.
function Graph:set_drops(steps)
  local last = {}
  for k, step in ipairs(steps) do
    for i = 1, #step.outputs do last[step.outputs[i]] = k end
    for _, slot in ipairs(step.inputs) do
      if last[slot] then last[slot] = k end
    end
  end
  for slot, k in pairs(last) do
    if slot > 0 and not self.kept[slot] then
      steps[k].drop = steps[k].drop or {}
      table.insert(steps[k].drop, slot)
    end
  end
end

--- Prepares a graph's nodes: {inputs = slots, outputs = slots, steps}. `parent`: the scope around it.
function Graph:prepare(g, parent)
  local scope, steps = {names = {}, parent = parent, graph = self}, {}
  local plan = {inputs = {}, outputs = {}, steps = steps, message = g}
  if self.depth > 100 then self.fail "graphs are nested too deeply" end
  self.depth = self.depth + 1
  self:add_initializers(g, scope)
  for _, input in ipairs(g.input or {}) do
    local name = input.name or ""
    if not scope.names[name] or parent then
      local slot = self:new_slot()
      scope.names[name], self.kept[slot] = slot, true
      plan.inputs[#plan.inputs + 1] = slot
    end
  end
  for _, message in ipairs(g.node or {}) do self:add_node(message, scope, steps, self.versions) end
  for i, output in ipairs(g.output or {}) do
    local slot = find(scope, output.name or "")
    if not slot then self.fail("no node makes the output '%s'", printable_name(output.name or "", 100)) end
    plan.outputs[i], self.kept[slot] = slot, true
  end
  self.plans[#self.plans + 1] = plan
  self.depth = self.depth - 1
  return plan
end

local function list_of_lacking(lacking)
  local list = {}
  table.sort(lacking, function(a, b)
    if lacking[a] ~= lacking[b] then return lacking[a] > lacking[b] end
    return a < b
  end)
  for i, name in ipairs(lacking) do list[i] = ("%d × %s"):format(lacking[name], name) end
  return table.concat(list, ", ")
end

--- Prepares a model: {inputs, outputs, steps, tensors = list of {name, slot, value, kind}, overridable = slots by name}.
--- read_tensor(message, fail): see tensors.lua. fail(format, ...) raises an error.
function graph.prepare(model, read_tensor, fail)
  local self = setmetatable({
    slots = 0, count = 0, most = MOST_NODES, depth = 0, constants = {}, kept = {}, tensors = {}, functions = {}, lacking = {}, plans = {},
    overridable = {}, versions = versions_of(model.opset_import), ir_version = model.ir_version or 3,
    read_tensor = read_tensor, fail = fail, ops = load_module("luminary.onnx.ops").find,
  }, Graph)
  for domain, version in pairs(self.versions) do
    local newest = graph.newest[domain]
    if newest and version > newest then
      fail("its operators %s are of version %.0f; the newest known is %d",
        domain == "" and "of ONNX" or "'" .. domain .. "'", version, newest)
    end
  end
  local function count(nodes)
    for _, node in ipairs(nodes or {}) do
      self.most = self.most + MOST_REPEATED
      for _, attribute in ipairs(node.attribute or {}) do count(attribute.g and attribute.g.node) end
    end
  end
  count(model.graph and model.graph.node)
  for _, f in ipairs(model.functions or {}) do
    count(f.node)
    self.functions[key_of(domain_of(f.domain), f.name or "", f.overload)] = f
  end
  if not model.graph then fail "it has no graph" end
  local plan = self:prepare(model.graph)
  if #self.lacking > 0 then
    fail("cannot run %d kind%s of nodes: %s", #self.lacking, #self.lacking == 1 and "" or "s",
      list_of_lacking(self.lacking))
  end
  for _, part in ipairs(self.plans) do self:set_drops(part.steps) end
  plan.tensors, plan.overridable, plan.count = self.tensors, self.overridable, self.count
  return plan
end

--- Fails with an error of the frame's current node.
function graph.fail_in(who, frame, problem)
  options.fail("%s: node %s: %s", who, frame.step and frame.step.node or "?", options.without_position(problem))
end

return graph
