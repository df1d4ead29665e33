-- One rank of collectives_spec: every collective, dtype, reduction, size and layout, against what plain Lua arithmetic
-- says. Arguments: the dtypes that are also tried with 16 MiB (4 under AddressSanitizer), and the collectives that are
-- ("all": all of them).
-- LM_SPEC_KIND=cuda in the environment: of tensors on this rank's GPU, as far as NCCL goes.
local lm = require "luminary"
local dist = lm.dist

dist.init_process_group { timeout = 60 }
local me, n = dist.get_rank(), dist.get_world_size()
local device = os.getenv "LM_SPEC_KIND" == "cuda" and "cuda:" .. me or "cpu"
local over_nccl = device ~= "cpu"
if over_nccl then lm.cuda.set_device(me) end

local dtypes = {
  "bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
}
if over_nccl then table.remove(dtypes, 4) end -- NCCL has no integers of 16 bits
local bytes_of = {
  bool = 1, uint8 = 1, int8 = 1, uint16 = 2, int32 = 4, int64 = 8,
  float16 = 2, bfloat16 = 2, float32 = 4, float64 = 8,
}
local is_float = { float16 = 2 ^ -9, bfloat16 = 2 ^ -6, float32 = 1e-6, float64 = 1e-14 } -- tolerance of a mean
local function words(text)
  local set = {}
  for word in (text or ""):gmatch("[^,]+") do set[word] = true end
  return set
end
local large_dtypes, large_calls = words(arg[1]), words(arg[2])
local LARGE = (lm.getenv "LD_PRELOAD" or ""):find "asan" and 2 ^ 22 or 2 ^ 24

local cases, wrong = 0, 0
local about -- the case that runs, in words

-- ---- inputs, and expected results

local PERIOD = 7

-- Returns rank r's element at an index with this remainder; `salt` distinguishes tensors.
local function value(dtype, op, r, rest, salt)
  if dtype == "bool" then return (rest + r * 3 + salt) % 3 == 0 and 1 or 0 end
  if op == "product" then return (rest + r + salt) % 2 + 1 end
  return (rest * 3 + r * 2 + salt) % PERIOD + 1
end

local function combine(dtype, op, a, b)
  if dtype == "bool" then
    local both = op == "product" or op == "min" or op == "band"
    return both and math.min(a, b) or not both and math.max(a, b)
  end
  if op == "sum" or op == "mean" then return a + b end
  if op == "product" then return a * b end
  if op == "min" then return math.min(a, b) end
  if op == "max" then return math.max(a, b) end
  return op == "band" and bit.band(a, b) or bit.bor(a, b)
end

local remainders = {} -- the indices' remainders, by their number

-- Returns a tensor's contents from a function of the position's remainder.
local function pattern(dtype, shape, f)
  local count = 1
  for _, s in ipairs(shape) do count = count * s end
  local few = {}
  for rest = 0, PERIOD - 1 do few[rest + 1] = f(rest) end
  remainders[count] = remainders[count] or lm.arange(count, { dtype = "int64" }) % PERIOD + 1
  return lm.tensor(few, { dtype = "float64" }):to(dtype):index_select(1, remainders[count]):view(shape):to(device)
end

local function of_rank(dtype, shape, op, r, salt)
  return pattern(dtype, shape, function(rest) return value(dtype, op, r, rest, salt or 0) end)
end

local function reduction(dtype, shape, op, salt)
  return pattern(dtype, shape, function(rest)
    local all = value(dtype, op, 0, rest, salt or 0)
    for r = 1, n - 1 do all = combine(dtype, op, all, value(dtype, op, r, rest, salt or 0)) end
    if dtype == "uint8" then all = all % 256 end
    return op == "mean" and all / n or all
  end)
end

-- ---- tensors of each layout; around strided ones lie elements that have to stay as they are

local fences = {}

