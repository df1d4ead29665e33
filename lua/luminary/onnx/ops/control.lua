--- ONNX's control flow, sequences (lists of tensors), optionals (values or nil) and texts (lists with a field shape).
local core = require "luminary.core"
local base_lists = require "luminary.base.lists"
local graph = require "luminary.onnx.graph"
local helpers = require "luminary.onnx.ops.sizes"
local tensors = require "luminary.onnx.tensors"
local ops, is_tensor = core.ops, core.is_tensor
local dim_in = helpers.dim_in
local op = {}

local function truth(t)
  local v = t:item()
  return v ~= false and v ~= 0
end

-- Returns a list of results as the node's step expects them.
local function results(n, list)
  if n.results > 4 then return list end
  return list[1], list[2], list[3], list[4]
end

-- Runs a graph with values for its inputs, a list; returns the list of its outputs.
local function run_subgraph(plan, frame, values)
  for i, slot in ipairs(plan.inputs) do frame[slot] = values[i] end
  graph.run(plan, frame)
  return base_lists.pick(frame, plan.outputs)
end

op.If = {how = "frame", prepare = function(n) n.yes, n.no = n:subgraph "then_branch", n:subgraph "else_branch" end,
  function(n, frame, condition) return results(n, run_subgraph(truth(condition) and n.yes or n.no, frame, {})) end}

-- Returns a list of tensors stacked along an axis; none: an empty tensor of the type that a graph declares.
local function stacked(list, axis, plan, output)
  if #list > 0 then return ops.stack(list, dim_in(list[1], axis, 1)) end
  local info, sizes = tensors.described((plan.message.output or {})[output] or {}), {0}
  for i, size in ipairs(info.dims or {}) do sizes[i + 1] = tonumber(size) or 0 end
  return ops.zeros(sizes, {dtype = info.dtype or "float32"})
end

local function body(n) n.plan = n:subgraph "body" end

op.Loop = {how = "frame", prepare = body, function(n, frame, most, condition, ...)
  local limit, goes_on = n:number(1, most) or math.huge, not condition or truth(condition)
  local carried, scans, i = #n.plan.inputs - 2, {}, 0
  local state, go = {unpack({...}, 1, carried)}, core.tensor(true)
  for k = carried + 1, #n.plan.outputs - 1 do scans[k] = {} end
  while i < limit and goes_on do
    state = run_subgraph(n.plan, frame, {core.tensor(i, {dtype = "int64"}), go, unpack(state, 1, carried)})
    goes_on, i = truth(table.remove(state, 1)), i + 1
    for k, list in pairs(scans) do list[helpers.bounded(i, "the number of results of a body")] = state[k] end
  end
  for k, list in pairs(scans) do state[k] = stacked(list, 0, n.plan, k + 1) end
  return results(n, state)
end}

-- Runs a scan over inputs, tensors whose axis is that of the steps; state: a list of initial values. Returns the
-- results.
local function scan(n, frame, state, inputs, directions)
  local plan, carried, scans, length = n.plan, #state, {}, 0
  local axes, out_axes = n.scan_input_axes or {}, n.scan_output_axes or {}
  local out_directions = n.scan_output_directions or {}
  for k = carried + 1, #plan.outputs do scans[k] = {} end
  for k, x in ipairs(inputs) do length = x.shape[dim_in(x, axes[k] or 0)] end
  for t = 1, length do
    local values = {unpack(state, 1, carried)}
    for k, x in ipairs(inputs) do
      values[carried + k] = ops.select(x, dim_in(x, axes[k] or 0), directions[k] == 1 and length + 1 - t or t)
    end
    state = run_subgraph(plan, frame, values)
    for k, list in pairs(scans) do list[out_directions[k - carried] == 1 and length + 1 - t or t] = state[k] end
  end
  for k, list in pairs(scans) do state[k] = stacked(list, out_axes[k - carried] or 0, plan, k) end
  return state
end

op.Scan = {how = "frame", prepare = body, function(n, frame, ...)
  local all, carried = {...}, #n.plan.inputs - n.num_scan_inputs
  if n.version >= 9 then
    local inputs = {unpack(all, carried + 1)}
    return results(n, scan(n, frame, {unpack(all, 1, carried)}, inputs, n.scan_input_directions or {}))
  end
  local rows = {} -- version 8: each value has a batch dim first, and lengths precede them
  for b = 1, all[2].shape[1] do
    local values = {}
    for k = 2, #n.plan.inputs + 1 do values[k - 1] = ops.select(all[k], 1, b) end
    local state = scan(n, frame, {unpack(values, 1, carried)}, {unpack(values, carried + 1)}, n.directions or {})
    for k, x in ipairs(state) do rows[k] = helpers.joined(rows[k] or {}, {x}) end
  end
  for k, list in ipairs(rows) do rows[k] = ops.stack(list, 1) end
  return results(n, rows)
end}

op.SequenceMap = {how = "frame", prepare = body, function(n, frame, first, ...)
  local all, lists = {first, ...}, {}
  for k = 1, n.results do lists[k] = {} end
  for i = 1, #first do
    local values = {}
    for k, x in ipairs(all) do values[k] = is_tensor(x) and x or x[i] end
    for k, x in ipairs(run_subgraph(n.plan, frame, values)) do lists[k][i] = x end
  end
  return results(n, lists)
end}

