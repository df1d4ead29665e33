--- Runs a training step as it is and, call by call beside it, through a wrapper such as lm.compile, both from one seed.
--- Compares bit by bit what the step returns and all that it refers to: parameters, gradients, buffers, states of
--- optimizers, schedules and scalers, random numbers.
---
---   equal.compare(make, {kind = "autocast", calls = 5, wrap = lm.compile})
---
--- make(c) returns a side's step(…) and, optionally, inputs(k), which returns the arguments of call k, between(k),
--- which runs before call k, and more that is compared. c.dtype is the dtype of parameters, c.randn(…) noise of it,
--- c.run(f, …) calls f, under autocast if the kind is that, and c.wrap compiles further functions. A make that sets
--- c.fails may have calls that raise errors; c.in_buckets: gradients are in DistributedDataParallel's memory. With
--- c.apart the step itself is not compiled, and c.calls sets the least number of calls. With pace = 3 each k counts for
--- three calls, so that a change comes after calls that were alike.
local ffi = require "ffi"
local lm = require "luminary"
local core = require "luminary.core"
local class = require "luminary.base.class"
local sorted_keys = require("luminary.base.lists").sorted_keys
local records = require "luminary.nn.module_fields"

ffi.cdef "int memcmp(const void *, const void *, size_t);"

local equal = {kinds = {"float32", "float64", "bfloat16", "autocast"}}
if os.getenv "LM_SPEC_SANITIZED" then equal.kinds = {"float32", "autocast"} end

--- Calls of a step in a spec: 5, or 50 with LM_TEST_LONG.
equal.calls = os.getenv "LM_TEST_LONG" and 50 or 5

function equal.context(kind)
  local c = {kind = kind, dtype = kind == "autocast" and "float32" or kind}
  function c.randn(...) return lm.randn(...):to(c.dtype) end
  function c.run(f, ...)
    if kind == "autocast" then return lm.autocast({dtype = "bfloat16"}, f, ...) end
    return f(...)
  end
  return c
end

local opaque = setmetatable({}, {__mode = "k"}) -- libraries, and functions of c.wrap, whose variables differ
for _, library in pairs(package.loaded) do opaque[library] = true end

