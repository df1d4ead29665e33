-- Copies, transposed and reversed, and elementwise ops with rows and columns that repeat: over odd shapes, offsets and
-- strides, on every instruction level, beside entries picked one by one; arithmetic of halves beside that of floats.
local temp = require "spec.support.temp"

local check = [=[
local lm = require "luminary"
lm.manual_seed(1)
local checks = 0
local function same(x, y, what)
  checks = checks + 1
  assert(x.dtype == y.dtype and x:equal(y), what)
end

-- Elements by their indices in memory, counted from 0.
local function picked(x, at) return x:contiguous():view(-1):index_select(1, at:view(-1) + 1):view_as(at) end
local function counted(n) return lm.arange(n, {dtype = "int64"}) end
local function random(dtype, ...)
  local x = lm.randint(-100, 100, {...})
  return dtype == "bool" and x:gt(0) or dtype == "uint8" and x:abs():to(dtype) or x:to(dtype)
end

local sizes = {
  {1, 1}, {1, 70}, {70, 1}, {7, 9}, {8, 16}, {15, 17}, {64, 64}, {65, 63}, {33, 130}, {200, 129}, {0, 5},
  {8, 300}, {9, 300}, {12, 515},
}
local dtypes = {"bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64"}

for _, dtype in ipairs(dtypes) do
  for _, size in ipairs(sizes) do
    local rows, columns = unpack(size)
    local whole = random(dtype, rows + 1, columns + 3)
    for _, first in ipairs {1, 2} do
      local x = whole:narrow(1, first, rows):narrow(2, 2 * first - 1, columns)
      local what = ("%s %d x %d"):format(dtype, rows, columns)
      local dense = x:clone()
      local row, column = counted(rows):view(-1, 1), counted(columns):view(1, -1)
      if rows > 0 then
        same(dense, picked(whole, (row + first - 1) * (columns + 3) + column + 2 * (first - 1)), what .. " clone")
      end
      local at = row * columns + column
      if rows == 0 then at = lm.zeros({rows, columns}, {dtype = "int64"}) end
      if rows > 0 then
        same(x:t():contiguous(), picked(dense, column:t() + row:t() * columns), what .. " transposed")
        same(x:flip(2), picked(dense, row * columns + (columns - 1 - column)), what .. " flip(2)")
        same(x:flip(1), picked(dense, (rows - 1 - row) * columns + column), what .. " flip(1)")
        same(x:roll(3, 2), picked(dense, row * columns + (column - 3) % columns), what .. " roll(3, 2)")
        local left, above = math.floor(columns / 2), math.floor(rows / 2)
        same(lm.cat({x:narrow(2, left + 1, columns - left), x:narrow(2, 1, 0), x:narrow(2, 1, left)}, 2),
          picked(dense, row * columns + (column + left) % columns), what .. " cat of columns")
        same(lm.cat({x:narrow(1, above + 1, rows - above), x:narrow(1, 1, above)}, 1),
          picked(dense, (row + above) % rows * columns + column), what .. " cat of rows")
        same(x:roll({1, -2}, {1, 2}), picked(dense, (row - 1) % rows * columns + (column + 2) % columns),
          what .. " roll of both")
        local to = random(dtype, columns + 1, rows + 2) -- rows of the result apart
        local part = to:narrow(1, 2, columns):narrow(2, 2, rows)
        part:copy_(x:t())
        same(part:contiguous(), x:t():contiguous(), what .. " copied into a part")
      end
    end
  end
  for _, columns in ipairs {700, 2051} do -- rows apart from each other, and nothing written between them
    local x, to = random(dtype, 5, columns), random(dtype, 7, columns + 9)
    local was = to:clone()
    to:narrow(1, 2, 5):narrow(2, 4, columns):copy_(x)
    same(to:narrow(1, 2, 5):narrow(2, 4, columns):contiguous(), x, dtype .. " rows apart")
    for _, part in ipairs {{1, 1, 1}, {1, 7, 1}, {2, 1, 3}, {2, columns + 4, 6}} do
      same(to:narrow(unpack(part)):contiguous(), was:narrow(unpack(part)):contiguous(), dtype .. " beside the rows")
    end
  end
  local deep = random(dtype, 3, 7, 40)
  for dim = 1, 3 do
    for _, part in ipairs {deep:narrow(2, 2, 5), deep:narrow(3, 3, 37), deep:transpose(1, 2), deep:narrow(1, 2, 1)} do
      local half = math.floor(part.shape[dim] / 2)
      local a, b = part:narrow(dim, half + 1, part.shape[dim] - half), part:narrow(dim, 1, half)
      same(lm.cat({a, b}, dim), lm.cat({a:clone(), b:clone()}, dim), dtype .. " cat of parts of 3-d ones")
      same(lm.cat({a, b}, dim), part:roll(-half, dim), dtype .. " roll of parts of 3-d ones")
    end
  end
  local repeated = random(dtype, 1, 90):expand(20, 90)
  same(lm.cat({repeated, repeated}, 2), lm.cat({repeated:clone(), repeated:clone()}, 2), dtype .. " cat of a row")
  local x = random(dtype, 3, 5, 34, 6)
  for _, order in ipairs {{1, 3, 2, 4}, {4, 3, 2, 1}, {1, 3, 4, 2}, {1, 4, 2, 3}, {3, 4, 1, 2}, {2, 1, 3, 4}} do
    local stride, at, shape = {5 * 34 * 6, 34 * 6, 6, 1}, nil, {}
    for k, d in ipairs(order) do shape[k] = x.shape[d] end
    for k, d in ipairs(order) do
      local view = {1, 1, 1, 1}
      view[k] = shape[k]
      local part = counted(shape[k]):view(view) * stride[d]
      at = at and at + part or part
    end
    same(x:permute(order):contiguous(), picked(x, at), dtype .. " permute " .. table.concat(order, ","))
  end
end

-- An op's rows one by one, which are too small for the loops over rows.
for _, dtype in ipairs {"float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bfloat16", "float16"} do
  for _, size in ipairs {{9, 64}, {9, 65}, {9, 127}, {5, 600}, {3, 1030}, {40, 63}, {2, 4113}} do
    local rows, columns = unpack(size)
    local whole = random(dtype, rows + 1, columns + 2)
    local x = whole:narrow(1, 2, rows):narrow(2, 2, columns)
    local row, column, y = random(dtype, columns), random(dtype, rows, 1), random(dtype, rows, columns)
    local ops = {
      add = function(a, b) return a + b end, sub = function(a, b) return a:sub(b, {alpha = 3}) end,
      mul = function(a, b) return a * b end, lt = function(a, b) return a:lt(b) end,
    }
    for name, f in pairs(ops) do
      for kind, other in pairs {row = row:view(1, -1), column = column, full = y} do
        local expected = {}
        for i = 1, rows do
          for first = 1, columns, 100 do
            local n = math.min(100, columns - first + 1)
            local b = other:expand(rows, columns):narrow(1, i, 1):narrow(2, first, n):clone()
            expected[#expected + 1] = f(x:narrow(1, i, 1):narrow(2, first, n):clone(), b):view(-1)
          end
        end
        local want = lm.cat(expected, 1):view(rows, columns)
        local what = ("%s %s %d x %d with a %s"):format(dtype, name, rows, columns, kind)
        same(f(x, other), want, what)
        same(f(x:contiguous(), other), want, what .. ", contiguous")
      end
    end
    local sum, to = x + row, whole:clone()
    to:narrow(1, 2, rows):narrow(2, 2, columns):add_(row)
    same(to:narrow(1, 2, rows):narrow(2, 2, columns):contiguous(), sum, dtype .. " add_ into a part")
    same(to:narrow(1, 1, 1):contiguous(), whole:narrow(1, 1, 1):contiguous(), dtype .. " leaves the rest")
    same(to:narrow(2, 1, 1):contiguous(), whole:narrow(2, 1, 1):contiguous(), dtype .. " leaves the rest")
  end
end

-- Halves in vectors, beside floats rounded once: NaN, infinities and subnormals too, and numbers among the inputs.
local function same_bits(x, y, what)
  checks = checks + 1
  local nan = x:isnan()
  assert(x.dtype == y.dtype and nan:equal(y:isnan()), what)
  assert(x:masked_fill(nan, 0):equal(y:masked_fill(nan, 0)), what)
  assert(x:signbit():logical_or(nan):equal(y:signbit():logical_or(nan)), what)
end
local F = lm.nn.functional
local of_one = {"neg", "abs", "relu", "exp", "sqrt", "sigmoid", "tanh", "reciprocal", "floor", "erf", "lgamma", "sinc"}
local of_two = {
  add = function(a, b) return lm.add(a, b, {alpha = 0.3}) end, mul = lm.mul, div = lm.div, pow = lm.pow,
  maximum = lm.maximum, fmod = lm.fmod, remainder = lm.remainder, atan2 = lm.atan2,
}
local of_three = {
  lerp = lm.lerp, addcmul = lm.addcmul,
  clamp = function(a, b, c) return lm.clamp(a, lm.minimum(b, c), lm.maximum(b, c)) end,
}
for _, dtype in ipairs {"bfloat16", "float16"} do
  local function to(x) return lm.is_tensor(x) and x.dtype == "float32" and x:to(dtype) or x end
  local function wide(x) return lm.is_tensor(x) and x:float() or x end
  for _, n in ipairs {513, 528, 1039, 4133} do
    local values = lm.randn(4, n + 3) * lm.pow(10, lm.randint(-9, 9, {4, n + 3}))
    for k, special in ipairs {0 / 0, 1 / 0, -1 / 0, -0.0, 1e-40, -1e-39, 65519, 65520, 6e-8, 3.4e38} do
      values:narrow(2, 7 * k, 1):fill_(special)
    end
    local all = to(values)
    local x, y, z = all[1]:narrow(1, 3, n), all[2]:narrow(1, 2, n), all[3]:narrow(1, 4, n)
    local zero_dim = lm.tensor(0.7):to(dtype)
    for _, name in ipairs(of_one) do
      same_bits(lm[name](x), to(lm[name](wide(x))), ("%s %s %d"):format(dtype, name, n))
    end
    same_bits(F.gelu(x), to(F.gelu(wide(x))), dtype .. " gelu")
    for name, f in pairs(of_two) do
      for kind, pair in pairs {
        two = {x, y}, ["a number"] = {x, 0.3}, ["a whole number"] = {x, 3}, ["one element"] = {zero_dim, y},
        ["itself"] = {x, x}, ["aligned ones"] = {all[1]:narrow(1, 1, n - 1), all[2]:narrow(1, 1, n - 1)},
        ["an expanded one"] = {x, zero_dim:expand(n)},
      } do
        local a, b = unpack(pair)
        same_bits(f(a, b), to(f(wide(a), wide(b))), ("%s %s of %s, %d"):format(dtype, name, kind, n))
      end
    end
    for name, f in pairs(of_three) do
      for kind, given in pairs {all = {x, y, z}, ["two of them"] = {x, y, zero_dim}, one = {zero_dim, y, zero_dim}} do
        local a, b, c = unpack(given)
        same_bits(f(a, b, c), to(f(wide(a), wide(b), wide(c))), ("%s %s, %s, %d"):format(dtype, name, kind, n))
      end
    end
    local sum = x:clone()
    sum:mul_(y):sub_(0.1)
    same_bits(sum, to(wide(to(wide(x) * wide(y))) - 0.1), dtype .. " in place")
    for name, f in pairs {lt = lm.lt, ge = lm.ge, ne = lm.ne} do
      same(f(x, y), f(wide(x), wide(y)), dtype .. " " .. name)
      same(f(x, 0.3), f(wide(x), 0.3), dtype .. " " .. name .. " a number")
    end
    local mask = y:gt(0)
    for name, f in pairs {lt = lm.lt, ge = lm.ge} do
      same(f(mask, x), f(mask:float(), wide(x)), dtype .. " " .. name .. " a mask first")
      same(f(x, mask), f(wide(x), mask:float()), dtype .. " " .. name .. " a mask")
    end
    same_bits(lm.where(mask, x, z), to(lm.where(mask, wide(x), wide(z))), dtype .. " where")
    same_bits(x * mask, to(wide(x) * mask:float()), dtype .. " by a mask")
    local leaf, wide_leaf = x:clone():requires_grad_(), wide(x):requires_grad_()
    F.silu(leaf):backward(y)
    F.silu(wide_leaf):backward(wide(y))
    same_bits(leaf.grad, to(wide_leaf.grad), dtype .. " gradient of silu")
  end
  local x, y = to(lm.randn(70, 41)), to(lm.randn(41, 70))
  same_bits(x + y:t(), to(wide(x) + wide(y):t()), dtype .. " transposed")
  same_bits(x:t() * 0.3, to(wide(x):t() * 0.3), dtype .. " of a transposed one")
  same(x:lt(y:t()), wide(x):lt(wide(y):t()), dtype .. " test of a transposed one")
end

-- Destinations some bytes ahead of the source, modulo a page.
local ffi = require "ffi"
local from, into = random("int8", 70000), random("int8", 80000)
local function address(t) return tonumber(ffi.cast("uintptr_t", t:data_ptr())) end
for _, n in ipairs {1, 255, 256, 257, 1029, 4097, 66000} do
  for _, ahead in ipairs {0, 1, 3, 4, 16, 63, 64, 65, 4095} do
    local x = from:narrow(1, 2, n)
    local first = (address(x) + ahead - address(into)) % 4096 + 1
    local to, expected = into:narrow(1, first, n), into:clone()
    expected:index_copy_(1, counted(n) + first, picked(x, counted(n)))
    to:copy_(x)
    same(into, expected, ("%d bytes, %d ahead"):format(n, ahead))
    same(lm.cat {into:narrow(1, 1, ahead), x}, picked(lm.cat {into:narrow(1, 1, ahead):long(), x:long()},
      counted(n + ahead)):to("int8"), "cat")
  end
end

-- Many rows with gaps, in one dim of rows and in two, in any order of these, repeated, and for several threads.
for _, dtype in ipairs {"int8", "float32", "float64"} do
  for _, size in ipairs {{5, 70, 103}, {4, 301, 1003}} do
    local whole = random(dtype, unpack(size))
    local rows, columns = size[2] - 3, size[3] - 2
    local x = whole:narrow(1, 2, 3):narrow(2, 3, rows):narrow(3, 2, columns)
    local at = (counted(3):view(-1, 1, 1) + 1) * (size[2] * size[3]) + (counted(rows):view(1, -1, 1) + 2) * size[3]
      + counted(columns) + 1
    local expected, swapped = picked(whole, at), picked(whole, at:transpose(1, 2):contiguous())
    local what = dtype .. " rows of " .. columns
    same(x:contiguous(), expected, what)
    same(x[2]:contiguous(), expected[2], what .. " of a plane")
    same(x:transpose(1, 2):contiguous(), swapped, what .. " transposed")
    same(x:narrow(1, 1, 1):expand(3, rows, columns):contiguous(), lm.cat {expected[1], expected[1], expected[1]}
      :view(3, rows, columns), what .. " repeated")
    local to = lm.zeros(size, {dtype = dtype})
    to:narrow(1, 1, 3):narrow(2, 2, rows):narrow(3, 3, columns):copy_(x)
    local filled = lm.zeros(to:numel(), {dtype = dtype}):index_copy_(1, (at - size[2] * size[3] - size[3] + 2):view(-1),
      expected:view(-1))
    same(to:view(-1), filled, what .. " into rows with gaps")
  end
end

-- Rows that fill whole lines of the caches: with dims in any order, repeated, and overlapping.
do
  local x = random("float32", 6, 70, 5, 32)
  local at = counted(x:numel()):view(x:size())
  for _, order in ipairs {{1, 3, 2, 4}, {2, 1, 3, 4}, {3, 2, 1, 4}, {3, 1, 2, 4}} do
    local what = "lines in the order " .. table.concat(order, " ")
    same(x:permute(order):contiguous(), picked(x, at:permute(order):contiguous()), what)
    local function repeated(t) return t:narrow(3, 2, 1):expand(6, 70, 5, 32):permute(order) end
    same(repeated(x):contiguous(), picked(x, repeated(at):contiguous()), what .. ", repeated")
  end
  for _, stride in ipairs {{1, 16, 1}, {8, 32, 1}, {32, 1, 1}, {0, 16, 1}} do
    local function windows(t) return t:view(-1):as_strided({10, 60, 32}, stride) end
    same(windows(x):contiguous(), picked(x, windows(at):contiguous()), "windows " .. table.concat(stride, " "))
    same(windows(x):transpose(1, 2):contiguous(), picked(x, windows(at):transpose(1, 2):contiguous()),
      "transposed windows " .. table.concat(stride, " "))
  end
end
print("passed " .. checks)
]=]

describe("copies and broadcasts", function()
  local folder = temp.during(setup, teardown)
  setup(function() temp.write(folder .. "/check.lua", check) end)
  local function run(environment)
    local pipe = io.popen(("%s luajit %s/check.lua 2>&1"):format(environment, folder))
    local text = pipe:read "*a"
    pipe:close()
    return text
  end

  it("are the same on every instruction level", function()
    for _, level in ipairs(require "spec.support.cpu_levels") do
      assert.matches("^passed %d%d%d%d\n$", run("LM_CPU_LEVEL=" .. level))
    end
  end)

  it("are the same where results go past the caches, and on one thread", function()
    for _, level in ipairs(require "spec.support.cpu_levels") do
      assert.matches("^passed %d%d%d%d\n$", run("LM_CACHE_BYTES=1000 LM_CPU_LEVEL=" .. level))
    end
    assert.matches("^passed %d%d%d%d\n$", run "OMP_NUM_THREADS=1")
  end)
end)
