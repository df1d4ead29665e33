-- The tests that spec/op/op_cases.lua returns every op: golden values, dtypes, layouts, gradients, bad input.
-- LM_SPEC_DEVICE=cuda runs them there.
-- parts: 3
local lm = require "luminary"
local core = require "luminary.core"
local golden = require "spec.support.golden"
local half = require "spec.support.half"
local is_mine = require "spec.support.part"
local rows = dofile "spec/op/op_cases.lua"

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
lm.backends.cudnn.allow_tf32 = false -- golden values have more digits
-- Scales of inputs in half precision. Where each access is checked, which takes long, it is the same at any scale.
local checks = os.getenv "LM_SPEC_SANITIZED" == "1" or (os.getenv "LD_PRELOAD" or ""):find "/checked/fake_cuda"
local scales = checks and not os.getenv "LM_TEST_LONG" and { 1 } or { 1e-4, 1, 300 }
local function placed(x) return x:to(device) end

local function is_spec(v) return type(v) == "table" and v.tensor ~= nil end

-- Returns the arguments of case k by name, tensors from the golden file; `map` may replace each tensor.
local function arguments(row, file, k, dtype, map)
  map = map or function(x) return x end
  local args = {}
  for name, value in pairs(row[k]) do
    local key = ("%d.%s.in.%s"):format(k, dtype, name)
    if is_spec(value) then
      args[name] = map(placed(file[key]), name, value)
    elseif type(value) == "table" and is_spec(value[1]) then
      args[name] = {}
      for j = 1, #value do args[name][j] = map(placed(file[key .. "." .. j]), name .. "." .. j, value[j]) end
    else
      args[name] = value
    end
  end
  return args
end

-- Calls with the first argument by position and the others by name.
local function call(row, args)
  local first = row.positional:match("%S+")
  if row.name:sub(-1) == "_" then args[first] = args[first]:clone() end -- the op writes to it
  local options = {}
  for name, value in pairs(args) do
    if name ~= first then options[name] = value end
  end
  if next(options) == nil then return core.ops[row.name](args[first]) end
  return core.ops[row.name](args[first], options)
end

local function compare(row, file, k, dtype, results)
  local j = 1
  while file[("%d.%s.out.%d"):format(k, dtype, j)] do
    local want = file[("%d.%s.out.%d"):format(k, dtype, j)]
    assert(results[j] ~= nil, ("%s case %d: no result %d"):format(row.name, k, j))
    if row.random then
      assert.same(want.shape, results[j].shape)
      assert.equal(want.dtype, results[j].dtype)
    else
      local wrong = golden.differs(results[j], want, row.tol and row.tol[want.dtype])
      if wrong then error(("%s case %d (%s) result %d: %s"):format(row.name, k, dtype, j, wrong), 0) end
    end
    j = j + 1
  end
  assert(j > 1, "no golden value")
end

local function has_tensor(row)
  for _, value in pairs(row[1]) do
    if is_spec(value) or (type(value) == "table" and is_spec(value[1])) then return true end
  end
end

-- Returns a golden file whose int32 tensors have a smaller dtype, which holds the inputs: results are the same, but
-- wrap sooner. nil if it does not hold them.
local function narrowed(file, dtype)
  for key, x in pairs(file) do
    if key:find "^1%.int32%.in" and not lm.equal(x:to(dtype):long(), x:long()) then return nil end
  end
  return setmetatable({}, { __index = function(_, key)
    local x = file[(key:gsub("^(%d+)%." .. dtype .. "%.", "%1.int32."))]
    return x and x.dtype == "int32" and x:to(dtype) or x
  end })
end

