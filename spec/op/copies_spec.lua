-- Copies, transposed and reversed, and elementwise ops with rows and columns that repeat: over odd shapes, offsets and
-- strides, on every instruction level, beside entries picked one by one.
local temp = require "spec.support.temp"

local check = [=[
local lm = require "luminary"
lm.manual_seed(1)
local checks = 0
local function same(x, y, what)
  checks = checks + 1
  assert(x.dtype == y.dtype and x:equal(y), what)
end

-- Any dtype's elements by their places in memory, counted from 0: `place` is a tensor of integers.
local function picked(x, place) return x:contiguous():view(-1):index_select(1, place:view(-1) + 1):view_as(place) end
local function counted(n) return lm.arange(n, {dtype = "int64"}) end
local function random(dtype, ...)
  local x = lm.randint(-100, 100, {...})
  return dtype == "bool" and x:gt(0) or dtype == "uint8" and x:abs():to(dtype) or x:to(dtype)
end

local sizes = {{1, 1}, {1, 70}, {70, 1}, {7, 9}, {8, 16}, {15, 17}, {64, 64}, {65, 63}, {33, 130}, {200, 129}, {0, 5}}
local dtypes = {"bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64"}

for _, dtype in ipairs(dtypes) do
  for _, size in ipairs(sizes) do
    local rows, columns = unpack(size)
    local whole = random(dtype, rows + 1, columns + 3)
    for _, x in ipairs {whole:narrow(1, 1, rows):narrow(2, 1, columns), whole:narrow(1, 2, rows):narrow(2, 3, columns)} do
      local what = ("%s %d x %d"):format(dtype, rows, columns)
      local dense = x:clone()
      local row, column = counted(rows):view(-1, 1), counted(columns):view(1, -1)
      if rows > 0 then
        same(dense, picked(whole, (row + (x:storage_offset() > 1 and 1 or 0)) * (columns + 3) + column
          + (x:storage_offset() > 1 and 2 or 0)), what .. " clone")
      end
      local at = row * columns + column
      if rows == 0 then at = lm.zeros({rows, columns}, {dtype = "int64"}) end
      if rows > 0 then
        same(x:t():contiguous(), picked(dense, column:t() + row:t() * columns), what .. " transposed")
        same(x:flip(2), picked(dense, row * columns + (columns - 1 - column)), what .. " flip(2)")
        same(x:flip(1), picked(dense, (rows - 1 - row) * columns + column), what .. " flip(1)")
        same(x:roll(3, 2), picked(dense, row * columns + (column - 3) % columns), what .. " roll(3, 2)")
        local to = random(dtype, columns + 1, rows + 2) -- rows of the result apart
        local part = to:narrow(1, 2, columns):narrow(2, 2, rows)
        part:copy_(x:t())
        same(part:contiguous(), x:t():contiguous(), what .. " copied into a part")
      end
    end
  end
  local x = random(dtype, 3, 5, 34, 6)
  for _, order in ipairs {{1, 3, 2, 4}, {4, 3, 2, 1}, {1, 3, 4, 2}, {1, 4, 2, 3}, {3, 4, 1, 2}, {2, 1, 3, 4}} do
    local stride, place, shape = {5 * 34 * 6, 34 * 6, 6, 1}, nil, {}
    for k, d in ipairs(order) do shape[k] = x.shape[d] end
    for k, d in ipairs(order) do
      local view = {1, 1, 1, 1}
      view[k] = shape[k]
      local part = counted(shape[k]):view(view) * stride[d]
      place = place and place + part or part
    end
    same(x:permute(order):contiguous(), picked(x, place), dtype .. " permute " .. table.concat(order, ","))
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
print("passed " .. checks)
]=]

describe("copies and broadcasts", function()
  local folder = temp.folder()
  temp.write(folder .. "/check.lua", check)
  local function run(environment)
    local pipe = io.popen(("%s luajit %s/check.lua 2>&1"):format(environment, folder))
    local text = pipe:read "*a"
    pipe:close()
    return text
  end

  it("are the same on every instruction level", function()
    for level = 0, 2 do assert.matches("^passed %d%d%d%d\n$", run("LM_CPU_LEVEL=" .. level)) end
  end)

  it("are the same where results go past the caches, and on one thread", function()
    for level = 0, 2 do
      assert.matches("^passed %d%d%d%d\n$", run("LM_CACHE_BYTES=1000 LM_CPU_LEVEL=" .. level))
    end
    assert.matches("^passed %d%d%d%d\n$", run "OMP_NUM_THREADS=1")
  end)
end)
