-- Products of float32, float64 and bfloat16 in blocks: every way a matrix can lie, sizes at the blocks' borders, any
-- number of threads.
local lm = require "luminary"

-- Returns a matrix [m, n], and stored otherwise: transposed, as a part of a larger one, with steps between elements.
local function layouts(m, n, dtype)
  local plain = lm.randn({m, n}, {dtype = dtype})
  local wide = lm.full({m + 2, n + 3}, 0 / 0, {dtype = dtype})
  local part = wide:narrow(1, 2, m):narrow(2, 3, n)
  part:copy_(plain)
  local steps = lm.full({m, n, 2}, 0 / 0, {dtype = dtype}):select(3, 1)
  steps:copy_(plain)
  return {plain = plain, transposed = plain:t():contiguous():t(), part = part, steps = steps}
end

-- Returns the product by sums of products, in float64.
local function slow(a, b)
  return (a:double():unsqueeze(3) * b:double():unsqueeze(1)):sum(2)
end

local function near(want, got, k, what)
  if got:numel() == 0 then return end
  local deviations = got:numel() > 2 ^ 15 and 5 or 4 -- the largest error of many elements is larger
  local bound = (got.dtype == "float64" and 1e-15 or 1e-6) * (deviations * math.sqrt(k) + k / 50) + 1e-30
  if got.dtype == "bfloat16" then bound = bound + want:abs():max():item() / 128 end
  local off = (got:double() - want):abs():max():item()
  assert.is_true(off <= bound, ("%s: off by %g, more than %g"):format(what, off, bound))
end

-- Rows, columns, terms: below, at, and beyond tiles, panels, blocks.
local sizes = {
  {1, 1, 1}, {3, 5, 7}, {8, 32, 64}, {9, 33, 65}, {13, 17, 300}, {7, 300, 700}, {16, 300, 600}, {17, 300, 260},
  {250, 70, 520}, {31, 1030, 40}, {1, 40, 600}, {40, 1, 600}, {2, 3, 2000}, {65, 130, 1}, {0, 4, 5}, {4, 0, 5},
  {9, 19, 31}, {95, 191, 33}, {97, 200, 35}, {70, 141, 1027}, {18, 7, 8193}, {33, 35, 9000},
  {130, 140, 4100}, {260, 40, 4100}, {260, 40, 100}, -- columns few beside rows; few terms, too
  {64, 1024, 140}, -- rows of 4096 bytes, of which 64 times 140 are packed
}