-- Appends to `list` pairs {path, value} of all tensors and plain values that v holds or, as a function, refers to.
local function collect(list, path, v, seen)
  local kind = type(v)
  local function enter(name, value) return collect(list, path == "" and name or path .. "." .. name, value, seen) end
  if core.is_tensor(v) then
    list[#list + 1] = {path, v}
    if v.is_leaf then list[#list + 1] = {path .. ".grad", v.grad} end
  elseif kind ~= "function" and kind ~= "table" and kind ~= "userdata" then
    list[#list + 1] = {path, v}
  elseif not seen[v] and not opaque[v] then
    seen[v] = true
    if kind == "function" then
      if debug.getinfo(v, "S").source:find("lua/luminary/", 1, true) then return end
      for i = 1, math.huge do
        local name, value = debug.getupvalue(v, i)
        if not name then return end
        enter(name, value)
      end
    elseif records.is_module(v) then
      for name, p in v:named_parameters() do enter(name, p) end
      for name, b in v:named_buffers() do enter(name, b) end
    elseif kind == "table" and getmetatable(v) == nil then
      for _, key in ipairs(sorted_keys(v)) do enter(tostring(key), v[key]) end
    elseif class.has(v, "state_dict") and not class.has(v, "consolidate_state_dict") then -- a state of all ranks
      collect(list, path, v:state_dict(), seen)
    end
  end
end

--- Returns the list of collect, of v.
function equal.collected(path, v)
  local list = {}
  collect(list, path, v, {})
  return list
end
local collected = equal.collected

--- Returns such a list with copies of its tensors.
function equal.copied(list)
  for i, each in ipairs(list) do
    if core.is_tensor(each[2]) then list[i] = {each[1], each[2]:detach():clone()} end
  end
  return list
end

-- Returns nil if a and b have the same bits, and (unless `unversioned`) the same version, else the difference as text.
local function difference(a, b, unversioned)
  if not (core.is_tensor(a) and core.is_tensor(b)) then
    local x, y = tostring(a), tostring(b)
    if type(a) == "number" then x, y = ("%.17g"):format(a), type(b) == "number" and ("%.17g"):format(b) or y end
    return (type(a) ~= type(b) or x ~= y) and ("%s, not %s"):format(y, x) or nil
  end
  for _, field in ipairs {"dtype", "shape", "requires_grad", "is_leaf", "_version"} do
    local x, y = tostring(a[field]), tostring(b[field])
    local counts = not unversioned or field ~= "_version"
    if x ~= y and counts then return ("%s is %s, not %s"):format(field, y, x) end
  end
  local x, y = tostring(a:stride()), tostring(b:stride())
  if x ~= y then return ("the stride is %s, not %s"):format(y, x) end
  local p, q = a:detach():cpu():contiguous(), b:detach():cpu():contiguous()
  local bytes = p:numel() * p:element_size()
  if bytes == 0 or ffi.C.memcmp(p:data_ptr(), q:data_ptr(), bytes) == 0 then return end
  return ("%d of %d elements differ, by at most %g"):format(p:ne(q):sum():item(), p:numel(),
    (p:double() - q:double()):abs():max():item())
end

--- Fails if two lists differ; `where` begins the message. in_buckets: gradients are in buckets, whose version counts
--- the writes to all of them.
function equal.compare_lists(a, b, where, in_buckets)
  for i = 1, math.max(#a, #b) do
    local x, y = a[i] or {"nothing"}, b[i] or {"nothing"}
    if x[1] ~= y[1] then error(("%s: %s is there, not %s"):format(where, y[1], x[1]), 0) end
    local text = difference(x[2], y[2], in_buckets and x[1]:find "%.grad$")
    if text then error(("%s: %s: %s"):format(where, x[1], text), 0) end
  end
end

local compare_lists = equal.compare_lists

-- Calls f(…) with a side's random numbers.
local function with_numbers(side, f, ...)
  lm.set_rng_state(side.numbers)
  local results = {pcall(f, ...)}
  side.numbers = lm.get_rng_state()
  results.n = table.maxn(results)
  return results
end

local function required(results)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, results.n)
end

--- Returns f run by segments, whose passes keep all bits and which nothing captures, and the state of these.
function equal.by_segments(f)
  local compiled = core.compiled(true)
  local function called(...) return f(...) end
  return function(...) return compiled:call(called, ...) end, setmetatable({}, {
    __index = function(_, key) return compiled:state()[key] end,
  })
end

local function nothing() end

--- Fails if the sides differ. Returns the wrapper's second result.
function equal.compare(make, options)
  local sides, calls = {}, nil
  lm.manual_seed(1)
  local numbers = lm.get_rng_state()
  for i, wrap in ipairs {function(f) return f end, options.wrap or lm.compile} do
    local side, c = {numbers = numbers:clone(), kept = {}}, equal.context(options.kind or "float32")
    function c.wrap(f)
      local call = wrap(f)
      local function wrapped(...) return call(...) end
      opaque[wrapped] = true
      return wrapped
    end
    side.step, side.inputs, side.between, side.parts = required(with_numbers(side, make, c))
    side.reached = {side.parts, side.step, side.inputs, side.between}
    side.inputs, side.between, side.fails = side.inputs or nothing, side.between or nothing, c.fails
    side.run, side.in_buckets = side.step, c.in_buckets
    if not c.apart then side.run, side.state = wrap(side.step) end
    sides[i], calls = side, options.calls or math.max(equal.calls, c.calls or 0)
  end
  local a, b = unpack(sides)
  local first = equal.copied(collected("", a.reached))
  local moved
  local pace = options.pace or 1
  for k = 1, calls * pace do
    local now, at = {}, math.ceil(k / pace)
    for i, side in ipairs(sides) do
      if (k - 1) % pace == 0 then required(with_numbers(side, side.between, at)) end
      local inputs = with_numbers(side, side.inputs, at)
      required(inputs)
      local results = with_numbers(side, side.run, unpack(inputs, 2, inputs.n))
      if not results[1] and not side.fails then error(("call %d: %s"):format(k, tostring(results[2])), 0) end
      if k % 2 == 1 then side.kept[k] = {results, inputs} end -- memory of the others may be used again
      now[i] = collected("", side.reached)
      table.insert(now[i], 1, {"number of results", results.n})
      for j = 3, results.n do table.insert(now[i], 2, {"a result is the one before", results[j] == results[j - 1]}) end
      for _, each in ipairs(collected("results", results)) do table.insert(now[i], 2, each) end
      for _, each in ipairs(collected("arguments", inputs)) do table.insert(now[i], each) end
      table.insert(now[i], {"random numbers", side.numbers})
    end
    local reason = b.state and b.state.reason
    compare_lists(now[1], now[2], ("call %d%s"):format(k, reason and " (" .. reason .. ")" or ""), a.in_buckets)
  end
  for i, each in ipairs(collected("", a.reached)) do
    moved = moved or not first[i] or first[i][1] == each[1] and difference(first[i][2], each[2])
  end
  if not moved then error("the step changed nothing that is compared", 0) end
  compare_lists(collected("kept", a.kept), collected("kept", b.kept), "after all calls")
  return b.state
end

return equal
