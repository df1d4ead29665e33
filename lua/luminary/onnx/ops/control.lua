--- ONNX's control flow, sequences (lists of tensors), optionals (values or nil) and texts (lists with a field shape).
local core = require "luminary.core"
local graph = require "luminary.onnx.graph"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_tensor = core.ops, core.is_tensor
local dim_in = helpers.dim_in
local control = {}

-- Returns the values of slots: as a list if there are more than four, which the runner then expects.
local function values_of(frame, slots, count)
  if count <= 4 then return frame[slots[1] or 0], frame[slots[2] or 0], frame[slots[3] or 0], frame[slots[4] or 0] end
  local list = {}
  for i = 1, count do list[i] = frame[slots[i]] end
  return list
end

local function truth(t)
  local v = t:item()
  return v ~= false and v ~= 0
end

function control.If(n)
  local yes, no, count = n:subgraph "then_branch", n:subgraph "else_branch", #n.outputs
  return function(frame, condition)
    local plan = truth(condition) and yes or no
    graph.run(plan.steps, frame)
    return values_of(frame, plan.outputs, count)
  end, "frame"
end

-- Returns results as the runner expects them.
local function results(list, count)
  if count <= 4 then return list[1], list[2], list[3], list[4] end
  return list
end

-- Returns a list of tensors stacked along an axis; none: an empty tensor of the type that a graph declares.
local function stacked(list, axis, plan, output)
  if #list > 0 then return ops.stack(list, axis < 0 and axis or axis + 1) end
  local info = ((plan.message.output or {})[output] or {}).type
  info = info and info.tensor_type or {}
  local sizes = {0}
  for i, dim in ipairs(info.shape and info.shape.dim or {}) do sizes[i + 1] = dim.dim_value or 0 end
  local names = require("luminary.onnx.tensors").dtypes
  return ops.zeros(sizes, {dtype = names[info.elem_type or 1]})
end

function control.Loop(n)
  local plan, count = n:subgraph "body", #n.outputs
  local carried = #plan.inputs - 2
  local scans = #plan.outputs - 1 - carried
  return function(frame, most, condition, ...)
    local limit, goes_on = most and tonumber(most:item()) or math.huge, not condition or truth(condition)
    local state, collected, i = {...}, {}, 0
    for k = 1, scans do collected[k] = {} end
    while i < limit and goes_on do
      frame[plan.inputs[1]] = core.tensor(i, {dtype = "int64"})
      frame[plan.inputs[2]] = core.tensor(true)
      for k = 1, carried do frame[plan.inputs[k + 2]] = state[k] end
      graph.run(plan.steps, frame)
      goes_on = truth(frame[plan.outputs[1]])
      for k = 1, carried do state[k] = frame[plan.outputs[k + 1]] end
      for k = 1, scans do collected[k][i + 1] = frame[plan.outputs[k + 1 + carried]] end
      i = i + 1
    end
    for k = 1, scans do state[carried + k] = stacked(collected[k], 0, plan, 1 + carried + k) end
    return results(state, count)
  end, "frame"
end

-- Runs a scan over inputs, tensors whose axis is that of the steps. state: the initial values, changed to the last ones.
local function scan(frame, plan, state, inputs, a)
  local carried, count = #state, #plan.outputs - #state
  local directions, axes = a.scan_input_directions or {}, a.scan_input_axes or {}
  local collected, length = {}, nil
  for k, x in ipairs(inputs) do length = length or x.shape[dim_in(x, axes[k] or 0)] end
  for k = 1, count do collected[k] = {} end
  for t = 1, length do
    for k = 1, carried do frame[plan.inputs[k]] = state[k] end
    for k, x in ipairs(inputs) do
      local at = directions[k] == 1 and length + 1 - t or t
      frame[plan.inputs[carried + k]] = ops.select(x, dim_in(x, axes[k] or 0), at)
    end
    graph.run(plan.steps, frame)
    for k = 1, carried do state[k] = frame[plan.outputs[k]] end
    for k = 1, count do
      local backward = (a.scan_output_directions or {})[k] == 1
      collected[k][backward and length + 1 - t or t] = frame[plan.outputs[carried + k]]
    end
  end
  for k = 1, count do
    state[carried + k] = stacked(collected[k], (a.scan_output_axes or {})[k] or 0, plan, carried + k)
  end
end

function control.Scan(n)
  local plan, count = n:subgraph "body", #n.outputs
  local carried = #plan.inputs - n.a.num_scan_inputs
  if n.version >= 9 then
    return function(frame, ...)
      local state, inputs = {unpack({...}, 1, carried)}, {unpack({...}, carried + 1)}
      scan(frame, plan, state, inputs, n.a)
      return results(state, count)
    end, "frame"
  end
  local directions = {scan_input_directions = n.a.directions}
  return function(frame, _, ...) -- version 8: each value has a batch dim first
    local all, rows = {...}, {}
    for b = 1, all[1].shape[1] do
      local state, inputs = {}, {}
      for k, x in ipairs(all) do
        if k <= carried then state[k] = ops.select(x, 1, b) else inputs[k - carried] = ops.select(x, 1, b) end
      end
      scan(frame, plan, state, inputs, directions)
      for k, x in ipairs(state) do
        rows[k] = rows[k] or {}
        rows[k][b] = x
      end
    end
    for k, list in ipairs(rows) do rows[k] = ops.stack(list, 1) end
    return results(rows, count)
  end, "frame"
end

-- ---- sequences