local layouts = {
  contiguous = function(dtype, shape) return lm.zeros(shape, { dtype = dtype, device = device }) end,
  transposed = function(dtype, shape)
    local reversed = {}
    for i = #shape, 1, -1 do reversed[#reversed + 1] = shape[i] end
    local t = lm.zeros(reversed, { dtype = dtype, device = device })
    return #shape == 2 and t:t() or t
  end,
  spread = function(dtype, shape) -- every second column
    local wide = { unpack(shape) }
    wide[#wide] = 2 * wide[#wide]
    local all = lm.ones(wide, { dtype = dtype, device = device })
    local ranges = {}
    for d = 1, #shape do ranges[d] = {} end
    local last = math.max(wide[#wide], 1)
    ranges[#shape] = { 1, last, 2 }
    local odd = { unpack(ranges) }
    odd[#shape] = { 2, last, 2 }
    if shape[#shape] == 0 then return all end
    fences[#fences + 1] = all[odd]
    return all[ranges]
  end,
}

local function check(t, right, op)
  cases = cases + 1
  local off
  if t:numel() == 0 then return end
  if op == "mean" then
    local far = (t:to("float64") - right:to("float64")):abs():gt(is_float[t.dtype] * 10)
    off = far:sum():item()
  else
    off = t:ne(right):sum():item()
  end
  if tonumber(off) > 0 then
    wrong = wrong + 1
    print(("rank %d: %s: %d of %d elements are wrong"):format(me, about, tonumber(off), t:numel()))
  end
end

local function check_fences()
  for _, fence in ipairs(fences) do
    if tonumber(fence:ne(1):sum():item()) > 0 then
      wrong = wrong + 1
      print(("rank %d: %s: wrote beside the tensor"):format(me, about))
    end
  end
  fences = {}
end

-- Every second call is asynchronous.
local turn = 0
local function call(f, ...)
  turn = turn + 1
  local args = { ... }
  local opts = args[#args]
  opts.async_op = turn % 2 == 0
  local work = f(unpack(args))
  if opts.async_op then work:wait() end
end

local function list_of(make, dtype, shape)
  local list = {}
  for r = 1, n do list[r] = make(dtype, shape) end
  return list
end

-- ---- the collectives: f(make, dtype, shape, op)

local reducing = {}
local moving = {}

function reducing.all_reduce(make, dtype, shape, op)
  local t = make(dtype, shape)
  t:copy_(of_rank(dtype, shape, op, me))
  call(dist.all_reduce, t, { op = op })
  check(t, reduction(dtype, shape, op), op)
end

function reducing.reduce(make, dtype, shape, op)
  local root, t = n - 1, make(dtype, shape)
  t:copy_(of_rank(dtype, shape, op, me))
  call(dist.reduce, t, root, { op = op })
  if me == root then
    check(t, reduction(dtype, shape, op), op)
  else
    check(t, of_rank(dtype, shape, op, me))
  end
end

function reducing.reduce_scatter(make, dtype, shape, op)
  local t, list = make(dtype, shape), list_of(make, dtype, shape)
  for r = 1, n do list[r]:copy_(of_rank(dtype, shape, op, me, r)) end
  call(dist.reduce_scatter, t, list, { op = op })
  check(t, reduction(dtype, shape, op, me + 1), op)
end

function moving.broadcast(make, dtype, shape)
  local root, t = n > 2 and 1 or 0, make(dtype, shape)
  t:copy_(of_rank(dtype, shape, nil, me))
  call(dist.broadcast, t, root, {})
  check(t, of_rank(dtype, shape, nil, root))
end

function moving.all_gather(make, dtype, shape)
  local t, list = make(dtype, shape), list_of(make, dtype, shape)
  t:copy_(of_rank(dtype, shape, nil, me))
  call(dist.all_gather, list, t, {})
  for r = 1, n do check(list[r], of_rank(dtype, shape, nil, r - 1)) end
end

function moving.all_gather_into_tensor(make, dtype, shape)
  local t, tall = make(dtype, shape), { unpack(shape) }
  tall[1] = tall[1] * n
  local out = make(dtype, tall)
  t:copy_(of_rank(dtype, shape, nil, me))
  call(dist.all_gather_into_tensor, out, t, {})
  if t:numel() == 0 then return check(t) end
  for r = 1, n do check(out[{ { (r - 1) * shape[1] + 1, r * shape[1] } }], of_rank(dtype, shape, nil, r - 1)) end
  local numbers = make(dtype, { n })
  call(dist.all_gather_into_tensor, numbers, of_rank(dtype, {}, nil, me), {}) -- tensors without dims are stacked
  for r = 1, n do check(numbers:select(1, r), of_rank(dtype, {}, nil, r - 1)) end
end

function moving.gather(make, dtype, shape)
  local root = n - 1
  local t, list = make(dtype, shape), me == root and list_of(make, dtype, shape) or nil
  t:copy_(of_rank(dtype, shape, nil, me))
  call(dist.gather, t, { gather_list = list, dst = root })
  for r = 1, list and n or 0 do check(list[r], of_rank(dtype, shape, nil, r - 1)) end
end

function moving.scatter(make, dtype, shape)
  local root = n - 1
  local t, list = make(dtype, shape), me == root and list_of(make, dtype, shape) or nil
  for r = 1, list and n or 0 do list[r]:copy_(of_rank(dtype, shape, nil, root, r)) end
  call(dist.scatter, t, { scatter_list = list, src = root })
  check(t, of_rank(dtype, shape, nil, root, me + 1))
end

-- Exchanges another number of rows, some none, between each pair of ranks.
function moving.all_to_all(make, dtype, shape)
  local ins, outs, of, to = {}, {}, {}, {}
  for r = 0, n - 1 do
    local function rows(from, into)
      local sized = { unpack(shape) }
      sized[1] = sized[1] * ((from + 2 * into) % 3)
      return sized
    end
    to[r], of[r] = rows(me, r), rows(r, me)
    ins[r + 1], outs[r + 1] = make(dtype, to[r]), make(dtype, of[r])
    ins[r + 1]:copy_(of_rank(dtype, to[r], nil, me, r))
  end
  call(dist.all_to_all, outs, ins, {})
  for r = 0, n - 1 do check(outs[r + 1], of_rank(dtype, of[r], nil, r, me)) end
end

-- Sends a tensor around the ring, each rank to the next; rank 0 begins.
local function around(make, dtype, shape)
  local t, got = make(dtype, shape), make(dtype, shape)
  t:copy_(of_rank(dtype, shape, nil, me))
  if me == 0 then dist.send(t, 1) end
  dist.recv(got, (me - 1) % n)
  if me > 0 then dist.send(t, (me + 1) % n) end
  check(got, of_rank(dtype, shape, nil, (me - 1) % n))
end

-- Sends two tensors to the next rank around the ring, one with a tag behind another, and back from any rank.
function moving.send_recv(make, dtype, shape)
  if n == 1 then return end
  if over_nccl then return around(make, dtype, shape) end
  local behind, before = (me + 1) % n, (me - 1) % n
  local first, second = make(dtype, shape), make(dtype, shape)
  local got1, got2 = make(dtype, shape), make(dtype, shape)
  first:copy_(of_rank(dtype, shape, nil, me, 1))
  second:copy_(of_rank(dtype, shape, nil, me, 2))
  local works = { dist.isend(first, behind, { tag = 1 }), dist.isend(second, behind, { tag = 2 }) }
  local late = dist.irecv(got2, before, { tag = 2 })
  dist.recv(got1, before, { tag = 1 })
  late:wait()
  for _, work in ipairs(works) do work:wait() end
  check(got1, of_rank(dtype, shape, nil, before, 1))
  check(got2, of_rank(dtype, shape, nil, before, 2))
  local work = dist.isend(first, before)
  local from = dist.recv(got1)
  assert(from == behind, about .. ": received from " .. tostring(from))
  work:wait()
  check(got1, of_rank(dtype, shape, nil, behind, 1))
end

-- ---- all of it

local function ops_of(dtype)
  if is_float[dtype] then return { "sum", "mean", "product", "min", "max" } end
  if over_nccl and dtype ~= "bool" then return { "sum", "product", "min", "max" } end
  return { "sum", "product", "min", "max", "band", "bor" }
end

-- Returns names in the same order on every rank.
local sorted = require("luminary.base.lists").sorted_keys

local function run(name, f, dtype, shape, op)
  local size = shape[1] * (shape[2] or 1) * bytes_of[dtype]
  for _, layout in ipairs(sorted(layouts)) do
    local make = layouts[layout]
    about = ("%s %s %s %s, %s"):format(name, op or "", dtype, table.concat(shape, " x "), layout)
    if size < 2 ^ 20 or layout ~= "spread" then f(make, dtype, shape, op) end
    check_fences()
  end
  if size >= 2 ^ 20 then lm.empty_cache() end
end

for _, dtype in ipairs(dtypes) do
  local shapes = { { 0, 3 }, { 1 }, { 21, 37 } }
  local large = { 2048, LARGE / 2048 / bytes_of[dtype] }
  for _, name in ipairs(sorted(reducing)) do
    for _, op in ipairs(ops_of(dtype)) do
      for _, shape in ipairs(shapes) do run(name, reducing[name], dtype, shape, op) end
    end
    if large_dtypes[dtype] and (large_calls[name] or large_calls.all) then
      run(name, reducing[name], dtype, large, "sum")
    end
  end
  for _, name in ipairs(sorted(moving)) do
    for _, shape in ipairs(shapes) do run(name, moving[name], dtype, shape) end
    if large_dtypes[dtype] and (large_calls[name] or large_calls.all) then run(name, moving[name], dtype, large) end
  end
end

-- Groups of some ranks, each in its own order, several calls under way at once.
if n > 2 then
  local pairs_of = {}
  for r = 0, n - 2 do pairs_of[r] = dist.new_group { r, r + 1 } end
  local all, works, sums = lm.full({ 5 }, me + 1, { device = device }), {}, {}
  works[1] = dist.all_reduce(all, { async_op = true })
  for r = 0, n - 2 do
    if me == r or me == r + 1 then
      sums[r] = lm.full({ 3 }, me + 1, { device = device })
      works[#works + 1] = dist.all_reduce(sums[r], { group = pairs_of[r], async_op = true })
    end
  end
  for _, work in ipairs(works) do work:wait() end
  about = "groups of two"
  check(all, lm.full({ 5 }, n * (n + 1) / 2, { device = device }))
  for r, sum in pairs(sums) do check(sum, lm.full({ 3 }, 2 * r + 3, { device = device })) end
end

dist.destroy_process_group()
print(wrong == 0 and "all right " .. cases or "wrong " .. wrong)
os.exit(wrong == 0 and 0 or 1, true)
