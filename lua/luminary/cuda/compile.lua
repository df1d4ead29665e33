--- lm.compile: Runs a training step's forward and backward by segments (core.compiled). On a GPU it captures, after the
--- first calls, what the segments run, once for each set of shapes, and replays it afterward. Without gradients records
--- a module's ops, on any device, as lm.prepare does.
local core = require "luminary.core"
local explain = require "luminary.explain"
local options = require "luminary.base.options"
local graph = require "luminary.cuda.graph"
local prepare = require "luminary.prepare"
local records = require "luminary.nn.module_fields"
local signature = require "luminary.base.signature"

local MOST = 8 -- captures for a set of shapes, each after the previous one became outdated
local SETS = 64 -- sets of shapes; each has its own memory

-- Returns the key of calls that can share a capture, from their arguments; nil and the reason if a call cannot.
local function key_of(model, ...)
  if type(model) ~= "function" and core.is_grad_enabled() then
    return nil, "the backward pass of a module is not captured with it; compile the complete step"
  end
  local device
  local parts = {tostring(core.is_grad_enabled()), tostring(type(model) ~= "function" and model.training)}
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    if not core.is_tensor(x) then return nil, ("argument %d is not a tensor"):format(i) end
    if not x.is_cuda then return nil, ("argument %d is on %s"):format(i, x.device) end
    if x.requires_grad then return nil, ("argument %d requires a gradient"):format(i) end
    device = device or x.device
    if x.device ~= device then return nil, "the arguments are on several devices" end
    parts[#parts + 1] = ("%s %s [%s]"):format(x.device, x.dtype, table.concat(x.shape, ","))
  end
  if not device then return nil, "no argument is on a GPU" end
  parts[#parts + 1] = core.get_autocast_dtype "cuda"
  return table.concat(parts, "; ")
end

local function has_cuda(...)
  for i = 1, select("#", ...) do
    local x = select(i, ...)
    if core.is_tensor(x) and x.is_cuda then return true end
  end
end

-- Returns true within a coroutine, which a call from C may not yield.
local function yields()
  local running, is_main = coroutine.running()
  return running and not is_main
end

--- Returns a function that does the same as model, a training step, on a GPU by replaying a captured graph.
local compile = signature.of("compile(model: callable, {warmup: natural = 3, exact = false, explain = false})",
  function(model, o)
  local cases, state = {}, {captures = 0, replays = 0, sets = 0, recordings = 0, segments = 0, runs = 0}
  local module = records.is_module(model) and model
  local recorded, plans = prepare.recorded(function(...) return model(...) end, module, false, false, "compile")
  local called, followed = function(...) return model(...) end, setmetatable({}, prepare.of_this_thread)
  local outdated -- why the last graph that was dropped no longer holds
  local recorded_so_far, is_steady = 0, true -- is_steady: the last call by segments recorded nothing, and had the
  -- numbers of that before; else a capture would freeze what changes from call to call

  local function with_plans(...)
    state.recordings, state.reason = plans.recordings, plans.reason
    return ...
  end

  local function with_segments(...)
    local now = followed.step:state()
    local so_far = now.recordings + now.changes
    recorded_so_far, is_steady = so_far, so_far == recorded_so_far
    if followed.print then followed.print() end
    state.segments, state.runs = now.segments, now.runs
    state.reason = state.reason or now.reason and (now.line and "after " .. now.line .. ": " or "") .. now.reason
    return ...
  end

  -- Calls the step, by its segments if it may have any. reason: why no graph is replayed, or nil.
  local function follow(reason, ...)
    local is_in_coroutine = type(model) == "function" and yields()
    state.reason = reason or is_in_coroutine and "the call is in a coroutine, which may yield" or nil
    if type(model) ~= "function" or is_in_coroutine then return model(...) end
    if not followed.step then
      followed.step = core.compiled(o.exact)
      followed.print = (o.explain or explain.every_step) and explain.printer(followed.step)
    end
    return with_segments(followed.step:call(called, ...))
  end

  -- Fails if the step changes an argument: a replay would change the graph's copy, not the caller's tensor.
  local function changing_no_argument(...)
    local results = {follow(outdated, ...)}
    for i = 1, select("#", ...) do
      if select(i, ...)._version > 0 then options.fail("argument %d is changed in place by the step", i) end
    end
    return unpack(results, 1, table.maxn(results))
  end

  local function capture(case, ...)
    if case.captures == 0 and state.sets == SETS then
      case.reason = ("%d sets of shapes have a graph already"):format(SETS)
      return
    end
    core.synchronize((...).device) -- raises errors of earlier work, which are not the capture's
    local ok, step = pcall(graph.make_graphed_step, changing_no_argument, {...}, {warmup = 0})
    if case.captures == 0 then state.sets = state.sets + 1 end
    state.captures, case.captures = state.captures + 1, case.captures + 1
    case.step = ok and step
    if ok then return end
    case.reason = step
    core.warn("compile: the step runs without a graph: " .. tostring(step))
  end

  local function run(...)
    local key, reason
    if module or has_cuda(...) then key, reason = key_of(model, ...) end
    if key and core.graph_is_capturing() then key, reason = nil, "the call is part of another capture" end
    local case = key and (cases[key] or {calls = 0, captures = 0})
    if case then
      cases[key] = case
      local is_due = case.calls >= o.warmup and (is_steady or case.calls < 2)
      if is_due and not case.step and not case.reason then capture(case, ...) end
      if case.step then
        local results = {pcall(case.step, ...)}
        if results[1] then
          state.replays = state.replays + 1
          return unpack(results, 2, table.maxn(results))
        end
        outdated, case.step, case.calls = results[2], nil, 0 -- nothing of it has run: the graph is outdated
        if case.captures == MOST then case.reason = results[2] end
      end
      case.calls, reason = case.calls + 1, case.reason
    elseif module and not core.is_grad_enabled() then
      return with_plans(recorded(...))
    end
    return follow(reason or outdated, ...)
  end
  return run, state
end)

return {compile = compile}
