-- Random programs of ops, in float16, bfloat16 and float32 equally often: values and gradients against float64's of the
-- same inputs, and the bits of each with other numbers of threads and recorded (lm.prepare).
--
--   luajit scripts/dev/random_programs.lua [programs [first seed]]    prints each failure's seed, and counts
--   luajit scripts/dev/random_programs.lua --steps [options]          training steps (random_steps.lua says more)
--
-- After each op the float64 side takes over the rounded value, so that both sides agree about signs and the largest.
local lm = require "luminary"
local half = require "spec.support.half_layouts"
local ops = require "scripts.dev.random_ops"
local F = lm.nn.functional

local programs = {}
local random = math.random
local function pick(list) return list[random(#list)] end

local dtypes = {"float16", "bfloat16", "float32"}
local sizes = {1, 1, 2, 3, 5, 8, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 257, 511, 512, 513, 1025, 2049, 4097}
local MOST = 9000 -- elements of a tensor; one program in 40 has up to ten times as many

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function any_shape(most)
  local shape, n = {}, random(4)
  for d = 1, n do shape[d] = pick(sizes) end
  while numel(shape) > most do shape[random(n)] = random(9) end
  return shape
end

-- Returns a shape that broadcasts to another one.
local function narrower(shape)
  local list = {}
  for d = random(math.max(1, #shape)), #shape do list[#list + 1] = random(3) == 1 and 1 or shape[d] end
  return random(3) == 1 and list or {unpack(shape)}
end

-- Returns the function (x, y, z) that an op's text computes.
local function compiled(text, dim)
  return loadstring("local lm, F, dim = ... return function(x, y, z) return " .. text .. " end")(lm, F, dim)
end

local roots = {
  function(y) return y:sum() end, function(y) return y:mean() end, function(y) return (1 - y):mean() end,
  function(y) return (-y):sum() end, function(y) return y end,
}

-- Runs a program on its leaves; after(i, y): what is used for step i's result y.
local function run(p, leaves, after)
  local v = {unpack(leaves)}
  for i, s in ipairs(p.steps) do
    local y = s.f(v[s[1]], v[s[2]], v[s[3]])
    v[#v + 1] = after and after(i, y) or y
  end
  return v[#v], v
end

local function draw(seed)
  math.randomseed(seed)
  lm.manual_seed(seed)
  local p = {dtype = pick(dtypes), leaves = {}, steps = {}, text = {}}
  local most = random(40) == 1 and 10 * MOST or MOST
  local function leaf(shape)
    local layout = pick(half.layouts)
    local function make(size) return (lm.rand(size, {dtype = "float64"}) * 4 - 2):to(p.dtype) end
    local x = layout[2](make, shape) or make(shape)
    p.leaves[#p.leaves + 1] = x
    p.text[#p.text + 1] = ("leaf %s of [%s]"):format(layout[1], table.concat(shape, ", "))
    return x, #p.leaves
  end
  local now = leaf(any_shape(most))
  local plans, value, used = {}, now, 1
  for _ = 1, random(2, 7) do -- leaves come first: steps' arguments are found in a second walk
    local shape = value.shape
    local f, extra, text
    if #shape > 0 and random(5) < 4 then
      text = pick(ops.unary)
      f = compiled(text, text:find "%f[%w]dim%f[%W]" and random(#shape))
    else
      text = pick(ops.several)
      f, extra = compiled(text), {leaf(narrower(shape)), leaf(narrower(shape))}
    end
    plans[#plans + 1] = {f = f, extra and used + 1, extra and used + 2}
    p.text[#p.text + 1] = text
    local ok, y = pcall(f, value, extra and p.leaves[used + 1], extra and p.leaves[used + 2])
    if not ok then error(("seed %d: %s: %s"):format(seed, table.concat(p.text, "; "), y), 0) end
    if extra then used = used + 2 end
    value = y
    if value:numel() > 4 * most or value:numel() == 0 then break end
  end
  for i, plan in ipairs(plans) do
    p.steps[i] = {f = plan.f, i == 1 and 1 or #p.leaves + i - 1, plan[1], plan[2]}
  end
  p.steps[#p.steps + 1] = {f = pick(roots), #p.leaves + #plans}
  return p
end

local function same_bits(a, b)
  return a.dtype == b.dtype and lm.equal(a:nan_to_num(12345), b:nan_to_num(12345))
end

-- Returns the gradients of the leaves for a program's result.
local function gradients(leaves, y, g)
  if not y.requires_grad then return {} end
  return lm.autograd.grad({y}, leaves, {grad_outputs = {g:to(y.dtype)}, allow_unused = true})
end

local function with_grad(leaves, convert)
  local list = {}
  for i, x in ipairs(leaves) do list[i] = convert(x):detach():requires_grad_() end
  return list
end

--- Runs the program of a seed and returns what is wrong with it, or nil.
function programs.wrong(seed)
  local p = draw(seed)
  local dtype, eps = p.dtype, half.eps[p.dtype]
  local function fail(what, why)
    return ("seed %d, %s: %s: %s (%s)"):format(seed, dtype, what, why, table.concat(p.text, "; "))
  end
  local function between(shape) return (lm.rand(shape, {dtype = "float64"}) * 2 - 1):to(dtype) end
  lm.set_num_threads(random(4))
  local leaves = with_grad(p.leaves, function(x) return x end)
  local y, values = run(p, leaves)
  local g = pick(half.layouts)[2](between, y.shape) or lm.ones(y.shape, {dtype = dtype})
  local got = gradients(leaves, y, g)

  local wrong
  local function in_float64(change)
    local wide = with_grad(p.leaves, function(x) return change(x:contiguous():double()) end)
    local result, all = run(p, wide, function(i, w)
      local v = values[#leaves + i]:detach()
      -- Sums of both signs lose what their terms were rounded by.
      local x = values[p.steps[i][1]]:detach()
      local slack = x:double():abs():amax() * (2 * eps * math.sqrt(x:numel() / math.max(1, v:numel())))
      local off = not wrong and v:isfinite():all():item() and half.wrong(v, w:detach(), dtype, 16, slack)
      if off then wrong = fail("step " .. i, off) end
      return change(w + (v:double() - w:detach()))
    end)
    wide[#wide + 1] = all[#all - 1] -- the input of the last step, whose gradient is of the program's own size
    return gradients(wide, result, change(g:contiguous():double()))
  end
  local want = in_float64(function(x) return x end)
  if wrong then return wrong end
  for _, v in ipairs(values) do
    if v:numel() > 1 and not v:isfinite():all():item() then return end -- gradients would be NaN
  end
  local near
  for i = 1, #leaves do
    local off = got[i] and half.wrong(got[i], want[i], dtype, 16)
    if off then
      local before = wrong
      near = near or in_float64(function(x)
        local equally = lm.rand(1, {dtype = "float64"}) * 2 - 1 + (x:detach() * 1e4):sin()
        return x * (1 + 4 * eps * (equally + lm.rand(x.shape, {dtype = "float64"})))
      end)
      wrong = before
      local slack = (near[i] - want[i]):abs():amax() + want[#want]:abs():amax() * (2 * eps)
      off = half.wrong(got[i], want[i], dtype, 64, slack)
      if off then return fail("gradient " .. i, off) end
    end
  end

  lm.set_num_threads(random(4))
  local function f(...) return (run(p, {...})) end
  local again = with_grad(p.leaves, function(x) return x end)
  local threaded = f(unpack(again))
  if not same_bits(y:detach(), threaded:detach()) then return fail("result", "other bits on threads") end
  for i, x in ipairs(gradients(again, threaded, g)) do
    if x and not same_bits(got[i], x) then return fail("gradient " .. i, "other bits on threads") end
  end
  if seed % 4 == 0 then
    local prepared = lm.prepare(f)
    for _ = 1, 3 do
      local again_y = prepared(unpack(p.leaves))
      if not same_bits(y:detach(), again_y) then return fail("result", "other bits when prepared") end
    end
  end
end

local is_command = arg and arg[0] and arg[0]:find "random_programs%.lua$"

if is_command and arg[1] == "--steps" then os.exit(require("scripts.dev.random_steps").main(arg)) end

if is_command then
  local count, first = tonumber(arg[1]) or 1000, tonumber(arg[2]) or 1
  local failures = 0
  for seed = first, first + count - 1 do
    local ok, wrong = pcall(programs.wrong, seed)
    if not ok or wrong then
      failures = failures + 1
      print(wrong)
      io.stdout:flush()
    end
  end
  print(("%d programs, %d failures"):format(count, failures))
  os.exit(failures == 0)
end

return programs
