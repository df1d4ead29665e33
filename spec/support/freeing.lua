-- Every binding called while its own arguments are freed under it: by a finalizer at the first, second, … collection
-- within the call, by one when memory has run out, by a debug hook while an int64 is read. A call returns what it
-- returns otherwise, or an error. What was freed is written over at once, so that use of it shows without a sanitizer
-- too.
--   luajit freeing.lua WAY [Lua pattern of names]     prints "N calls, N freed" at the end
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
local golden = require "spec.support.golden"
jit.off() -- a trace that collects at each allocation may leave itself at its first for ever
local way, pattern = arg[1], arg[2] or ""
local calls, fired = 0, 0

-- ---- ways of freeing

local armed -- {tensors, at = how many collections from now}
local litter = {} -- luacheck: ignore (it lies where the freed ones lay)

local function collect_always(on)
  collectgarbage("setpause", on and 0 or 200)
  collectgarbage("setstepmul", on and 0 or 200) -- 0: a step is a whole cycle
  if on then collectgarbage("restart") end
end

local function free()
  local tensors, change = armed.tensors, armed.change
  armed = nil
  fired = fired + 1
  collect_always(false)
  core._fail_alloc_from(0)
  for _, t in ipairs(tensors) do
    if core.is_alive(t) then
      if change then t.data = lm.zeros { 1 } else t:free() end
    end
  end
  for i = 1, 12 do litter[i] = lm.full({ 9, 9, 9 }, 77, { dtype = "float64" }) end
end

local function watch()
  local proxy = newproxy(true)
  getmetatable(proxy).__gc = function()
    if not watch then return end
    watch()
    if not armed then return end
    armed.at = armed.at - 1
    if armed.at == 0 then free() end
  end
end
watch()

local ways = {}

function ways.finalizer(run)
  for at = 1, 9 do
    if not run(at, function() collect_always(true) end, function() collect_always(false) end) then return end
  end
end

-- Lets the finalizer move the tensors to other memory instead.
function ways.changing(run)
  for at = 1, 9 do
    if not run(at, function() collect_always(true) end, function() collect_always(false) end, { change = true }) then
      return
    end
  end
end

function ways.out_of_memory(run)
  for n = 1, 12 do
    if not run(1, function() core._fail_alloc_from(n) end, function() core._fail_alloc_from(0) end) then return end
  end
end

function ways.hook(run)
  local function hook()
    if armed and debug.getinfo(2, "S").source == "=luminary.core" then free() end
  end
  run(1, function() debug.sethook(hook, "", 1) end, function() debug.sethook() end, { int64 = true })
end

-- ---- values

local function text_of(v, depth)
  depth = depth or 0
  if core.is_tensor(v) then
    if not core.is_alive(v) then return "dead" end
    v = v:detach():to("cpu")
    local list = v.dtype == "bool" and v:to("uint8"):totable() or v:totable()
    return v.dtype .. text_of(v.shape) .. text_of(list, 1)
  elseif type(v) == "table" and depth < 12 then
    local keys, parts = {}, {}
    for k in pairs(v) do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for i, k in ipairs(keys) do parts[i] = tostring(k) .. "=" .. text_of(v[k], depth + 1) end
    return "{" .. table.concat(parts, ",") .. "}"
  elseif type(v) == "userdata" then
    return "userdata"
  end
  return tostring(v)
end