-- ---- sequences and optionals

-- Returns a position, from 0 or negative from the end, as an index of a list of n.
local function index_of(position, n)
  local at = tonumber(position:item())
  local index = at < 0 and at + n + 1 or at + 1
  if index < 1 or index > n then error(("position %d is out of range for a sequence of %d"):format(at, n), 0) end
  return index
end

local function held(f) return {how = "holds", f} end
op.SequenceEmpty = held(function() return {} end)
op.SequenceConstruct = {how = "list", holds = true, function(_, all, n) return base_lists.slice(all, 1, n) end}
op.SequenceLength = held(function(_, list) return core.tensor(#list, {dtype = "int64"}) end)
op.SequenceAt = held(function(_, list, at) return list[index_of(at, #list)] end)
op.SequenceInsert = held(function(_, list, x, at)
  local new, last = base_lists.copy(list), at and at:item() < 0 and #list or #list + 1
  table.insert(new, at and index_of(at, last) or last, x)
  return new
end)
op.SequenceErase = held(function(_, list, at)
  local new = base_lists.copy(list)
  table.remove(new, at and index_of(at, #list) or nil)
  return new
end)
op.SplitToSequence = {axis = 0, how = "holds", function(n, x, split)
  local d, lengths = dim_in(x, n.axis), n:ints(2, split)
  if lengths and split.ndim > 0 then return helpers.parts_of(x, d, lengths) end
  local each, left, parts = lengths and math.max(lengths[1], 1) or 1, x.shape[d], {}
  helpers.bounded(left / each, "the number of parts")
  while left > 0 do parts[#parts + 1], left = math.min(each, left), left - each end
  local list = helpers.parts_of(x, d, parts)
  for i, part in ipairs(list) do
    if not lengths and n.keepdims == 0 then list[i] = ops.squeeze(part, d) end
  end
  return list
end}
op.ConcatFromSequence = {axis = 0, how = "holds", function(n, list)
  if #list == 0 then helpers.refuse "the sequence is empty" end
  return (n.new_axis == 1 and ops.stack or ops.cat)(list, dim_in(list[1], n.axis, n.new_axis))
end}
op.Optional = held(function(_, x) return x end)
op.OptionalHasElement = held(function(_, x) return core.tensor(x ~= nil) end)
op.OptionalGetElement = held(function(_, x)
  if x == nil then error("the optional has no value", 0) end
  return x
end)

-- ---- texts
op.StringNormalizer = {case_change_action = "NONE", how = "holds", function(n, list)
  local kept, stops = {}, {}
  local function folded_case(text) return n.is_case_sensitive == 1 and text or text:lower() end
  for _, word in ipairs(n.stopwords or {}) do stops[folded_case(word)] = true end
  for _, text in ipairs(list) do
    local change = ({LOWER = text.lower, UPPER = text.upper})[n.case_change_action]
    if not stops[folded_case(text)] then kept[#kept + 1] = change and change(text) or text end
  end
  kept[1] = kept[1] or ""
  kept.shape = #list.shape == 2 and {1, #kept} or {#kept}
  return kept
end}

-- Returns a row's numbers of n-grams; position: their numbers in the pool by their text.
local function counted(n, row)
  local counts = helpers.filled(n.width, 0)
  for length = n.min_gram_length, math.min(n.max_gram_length, #row) do
    for step = 1, length == 1 and 1 or math.min(n.max_skip_count + 1, #row) do
      for first = 1, #row - step * (length - 1) do
        local words = {}
        for i = 1, length do words[i] = row[first + (i - 1) * step] end
        local at = n.ngram_indexes[n.position[table.concat(words, "\0")] or 0]
        if at then counts[at + 1] = counts[at + 1] + 1 end
      end
    end
  end
  for k, at in ipairs(n.ngram_indexes) do
    local weight, c = n.weights and n.weights[k] or 1, counts[at + 1]
    if n.mode ~= "TF" then counts[at + 1] = n.mode == "IDF" and (c > 0 and weight or 0) or c * weight end
  end
  return counts
end
op.TfIdfVectorizer = {how = "holds", prepare = function(n)
  local pool, starts, k = n.pool_int64s or n.pool_strings, n.ngram_counts, 0
  n.position, n.width = {}, 0
  for length = 1, #starts do
    for i = starts[length] + 1, (starts[length + 1] or #pool) - length + 1, length do
      k = k + 1
      n.position[table.concat(pool, "\0", i, i + length - 1)] = k
    end
  end
  for _, at in ipairs(n.ngram_indexes) do n.width = helpers.bounded(math.max(n.width, at + 1), "an index") end
end, function(n, x)
  local rows = is_tensor(x) and x:totable() or x
  if #x.shape < 2 then return core.tensor(counted(n, type(rows) == "table" and rows or {rows}), {dtype = "float32"}) end
  for i, row in ipairs(rows) do rows[i] = counted(n, row) end
  return #rows > 0 and core.tensor(rows, {dtype = "float32"}) or ops.zeros({0, n.width})
end}

return op