-- The same values, laid out otherwise.
local layouts = {
  ["every second element of a larger tensor"] = function(x)
    if x.ndim == 0 then return x end
    local shape = x.shape
    shape[#shape] = shape[#shape] * 2
    local view = core.ops.zeros(shape, { dtype = x.dtype, device = x.device }):slice(-1, 1, -1, 2)
    view:copy_(x)
    return view
  end,
  ["transposed in memory"] = function(x)
    if x.ndim < 2 then return x end
    return x:transpose(1, -1):contiguous():transpose(1, -1)
  end,
  ["from the second element of a larger tensor, dims of one element with strides of their own"] = function(x)
    local stride = {}
    for d, size in ipairs(x.shape) do stride[d] = size == 1 and 3 or x:contiguous():stride(d) end
    local whole = core.ops.zeros({ x:numel() + 1 }, { dtype = x.dtype, device = x.device })
    return whole:as_strided(x.shape, stride, 1):copy_(x)
  end,
  ["channels-last"] = function(x)
    if x.ndim ~= 4 then return x end
    return x:contiguous { memory_format = "channels_last" }
  end,
}

describe("the table of cases", function()
  it("has a row for every op, and no other", function()
    local known = {}
    for _, name in ipairs(core.op_list()) do
      known[name] = true
      assert(rows[name], "no row in spec/op/op_cases.lua for " .. name)
    end
    for _, row in ipairs(rows) do assert(known[row.name], "a row for " .. row.name .. ", which is no op") end
  end)
end)

-- Returns the names (or name.j for lists) of a case's float tensors, which have gradients.
local function grad_names(row, k)
  if row.grad == false then return {} end
  local list = {}
  local function wanted(name)
    if not row.grad then return true end
    for _, g in ipairs(row.grad) do if g == name then return true end end
  end
  for name, value in pairs(row[k]) do
    if is_spec(value) then
      if value.tensor == "float" and wanted(name) then list[#list + 1] = name end
    elseif type(value) == "table" and is_spec(value[1]) and wanted(name) then
      for j = 1, #value do if value[j].tensor == "float" then list[#list + 1] = name .. "." .. j end end
    end
  end
  table.sort(list)
  return list
end

-- Differences say nothing about results that are empty, infinite, NaN, integers or rounded.
local function is_smooth(result)
  local wide = result.dtype == "float32" or result.dtype == "float64"
  return result:numel() > 0 and wide and result:isfinite():all():item()
end

-- Returns f as one number of two: its inputs moved along random directions, its results weighed at random. An error in
-- any element of a gradient, or of a gradient's gradient, shows in it, and takes a few calls to find.
local function projected(f, inputs)
  local function random(x) return core.ops.randn(x.shape, { dtype = "float64", device = device }) end
  local directions, weights = { {}, {} }, {}
  for j, x in ipairs(inputs) do
    for i = 1, 2 do directions[i][j] = random(x) end
  end
  return function(...)
    local moved = {}
    for j, x in ipairs(inputs) do
      moved[j] = x:detach()
      for i = 1, 2 do moved[j] = moved[j] + (select(i, ...)) * directions[i][j] end
    end
    local total = 0
    for i, y in ipairs { f(unpack(moved)) } do
      if core.is_tensor(y) and y.requires_grad then
        weights[i] = weights[i] or random(y)
        total = total + (y * weights[i]):sum()
      end
    end
    return total
  end
end

-- Checks a gradient, by the whole Jacobian where that is small.
local function gradient_check(row, file, k, check, most)
  if not is_smooth(file[k .. ".float32.out.1"]) then return end
  local names = grad_names(row, k)
  local inputs, numel = {}, 0
  local function to_double(x, _, spec)
    return (spec.tensor == "float" or spec.tensor == "values") and x:double() or x
  end
  local base = arguments(row, file, k, "float32", to_double)
  for j, name in ipairs(names) do
    local list, at = name:match("^(.*)%.(%d+)$")
    local x = list and base[list][tonumber(at)] or base[name]
    inputs[j] = x:detach():clone():requires_grad_()
    numel = numel + x:numel()
  end
  if #inputs == 0 or numel == 0 then return end
  local function f(...)
    local given = { ... }
    local args = {}
    for name, value in pairs(base) do
      if type(value) == "table" then
        args[name] = {}
        for j = 1, #value do args[name][j] = value[j] end
      else
        args[name] = value
      end
    end
    for j, name in ipairs(names) do
      local list, at = name:match("^(.*)%.(%d+)$")
      if list then args[list][tonumber(at)] = given[j] else args[name] = given[j] end
    end
    return call(row, args)
  end
  if numel <= most then check(f, inputs) end
  lm.manual_seed(k)
  local function start() return core.ops.zeros({}, { dtype = "float64", device = device }):requires_grad_() end
  check(projected(f, inputs), { start(), start() }, { rtol = 1e-5 })
end

-- ---- half precision

-- Returns the float results of an op, and the gradients of its inputs for random gradients of the results.
local function results_and_gradients(row, args, inputs)
  local results, sum = { call(row, args) }, nil
  for j = #results, 1, -1 do
    if not core.is_tensor(results[j]) or not results[j]:is_floating_point() then table.remove(results, j) end
  end
  if #inputs == 0 then return results, {} end
  for j, y in ipairs(results) do
    if y.requires_grad then
      lm.manual_seed(j)
      local weighed = (y:double() * core.ops.rand(y.shape, { device = device }):half():bfloat16():double()):sum()
      sum = sum and sum + weighed or weighed
    end
    results[j] = y:detach()
  end
  if not sum then return results, {} end
  sum:backward()
  local grads = {}
  for j, x in ipairs(inputs) do grads[j] = x.grad or false end
  return results, grads
end

-- Calls case k in a dtype, or in dtype `wide` with the same inputs. Returns results, gradients.
local function half_call(row, file, k, dtype, scale, wide)
  local inputs, wanted = {}, {}
  for _, name in ipairs(grad_names(row, k)) do wanted[name] = true end
  local args = arguments(row, file, k, "float32", function(x, name, spec)
    if not x:is_floating_point() or spec.dtype then return x end
    x = (spec.tensor == "float" and x * scale or x):to(dtype)
    if wide then x = x:to(wide) end
    if wanted[name] then
      x = x:detach():clone():requires_grad_()
      inputs[#inputs + 1] = x
    end
    return x
  end)
  return results_and_gradients(row, args, inputs)
end

-- Returns the problems of a row in half precision: texts.
local function half_problems(row, file, dtype)
  local problems, allowed = {}, row.half or {}
  for _, scale in ipairs(scales) do
    for k = 1, scale <= (allowed.scale_to or 300) and #row or 0 do
      local here, single = ("case %d x %g: "):format(k, scale), nil
      local function compare_one(what, j, most, shared, got, want)
        if not got or not want or got.dtype ~= dtype then return end
        if half.units_off(got, want, nil, dtype, shared) <= most then return end
        single = single or { half_call(row, file, k, dtype, scale, "float32") }
        local off, text = half.units_off(got, want, single[what == "result" and 1 or 2][j], dtype, shared)
        if off > most then problems[#problems + 1] = ("%s%s %d: %s"):format(here, what, j, text) end
      end
      local ok, want, want_grads = pcall(half_call, row, file, k, dtype, scale, "float64")
      local taken, got, grads = pcall(half_call, row, file, k, dtype, scale)
      if ok and not taken and not tostring(got):find "float16" and not tostring(got):find "float32" then
        problems[#problems + 1] = here .. tostring(got)
      elseif ok and taken then
        local kept = scale <= (allowed.grad_to or 300)
        for j, y in ipairs(want) do
          compare_one("result", j, allowed.units or 2, 0, got[j], y)
          kept = kept and half.keeps(y, dtype)
        end
        for j, g in ipairs(kept and want_grads or {}) do
          compare_one("gradient", j, allowed.grad_units or 4, 2, grads[j], g)
        end
      end
    end
  end
  return problems
end

local function build(v)
  if type(v) ~= "table" then return v end
  if not v.tensor then
    local copy = {}
    for key, value in pairs(v) do copy[key] = build(value) end
    return copy
  end
  local shape = v.shape or {}
  if v.tensor == "float" then return core.ops.rand(shape) end
  if v.tensor == "bool" then return core.ops.zeros(shape, { dtype = "bool" }) end
  if v.tensor == "values" then return core.tensor(v.values, { dtype = v.dtype }):reshape(shape) end
  if v.tensor == "index" then return core.ops.randint(1, v.n + 1, shape) end
  return core.ops.randint(v.lo, v.hi, shape, { dtype = v.dtype })
end

for i, row in ipairs(rows) do
  if not is_mine(i) or row.cpu_only and device ~= "cpu" then goto continue end
  describe(row.name, function()
    local file
    setup(function()
      core.set_default_device(device)
      file = golden.load(row.name)
    end)
    teardown(function()
      core.set_default_device "cpu"
      for _, x in pairs(file) do x:free() end
      file = nil
    end)

    it("agrees with PyTorch", function()
      for k = 1, #row do compare(row, file, k, "float32", { call(row, arguments(row, file, k, "float32")) }) end
    end)

    if row.dtypes ~= false then
      it("takes the dtypes PyTorch takes", function()
        for dtype in pairs(golden.tolerance) do
          if file[("1.%s.out.1"):format(dtype)] then
            local args = arguments(row, file, 1, dtype)
            if row.differs and row.differs[dtype] then -- on purpose: it has to work, no more
              call(row, args)
            elseif row.lacks and row.lacks[dtype] then
              assert.error(function() call(row, args) end)
            else
              compare(row, file, 1, dtype, { call(row, args) })
            end
          end
        end
        if not file["1.int32.out.1"] or (row.lacks or row.differs or {}).int32 then return end
        for _, small in ipairs { "int8", "int16" } do
          local narrow = narrowed(file, small)
          if narrow then compare(row, narrow, 1, small, { call(row, arguments(row, narrow, 1, small)) }) end
        end
      end)
    end

    if not row.random and has_tensor(row) and (device == "cpu" or not (row.half and row.half.cpu)) then
      it("rounds once in half precision", function()
        for _, dtype in ipairs(half.dtypes) do
          local problems = half_problems(row, file, dtype)
          if #problems > 0 then error(dtype .. ", " .. table.concat(problems, "\n", 1, math.min(6, #problems)), 0) end
        end
      end)
    end

    if row.strided ~= false and has_tensor(row) then
      it("takes every layout", function()
        for name, layout in pairs(layouts) do
          for k = 1, #row do
            local ok, err = pcall(function()
              compare(row, file, k, "float32", { call(row, arguments(row, file, k, "float32", layout)) })
            end)
            if not ok then error(name .. ": " .. tostring(err), 0) end
          end
        end
      end)
    end

    if row.grad ~= false then
      it("has the right gradient", function()
        for k = 1, #row do gradient_check(row, file, k, lm.autograd.gradcheck, 40) end
      end)
      if row.second ~= false then
        it("has the right second gradient #second", function()
          for k = 1, #row do gradient_check(row, file, k, lm.autograd.gradgradcheck, 8) end
        end)
      end
    end

    it("refuses bad input with a message", function()
      assert(row.bad, "no bad input in the row")
      for k, bad in ipairs(row.bad) do
        local args, n = {}, table.maxn(bad)
        for j = 1, n do args[j] = build(bad[j]) end
        local ok, err = pcall(function()
          core.ops[row.name](unpack(args, 1, n))
          core.synchronize(device) -- values are looked at on the device, and reported later
        end)
        assert(not ok, ("bad input %d was taken"):format(k))
          err = tostring(err)
        assert(err:find(bad.message), ("bad input %d: %q does not match %q"):format(k, err, bad.message))
      end
    end)
  end)
  ::continue::
end