-- Returns a position, from 0 or negative from the end, as an index of a list of n.
local function index_of(position, n)
  local at = tonumber(position:item())
  local index = at < 0 and at + n + 1 or at + 1
  if index < 1 or index > n then error(("position %d is out of range for a sequence of %d"):format(at, n), 0) end
  return index
end

local function copy(list) return {unpack(list, 1, #list)} end

function control.SequenceEmpty() return function() return {} end, "holds" end
function control.SequenceConstruct()
  return function(frame, ...) return {...}, frame and nil end, "frame"
end
function control.SequenceLength() return function(list) return core.tensor(#list, {dtype = "int64"}) end, "holds" end
function control.SequenceAt() return function(list, at) return list[index_of(at, #list)] end, "holds" end

function control.SequenceInsert()
  return function(list, x, at)
    local new = copy(list)
    local last = at and at:item() < 0 and #list or #list + 1
    table.insert(new, at and index_of(at, last) or last, x)
    return new
  end, "holds"
end

function control.SequenceErase()
  return function(list, at)
    local new = copy(list)
    table.remove(new, at and index_of(at, #list) or nil)
    return new
  end, "holds"
end

function control.SplitToSequence(n)
  local axis, keeps, lengths_of = n.a.axis or 0, n.a.keepdims ~= 0, n:list(2)
  return function(x, split)
    local d = dim_in(x, axis)
    local size, lengths = x.shape[d], lengths_of(split)
    if not lengths or split.ndim == 0 then
      local each, left = lengths and lengths[1] or 1, size
      if each < 1 then error("split must be at least 1", 0) end
      local parts = {}
      while left > 0 do parts[#parts + 1], left = math.min(each, left), left - each end
      local list = helpers.parts_of(x, d, parts)
      for i, part in ipairs(list) do
        if not lengths and not keeps then list[i] = ops.squeeze(part, d) end
      end
      return list
    end
    return helpers.parts_of(x, d, lengths)
  end, "holds"
end

function control.ConcatFromSequence(n)
  local axis, new = n.a.axis or 0, n.a.new_axis == 1
  local dim = helpers.dim_of(axis)
  return function(list) return new and ops.stack(list, dim) or ops.cat(list, dim) end, "holds"
end

function control.SequenceMap(n)
  local plan, count = n:subgraph "body", #n.outputs
  return function(frame, first, ...)
    local all, lists = {first, ...}, {}
    for k = 1, count do lists[k] = {} end
    for i = 1, #first do
      for k, x in ipairs(all) do frame[plan.inputs[k]] = is_tensor(x) and x or x[i] end
      graph.run(plan.steps, frame)
      for k = 1, count do lists[k][i] = frame[plan.outputs[k]] end
    end
    return results(lists, count)
  end, "frame"
end

-- ---- optionals

function control.Optional() return function(x) return x end, "holds" end
function control.OptionalHasElement() return function(x) return core.tensor(x ~= nil) end, "holds" end
function control.OptionalGetElement()
  return function(x)
    if x == nil then error("the optional has no value", 0) end
    return x
  end, "holds"
end

-- ---- texts

function control.StringNormalizer(n)
  local change, stops, exact = n.a.case_change_action or "NONE", {}, n.a.is_case_sensitive == 1
  local function plain(text) return exact and text or text:lower() end
  for _, word in ipairs(n.a.stopwords or {}) do stops[plain(word)] = true end
  return function(list)
    local kept = {}
    for _, text in ipairs(list) do
      if not stops[plain(text)] then
        kept[#kept + 1] = change == "LOWER" and text:lower() or change == "UPPER" and text:upper() or text
      end
    end
    if #kept == 0 then kept[1] = "" end
    kept.shape = #list.shape == 2 and {1, #kept} or {#kept}
    return kept
  end, "holds"
end

function control.TfIdfVectorizer(n)
  local a = n.a
  local pool, starts, at = a.pool_int64s or a.pool_strings, a.ngram_counts, a.ngram_indexes
  local shortest, longest, skip = a.min_gram_length, a.max_gram_length, a.max_skip_count
  local position, size = {}, 0 -- of n-grams, as texts
  local k, gram = 1, 0
  for length = 1, #starts do
    local past = starts[length + 1] or #pool
    for i = starts[length] + 1, past - length + 1, length do
      gram = k
      position[table.concat(pool, "\0", i, i + length - 1)] = gram
      k = k + 1
    end
  end
  for _, index in ipairs(at) do size = math.max(size, index + 1) end
  local function count(row)
    local counts = {}
    for i = 1, size do counts[i] = 0 end
    for length = shortest, longest do
      for step = 1, length == 1 and 1 or skip + 1 do
        for first = 1, #row - step * (length - 1) do
          local words = {}
          for i = 1, length do words[i] = row[first + (i - 1) * step] end
          local found = position[table.concat(words, "\0")]
          if found then counts[at[found] + 1] = counts[at[found] + 1] + 1 end
        end
      end
    end
    for found, index in ipairs(at) do
      local weight, c = a.weights and a.weights[found] or 1, counts[index + 1]
      if a.mode == "IDF" then counts[index + 1] = c > 0 and weight or 0 end
      if a.mode == "TFIDF" then counts[index + 1] = c * weight end
    end
    return counts
  end
  return function(x)
    local rows = is_tensor(x) and x:totable() or x
    if not is_tensor(x) or x.ndim < 2 then
      return core.tensor(count(type(rows) == "table" and rows or {rows}), {dtype = "float32"})
    end
    for i, row in ipairs(rows) do rows[i] = count(row) end
    return #rows > 0 and core.tensor(rows, {dtype = "float32"}) or ops.zeros({0, size})
  end, "holds"
end

return control
