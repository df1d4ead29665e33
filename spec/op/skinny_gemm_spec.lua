-- Products of a few rows with a matrix, as a model of language asks for with each token.
local lm = require "luminary"

-- Expects that a product in 16 bits is that of the same numbers in float32, rounded.
local function near(want, got, what)
  local off = got:numel() > 0 and (got:float() - want):abs():max():item() or 0
  local largest = got:numel() > 0 and want:abs():max():item() or 0
  assert.is_true(off <= 0.005 * largest + 1e-4, ("%s: off by %g of %g"):format(what, off, largest))
end

describe("products of few rows", function()
  for _, dtype in ipairs {"bfloat16", "float16"} do
    it("are those of float32, rounded once: " .. dtype, function()
      for _, m in ipairs {1, 3, 8, 9} do
        for _, k in ipairs {0, 1, 33, 100} do
          for _, n in ipairs {15, 16, 17, 600} do
            local what = ("%s [%d, %d] x [%d, %d]"):format(dtype, m, k, k, n)
            local a, b, bias = lm.randn(m, k):to(dtype), lm.randn(k, n):to(dtype), lm.randn(n):to(dtype)
            local x, y, z = a:float(), b:float(), bias:float()
            near(x:mm(y), a:mm(b), what)
            near(x:mm(y), a:mm(b:t():contiguous():t()), what .. ", by columns")
            near(lm.addmm(z, x, y, {beta = 0.5, alpha = 2}), lm.addmm(bias, a, b, {beta = 0.5, alpha = 2}), what)
            near(lm.nn.functional.linear(x, y:t(), z), lm.nn.functional.linear(a, b:t(), bias), what)
            if k > 0 then
              near(x:mm(y), a:t():contiguous():t():mm(b), what .. ", A by columns")
              near(x:mm(y:narrow(2, 2, n - 1)), a:mm(b:narrow(2, 2, n - 1)), what .. ", part of a matrix")
              local c, d = a:expand(3, m, k), b:expand(3, k, n)
              near(c:float():bmm(d:float()), c:bmm(d), what .. ", 3 of them")
            end
          end
        end
      end
    end)
  end

  it("are the same of rows that are short and long", function()
    for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
      for _, k in ipairs {767, 768, 1535, 1536, 1537, 3001} do
        local x, weight = lm.randn(1, k):to(dtype), lm.randn(259, k):to(dtype)
        near(x:float():mm(weight:float():t()), x:mm(weight:t()), ("%s, %d long"):format(dtype, k))
      end
    end
  end)

  it("are the same bits in every run and with any number of threads", function()
    local before = lm.get_num_threads()
    local function same(what, product)
      lm.set_num_threads(1)
      local want = product()
      for _, threads in ipairs {2, 3, 2, 5} do
        lm.set_num_threads(threads)
        assert.is_true(lm.equal(want, product()), ("%s with %d threads"):format(what, threads))
      end
      lm.set_num_threads(before)
    end
    for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
      for _, m in ipairs {1, 2, 4, 7} do
        for _, size in ipairs {{130, 900}, {1000, 768}, {2111, 515}, {520, 4200}} do
          local k, n = unpack(size)
          local x, weight, bias = lm.randn(m, k):to(dtype), lm.randn(k, n):to(dtype), lm.randn(n):to(dtype)
          local what = ("%s [%d, %d] x [%d, %d]"):format(dtype, m, k, k, n)
          near(lm.addmm(bias:float(), x:float(), weight:float()), lm.addmm(bias, x, weight), what)
          same(what, function() return lm.addmm(bias, x, weight) end)
          local turned = weight:t():contiguous():t()
          if dtype ~= "float32" or m <= 4 then same(what .. " turned", function() return x:mm(turned) end) end
        end
      end
    end
    local x, int8 = lm.randn(1, 1000), lm.nn.Int8Linear(lm.randn(1003, 1000))
    same("int8", function() return int8(x) end)
  end)

  it("do not look at what is multiplied by 0", function()
    for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
      for _, m in ipairs {1, 4, 8, 9} do
        local x, bias = lm.full({m, 300}, 0 / 0, {dtype = dtype}), lm.ones({300}, {dtype = dtype})
        local got = lm.addmm(bias, x, lm.ones({300, 300}, {dtype = dtype}), {alpha = 0})
        assert.is_true(got:eq(1):all():item(), ("%s, %d rows"):format(dtype, m))
      end
    end
  end)

  it("are those of float64 in float32, too", function()
    for _, m in ipairs {1, 2, 3, 4, 5} do
      for _, k in ipairs {256, 301} do
        for _, n in ipairs {256, 4099} do
          local a, b, bias = lm.randn(m, k), lm.randn(k, n), lm.randn(n)
          local x, y, z = a:double(), b:double(), bias:double()
          local function close(want, got, what)
            local off = (got:double() - want):abs():max():item()
            assert.is_true(off < 1e-6 * k, ("[%d, %d] x [%d, %d]%s: off by %g"):format(m, k, k, n, what, off))
          end
          close(x:mm(y), a:mm(b), "")
          close(x:mm(y), a:mm(b:t():contiguous():t()), ", by columns")
          close(x:mm(y), a:t():contiguous():t():mm(b), ", A by columns")
          close(lm.addmm(z, x, y, {beta = 0.5, alpha = 2}), lm.addmm(bias, a, b, {beta = 0.5, alpha = 2}), " and bias")
          close(lm.nn.functional.linear(x, y:t(), z), lm.nn.functional.linear(a, b:t(), bias), " of a layer")
          close(x:mm(y:narrow(2, 2, n - 1)), a:mm(b:narrow(2, 2, n - 1)), ", part of a matrix")
        end
      end
    end
  end)

  it("take about as long as to read the matrix #time", function()
    local function least(dtype)
      local x, weight, best = lm.randn(1, 768):to(dtype), lm.randn(768, 2304):to(dtype), math.huge
      for _ = 1, 20 do
        local start = os.clock()
        for _ = 1, 5 do x:mm(weight) end
        best = math.min(best, os.clock() - start)
      end
      return best
    end
    local full = least "float32"
    for _, dtype in ipairs {"bfloat16", "float16"} do
      local half = least(dtype)
      assert.is_true(half < 4 * full, ("%s: %.2f of float32's time"):format(dtype, half / full))
    end
  end)
end)
