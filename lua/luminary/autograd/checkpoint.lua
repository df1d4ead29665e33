--- Frees intermediate results of parts of a graph after forward, and computes them again in backward.
local debug = require "debug"
local core = require "luminary.core"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local boundaries = require "luminary.autograd.checkpoint_boundaries"
local check_callable = require("luminary.autograd.function").check_callable

local ops = core.ops
local fail, pack = options.fail, options.pack
local checkpoints = {}

local checkpoint_options = signature.spec "{preserve_rng_state = true, use_reentrant = false}"

-- Returns the options if the last argument is a table of options; otherwise nil.
local function take_options(args)
  local last = args[args.n]
  if type(last) ~= "table" or getmetatable(last) or next(last) == nil then return nil end
  for key in pairs(last) do
    if not checkpoint_options[key] then return nil end
  end
  return last
end

-- Returns the states of the generators that f may use: of the CPU, the default device and its arguments' devices.
local function generators(args)
  local states = {cpu = core.get_rng_state "cpu"}
  local function save_rng_state(device) states[device] = states[device] or core.get_rng_state(device) end
  save_rng_state(core.get_default_device())
  for i = 1, args.n do
    if core.is_tensor(args[i]) then save_rng_state(args[i].device) end
  end
  for _, state in pairs(states) do core.keep(state) end
  return states
end

local function set_generators(states)
  for device, state in pairs(states) do core.set_rng_state(state, device) end
end

-- Returns the tensors among the upvalues of a Lua function, by position.
local function upvalues(f)
  local found = {}
  for i = 1, type(f) == "function" and debug.getinfo(f, "u").nups or 0 do
    local name, value = debug.getupvalue(f, i)
    if core.is_tensor(value) then found[i] = {name = name, value = value} end
  end
  return found
end

-- Counts a boundary, and returns its arguments.
local function cross(...)
  boundaries.count = boundaries.count + 1
  return ...
end

local computing_again = false -- true while backward runs a checkpoint's forward again

local function checkpoint(who, f, args, preserve)
  local kept, versions = {n = args.n}, {}
  for i = 1, args.n do
    local x = args[i]
    if core.is_tensor(x) then
      x = core.keep(ops.detach(x):requires_grad_(x.requires_grad))
      versions[i] = x._version
    end
    kept[i] = x
  end
  local states, outside = preserve and generators(kept), upvalues(f)
  local runner_of = boundaries.runner_of
  local runner = runner_of(f)
  local function call_across_boundaries(...) return cross(f(cross(...))) end
  local function run_in_scope(...) return core.scope(call_across_boundaries, ...) end
  local function again()
    for i, was in pairs(outside) do
      local _, value = debug.getupvalue(f, i)
      if value ~= was.value then
        fail("%s: '%s', an upvalue of the function, is another tensor than in the forward pass; pass it as an argument",
          who, was.name)
      end
    end
    local before = preserve and generators(kept)
    if preserve then set_generators(states) end
    local outer, outer_runner_of = computing_again, boundaries.runner_of
    computing_again, boundaries.runner_of = true, runner_of
    local ok, problem = pcall(runner, run_in_scope, unpack(kept, 1, kept.n))
    computing_again, boundaries.runner_of = outer, outer_runner_of
    if preserve then set_generators(before) end
    if not ok then error(problem, 0) end
  end
  local first = computing_again and run_in_scope or call_across_boundaries
  local results = pack(core.checkpoint(first, again, unpack(args, 1, args.n)))
  for i in pairs(versions) do
    if kept[i]._version ~= versions[i] then
      fail("%s: the function changed its argument %d in place, but backward needs it unchanged", who, i)
    end
  end
  return unpack(results, 1, results.n)
end

--- Checkpoints f(...): backward computes its intermediate results again, instead of keeping them in memory.
function checkpoints.checkpoint(f, ...)
  check_callable("checkpoint", f)
  local args = pack(...)
  local given = take_options(args)
  if given then args[args.n], args.n = nil, args.n - 1 end
  local opts = options.check("checkpoint", given, checkpoint_options)
  if not core.is_grad_enabled() then return f(unpack(args, 1, args.n)) end
  return checkpoint("checkpoint", f, args, opts.preserve_rng_state)
end

--- Checkpoints a sequential model by dividing it into segments.
checkpoints.checkpoint_sequential = signature.of([[checkpoint_sequential(net, segments: count, x,
  {use_reentrant = false, preserve_rng_state = true})]], function(net, segments, x, opts)
  local who = "checkpoint_sequential"
  local parts = class.is(net, load_module("luminary.nn").Sequential) and net:children() or net
  if not options.is_plain(parts) or #parts == 0 then
    options.expected(who, "an nn.Sequential or a list of functions", net)
  end
  for _, part in ipairs(parts) do check_callable(who, part) end
  if segments > #parts then
    options.must_be(who, "segments", ("at most %d, the number of parts"):format(#parts), segments)
  end
  local preserve = opts.preserve_rng_state
  local function functions_in_sequence(first, last)
    return function(...)
      local results = pack(...)
      for i = first, last do results = pack(parts[i](unpack(results, 1, results.n))) end
      return unpack(results, 1, results.n)
    end
  end
  local size, results = math.floor(#parts / segments), pack(x)
  for k = 1, segments do
    local part = functions_in_sequence((k - 1) * size + 1, k < segments and k * size or #parts)
    if k < segments and core.is_grad_enabled() then
      results = pack(checkpoint(who, part, results, preserve))
    else
      results = pack(part(unpack(results, 1, results.n)))
    end
  end
  return unpack(results, 1, results.n)
end)

return checkpoints