describe("products of matrices", function()
  before_each(function() lm.manual_seed(1) end) -- the bounds are of deviations

  for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
    local tag = dtype == "float64" and " #unsanitized" or ""
    it("are sums of products however the matrices lie: " .. dtype .. tag, function()
      for _, s in ipairs(sizes) do
        local m, n, k = s[1], s[2], s[3]
        local left, right = layouts(m, k, dtype), layouts(k, n, dtype)
        local want, bias = slow(left.plain, right.plain), lm.randn({m, n}, {dtype = dtype})
        for how, a in pairs(left) do
          for other, b in pairs(right) do
            local what = ("%s [%d, %d] x [%d, %d], %s and %s"):format(dtype, m, k, k, n, how, other)
            near(want, a:mm(b), k, what)
            local sum = want * 2 + bias:double() * 0.5
            near(sum, lm.addmm(bias, a, b, {alpha = 2, beta = 0.5}), 4 * k, what .. ", added")
            local row = lm.full({n + 2}, 0 / 0, {dtype = dtype}):narrow(1, 2, n)
            row:copy_(lm.randn({n}, {dtype = dtype}))
            assert.is_true(lm.equal(lm.addmm(row:expand(m, n):contiguous(), a, b, {alpha = 2, beta = 0.5}),
              lm.addmm(row, a, b, {alpha = 2, beta = 0.5})), what .. ", a row added")
          end
        end
      end
    end)
  end

  for _, dtype in ipairs {"float32", "float64"} do
    it("of more columns than are packed at once are sums of products: " .. dtype, function()
      local m, n, k = 260, 1100, 4100
      local a, b = lm.randn({m, k}, {dtype = dtype}), lm.randn({k, n}, {dtype = dtype})
      local got = a:mm(b:t():contiguous():t())
      for j = 1, n, 100 do -- small ones are compared with sums above
        near(a:mm(b:narrow(2, j, 100)):double(), got:narrow(2, j, 100), k, "columns from " .. j)
      end
      near(slow(a:narrow(1, 241, 2), b:narrow(2, 1020, 9)), got:narrow(1, 241, 2):narrow(2, 1020, 9), k, "elements")
    end)

    it("of no terms are zeros, or what they are added to: " .. dtype, function()
      local a, b = lm.zeros({5, 0}, {dtype = dtype}), lm.zeros({0, 40}, {dtype = dtype})
      local bias = lm.randn({5, 40}, {dtype = dtype})
      assert.is_true(lm.equal(a:mm(b), lm.zeros({5, 40}, {dtype = dtype})))
      assert.is_true(lm.equal(lm.addmm(bias, a, b), bias))
      local x, y = lm.full({40, 50}, 0 / 0, {dtype = dtype}), lm.randn({50, 40}, {dtype = dtype})
      local z = lm.randn({40, 40}, {dtype = dtype})
      assert.is_true(lm.equal(lm.addmm(z, x, y, {alpha = 0}), z), "alpha 0")
      assert.is_true(lm.equal(lm.addmm(x:narrow(2, 1, 40), z, z, {beta = 0}), z:mm(z)), "beta 0")
    end)

    it("have NaN and infinity where a term has, and nowhere else: " .. dtype, function()
      for _, s in ipairs {{20, 70, 40}, {3, 300, 300}, {100, 45, 600}} do
        local m, n, k = s[1], s[2], s[3]
        local a, b = lm.rand({m, k}, {dtype = dtype}):add_(0.5), lm.rand({k, n}, {dtype = dtype}):add_(0.5)
        a[2]:narrow(1, k, 1):fill_(0 / 0)
        a[3]:narrow(1, 1, 1):fill_(math.huge)
        for how, right in pairs {plain = b, transposed = b:t():contiguous():t()} do
          local c = a:mm(right)
          assert.is_true(c[2]:isnan():all():item(), how)
          assert.is_true((c[3]:eq(math.huge)):all():item(), how)
          assert.is_true(lm.isfinite(c:narrow(1, 4, m - 3)):all():item(), how)
          assert.is_true(lm.isfinite(c[1]):all():item(), how)
        end
        b:narrow(1, k, 1):narrow(2, n, 1):fill_(0 / 0)
        local c = a:narrow(1, 1, 1):mm(b)
        assert.is_true(lm.isfinite(c:narrow(2, 1, n - 1)):all():item())
        assert.is_true(c:narrow(2, n, 1):isnan():all():item())
      end
    end)

    it("of very many terms stay exact: " .. dtype, function()
      local k = 300001
      local ones, twos = lm.ones({3, k}, {dtype = dtype}), lm.full({k, 5}, 2, {dtype = dtype})
      assert.is_true(lm.equal(ones:mm(twos), lm.full({3, 5}, 2 * k, {dtype = dtype})))
      assert.is_true(lm.equal(ones:t():contiguous():t():mm(twos), lm.full({3, 5}, 2 * k, {dtype = dtype})))
    end)

  end

  -- Rows of few terms times a vector, and matrices of a few elements, alone and in batches.
  for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16"} do
    it("of few terms or elements are sums of products: " .. dtype, function()
      local bound = ({float32 = 1e-5, float64 = 1e-13, bfloat16 = 0.02, float16 = 0.003})[dtype]
      local function close(want, got, what)
        assert.same(want.shape, got.shape, what)
        local off = want:numel() > 0 and ((want - got:double()):abs() / (want:abs() + 4)):max():item() or 0
        assert.is_true(off <= bound, ("%s: off by %g"):format(what, off))
      end
      -- Returns a batch of matrices: dense, transposed, with gaps after rows and members, and one for all.
      local function lying(b, m, n)
        local plain = lm.randn({b, m, n}):to(dtype)
        local wide = lm.full({b, m + 1, n + 2}, 0 / 0, {dtype = dtype}):narrow(2, 2, m):narrow(3, 2, n)
        wide:copy_(plain)
        local steps = lm.full({b, m, n, 3}, 0 / 0, {dtype = dtype}):select(4, 2)
        steps:copy_(plain)
        return {plain = plain, transposed = plain:transpose(2, 3):contiguous():transpose(2, 3), gaps = wide,
          steps = steps, one = plain:narrow(1, 1, 1):expand(b, m, n)}
      end
      for _, s in ipairs {
        {1, 0}, {1, 1}, {2, 2}, {3, 3}, {5, 4}, {7, 5}, {9, 7}, {17, 8}, {16, 9}, {33, 10}, {31, 15}, {4, 16}, {70, 17},
        {130, 33}, {19, 50}, {3, 64}, {40, 65}, {8, 100}, {11, 255}, {6, 256},
      } do
        local m, k = s[1], s[2]
        for how, a in pairs(lying(5, m, k)) do
          for other, x in pairs(lying(5, k, 1)) do
            local what = ("%s [%d, %d] by a vector, %s and %s"):format(dtype, m, k, how, other)
            local want = (a:double() * x:double():transpose(2, 3)):sum(3):unsqueeze(3)
            close(want, a:bmm(x), what)
            close(want:transpose(2, 3), x:transpose(2, 3):bmm(a:transpose(2, 3)), what .. ", from the left")
            close(want[2]:squeeze(2), a[2]:mv(x[2]:squeeze(2)), what .. ", mv")
            assert.is_true(lm.equal(a:bmm(x)[2], a[2]:mm(x[2])), what .. ", a member")
            local bias = lm.randn({m, 1}):to(dtype)
            close(want[1] * 2 + bias:double() * 0.5, lm.addmm(bias, a[1], x[1], {alpha = 2, beta = 0.5}), what)
            close(want[1] + 3, lm.addmm(lm.full({1}, 3, {dtype = dtype}), a[1], x[1]), what .. ", bias")
          end
        end
      end
      for _, s in ipairs {
        {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {4, 2, 2}, {5, 3, 7}, {8, 8, 8}, {9, 16, 9}, {16, 16, 16}, {16, 1, 16},
        {6, 11, 17}, {7, 5, 31}, {13, 64, 15}, {3, 65, 3}, {70, 9, 33}, {1, 12, 5}, {5, 0, 3}, {300, 10, 3},
      } do
        local m, k, n = s[1], s[2], s[3]
        local row = lm.randn({n}):to(dtype)
        for how, a in pairs(lying(5, m, k)) do
          for other, b in pairs(lying(5, k, n)) do
            local what = ("%s [%d, %d] x [%d, %d], %s and %s"):format(dtype, m, k, k, n, how, other)
            local want = (a:double():unsqueeze(4) * b:double():unsqueeze(2)):sum(3)
            close(want, a:bmm(b), what)
            assert.is_true(lm.equal(a:bmm(b)[4], a[4]:mm(b[4])), what .. ", a member")
            close(want[3] * 2 + row:double() * 0.5, lm.addmm(row, a[3], b[3], {alpha = 2, beta = 0.5}), what)
            close(want * 2 + a:bmm(b):double() * 0.5, lm.baddbmm(a:bmm(b), a, b, {alpha = 2, beta = 0.5}), what)
          end
        end
      end
    end)
  end

  it("of few terms have NaN and infinity in their own rows alone", function()
    for k = 1, 40 do
      local a, x = lm.ones(37, k), lm.ones(k)
      a[5]:narrow(1, k, 1):fill_(0 / 0)
      a[7]:narrow(1, 1, 1):fill_(math.huge)
      local got = a:mv(x)
      assert.equal(35 * k, got[{{1, 4}}]:sum():item() + got[{{6, 6}}]:sum():item() + got[{{8, 37}}]:sum():item())
      assert.is_true(got[{{5, 5}}]:isnan():all():item() and got[{{7, 7}}]:eq(math.huge):all():item())
      local b = lm.ones(k, 6)
      b:narrow(2, 6, 1):fill_(math.huge)
      got = a:mm(b)
      assert.equal(5 * k, got[8]:narrow(1, 1, 5):sum():item())
    end
  end)

  for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
    it("are the same bits with any number of threads #unsanitized: " .. dtype, function()
      local before = lm.get_num_threads()
      finally(function() lm.set_num_threads(before) end)
      for _, s in ipairs {
        {300, 310, 320}, {31, 17, 9000}, {16, 700, 600}, {5, 4000, 300}, {4000, 5, 300}, {700, 33, 530}, {90, 901, 531},
        {9001, 1, 10}, {9001, 1, 3}, {5001, 5, 12}, {2, 3, 9001}, {1, 3001, 100}, {64, 1024, 140},
      } do
        local m, n, k = s[1], s[2], s[3]
        for how, a in pairs(layouts(m, k, dtype)) do
          for other, b in pairs(layouts(k, n, dtype)) do
            local bias, want = lm.ones({n}, {dtype = dtype}), nil
            for threads = 1, 5 do
              lm.set_num_threads(threads)
              local got = lm.addmm(bias, a, b, {alpha = 0.7, beta = 0.3})
              want = want or got
              assert.is_true(lm.equal(want, got), ("%s [%d, %d] x [%d, %d], %s and %s, %d threads"):format(
                dtype, m, k, k, n, how, other, threads))
            end
          end
        end
      end
      local x, y, want = lm.randn({40, 70, 90}, {dtype = dtype}), lm.randn({40, 90, 50}, {dtype = dtype}), nil
      for threads = 1, 3 do
        lm.set_num_threads(threads)
        local got = x:bmm(y)
        want = want or got
        assert.is_true(lm.equal(want, got), ("batches on %d threads"):format(threads))
        assert.is_true(lm.equal(want[40], x[40]:mm(y[40])), "a member of a batch")
      end
      for _, size in ipairs {{4, 4, 4}, {3, 5, 1}, {1, 6, 3}} do
        x, y = lm.randn({9001, size[1], size[2]}, {dtype = dtype}), lm.randn({9001, size[2], size[3]}, {dtype = dtype})
        want = nil
        for threads = 1, 4 do
          lm.set_num_threads(threads)
          local got = x:bmm(y)
          want = want or got
          assert.is_true(lm.equal(want, got), ("small batches on %d threads"):format(threads))
        end
      end
    end)
  end

  it("and its sums are 0 over no terms", function()
    local y, sums = lm.ops.mm_with_sums(lm.ones(8, 0), lm.ones(0, 16))
    assert.is_true(y:equal(lm.zeros(8, 16)) and sums:equal(lm.zeros(8)))
  end)

  it("does not read the factors where alpha is 0", function()
    for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
      for _, n in ipairs {1, 2, 8, 9, 300} do
        local a = lm.full({n, n}, 0 / 0, {dtype = dtype})
        for _, x in ipairs {a, a:t()} do
          local got = lm.addmm(lm.ones({n, n}, {dtype = dtype}), x, a, {alpha = 0})
          assert.equal(n * n, got:double():sum():item(), ("%s %d"):format(dtype, n))
        end
      end
    end
  end)
end)
