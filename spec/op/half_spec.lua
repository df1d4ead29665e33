-- Every op of spec/op/op_cases.lua that takes float16 and bfloat16, of inputs in each layout and of sizes around those
-- of vectors, tiles and threads' shares: values and gradients are float64's of the same inputs, rounded.
-- LM_TEST_LONG=1 tries every size with every layout; else each op meets each layout, and the ops share the sizes.
-- parts: 2
local lm = require "luminary"
local core = require "luminary.core"
local half = require "spec.support.half_layouts"
local is_mine = require "spec.support.part"
local rows = dofile "spec/op/op_cases.lua"

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local long = os.getenv "LM_TEST_LONG" == "1"

-- Sizes that one dim takes, by kind: below and above a vector, a tile of floats or of halves, a thread's share.
local sizes = {
  {1, 15, 16, 17, 63, 64, 65, 127, 128, 129}, {511, 512, 513, 1023, 1025}, {2047, 2049, 4095, 4096, 4097}, {70001},
}
local MOST = {20000, 20000, 20000, 150000} -- elements of a tensor

local function is_spec(v) return type(v) == "table" and v.tensor ~= nil end

-- Calls f(spec, name, j) for each tensor of a case; j: its number in a list.
local function each_tensor(case, f)
  for _, name in ipairs(require("luminary.base.lists").sorted_keys(case)) do
    local value = case[name]
    if is_spec(value) then
      f(value, name)
    elseif type(value) == "table" and is_spec(value[1]) then
      for j, v in ipairs(value) do f(v, name, j) end
    end
  end
end

-- Returns the case with dims of size `from` replaced by `to`, in tensors and (`numbers`) in lists of numbers.
local function grown(value, from, to, numbers)
  if type(value) ~= "table" then return value end
  local copy = {}
  for k, v in pairs(value) do copy[k] = v end
  if value.tensor then
    copy.shape = {}
    for d, size in ipairs(value.shape or {}) do copy.shape[d] = size == from and to or size end
    if copy.n == from then copy.n = to end
    return copy
  end
  for k, v in pairs(value) do
    if type(v) == "table" then copy[k] = grown(v, from, to, numbers) end
    if numbers and v == from and type(k) == "number" then copy[k] = to end
  end
  return copy
