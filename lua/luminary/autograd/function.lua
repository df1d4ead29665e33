--- Makes custom autograd operations: classes with a forward and a backward.
local debug = require "debug"
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local ops, index_of = core.ops, lists.index_of
local fail, pack = options.fail, options.pack

-- The ctx that forward and backward share. `saved_tensors` is the list of arguments of save_for_backward, which may be
-- nil; its field n is their number.
local Context = {}

function Context:save_for_backward(...)
  if core.is_tensor(self) or self == nil then
    fail("save_for_backward: call it with a colon: ctx:save_for_backward(…)")
  end
  local saved, positions = {}, {n = select("#", ...)}
  for i = 1, positions.n do
    local t = select(i, ...)
    if t ~= nil then
      saved[#saved + 1] = options.arg("save_for_backward", "argument " .. i, t, "tensor")
      positions[#saved] = i
    end
  end
  rawset(self, "_saved", saved)
  rawset(self, "_positions", positions)
end

function Context:mark_non_differentiable(...) rawset(self, "_constant", {...}) end

--- Marks arguments that forward writes in place and returns.
function Context:mark_dirty(...) rawset(self, "_dirty", {...}) end

--- Sets whether undefined gradients of outputs are zeros in backward (the default) or nil.
function Context:set_materialize_grads(on)
  rawset(self, "_materialize", options.arg("set_materialize_grads", "on", on, "boolean"))
end

local context_mt = {
  __index = function(self, key)
    if key ~= "saved_tensors" then return Context[key] end
    local positions, saved = rawget(self, "_positions") or {n = 0}, rawget(self, "_saved")
    local list = {n = positions.n}
    if not saved and not rawget(self, "_running") then return list end
    for i, position in ipairs(positions) do list[position] = saved and saved[i] or core.custom_saved(i) end
    return list
  end,
}

-- Returns the gradients of the outputs, in the order of forward's results; undefined ones are zeros or nil.
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

-- Returns the closure that the graph calls. It must not reference an output, which would be a cycle with the graph.
local function backward_of(kind, ctx, metas, nout, positions, nargs, shapes)
  return function(grads)
    rawset(ctx, "_running", true)
    local given = spread(ctx, grads, metas, nout)
    local results = pack(kind.backward(ctx, unpack(given, 1, nout)))
    rawset(ctx, "_running", nil)
    if results.n > nargs then
      for i = nargs + 1, results.n do
        if results[i] ~= nil then
          fail("%s.backward: expected at most one gradient for each argument of forward, got %d for %d", kind.__name,
            results.n, nargs)
        end
      end
    end
    local last = positions[#positions]
    if results.n < last then
      fail("%s.backward: returned %d gradient%s, but argument %d of forward is a tensor; return one for each "
        .. "argument as values, not in a list; nil where there is none", kind.__name, results.n,
        results.n == 1 and "" or "s", last)
    end
    local list = {}
    for i, position in ipairs(positions) do
      local grad = results[position]
      if grad and not core.is_tensor(grad) then
          options.must_be(kind.__name .. ".backward", ("gradient %d"):format(position), "a tensor or nil",
            grad)
      elseif grad and grad.shape ~= shapes[i] and not pcall(ops.sum_to_size, grad, shapes[i]) then
        options.wrong_shape(kind.__name .. ".backward", ("gradient %d"):format(position), grad, shapes[i])
      end
      list[i] = grad or false
    end
    return list
  end
end

-- Makes the outputs new tensors of the graph: an input that forward returns unchanged becomes a new view.
local function prepare(name, outputs, inputs, constant, dirty)
  local metas, tied = {}, {}
  for i, t in ipairs(dirty) do
    if not index_of(outputs, t) then fail("%s.forward: return what mark_dirty has as argument %d", name, i) end
  end
  for i = 1, outputs.n do
    local y = outputs[i]
    if type(y) == "table" and core.is_tensor(y[1]) then
      fail("%s.forward: result %d must be a tensor, got a list; return several results as values: return a, b",
        name, i)
    end
    if core.is_tensor(y) then
      metas[i] = {shape = y.shape, dtype = y.dtype, device = y.device}
      if core.is_floating_point(y) and not index_of(constant, y) then
        if index_of(tied, y) or index_of(inputs, y) and not index_of(dirty, y) then
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

local function apply_function(kind, ...)
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
  if not kind.forward then fail("%s: define forward(ctx, …)", kind.__name) end
  local outputs = pack(core.no_grad(kind.forward, ctx, ...))
  local saved = rawget(ctx, "_saved") or {}
  rawset(ctx, "_saved", nil)
  if wanted and core.is_grad_enabled() then
    if not kind.backward then fail("%s: define backward(ctx, …)", kind.__name) end
    local metas, tied = prepare(kind.__name, outputs, inputs, rawget(ctx, "_constant") or {},
      rawget(ctx, "_dirty") or {})
    rawset(ctx, "_constant", nil)
    rawset(ctx, "_dirty", nil)
    if #tied > 0 then
      local shapes = lists.map(inputs, function(x) return x.shape end)
      core.custom_record(kind.__name, backward_of(kind, ctx, metas, outputs.n, positions, arguments.n, shapes), inputs,
        tied, saved)
    end
  end
  return unpack(outputs, 1, outputs.n)
end

--- lm.autograd.Function: Base class to create custom autograd functions, with a forward and a backward.
local Function = class.new("Function", nil, apply_function)

--- Makes a class of this name; the caller then defines its forward(ctx, ...) and backward(ctx, ...).
function Function:extend(name)
  local new = class.new(options.arg("Function.extend", "name", name, "string"), self)
  getmetatable(new).__newindex = function(t, key, value)
    if type(value) == "function" and debug.getlocal(value, 1) == "self" then
      fail("%s: %s takes ctx first; define it with a dot: function %s.%s(ctx, …)", t.__name, key, t.__name, key)
    end
    rawset(t, key, value)
  end
  new.apply = function(...)
    if rawequal((...), new) then return apply_function(...) end
    return apply_function(new, ...)
  end
  return new
end

-- Frees the tensors of a list, which the collector would free late; false is none.
local function free_all(list)
  for key, t in pairs(list) do
    if t then t:free() end
    list[key] = nil
  end
end

-- The last results of backward passes, which the graph has taken over since.
local returned = setmetatable({}, {__mode = "v"})

local function free_returned() free_all(returned) end

-- Calls f(...), which returns a list, for a backward pass whose tensors nobody else has: frees what it makes, except
-- its results, and the list of gradients.
local function in_backward(grads, f, ...)
  free_returned()
  local results = core.scope(function(...)
    local list = f(...)
    for i, t in pairs(list) do returned[i] = core.keep(t) end
    return list
  end, ...)
  for key, t in pairs(grads) do
    if index_of(results, t) then grads[key] = nil end
  end
  free_all(grads)
  return results
end

-- Returns f, a function, a Function or a module; fails for other values.
local function check_callable(who, f)
  local mt = debug.getmetatable(f)
  if type(f) == "function" or type(mt) == "table" and rawget(mt, "__call") and type(f) ~= "cdata" then return f end
  options.must_be(who, "f", "a function", f)
end

return {
  Function = Function, check_callable = check_callable,
  in_backward = in_backward, free_all = free_all, free_returned = free_returned,
}