local function collect_tensors(v, out)
  if core.is_tensor(v) then
    out[#out + 1] = v
  elseif type(v) == "table" then
    for _, part in pairs(v) do collect_tensors(part, out) end
  end
  return out
end

local function to_int64(v)
  if type(v) == "number" and v == math.floor(v) and math.abs(v) < 2 ^ 53 then return ffi.new("int64_t", v) end
  if type(v) ~= "table" then return v end
  local out = {}
  for k, part in pairs(v) do out[k] = to_int64(part) end
  return out
end

-- Returns whether v is one of the tensors itself: then it is as dead as they are, and may have died after the call.
local function is_among(v, tensors)
  for _, t in ipairs(tensors) do
    if rawequal(v, t) then return true end
  end
  return false
end

-- Calls f(unpack(make())) by the way that was requested. random: what it returns is not compared.
local function try(name, make, f, random)
  if not name:find(pattern) then return end
  core._fail_alloc_from(0)
  local function prepared(int64)
    lm.manual_seed(1)
    local args = make()
    args.n = args.n or #args
    if int64 then
      for i = 1, args.n do
        if not core.is_tensor(args[i]) then args[i] = to_int64(args[i]) end
      end
    end
    return args
  end
  local function attempt(args) return pcall(f, unpack(args, 1, args.n)) end
  local args = prepared()
  local ok, want = attempt(args)
  want = ok and text_of(want)
  ways[way](function(at, begin, finish, options)
    options = options or {}
    args = prepared(options.int64)
    local tensors = collect_tensors(args, {})
    calls = calls + 1
    armed = { tensors = tensors, at = at, change = options.change }
    begin()
    local done, result = attempt(args)
    finish()
    local freed = not armed
    armed = nil
    local comparable = done and freed and want and not random and not options.change and not is_among(result, tensors)
      and not (type(result) == "string" and result:find "was freed by") -- tostring says that instead of an error
    if comparable and text_of(result) ~= want then
      error(("%s gave %s instead of %s while its arguments were freed"):format(name, text_of(result):sub(1, 300),
        want:sub(1, 300)))
    end
    if not done and type(result) ~= "string" then error(name .. ": an error that is no text: " .. tostring(result)) end
    return freed
  end)
end

-- ---- every op, by the table of cases


local function copy_of(v, file, key)
  if type(v) ~= "table" then return v end
  if v.tensor then return file[key] and file[key]:clone() end
  local out = {}
  for k, part in pairs(v) do out[k] = copy_of(part, file, key .. "." .. k) end
  return out
end

local function free_in_op(row)
  local ok, file = pcall(golden.load, row.name)
  if not ok then file = {} end
  local function arguments(recorded)
    local positional, options, args = {}, {}, {}
    for name in row.positional:gmatch("%S+") do positional[#positional + 1] = name end
    local first = positional[1]
    for name, value in pairs(row[1]) do
      local v = copy_of(value, file, "1.float32.in." .. name)
      if recorded and core.is_tensor(v) and lm.is_floating_point(v) and row.name:sub(-1) ~= "_" then
        v.requires_grad = true
      end
      if name == first then args[1] = v else options[name] = v end
    end
    args[2], args.n = next(options) and options or nil, 2
    return args
  end
  try("op " .. row.name, arguments, core.ops[row.name], row.random)
  if row.grad ~= false then
    try("recorded " .. row.name, function() return arguments(true) end, core.ops[row.name], row.random)
    try("backward of " .. row.name, function() return arguments(true) end, function(...)
      local y = core.ops[row.name](...)
      if type(y) ~= "userdata" or not y.requires_grad then return end
      local watched = y:register_hook(function(g) return g * 1 end)
      y:backward(lm.ones_like(y))
      return watched and nil
    end, true)
  end
end

-- A tenth of the table at a time: each collection walks what there is.
for tenth = 0, 9 do
  local some = {}
  for i, row in ipairs(dofile "spec/op/op_cases.lua") do
    if i % 10 == tenth then some[#some + 1] = row end
  end
  collectgarbage()
  for _, row in ipairs(some) do free_in_op(row) end
end

-- ---- methods, getters, operators

local function x23() return lm.tensor { { 1, 2, 3 }, { 4, 5, 6 } } end
local function big64() return lm.full({ 2, 2 }, 9007199254740993LL, { dtype = "int64" }) end
local function one(make) return function() return { make() } end end
local function leaf()
  local x = x23()
  x.grad = lm.ones { 2, 3 }
  return x
end

for name in ("shape dtype device grad requires_grad is_leaf is_cuda ndim T grad_fn data itemsize nbytes _version")
  :gmatch("%S+") do
  try("." .. name, one(leaf), function(x) return x[name] end)
end
try(".grad_fn of a result", function() return { (x23():requires_grad_() * 2):sum() } end,
  function(y) return y.grad_fn end)

local extra = { size = { 2 }, stride = { 1 }, to = { "float64" }, reshape = { { 6 } }, view = { { 3, 2 } } }
for name, f in pairs(core.methods) do
  if type(f) == "function" and name ~= "free" and not core.ops[name] then
    try("method " .. name, one(leaf), f, true)
    try("method " .. name .. " with 1", function() return { leaf(), 1 } end, f, true)
    try("method " .. name .. " with a tensor", function() return { leaf(), x23() } end, f, true)
    if extra[name] then try("method " .. name, function() return { leaf(), extra[name][1] } end, f, true) end
  end
end
try("size", one(leaf), function(x) return x:size() end)
try("stride", one(leaf), function(x) return x:stride() end)
try("tostring", one(leaf), tostring)
try("tostring of a result", function() return { x23():requires_grad_():exp() } end, tostring)
try("totable", one(big64), function(x) return x:totable() end)
try("totable of many", function() return { lm.arange(600):view(100, 6) } end, function(x) return x:totable() end)
try("item", function() return { lm.tensor(9007199254740993LL) } end, function(x) return x:item() end)
try("#", one(x23), function(x) return #x end)
try("==", function() return { x23(), x23() } end, function(a, b) return a == b end)
for name, f in pairs {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end, mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end, pow = function(a, b) return a ^ b end, mod = function(a, b) return a % b end,
} do
  try("operator " .. name, function() return { x23(), x23() } end, f)
  try("operator " .. name .. " with a number", function() return { x23(), 3 } end, f)
  try("operator " .. name .. " of a number", function() return { 3, x23() } end, f)
end
try("to", function() return { leaf(), { dtype = "float64", copy = true } } end, function(x, o) return x:to(o) end)
try("to another", function() return { leaf(), big64() } end, function(x, o) return x:to(o) end)

-- ---- indexing

for _, key in ipairs {
  1, -1, "...", {}, { 1 }, { 1, 2 }, { { 1, 2 }, { 2, 3 } }, { { 1, 2, 1 }, 2 }, { 1, "..." },
} do
  local name = "[" .. text_of(key) .. "]"
  try("index " .. name, function() return { x23(), key } end, function(x, k) return x[k] end)
  try("index " .. name .. " with history", function() return { x23():requires_grad_(), key } end,
    function(x, k) return x[k] end)
  try("write " .. name, function() return { x23(), key } end, function(x, k) x[k] = 7 end)
  try("write of a tensor to " .. name, function() return { x23(), key, lm.ones { 1 } } end,
    function(x, k, v) x[k] = v end)
  try("write of a table to " .. name, function() return { x23(), key, { 7 } } end, function(x, k, v) x[k] = v end)
end
for name, key in pairs {
  places = function() return lm.tensor({ 2, 1 }, { dtype = "int64" }) end,
  mask = function() return x23():gt(2) end,
  rows = function() return { lm.tensor({ 2, 1 }, { dtype = "int64" }), { 1, 2 } } end,
} do
  try("index by " .. name, function() return { x23(), key() } end, function(x, k) return x[k] end)
  try("write by " .. name, function() return { x23(), key() } end, function(x, k) x[k] = 7 end)
  try("write of a tensor by " .. name, function() return { x23(), key(), lm.ones { 1 } } end,
    function(x, k, v) x[k] = v end)
end
try("set grad", function() return { leaf(), x23() } end, function(x, g) x.grad = g end)
try("set data", function() return { leaf(), x23() } end, function(x, g) x.data = g end)

-- ---- functions

local folder = os.getenv "LM_SPEC_FOLDER"
local file = folder .. "/saved.safetensors"
lm.save(file, { a = x23() })
try("save", function() return { { a = x23(), b = { big64(), 5 } } } end, function(v) lm.save(file, v) end)
try("load", function() return { x23() } end, function() return lm.load(file) end)
try("tensor of a list", function() return { { { 1, 2 }, { 3, 4 } }, { dtype = "int32" } } end, lm.tensor)
try("tensor of a tensor", function() return { x23(), { requires_grad = true } } end, lm.tensor)
local index = function() return lm.tensor({ 2, 1 }, { dtype = "int64" }) end
try("gather_rows", function() return { x23(), index(), { scale = 2, bias = 1, dtype = "float64" } } end,
  core.gather_rows)
try("gather_row", function() return { x23(), 2, { scale = 2, bias = 1, dtype = "float64" } } end, core.gather_row)
try("permutation", function() return { 5, 3 } end, core.permutation)
try("cat", function() return { { x23(), x23() }, 1 } end, lm.cat)
try("stack", function() return { { x23(), x23() }, 1 } end, lm.stack)
for _, name in ipairs { "max", "min" } do
  try(name, one(x23), core[name])
  try(name .. " along", function() return { x23(), 1 } end, core[name])
  try(name .. " of two", function() return { x23(), x23() } end, core[name])
end
try("split", function() return { x23(), 1, 1 } end, core.split)
try("chunk", function() return { x23(), 2, 1 } end, core.chunk)
try("unbind", function() return { x23(), 1 } end, core.unbind)
try("set_data", function() return { x23(), big64() } end, core.set_data, true)
try("keep", function() return { { x23() } } end, function(v) return lm.scope(function() return lm.keep(v) end) end,
  true)
try("scope", one(x23), function(x) return lm.scope(function() return { x + 1 } end) end, true)
try("no_grad", one(x23), function(x) return lm.no_grad(function() return x + 1 end) end)
try("zero_grad", function() return { { leaf() } } end, core.zero_grad, true)
try("zero_grad in place", function() return { { leaf() }, false } end, core.zero_grad, true)
try("has_grad", one(leaf), core.has_grad)
try("total_norm", function() return { { leaf() }, 2, false } end, core.total_norm)
try("total_norm of gradients", function() return { { leaf() }, 2, true } end, core.total_norm)
try("clip_with_norm", function() return { { leaf() }, 1, lm.tensor(2.5) } end, core.clip_with_norm, true)
try("clip_value", function() return { { leaf() }, 1 } end, core.clip_value, true)
for kind, states in pairs { SGD = { "momentum_buffer" }, NAdam = { "exp_avg", "exp_avg_sq" } } do
  try("optim_step " .. kind, function()
    local list = function() return { x23(), x23() } end
    local lists = {}
    for _, name in ipairs(states) do lists[name] = list() end
    return { { kind = kind, options = { 1, 0.9 }, params = list(), grads = list(), states = lists, step = 1 } }
  end, core.optim_step)
end
try("get_rng_state", function() return {} end, core.get_rng_state, true)
try("set_rng_state", function() return { core.get_rng_state("cpu"), "cpu" } end, core.set_rng_state)
try("bytes_tensor", function() return { "text" } end, core.bytes_tensor)
try("device_collective", function() return { { x23(), x23():to("cpu:1") }, 1, true } end, core.device_collective)
try("is_pinned", one(x23), core.is_pinned)
try("pin_memory", one(x23), core.pin_memory)
try("record_stream", function() return { x23(), "cpu", 0 } end, core.record_stream)
try("is_floating_point", one(x23), core.is_floating_point)
try("mp_is_shared", one(x23), core.mp_is_shared)
try("mp_share", function() return { { x23(), x23() } } end, core.mp_share, true)
try("mp_put", function() return { { x23() } } end, function(list)
  local a, b = core.mp_pipe(true)
  core.mp_put(a, "text", list, nil, 5)
  local text, back = core.mp_get(b, 5)
  return { text, back }
end)
try("json", function() return { { a = { 1, 2 }, b = "c" } } end,
  function(v) return core.json_decode(require("luminary.base.json_encode")(v)) end)

-- ---- autograd: hooks and custom functions, in which other handles of the call go

try("backward", function() return { x23():requires_grad_(), lm.ones { 2, 3 } } end, function(x, g)
  local y = x * x
  y:backward(g)
  return x.grad
end)
for _, retain in ipairs { false, true } do
  try("grad", function()
    local x = x23():requires_grad_()
    return { { x * x, x * 3 }, { x }, { grad_outputs = { lm.ones { 2, 3 }, lm.ones { 2, 3 } }, retain_graph = retain } }
  end, core.grad)
end
try("backward with hooks that free", function()
  local x = x23():requires_grad_()
  local y, g = x * x, lm.ones { 2, 3 }
  return { x, y, g, { y }, { g } }
end, function(x, y, g, roots, grads)
  y:register_hook(function()
    y:free()
    g:free()
    roots[1], grads[1] = nil, nil
    collectgarbage()
  end)
  x:register_post_accumulate_grad_hook(function()
    x.grad = nil
    collectgarbage()
  end)
  core.backward(roots, { gradient = grads })
end, true)
local Double = lm.autograd.Function:extend("Double")
function Double.forward(ctx, x)
  ctx:save_for_backward(x)
  return x * 2
end
function Double.backward(ctx, g)
  local x = ctx:saved_tensors()
  return g * 2 + 0 * x
end
try("a function of one's own", function() return { x23():requires_grad_(), lm.ones { 2, 3 } } end, function(x, g)
  local y = Double.apply(x)
  y:backward(g)
  return x.grad
end)
try("hooks", function() return { x23():requires_grad_() } end, function(x)
  local handle = x:register_hook(function(g) return g * 2 end)
  x:register_post_accumulate_grad_hook(function() end)
  x:sum():backward()
  handle:remove()
  return x.grad
end)

assert(calls > 0, "no call")
print(("%d calls, %d freed"):format(calls, fired))
watch, armed = nil, nil