end

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- Returns a tensor of a spec with other sizes.
local function make(spec, shape, dtype)
  local n = numel(shape)
  if spec.tensor == "index" then return lm.randint(1, spec.n + 1, shape) end
  if spec.tensor == "bool" then return lm.rand(shape):lt(0.5) end
  local to = spec.dtype or (spec.whole and "int64") or dtype
  if spec.tensor == "int" then return lm.randint(spec.lo, math.max(spec.hi, spec.lo + 1), shape):to(to) end
  if spec.tensor == "values" then
    local list = {}
    for i = 1, n do list[i] = spec.values[(i - 1) % #spec.values + 1] end
    return lm.tensor(list, {dtype = "float64"}):reshape(shape):to(to)
  end
  if spec.sep then
    return ((lm.randperm(n):double() - n / 2) * (n < 50 and 0.25 or 4 / n) + 0.013):reshape(shape):to(to)
  end
  local x = lm.rand(shape, {dtype = "float64"}) * (spec.hi - spec.lo) + spec.lo
  return (x + x:sign() * 0.03):to(to) -- reciprocals stay in range
end

-- Returns the arguments of a case with tensors of `dtype`, in a layout if has_layout(the tensor's number); nil if none
-- can have it. mixed: tensors of floats but the first are float32.
local function arguments(row, case, dtype, layout, has_layout, mixed)
  local args, any, number, writes = {}, false, 0, row.name:sub(-1) == "_" and row.positional:match "%S+"
  for name, value in pairs(case) do
    args[name] = type(value) == "table" and not value.tensor and {unpack(value)} or value
  end
  each_tensor(case, function(spec, name, j)
    number = number + 1
    local own = mixed and name ~= row.positional:match "%S+" and "float32" or dtype
    local function of_shape(shape) return make(spec, shape, own):to(device) end
    local x = has_layout(number) and (not layout.shared or name ~= writes) and layout[2](of_shape, spec.shape)
    any = any or x and x.dtype == own and (not x:is_contiguous() or layout[1] == "plain" or x:numel() == 1)
    x = x or of_shape(spec.shape)
    if j then args[name][j] = x else args[name] = x end
  end)
  return any and args
end

-- Returns a copy of arguments, tensors replaced by f(x, name).
local function mapped(args, f)
  local copy = {}
  for name, value in pairs(args) do
    copy[name] = value
    if core.is_tensor(value) then copy[name] = f(value, name) end
    if type(value) == "table" and core.is_tensor(value[1]) then
      copy[name] = {}
      for j, x in ipairs(value) do copy[name][j] = f(x, name) end
    end
  end
  return copy
end

local function call(row, args)
  local first, options = row.positional:match "%S+", {}
  for name, value in pairs(args) do
    if name ~= first then options[name] = value end
  end
  if row.name:sub(-1) == "_" and args[first] then -- the op writes to it
    local size, stride = args[first].shape, args[first]:stride()
    args[first] = lm.empty_strided(size, stride, {dtype = args[first].dtype, device = device}):copy_(args[first])
  end
  if args[first] == nil then return core.ops[row.name](options) end
  if next(options) == nil then return core.ops[row.name](args[first]) end
  return core.ops[row.name](args[first], options)
end

-- Ops whose sums over many classes leave float16's range, products float32's, or whose result has the square of a dim.
local small_only = {cross_entropy = true, multi_margin_loss = true, lu_pivots_to_matrix = true, prod = long}

-- Ops whose own gradients are formulas in the inputs' dtype, whose range they leave, 0 beyond a rounded number, or
-- rounded to 8 bits.
local no_gradient = {
  batch_norm_relu_backward = true, batch_norm_relu = true, triplet_margin_loss = true, pairwise_distance = true,
  block_linear_input = true,
}

local function wants_grad(row, name)
  if row.grad == false or no_gradient[row.name] then return false end
  if not row.grad then return true end
  for _, g in ipairs(row.grad) do if g == name then return true end end
end

local function is_index(row, j)
  for _, i in ipairs(row.index_out or {}) do if i == j then return true end end
end

-- Choices of the tensors of a call that have the layout: all, the first one or all others.
local which = {
  function() return true end, function(number) return number == 1 end, function(number) return number > 1 end,
}

-- Units of the dtype that an op may be wrong by, where they are more than a few.
local rounded_between = 100 -- several ops, whose results are rounded, and one of which may cancel or is not continuous
local ulps = {
  cosine_similarity = rounded_between, triplet_margin_loss = rounded_between, batch_norm_relu = rounded_between,
  batch_norm_relu_backward = rounded_between, multi_margin_loss = rounded_between,
  block_linear = rounded_between, -- x is rounded to 8 bits
}
-- Ops whose gradients are computed from their results, and right to the rounding of these: the many cases of
-- LM_TEST_LONG=1 meet some that cancel.
local from_result = {
  softmax = true, scatter_reduce = true, prod = true, attention = true, scaled_dot_product_attention = true,
  recurrent_layer = true,
}
-- Ops whose results near 0 have the rounding of 1 in float32.
local of_one = {addmm_gelu = long and 2 ^ -24}
local function random(shape, dtype) return (lm.rand(shape, {dtype = "float64"}) * 2 - 1):to(dtype):to(device) end

-- Calls a row's op on arguments converted by `convert`. Returns its real results, and a function that returns the
-- gradients of its inputs from those of these results.
local function run(row, args, convert)
  local leaves, results, roots = {}, {}, {}
  local given = mapped(args, function(x, name)
    local y = convert(x)
    if core.is_floating_point(x) and wants_grad(row, name) then
      y = y:detach():requires_grad_()
      leaves[#leaves + 1] = y
    end
    return y
  end)
  for j, y in ipairs {call(row, given)} do
    if core.is_tensor(y) and not is_index(row, j) then
      results[#results + 1] = y:detach()
      if y.requires_grad then roots[#roots + 1] = y end
    end
  end
  return results, roots, function(grads)
    if #roots == 0 or #leaves == 0 then return {} end
    local list = lm.autograd.grad(roots, leaves, {grad_outputs = grads, allow_unused = true})
    for i = 1, #leaves do list[i] = list[i] or false end
    return list
  end
end

-- Runs a row's op in half precision and in float64, and returns what differs.
local function differs(row, args, dtype, layout, units)
  local grads, wide, one_unit = {}, {}, 0 -- one_unit: of the largest gradient of the results
  local function in_float64(change)
    local results, roots, gradients = run(row, args, function(x)
      return core.is_floating_point(x) and change(x:contiguous():double()) or x
    end)
    for i, y in ipairs(roots) do
      local function of_shape(shape) return random(shape, dtype) end
      grads[i] = grads[i] or layout[2](of_shape, y.shape) or of_shape(y.shape)
      if y:numel() > 0 then one_unit = math.max(one_unit, half.eps[dtype] * grads[i]:abs():max():item()) end
      wide[i] = change(grads[i]:contiguous():double())
    end
    return results, gradients(wide)
  end
  local ok, want, want_gradients = pcall(in_float64, function(x) return x end)
  for _, y in ipairs(ok and want or {}) do ok = ok and y:numel() <= 200000 end
  if not ok then return nil, "refused" end
  local got, roots, gradients = run(row, args, function(x) return x end)
  for i, y in ipairs(roots) do grads[i] = grads[i]:to(y.dtype) end
  local near, near_gradients, overflows
  local function compare(x, y, pick, what, floor)
    local wrong = x and half.wrong(x, y, dtype, units)
    if not wrong or y.dtype ~= "float64" then return wrong and what .. ": " .. wrong end
    -- Rounding within the op may change a result as much as changes of the inputs by one unit do, which may cancel.
    for attempt = 1, long and 20 or 1 do
      if attempt > 1 or not near then
        near, near_gradients = in_float64(function(v)
          -- equal elements alike, and each by itself
          local equally, each = random({}, "float64") + (v * 1e4):sin(), random(v.shape, "float64")
          return v * (1 + half.eps[dtype] * (equally + each))
        end)
      end
      wrong = half.wrong(x, y, dtype, units, (pick() - y):abs() + floor)
      if not wrong then return end
    end
    return wrong and what .. ": " .. wrong
  end
  for j = 1, #want do
    local wrong = compare(got[j], want[j], function() return near[j] end, "result " .. j, of_one[row.name] or 0)
    if wrong then return wrong end
    overflows = overflows or core.is_floating_point(got[j]) and not got[j]:isfinite():all():item()
  end
  if overflows then return end
  for i, g in ipairs(gradients(grads)) do
    local floor = long and from_result[row.name] and one_unit / 4 or 0
    local wrong = compare(g, want_gradients[i], function() return near_gradients[i] end, "gradient " .. i, floor)
    if wrong then return wrong end
  end
end

-- Returns the row's cases with other sizes, by kind of size; the cases as they are come first.
local function variants(row)
  local list = {{}, {}, {}, {}}
  for _, case in ipairs(row) do
    local dims, seen, special, any, base = {}, {}, false, false, 1
    each_tensor(case, function(spec)
      any = any or spec.tensor == "float"
      special = special or spec.tensor == "values" and not spec.dtype
      base = math.max(base, numel(spec.shape))
      for _, size in ipairs(spec.shape) do
        if size > 1 and size < 50 and not seen[size] then dims[#dims + 1], seen[size] = size, true end
      end
    end)
    if any and not special and base > 1 then
      table.insert(list[1], case)
      for kind, several in ipairs(sizes) do
        for _, from in ipairs(dims) do
          for _, to in ipairs(several) do
            for _, numbers in ipairs(kind == 1 and {false, true} or {false}) do
              local larger, most = grown(case, from, to, numbers), 0
              each_tensor(larger, function(spec) most = math.max(most, numel(spec.shape)) end)
              if most <= MOST[kind] then table.insert(list[kind], {case = larger}) end
            end
          end
        end
      end
    end
  end
  return list
end

for number, row in ipairs(rows) do
  if not is_mine(number) or row.random or row.strided == false or row.cpu_only and device ~= "cpu" then
    goto continue
  end
  it(row.name .. " in half precision is float64's, rounded", function()
    local threads, began = lm.get_num_threads(), os.clock()
    lm.set_num_threads(3)
    lm.manual_seed(1)
    local found, refused, ran, turn, mixed, only_mixed, taken = {}, {}, 0, 0
    for c in row.name:gmatch "." do turn = turn + c:byte() end
    local function try(variant, dtype, layout)
      if refused[variant] then return end
      local case = variant.case or variant
      local args = arguments(row, case, dtype, layout, which[turn % 3 + 1], mixed and (only_mixed or turn % 4 == 0))
      if not args then return end
      local ok, wrong, why = pcall(differs, row, args, dtype, layout, ulps[row.name] or 6)
      local is_outside = not ok and tostring(wrong):find "is out of range" -- float64 does not read it
      if why == "refused" or is_outside then refused[variant] = true return end
      if not ok and tostring(wrong):find "whose elements share memory" then return end -- statistics are written to
      ran = ran + 1
      if ok and not wrong then return true end
      local text = {}
      each_tensor(case, function(spec, name) text[#text + 1] = name .. " " .. table.concat(spec.shape, "x") end)
      table.sort(text)
      found[#found + 1] = ("%s, %s, %s: %s"):format(dtype, layout[1], table.concat(text, ", "), wrong)
      return true
    end
    local all = variants(row)
    if #all[1] == 0 then return end
    local first = turn
    for k, dtype in ipairs {"float16", "bfloat16"} do
      local function takes(mix)
        local plain = arguments(row, all[1][1], dtype, half.layouts[1], which[1], mix)
        return plain and pcall(call, row, mapped(plain, function(x) return x end))
      end
      mixed, only_mixed = takes(true), not takes(false)
      taken = mixed or not only_mixed
      if not taken then break end
      for l, layout in ipairs(half.layouts) do
        for kind = 1, #sizes do
          local is_large = kind > 1 and small_only[row.name]
          local left_out = is_large or not long and (kind == #sizes and l % 4 ~= first % 4
            or (kind == 2 or kind == 3) and (l + k + first) % 2 == kind - 2)
          for i = 1, left_out and 0 or math.min(#all[kind], long and math.huge or 8) do
            turn = turn + 1
            local ended = try(all[kind][long and i or turn * 7 % #all[kind] + 1], dtype, layout)
            if ended and not long then break end
          end
        end
      end
    end
    lm.set_num_threads(threads)
    assert(ran > 0 or not taken, "no call of it")
    if os.getenv "LM_HALF_COUNT" then io.stderr:write(row.name, " ", ran, " ", os.clock() - began, "\n") end
    if #found > 0 then
      error(("%d of %d differ:\n%s"):format(#found, ran, table.concat(found, "\n", 1, math.min(#found, 6))), 0)
    end
  end)
  ::continue::
end
