--- lm.prepare: Records what a module computes once for each set of shapes, and runs the recording afterward.
local core = require "luminary.core"
local interpreted = require "luminary.base.interpreted"
local lists = require "luminary.base.lists"
local nested_tensors = require "luminary.base.nested_tensors"
local options = require "luminary.base.options"
local own = require "luminary.base.own_functions"
local records = require "luminary.nn.module_fields"

local prepare = {}

--- The metatable of tables that other Lua states get empty, such as recordings.
prepare.of_this_thread = {__stays = true}

local OUTDATED = 4 -- recordings in a row that are outdated by their next calls, which is a reason
local MOST = 64 -- recordings of one prepared module, each for its shapes and dtypes; the oldest makes room

-- Returns a text that no other number, string, boolean or nil has.
local function text_of(v)
  if type(v) == "number" then return ("%.17g"):format(v) end
  return type(v) == "string" and #v .. ":" .. v or tostring(v)
end

-- Appends the tensors in v, a value or nested tables, to list, and text that identifies the rest to parts. Returns
-- false if v has a value that cannot be compared, such as a function or a module.
local function flatten(v, list, parts, depth)
  if core.is_tensor(v) then
    list[#list + 1] = v
    parts[#parts + 1] = core.plan_key(v)
    return true
  end
  if type(v) ~= "table" then
    parts[#parts + 1] = text_of(v)
    return v == nil or type(v) == "number" or type(v) == "string" or type(v) == "boolean"
  end
  if not options.is_plain(v) or depth > 8 then return false end
  for key in pairs(v) do
    if type(key) ~= "string" and type(key) ~= "number" then return false end
  end
  parts[#parts + 1] = "{"
  for _, key in ipairs(lists.sorted_keys(v)) do
    parts[#parts + 1] = text_of(key) .. "="
    if not flatten(v[key], list, parts, depth + 1) then return false end
  end
  parts[#parts + 1] = "}"
  return true
end

-- Returns the key of a call's arguments, and a list of their tensors; nil and the index of an argument that cannot be
-- compared.
local function key_of(n, arguments)
  local inputs, key = {}, core.plan_key(unpack(arguments, 1, n))
  for i = 1, key and n or 0 do inputs[#inputs + 1] = arguments[i] end
  if key then return key, inputs end
  local parts = {core.plan_key()}
  for i = 1, n do
    if not flatten(arguments[i], inputs, parts, 1) then return nil, i end
  end
  return table.concat(parts, ";"), inputs
end

--- Returns a function that returns false once a module of net has other parameters, buffers, children or hooks, or,
--- with `evaluates`, is in training mode.
function prepare.watch(net, evaluates)
  local watched = {}
  for _, module in ipairs(net:modules()) do
    local record = records.of(module)
    local each = {module = module, names = {}, values = {}, hooks = record.hooks, pre_hooks = record.pre_hooks}
    for _, kind in ipairs {"param", "buffer", "child"} do
      for _, name in ipairs(record[kind]) do
        each.names[#each.names + 1] = name
        each.values[#each.values + 1] = record.values[name]
      end
    end
    watched[#watched + 1] = each
  end
  return function()
    for i = 1, #watched do
      local each = watched[i]
      local record = records.of(each.module)
      if evaluates and record.values.training then return false end
      if record.hooks ~= each.hooks or record.pre_hooks ~= each.pre_hooks then return false end
      local names, values, now = each.names, each.values, record.values
      for k = 1, #names do
        if now[names[k]] ~= values[k] then return false end
      end
      if #record.param + #record.buffer + #record.child ~= #names then return false end
    end
    return true
  end
end

prepare.watch = interpreted(prepare.watch)

-- Raises if a module is in training mode. Returns true if one has a hook of forward.
local function check_modules(net)
  local hooked = false
  for _, module in ipairs(net:modules()) do
    if module.training then
      options.fail("prepare: the module is in training mode; call net:eval() first, or the module itself to train it")
    end
    hooked = hooked or (records.of(module).hooks or records.of(module).pre_hooks) ~= nil
  end
  return hooked
end

-- Returns a function that returns the name of a field that a module of net (nil: none) has assigned since.
local function note_fields(net)
  local before = {}
  for _, module in ipairs(net and net:modules() or {}) do before[module] = lists.copy(records.of(module).values) end
  return function()
    for module, values in pairs(before) do
      for name, value in pairs(records.of(module).values) do
        if not rawequal(values[name], value) and value == value then return name end
      end
    end
  end
end

local function check_gradient(i, x)
  if core.is_tensor(x) and x.requires_grad then
    options.fail("prepare: argument %d requires a gradient, which a prepared module does not compute; pass x:detach(), "
      .. "or call the module itself", i)
  end
end

-- Records a call. like: a plan for other shapes, or nil; frees: true if the function keeps none of its arguments, whose
-- memory is the caller's again when it returns. Returns a case {plan, build}, {reason} or {unsteady = why the next
-- call is recorded, too}, and then the call's results.
local function record(like, run, module, key, inputs, frees, n, arguments)
  local rebuild, assigned, recorded, passed = nested_tensors(arguments, {}), note_fields(module), nil, nil
  local returned = options.pack(core.record_ops(function(list)
    recorded, passed = list, rebuild(list)
    return run(unpack(passed, 1, n))
  end, inputs))
  local tape, found, makers, field = returned[1], {}, {}, assigned()
  local case = {unsteady = field and ("forward assigns the field '%s'"):format(field)}
  local now, held = key_of(n, passed)
  if now ~= key or not lists.every(held, function(x) return lists.index_of(recorded, x) end) then
    tape:close()
    return {reason = "it changes a table that was passed to it"}, run(unpack(arguments, 1, n))
  end
  for i = 2, returned.n do
    if not flatten(returned[i], {}, {}, 1) then
      tape:close()
      case.reason = ("result %d is neither a tensor nor a table of tensors"):format(i - 1)
      return case, unpack(returned, 2, returned.n)
    end
    makers[i - 1] = nested_tensors(returned[i], found)
  end
  function case.build(tensors)
    local results = {}
    for i = 1, #makers do results[i] = makers[i](tensors) end
    return unpack(results, 1, #makers)
  end
  local only = #makers == 1 and returned[2]
  if core.is_tensor(only) then
    case.build = function(tensors) return tensors[1] end
  elseif type(only) == "table" and #only == #found and lists.every(only, core.is_tensor) then
    if #lists.sorted_keys(only) == #only then case.build = function(tensors) return tensors end end
  end
  local tensors = lists.map(found, function(each) return each.tensor end)
  local plan, reason, is_for_these = core.plan_new(tape, tensors, like)
  case.plan, case[is_for_these and "unsteady" or "reason"] = plan, reason
  tape:close()
  tensors = lists.map(tensors, function(t) return inputs[lists.index_of(recorded, t) or 0] or t end)
  for i = 1, frees and #recorded or 0 do recorded[i]:free() end
  return case, case.build(tensors)
end

--- Returns a function that calls f without gradients, or runs a recording of such a call, and a table of its state.
--- module: the module whose parameters f reads, or nil; evaluates: true if it must be in evaluation mode; is_internal:
--- true for a function of the library, which keeps no arguments: frees copies of them, and warns of nothing. who: the
--- function that warns.
function prepare.recorded(f, module, evaluates, is_internal, who)
  local said, hooked, outdated, state = {}, false, 0, setmetatable({recordings = 0}, prepare.of_this_thread)
  local function run(...) return core.no_grad(f, ...) end

  local function note(reason)
    if module and records.of(module).in_parts then return end
    state.reason = reason
    if said[reason] or is_internal then return end
    said[reason] = true
    core.warn((who or "prepare") .. (module and ": the module" or ": the function") .. " runs as it is: " .. reason)
  end

  -- Drops all recordings, after a change of the module that outdates some, or arrival in another Lua state.
  local function forget()
    state.cases, state.order, state.captured, state.unchanged, state.plan = {}, {}, state.captured or {}, nil, nil
  end

  -- Keeps the case of a call that was recorded; returns the call's results.
  local function keep(key, case, ...)
    local cases, before = state.cases, state.cases[key]
    if not before then table.insert(state.order, key) end
    if #state.order > MOST then cases[table.remove(state.order, 1)] = nil end
    if before and before.unsteady and before.unsteady == case.unsteady then
      case.reason = case.unsteady .. " in each call"
    end
    cases[key] = case
    state.recordings, state.plan = (state.recordings or 0) + 1, case.plan
    if case.reason then note(case.reason) end
    return ...
  end

  return function(...)
    if not state.cases or state.unchanged and not state.unchanged() then forget() end
    if module and not state.unchanged then
      hooked = evaluates and check_modules(module)
      state.unchanged = prepare.watch(module, evaluates)
    end
    local in_parts = module and records.of(module).in_parts -- each of which is a plan, or not
    if in_parts or core.is_recording_ops() then return run(...) end
    local n, arguments = select("#", ...), {...}
    local key, inputs = key_of(n, arguments)
    if hooked or not key then
      note(hooked and "a module has a hook, which each call must run"
        or ("argument %d is neither a tensor, nor a plain value, nor a table of these"):format(inputs))
      return run(...)
    end
    local case = state.cases[key]
    if case and case.reason then return run(...) end
    if case and not (case.unsteady or case.plan:is_current()) then
      case, outdated = forget(), outdated + 1
      if outdated == OUTDATED then
        state.reason = "each call is recorded again: a tensor beside its arguments is written between calls"
      end
    elseif case then
      if outdated >= OUTDATED then state.reason = nil end
      outdated = 0
    end
    if core.graph_is_capturing() then -- a graph computes nothing yet, so that a recording would keep no constants
      if not case or case.unsteady then return run(...) end
      state.captured[case] = true -- its replays read the constants, also after forget()
    end
    if not case or case.unsteady then
      return keep(key, record(state.plan, run, module, key, inputs, is_internal, n, arguments))
    end
    local ok, tensors, reason = pcall(case.plan.run, case.plan, inputs)
    if not ok then
      run(...) -- its error names the line of the script; without one, earlier work on a GPU failed, and says so once
      error(tensors, 0)
    end
    if tensors then return case.build(tensors) end
    case.reason = reason
    note(reason)
    return run(...)
  end, state
end

--- Returns a function that does what net, a module or a function, does without gradients: it records the ops of a call
--- once for each set of shapes and dtypes, and runs them as a plan afterward.
function prepare.prepare(net, ...)
  local module = records.is_module(net) and net or nil
  if not module and type(net) ~= "function" then
    options.must_be("prepare", "net", "a module or a function", net)
  end
  local run, state = prepare.recorded(function(...) return net(...) end, module, true)
  local function call(...)
    for i = 1, select("#", ...) do check_gradient(i, (select(i, ...))) end
    return run(...)
  end
  if select("#", ...) > 0 then call(...) end
  return call, state
end

--- Returns true if no forward of net does more than compute: if it is a module in evaluation mode, without hooks, of
--- which all modules are of the library.
function prepare.is_of_library(net)
  return records.is_module(net) and not lists.find(net:modules(), function(module)
    local fields = records.of(module)
    return module.training or fields.hooks or fields.pre_hooks or not own.is[fields.values.forward]
  end)
end

--- Returns a function that calls net, which only this Lua state has, by recordings if prepare.is_of_library(net).
--- Returns any other net itself.
function prepare.of_library(net)
  if not prepare.is_of_library(net) then return net end
  return (prepare.recorded(function(...) return net(...) end, net, nil, true))
end

return prepare
