-- Elementwise ops of inputs that are broadcast, of rows shorter and longer than tiles: the same bits as of inputs
-- that were expanded to plain tensors before.
local lm = require "luminary"

-- Whole numbers, which every dtype holds: none is 0, and no product of two overflows.
local made = 0
local function filled(size, dtype)
  local n = 1
  for _, d in ipairs(size) do n = n * d end
  made = made + 1
  local x = lm.arange(1, n + 1) * (7 + made % 5 * 2)
  return (x:remainder(11) + 1):to(dtype):reshape(size)
end

-- Returns the same elements elsewhere: from an odd address on, or with steps between them.
local function moved(x, way)
  if way == "plain" then return x end
  local size = x.shape
  local wide = {}
  for d = 1, #size do wide[d] = size[d] end
  local last = #size
  wide[last] = way == "part" and size[last] + 3 or 2 * size[last]
  local y = lm.zeros(wide, {dtype = x.dtype})
  y = way == "part" and y:narrow(last, 2, size[last]) or y[{"...", {1, -1, 2}}]
  y:copy_(x)
  return y
end

local function same(want, got, what)
  assert.are.same(want.shape, got.shape)
  assert.is_true(lm.equal(want, got), what)
end

local shapes = {}
for _, k in ipairs {1, 2, 3, 5, 16, 17, 33, 63, 64, 65, 100, 257, 511, 1023, 1025, 4097} do
  local n = math.max(3, math.floor(5000 / k))
  shapes[#shapes + 1] = {{n, k}, {k}}
  shapes[#shapes + 1] = {{n, k}, {n, 1}}
  shapes[#shapes + 1] = {{n, 1}, {1, k}}
end
for _, s in ipairs {
  {{500, 1, 2}, {500, 2}}, {{1, 70, 3}, {70, 1, 3}}, {{300, 4, 4}, {4, 4}}, {{300, 4, 4}, {300, 4, 1}},
  {{300, 4, 4}, {300, 1, 4}}, {{6, 5, 14, 14}, {6, 5, 1, 1}}, {{6, 5, 14, 14}, {5, 1, 1}},
  {{6, 5, 14, 14}, {6, 1, 1, 14}},
  {{64, 20, 1}, {20, 20}}, {{7, 1, 9, 1, 5}, {3, 1, 11, 1}}, {{1, 9, 1, 37}, {13, 1, 6, 1}}, {{40, 1, 33}, {1, 50, 1}},
  {{30, 1, 32}, {1, 70, 32}}, {{3, 1, 700}, {1, 5, 1}}, {{2, 30, 1, 21}, {1, 1, 17, 21}}, {{0, 5}, {5}},
} do shapes[#shapes + 1] = s end

describe("ops of broadcast inputs", function()
  for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16", "int64", "uint8"} do
    it("have the bits of expanded copies, " .. dtype, function()
      for _, s in ipairs(shapes) do
        local a, b = filled(s[1], dtype), filled(s[2], dtype)
        local size = (a + b).shape
        local all_a, all_b = a:expand(size):contiguous(), b:expand(size):contiguous()
        local what = table.concat(s[1], "x") .. " and " .. table.concat(s[2], "x")
        for _, way in ipairs {"plain", "part", "steps"} do
          local from, other = moved(a, way), moved(b, way)
          same(all_a * all_b, from * other, what .. ", " .. way)
          same(all_b - all_a, other - from, what .. ", " .. way)
          same(all_a:gt(all_b), from:gt(other), what .. ", " .. way)
          local into = moved(all_a:clone(), way)
          into:sub_(other)
          same(all_a - all_b, into, what .. ", in place, " .. way)
        end
        same(lm.where(all_a:gt(5), all_a, all_b), lm.where(a:gt(5), a, b), what .. ", of three")
        if dtype:find "^float" then same(lm.atan2(all_a, all_b), lm.atan2(a, b), what .. ", of a long formula") end
        same(all_a:lt(4):logical_xor(all_b:gt(3)), a:lt(4):logical_xor(b:gt(3)), what .. ", of bools")
        same(all_a:double() + all_b:double(), a:double() + b, what .. ", of two dtypes")
      end
    end)
  end

  it("have them of one value too, whatever the number of inputs", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      local one = lm.full({1}, 0.625, {dtype = dtype})
      for _, size in ipairs {{1}, {17}, {512}, {513}, {2049}, {90000}, {3, 700}, {70, 9, 5}} do
        local x = one:view(size[2] and (size[3] and {1, 1, 1} or {1, 1}) or {1}):expand(size)
        local all, what = x:contiguous(), dtype .. " " .. table.concat(size, "x")
        for _, name in ipairs {"neg", "exp", "tanh", "sqrt", "floor", "silu", "isnan"} do
          same(all[name](all), x[name](x), name .. " " .. what)
        end
        same(all:clamp(0, 0.5), x:clamp(0, 0.5), "clamp " .. what)
        same(all * all, x * x, "mul " .. what)
        same(lm.where(x:gt(0), all, all), lm.where(x:gt(0), x, x), "where " .. what)
        local a = all:clone():requires_grad_()
        local loss = (1 - a):sum()
        loss:backward()
        same(lm.full(size, -1, {dtype = dtype}), a.grad, "gradient of a sum, " .. what)
      end
    end
  end)

  it("are those of elements converted one by one", function()
    for _, size in ipairs {{1, 1}, {3, 511}, {3, 512}, {1, 513}, {7, 300}, {40, 1027}} do
      local whole = filled({size[1], size[2] + 5}, "uint8")
      for _, x in ipairs {whole, whole:narrow(2, 4, size[2]), whole:t(), whole[{{}, {1, -1, 2}}]} do
        local list = {}
        for i, v in ipairs(x:flatten():tolist()) do list[i] = v end
        for _, dtype in ipairs {"float32", "float64", "int32", "int64", "bool"} do
          same(lm.tensor(list, {dtype = dtype}):view(x.shape), x:to(dtype), dtype .. " " .. table.concat(size, "x"))
        end
      end
    end
  end)

  it("are the same for any number of threads", function()
    local threads = lm.get_num_threads()
    local bytes = filled({90, 1100}, "uint8")
    local cases = {
      function() return bytes:float() end,
      function() return bytes[{{}, {3, 9}}]:repeat_interleave(160, 2):double() end,
      function() return bytes:view(900, 110)[{{}, {2, -1, 3}}]:float() end,
      function() return bytes:t() * bytes:t():float() end,
      function() return bytes:gt(3):logical_or(bytes:lt(2)) end,
    }
    local sizes = {
      {{60000, 3}, {3}}, {{60000, 3}, {60000, 1}}, {{300, 1, 3}, {300, 3}}, {{32, 1, 33, 1}, {1, 32, 1, 33}},
      {{500, 333}, {333}}, {{3, 1, 20000}, {1, 5, 1}},
    }
    for _, s in ipairs(sizes) do
      local a, b = lm.randn(s[1]), lm.randn(s[2])
      cases[#cases + 1] = function() return a * b end
      cases[#cases + 1] = function() return lm.where(a:gt(0), a, b) end
    end
    for i, f in ipairs(cases) do
      lm.set_num_threads(1)
      local want = f()
      lm.set_num_threads(3)
      same(want, f(), "case " .. i)
      lm.set_num_threads(threads)
    end
  end)
end)

describe("elementwise ops with parts of rows", function()
  -- Rows of every number of bytes that moves in its own way, from a few rows to several tiles of them.
  local widths = { 1, 2, 3, 5, 8, 10, 16, 17, 31, 33, 63, 64, 65, 127, 130 }
  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "bool" } do
    it("read and write them as they do whole tensors: " .. dtype, function()
      local function of(...)
        local t = lm.randint(-3, 4, { ... })
        return dtype == "bool" and t:gt(0) or t:to(dtype == "int8" and "int8" or dtype)
      end
      local op = dtype == "bool" and "logical_xor" or "add"
      for _, width in ipairs(widths) do
        for _, rows in ipairs { 3, 41, 700 } do
          local a, wide = of(rows, width), of(rows, width + 3)
          local b = wide[{ {}, { 2, -3 } }]
          local want = lm[op](a, b:clone())
          assert(lm.equal(want, lm[op](a, b)), ("%d x %d"):format(rows, width))
          assert(lm.equal(want, lm[op](b, a)), ("%d x %d"):format(rows, width))
          if dtype ~= "bool" then
            local into = wide:clone()
            into[{ {}, { 2, -3 } }]:add_(a)
            assert(lm.equal(want, into[{ {}, { 2, -3 } }]), ("%d x %d in place"):format(rows, width))
            assert(lm.equal(wide[{ {}, 1 }], into[{ {}, 1 }]) and lm.equal(wide[{ {}, { -2, -1 } }],
              into[{ {}, { -2, -1 } }]), ("%d x %d writes beside"):format(rows, width))
          end
        end
        local planes = of(5, 7, width + 1) -- rows of two outer dims that do not merge, and a repeated row
        local part, row = planes[{ {}, { 2, 6 }, { 1, -2 } }], of(width + 1)[{ { 2, -1 } }]
        assert(lm.equal(lm[op](part:clone(), row:clone()), lm[op](part, row)), width)
        assert(lm.equal(lm[op](part:clone(), part:clone()), lm[op](part, part)), width)
      end
    end)
  end
end)
