--- Runs a block of a graph in parts: steps that read values as they are, and those between them by recordings.
---
--- frame.parts is a context, {base = the model's tensors by slot, noted = the frame that notes the current step}, which
--- keeps the parts of each block. Small tensors that follow from shapes alone are tables between parts, so that a
--- recording has their values.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local graph = require "luminary.onnx.graph"
local prepare = require "luminary.prepare"
local is_tensor, free = core.is_tensor, core.methods.free
local parts = {}

local MOST_FIXED = 64 -- elements of a tensor that is passed on as a table
local TRIES = 16 -- recordings of a part, after which it runs as it is while fewer than two calls use each

-- Returns t as a table if its values do not depend on the inputs of the current recording, else t.
local function to_fixed(t)
  if not is_tensor(t) or t:numel() > MOST_FIXED or not core.is_recording_ops() or core.depends_on_inputs(t) then
    return t
  end
  local values = t:reshape(-1):totable()
  if lists.find(values, function(v) return type(v) == "cdata" end) then return t end
  return {values = values, shape = t.shape, dtype = t.dtype, device = t.device}
end

-- Returns the tensor of such a table; any other value as it is.
local function from_fixed(value)
  if type(value) ~= "table" or not value.values then return value end
  return core.tensor(value.values, {dtype = value.dtype, device = value.device}):reshape(value.shape)
end

-- Adds the slots that steps read, and do not make, to `read`, and those that they make to `made`.
local function scan(steps, first, last, read, made)
  local function note(slots)
    for _, slot in ipairs(slots or {}) do
      if slot > 0 and not made[slot] then read[slot] = true end
    end
  end
  for k = first, last do
    note(steps[k].inputs)
    note(steps[k].reads)
    for _, block in ipairs(steps[k].blocks or {}) do
      for _, slot in ipairs(block.inputs) do made[slot] = true end
      scan(block.steps, 1, #block.steps, read, made)
      note(block.outputs)
    end
    for _, slot in ipairs(steps[k].outputs) do made[slot] = true end
  end
end

-- Returns the part of steps first … last, which run by a recording. readers: the last step that reads each slot.
local function recorded_part(block, first, last, context, readers)
  local steps, read, part = block.steps, {}, {outputs = {}, drop = {}, calls = 0}
  scan(steps, first, last, read, {})
  part.inputs = lists.filter(lists.sorted_keys(read), function(slot) return context.base[slot] == nil end)
  local held = lists.set(part.inputs)
  for k = first, last do
    for _, slot in ipairs(steps[k].drop or {}) do
      if held[slot] then table.insert(part.drop, slot) end
    end
    for _, slot in ipairs(steps[k].outputs) do
      if (readers[slot] or 0) > last then table.insert(part.outputs, slot) end
    end
  end
  local function run(...)
    local given = {...}
    local frame = setmetatable({noted = context.noted, held = held}, {__index = context.base})
    for i, slot in ipairs(part.inputs) do frame[slot] = from_fixed(given[i]) end
    graph.run_steps(block, frame, first, last)
    local results = {}
    for i, slot in ipairs(part.outputs) do results[i] = to_fixed(frame[slot]) end
    return results
  end
  part.plain, part.call, part.state = run, prepare.recorded(run, nil, false, true)
  return part
end

local function divided(block, context)
  local cuts, list, first, readers = lists.set(block.cuts or {}), {cuts = block.cuts}, 1, {}
  for k = 1, #block.steps do
    local read = {}
    scan(block.steps, k, k, read, {})
    for slot in pairs(read) do readers[slot] = k end
  end
  for _, slot in ipairs(block.outputs or {}) do readers[slot] = math.huge end
  for k = 1, #block.steps + 1 do
    if cuts[k] or k > #block.steps then
      if k > first then table.insert(list, recorded_part(block, first, k - 1, context, readers)) end
      if cuts[k] then table.insert(list, {at = k}) end
      first = k + 1
    end
  end
  return list
end

--- Runs the steps of a block over a frame.
function parts.run(block, frame)
  local context = frame.parts
  local list = context[block]
  if not list or list.cuts ~= block.cuts then
    list = divided(block, context)
    context[block] = list
  end
  for _, part in ipairs(list) do
    if part.at then
      local step = block.steps[part.at]
      for _, slot in ipairs(lists.joined(step.inputs, step.reads or {})) do frame[slot] = from_fixed(frame[slot]) end
      graph.run_steps(block, frame, part.at, part.at)
    else
      local values, n = {}, #part.inputs
      for i = 1, n do values[i] = frame[part.inputs[i]] end
      local pays = part.state.recordings < TRIES or part.calls > 2 * part.state.recordings
      part.calls = part.calls + (pays and 1 or 0.1) -- so that it is tried again
      local results = (pays and part.call or part.plain)(unpack(values, 1, n))
      for i, slot in ipairs(part.outputs) do frame[slot] = results[i] end
      for _, slot in ipairs(part.drop) do
        local t = frame[slot]
        frame[slot] = nil
        if is_tensor(t) then free(t) end
      end
    end
  end
  for _, slot in ipairs(block.outputs or {}) do frame[slot] = from_fixed(frame[slot]) end
end

return parts
