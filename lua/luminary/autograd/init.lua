--- lm.autograd: functions with a backward of one's own, and checks of gradients against differences.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local ops, methods = core.ops, core.methods
local fail = options.fail

-- ---- functions that are written in C
--- lm.autograd.detect_anomaly(f, ...): f(...), within which a NaN that backward makes is an error that names the op and
--- the line of the script that called it, as other errors of backward do then. Forward and backward both have to be
--- within. Slow. Gives what f returns.
--- lm.autograd.set_detect_anomaly(on): the same from here on, in this thread. Gives what was before.
--- lm.autograd.is_anomaly_enabled(): whether backward looks for NaN now.

local autograd = {
  grad = core.grad, backward = core.backward,
  detect_anomaly = core.detect_anomaly, set_detect_anomaly = core.set_detect_anomaly,
  is_anomaly_enabled = core.is_anomaly_enabled,
}

-- ---- Function

-- What forward leaves for backward. `saved_tensors` is the list given to save_for_backward, whose entries may be nil;
-- its field n says how many there are.
local Context = {}

function Context:save_for_backward(...)
  if core.is_tensor(self) or self == nil then
    fail("save_for_backward: it is called with a colon: ctx:save_for_backward(…)")
  end
  local saved, places = {}, {n = select("#", ...)}
  for i = 1, places.n do
    local t = select(i, ...)
    if t ~= nil then
      saved[#saved + 1] = options.arg("save_for_backward", "argument " .. i, t, "tensor")
      places[#saved] = i
    end
  end
  rawset(self, "_saved", saved)
  rawset(self, "_places", places)
end

function Context:mark_non_differentiable(...)
  rawset(self, "_constant", {...})
end

--- Without, a gradient nobody asked for is nil in backward; with (the default) it is zeros.
function Context:set_materialize_grads(on)
  rawset(self, "_materialize", options.arg("set_materialize_grads", "on", on, "boolean"))
end

local context_mt = {
  __index = function(self, key)
    if key ~= "saved_tensors" then return Context[key] end
    local places, saved = rawget(self, "_places") or {n = 0}, rawget(self, "_saved")
    local list = {n = places.n}
    if not saved and not rawget(self, "_running") then return list end
    for i, place in ipairs(places) do list[place] = saved and saved[i] or core.custom_saved(i) end
    return list
  end,
}

local function pack(...) return {n = select("#", ...), ...} end

local function contains(list, x)
  for _, item in ipairs(list) do
    if item == x then return true end
  end
  return false
end

-- Gradients for the outputs in the order of forward's results, zeros where undefined.
local function spread(ctx, grads, metas, nout)
  local given = {}
  for i = 1, nout do
    local meta = metas[i]
    local grad = meta and meta.slot and grads[meta.slot] or nil
    if not grad and meta and rawget(ctx, "_materialize") ~= false then
      grad = ops.zeros(meta.shape, {dtype = meta.dtype, device = meta.device})
    end
    given[i] = grad
  end
  return given
end

-- The closure the graph calls. It holds no output: that would tie the graph to itself.
local function backward_of(kind, ctx, metas, nout, positions, nargs)
  return function(grads)
    rawset(ctx, "_running", true)
    local given = spread(ctx, grads, metas, nout)
    local results = pack(kind.backward(ctx, unpack(given, 1, nout)))
    rawset(ctx, "_running", nil)
    if results.n > nargs then
      for i = nargs + 1, results.n do
        if results[i] ~= nil then
          fail("%s.backward: returned %d gradients; forward took %d arguments", kind.__name, results.n, nargs)
        end
      end
    end
    local last = positions[#positions]
    if results.n < last then
      fail("%s.backward: returned %d gradient%s, but argument %d of forward is a tensor: one for each argument wanted, "
        .. "nil where there is none", kind.__name, results.n, results.n == 1 and "" or "s", last)
    end
    local list = {}
    for i, position in ipairs(positions) do
      local grad = results[position]
      if grad and not core.is_tensor(grad) then
          fail("%s.backward: gradient %d has to be a tensor or nil, got %s", kind.__name, position,
          options.describe(grad))
      end
      list[i] = grad or false
    end
    return list
  end
end

-- Outputs as new tensors of the graph: what forward returned unchanged becomes a view of its own.
local function prepare(outputs, inputs, constant)
  local metas, tied = {}, {}
  for i = 1, outputs.n do
    local y = outputs[i]
    if core.is_tensor(y) then
      metas[i] = {shape = y.shape, dtype = y.dtype, device = y.device}
      if core.is_floating_point(y) and not contains(constant, y) then
        if contains(inputs, y) or contains(tied, y) then
          y = ops.detach(y)
          outputs[i] = y
        end
        tied[#tied + 1] = y
        metas[i].slot = #tied
      end
    end
  end
  return metas, tied
end

local function apply(kind, ...)
  local arguments = pack(...)
  local ctx = setmetatable({needs_input_grad = {}}, context_mt)
  local inputs, positions, wanted = {}, {}, false
  for i = 1, arguments.n do
    local x = arguments[i]
    local needs = core.is_tensor(x) and x.requires_grad
    ctx.needs_input_grad[i] = needs
    wanted = wanted or needs
    if core.is_tensor(x) then
      inputs[#inputs + 1] = x
      positions[#inputs] = i
    end
  end
  if not kind.forward then fail("%s: a Function needs forward(ctx, ...)", kind.__name) end
  local outputs = pack(core.no_grad(kind.forward, ctx, ...))
  local saved = rawget(ctx, "_saved") or {}
  rawset(ctx, "_saved", nil)
  if wanted and core.is_grad_enabled() then
    if not kind.backward then fail("%s: a Function needs backward(ctx, ...)", kind.__name) end
    local metas, tied = prepare(outputs, inputs, rawget(ctx, "_constant") or {})
    rawset(ctx, "_constant", nil)
    if #tied > 0 then
      core.custom_record(kind.__name, backward_of(kind, ctx, metas, outputs.n, positions, arguments.n), inputs, tied,
        saved)
    end
  end
  return unpack(outputs, 1, outputs.n)
end

--- lm.autograd.Function: a differentiable function with a backward of its own:
---   local Exp = lm.autograd.Function:extend("Exp")
---   function Exp.forward(ctx, x) local y = x:exp(); ctx:save_for_backward(y); return y end
---   function Exp.backward(ctx, g) return g * ctx.saved_tensors[1] end
---   y = Exp(x)      -- or Exp.apply(x)
--- backward gives one gradient (or nil) for each argument of forward; those after the last tensor may be left out.
autograd.Function = class.new("Function", nil, apply)

--- A function's class: it is given forward(ctx, ...) and backward(ctx, ...).
function autograd.Function:extend(name)
  local new = class.new(options.arg("Function.extend", "name", name, "string"), self)
  getmetatable(new).__newindex = function(t, key, value)
    if type(value) == "function" and debug.getlocal(value, 1) == "self" then
      fail("%s: %s takes ctx first, and is written with a dot: function %s.%s(ctx, …)", t.__name, key, t.__name, key)
    end
    rawset(t, key, value)
  end
  new.apply = function(...)
    if rawequal((...), new) then return apply(...) end
    return apply(new, ...)
  end
  return new
end

-- ---- checkpoint

-- A function, a Function or a module.
local function callable(who, f)
  local mt = debug.getmetatable(f)
  if type(f) == "function" or type(mt) == "table" and rawget(mt, "__call") and type(f) ~= "cdata" then return f end
  fail("%s: f has to be a function, got %s", who, options.describe(f))
end

local checkpoint_options = {preserve_rng_state = {"boolean", true}, use_reentrant = {"boolean", false}}

-- The options, if the last argument is a table of nothing else; else nil.
local function take_options(arguments)
  local last = arguments[arguments.n]
  if type(last) ~= "table" or getmetatable(last) or next(last) == nil then return nil end
  for key in pairs(last) do
    if not checkpoint_options[key] then return nil end
  end
  return last
end

-- The generators f may draw from: the CPU's, the default device's, those of its arguments.
local function generators(arguments)
  local states = {cpu = core.get_rng_state "cpu"}
  local function add(device) states[device] = states[device] or core.get_rng_state(device) end
  add(core.get_default_device())
  for i = 1, arguments.n do
    if core.is_tensor(arguments[i]) then add(arguments[i].device) end
  end
  for _, state in pairs(states) do core.keep(state) end
  return states
end

local function set_generators(states)
  for device, state in pairs(states) do core.set_rng_state(state, device) end
end

-- The tensors that a Lua function has in its upvalues.
local function upvalues(f)
  local found = {}
  for i = 1, type(f) == "function" and debug.getinfo(f, "u").nups or 0 do
    local name, value = debug.getupvalue(f, i)
    if core.is_tensor(value) then found[i] = {name = name, value = value} end
  end
  return found
end

local computing_again = false -- in a scope, whatever is left of it

local function checkpoint(who, f, arguments, preserve)
  local kept, versions = {n = arguments.n}, {}
  for i = 1, arguments.n do
    local x = arguments[i]
    if core.is_tensor(x) then
      x = core.keep(ops.detach(x):requires_grad_(x.requires_grad))
      versions[i] = x._version
    end
    kept[i] = x
  end
  local states, outside = preserve and generators(kept), upvalues(f)
  local function run(...) return f(...) end
  local function run_in_scope(...) return core.scope(run, ...) end
  local function again()
    for i, was in pairs(outside) do
      local _, value = debug.getupvalue(f, i)
      if value ~= was.value then
        fail("%s: '%s', which the function reads from outside, is another tensor now than in the forward pass; give it "
          .. "as an argument", who, was.name)
      end
    end
    local before = preserve and generators(kept)
    if preserve then set_generators(states) end
    local outer = computing_again
    computing_again = true
    local ok, problem = pcall(run_in_scope, unpack(kept, 1, kept.n))
    computing_again = outer
    if preserve then set_generators(before) end
    if not ok then error(problem, 0) end
  end
  local first = computing_again and run_in_scope or run
  local results = pack(core.checkpoint(first, again, unpack(arguments, 1, arguments.n)))
  for i in pairs(versions) do
    if kept[i]._version ~= versions[i] then
      fail("%s: the function wrote in place into its argument %d, which it is to read again in backward", who, i)
    end
  end
  return unpack(results, 1, results.n)
end

--- f(...), of which nothing is kept for backward but the arguments: what the ops of f save is computed again when
--- backward comes to them, with the same random numbers and the same autocast. f is a function or a module, and has to
--- do the same both times; tensors it reads, and the variables it finds them in, must not change in between. What it
--- leaves elsewhere than in its results is dropped after the second time, as by lm.scope. Gradients, hooks, lm.grad and
--- double backward are as without; within no_grad, and within another checkpoint, it is a plain call.
--- A last table of nothing but {preserve_rng_state = true, use_reentrant = false} is not for f: preserve_rng_state =
--- false lets the second time draw other random numbers; use_reentrant makes no difference here.
function autograd.checkpoint(f, ...)
  callable("checkpoint", f)
  local arguments = pack(...)
  local given = take_options(arguments)
  if given then arguments[arguments.n], arguments.n = nil, arguments.n - 1 end
  local opts = options.check("checkpoint", given, checkpoint_options)
  if not core.is_grad_enabled() then return f(unpack(arguments, 1, arguments.n)) end
  return checkpoint("checkpoint", f, arguments, opts.preserve_rng_state)
end

--- net(x) for an nn.Sequential, or a list of functions, in `segments` parts of which all but the last are checkpoints.
--- {preserve_rng_state = true}
function autograd.checkpoint_sequential(net, segments, x, opts)
  local who = "checkpoint_sequential"
  local parts = class.is(net, require("luminary.nn").Sequential) and net:children() or net
  if not options.is_plain(parts) or #parts == 0 then
    fail("%s: an nn.Sequential or a list of functions wanted, got %s", who, options.describe(net))
  end
  for _, part in ipairs(parts) do callable(who, part) end
  options.arg(who, "segments", segments, "count")
  if segments > #parts then fail("%s: %d segments of %d parts", who, segments, #parts) end
  local preserve = options.check(who, opts, checkpoint_options, "preserve_rng_state").preserve_rng_state
  local function run(first, last)
    return function(...)
      local results = pack(...)
      for i = first, last do results = pack(parts[i](unpack(results, 1, results.n))) end
      return unpack(results, 1, results.n)
    end
  end
  local size, results = math.floor(#parts / segments), pack(x)
  for k = 1, segments do
    local part = run((k - 1) * size + 1, k < segments and k * size or #parts)
    if k < segments and core.is_grad_enabled() then
      results = pack(checkpoint(who, part, results, preserve))
    else
      results = pack(part(unpack(results, 1, results.n)))
    end
  end
  return unpack(results, 1, results.n)
end

-- ---- gradcheck

local check_options = {
  eps = {"number", 1e-6}, atol = {"positive", 1e-5}, rtol = {"positive", 1e-3}, raise_exception = {"boolean", true},
}

-- The tensors among f's results that have a gradient.
local function differentiable(...)
  local list = {}
  local function add(v)
    if core.is_tensor(v) and v.requires_grad then list[#list + 1] = v end
  end
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "table" then
      for _, item in ipairs(v) do add(item) end
    else
      add(v)
    end
  end
  return list
end

local function flat(x) return methods.totable(ops.reshape(ops.detach(x), {-1})) end

-- The key of element `k` (from 0) of a tensor of that shape.
local function place(shape, k)
  local key = {}
  for d = #shape, 1, -1 do
    key[d] = k % shape[d] + 1
    k = math.floor(k / shape[d])
  end
  return key
end

-- A number of a tensor's elements, set without recording.
local function set_element(x, key, value)
  if x.ndim == 0 then ops.fill_(x, value) else x[key] = value end
end

local function get_element(x, key) return x.ndim == 0 and x:item() or x[key] end

-- Columns of the Jacobian of all outputs together by central differences, for one input.
local function numeric(f, inputs, j, eps)
  local x = ops.detach(inputs[j])
  local shape, columns = x.shape, {}
  local function values()
    local all = {}
    for _, y in ipairs(differentiable(f(unpack(inputs, 1, inputs.n)))) do
      for _, v in ipairs(flat(y)) do all[#all + 1] = v end
    end
    return all
  end
  for k = 1, x:numel() do
    local key = place(shape, k - 1)
    local at = get_element(x, key)
    set_element(x, key, at + eps)
    local above = values()
    set_element(x, key, at - eps)
    local below = values()
    set_element(x, key, at)
    local column = {}
    for i = 1, #above do column[i] = (above[i] - below[i]) / (2 * eps) end
    columns[k] = column
  end
  return columns
end

-- Rows of the same Jacobian by backward: rows[i][j][k] for output element i, input j, its element k.
local function analytic(f, inputs, wanted)
  local rows = {}
  for _, y in ipairs(differentiable(f(unpack(inputs, 1, inputs.n)))) do
    local shape = y.shape
    for k = 1, y:numel() do
      local seed = ops.zeros_like(y)
      set_element(seed, place(shape, k - 1), 1)
      local grads = core.grad(y, wanted, {grad_outputs = seed, retain_graph = true, allow_unused = true})
      local row = {}
      for j = 1, #wanted do row[j] = grads[j] and flat(grads[j]) or {} end
      rows[#rows + 1] = row
    end
  end
  return rows
end

local function prepare_inputs(who, inputs)
  if core.is_tensor(inputs) then inputs = {inputs} end
  options.arg(who, "inputs", inputs, "table")
  local n = 0
  for i in pairs(inputs) do n = math.max(n, type(i) == "number" and i or 0) end
  local all, wanted, index = {n = n}, {}, {}
  for i = 1, n do
    local x = inputs[i]
    all[i] = x
    if core.is_tensor(x) and x.requires_grad then
      if x.dtype ~= "float64" then
        fail("%s: input %d is %s; differences need float64: x:double()", who, i, x.dtype)
      end
      wanted[#wanted + 1] = x
      index[#wanted] = i
    end
  end
  if #wanted == 0 then fail("%s: no input requires a gradient: set x.requires_grad = true", who) end
  return all, wanted, index
end

local function compare(who, f, inputs, o)
  local all, wanted, index = prepare_inputs(who, inputs)
  local rows = core.enable_grad(analytic, f, all, wanted)
  if #rows == 0 then return ("%s: no output depends on an input that requires a gradient"):format(who) end
  for j = 1, #wanted do
    local columns = core.enable_grad(numeric, f, all, index[j], o.eps)
    for k, column in ipairs(columns) do
      if #column ~= #rows then
        return ("%s: the function gives %d elements at one time, %d at another"):format(who, #rows, #column)
      end
      for i, expected in ipairs(column) do
        local got = rows[i][j][k] or 0
        local near = math.abs(got - expected) <= o.atol + o.rtol * math.abs(expected) -- false for NaN
        if not near then
          return ("%s: d output[%d] / d input %d[%d]: backward gives %.9g, differences give %.9g"):format(who, i,
            index[j], k, got, expected)
        end
      end
    end
  end
end

local function run_check(who, f, inputs, given)
  callable(who, f)
  local o = options.check(who, given, check_options, "eps")
  local message = compare(who, f, inputs, o)
  if not message then return true end
  if o.raise_exception then fail("%s", message) end
  return false, message
end

--- Compare f's gradients at `inputs` (float64, requires_grad) with central differences. True, or an error
--- (with {raise_exception = false}: false and a message).
function autograd.gradcheck(f, inputs, given) return run_check("gradcheck", f, inputs, given) end

--- The same for the gradients of f's gradients, at random output gradients.
function autograd.gradgradcheck(f, inputs, given)
  callable("gradgradcheck", f)
  local all, wanted, index = prepare_inputs("gradgradcheck", inputs)
  local outputs = core.enable_grad(function() return differentiable(f(unpack(all, 1, all.n))) end)
  if #outputs == 0 then fail("gradgradcheck: no output depends on an input that requires a gradient") end
  local joined = {n = all.n + #outputs}
  for i = 1, all.n do joined[i] = all[i] end
  for i, y in ipairs(outputs) do
    joined[all.n + i] = ops.randn(y.shape, {dtype = y.dtype, device = y.device, requires_grad = true})
  end
  local function gradients(...)
    local now, seeds = {}, {}
    for i = 1, #wanted do now[i] = (select(index[i], ...)) end
    for i = 1, #outputs do seeds[i] = (select(all.n + i, ...)) end
    local results = differentiable(f(unpack({...}, 1, all.n)))
    local grads = core.grad(results, now, {grad_outputs = seeds, create_graph = true, allow_unused = true})
    local list = {}
    for i = 1, #now do
      if grads[i] then list[#list + 1] = grads[i] end
    end
    return list
  end
  return run_check("gradgradcheck", gradients, joined, given)
end

return options.strict("autograd", autograd)
