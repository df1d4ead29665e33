--- module_calls.trace(model, inputs): Calls a model in eval mode without changing it, and returns its modules' calls.
local core = require "luminary.core"
local map_tensors = require "luminary.base.map_tensors"
local options = require "luminary.base.options"
local in_mode = require "luminary.nn.in_mode"
local records = require "luminary.nn.module_fields"

local module_calls = {}

-- Returns the tensors in a value, in order.
local function tensors_in(value, list, met)
  list, met = list or {}, met or {}
  if core.is_tensor(value) then
    list[#list + 1] = value
  elseif options.is_plain(value) and not met[value] then
    met[value] = true
    for _, each in ipairs(value) do tensors_in(each, list, met) end
    for _, key in ipairs(options.sorted_keys(value, function(key) return type(key) == "string" end)) do
      tensors_in(value[key], list, met)
    end
  end
  return list
end

-- Returns the tensors' shapes, with their total bytes.
local function shapes_of(tensors)
  local shapes = {bytes = 0}
  for i, t in ipairs(tensors) do
    shapes[i], shapes.bytes = {unpack(t.shape)}, shapes.bytes + t:numel() * t:element_size()
  end
  return shapes
end

--- Returns a list of calls in the order in which they begin: {path, module, depth, inputs, outputs: lists of shapes,
--- with bytes, is_leaf: true if it called no other module}, and with `edges` also from: the calls of leaves, or
--- "input", from whose results its inputs are computed. The last call is that of an imaginary module "output".
---
--- Edges are found by autograd: each leaf's results are detached from their graph, so that the inputs of later calls
--- depend only on the results from which they are directly computed.
function module_calls.trace(model, inputs, edges)
  local calls, sources, open = {}, {}, {}

  -- Returns a tensor in place of t to which a later input can be traced.
  local function traced_copy(t, origin)
    if not t:is_floating_point() then
      sources[#sources + 1] = {tensor = t, origin = origin}
      return t
    end
    local leaf = t:detach():requires_grad_(true)
    sources[#sources + 1] = {tensor = leaf, origin = origin, floating = true}
    return leaf:clone() -- the model may write it in place
  end

  -- Returns the origins of tensors, each once.
  local function origins_of(tensors)
    local found, list = {}, {}
    local function add_origin(origin)
      if not found[origin] then
        found[origin] = true
        list[#list + 1] = origin
      end
    end
    local roots, leaves, origins = {}, {}, {}
    for _, t in ipairs(tensors) do
      if t.requires_grad then roots[#roots + 1] = t:sum() end
      for _, source in ipairs(sources) do
        if rawequal(source.tensor, t) then add_origin(source.origin) end
      end
    end
    for _, source in ipairs(sources) do
      if source.floating then leaves[#leaves + 1], origins[#origins + 1] = source.tensor, source.origin end
    end
    if #roots > 0 and #leaves > 0 then
      local grads = core.grad(roots, leaves, {allow_unused = true, retain_graph = true})
      for i, origin in ipairs(origins) do
        if grads[i] then add_origin(origin) end
      end
    end
    return list
  end

  local function hook(path, module)
    module:register_forward_pre_hook(function(_, given)
      local tensors = tensors_in(given)
      if open[1] then open[#open].is_leaf = false end
      local call = {
        path = path, module = module, depth = #open, is_leaf = true, inputs = shapes_of(tensors),
        outputs = shapes_of {}, -- shown for a call that fails in a pcall
        from = edges and origins_of(tensors) or nil,
      }
      calls[#calls + 1], open[#open + 1] = call, call
    end)
    module:register_forward_hook(function(_, _, ...)
      local results = options.pack(...)
      local call
      repeat call = table.remove(open) until call.module == module -- failed calls are still open
      call.outputs = shapes_of(tensors_in {unpack(results, 1, results.n)})
      if not (edges and call.is_leaf) then return end
      for i = 1, results.n do
        results[i] = map_tensors(results[i], function(t) return traced_copy(t, call) end)
      end
      return unpack(results, 1, results.n)
    end)
  end

  local function run_hooked()
    for path, module in model:named_modules() do hook(path, module) end
    if not edges then return model(unpack(inputs)) end
    return core.enable_grad(function()
      local results = options.pack(model(unpack(map_tensors(inputs, function(t) return traced_copy(t, "input") end))))
      local tensors = tensors_in {unpack(results, 1, results.n)}
      calls[#calls + 1] = {path = "output", depth = 0, is_leaf = true, inputs = shapes_of(tensors), outputs = {},
        from = origins_of(tensors)}
    end)
  end
  local before = {} -- lists of hooks, which are replaced, never changed
  for _, module in ipairs(model:modules()) do
    local record = records.of(module)
    before[record] = {record.pre_hooks, record.hooks, training = module.training}
  end
  options.restoring(function()
    for record, was in pairs(before) do
      record.pre_hooks, record.hooks, record.values.training = was[1], was[2], was.training
    end
  end, in_mode, model, false, run_hooked)
  return calls
end

return module_calls
