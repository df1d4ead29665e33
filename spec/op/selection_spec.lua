-- Kernels that find and order elements, beside plain loops over odd lengths: the vectors' tails, ties, NaN, and rows
-- that begin within what is looked at together.
local lm = require "luminary"
local nan = 0 / 0

local lengths = { 1, 2, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 100, 130, 257 }
local function same(got, expected, what)
  for k = 1, #expected do
    local a, b = got[k], expected[k]
    assert(a == b or (a ~= a and b ~= b),
      ("%s: element %d is %s, expected %s"):format(what, k, tostring(a), tostring(b)))
  end
  assert.equal(#expected, #got)
end
-- Returns few different values, so that many are equal; some NaN with `odd`.
local function values(n, odd, few)
  local x = {}
  for k = 1, n do x[k] = odd and math.random(20) == 1 and nan or math.random(few or 9) - 5 end
  return x
end

describe("extremes", function()
  it("of rows of any length, NaN or not", function()
    for _, n in ipairs(lengths) do
      for _, dtype in ipairs { "float32", "float64" } do
        for _, odd in ipairs { false, true } do
          local x = values(n, odd, 1000)
          local low, high = x[1], x[1]
          for k = 2, n do
            if low == low and (x[k] < low or x[k] ~= x[k]) then low = x[k] end
            if high == high and (x[k] > high or x[k] ~= x[k]) then high = x[k] end
          end
          local t = lm.tensor(x, { dtype = dtype })
          same({ t:amin():item(), t:amax(-1):item() }, { low, high }, ("%s of %d"):format(dtype, n))
        end
      end
    end
  end)

  it("are found at each place, in the last vector too", function()
    for _, n in ipairs(lengths) do
      for at = 1, n do
        local x = lm.zeros(n)
        x[at] = 1
        assert.equal(1, x:amax():item())
        assert.equal(-1, (-x):amin():item())
        x[at] = nan
        assert(x:amax():item() ~= x:amax():item(), ("NaN at %d of %d"):format(at, n))
      end
    end
  end)

  it("so far, with the last of equal positions", function()
    for _, n in ipairs(lengths) do
      for _, dtype in ipairs { "float32", "float64", "int64" } do
        local x = values(n, dtype ~= "int64", n % 2 == 0 and 9 or 1e6)
        local tops, places, best, place = {}, {}, nil, nil
        for k = 1, n do
          if k == 1 or x[k] ~= x[k] or x[k] >= best then best, place = x[k], k end
          tops[k], places[k] = best, place
        end
        local y, from = lm.tensor(x, { dtype = dtype }):cummax(1)
        same(y:tolist(), tops, "cummax")
        same(from:tolist(), places, "positions")
        local z, down = (-lm.tensor(x, { dtype = dtype })):cummin(1)
        same((-z):tolist(), tops, "cummin")
        same(down:tolist(), places, "positions")
      end
    end
  end)

  it("so far are the same where the result goes past the caches", function()
    local x = lm.rand(3, 1500001)
    local y, from = x:cummax(-1)
    assert(y:equal(x:gather(-1, from)))
    assert(y[{ {}, { 2, -1 } }]:ge(x[{ {}, { 2, -1 } }]):all():item())
    assert(y[{ {}, { 2, -1 } }]:ge(y[{ {}, { 1, -2 } }]):all():item())
  end)
end)

describe("rows picked by indices", function()
  local function check(x, index, got, what)
    same(got:flatten():tolist(), (function()
      local all, rows = {}, x:totable()
      for _, k in ipairs(index:flatten():tolist()) do
        for _, v in ipairs(rows[k]) do all[#all + 1] = v end
      end
      return all
    end)(), what)
  end

  it("are those, for rows of any length, apart from each other or not", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "int8", "bool" } do
      for _, width in ipairs { 1, 2, 15, 33, 257, 700 } do
        local wide = lm.randint(-9, 9, { 23, width + 5 }):to(dtype)
        for n = 1, 61, 30 do
          local index = lm.randint(1, 24, { n })
          for _, x in ipairs { wide:narrow(2, 3, width), wide:narrow(2, 3, width):contiguous() } do
            local what = ("%s of %d by %d"):format(dtype, width, n)
            check(x, index, x:index_select(1, index), what)
            check(x, index, x[index], what)
            if dtype:find "float" then check(x, index, lm.nn.functional.embedding(index, x), what) end
          end
          check(wide, index, wide:t():index_select(2, index):t(), "columns")
        end
      end
    end
    local many, index = lm.randn(300, 67), lm.randint(1, 301, { 5000 })
    many[7] = nan
    check(many, index, many:index_select(1, index), "on all threads")
    check(many, index, many:index_select(1, index:expand(2, 5000)[1]), "on all threads")
    local threads = lm.get_num_threads()
    lm.set_num_threads(1)
    check(many, index, many:index_select(1, index), "on one")
    lm.set_num_threads(threads)
    assert.same({ 0, 67 }, many:index_select(1, index:narrow(1, 1, 0)).shape)
    assert.same({ 5000, 0 }, many:narrow(2, 1, 0):index_select(1, index).shape)
  end)

  it("are refused where an index is out of range, be it the last of many", function()
    local x = lm.randn(10, 3)
    for _, at in ipairs { 1, 5, 5000 } do
      for _, wrong in ipairs { 0, 11, -3, 2 ^ 40 } do
        local index = lm.ones({ 5000 }, { dtype = "int64" })
        index[at] = wrong
        assert.error_matches(function() x:index_select(1, index) end, "out of range")
        assert.error_matches(function() lm.nn.functional.embedding(index, x) end, "out of range")
      end
    end
  end)
end)

describe("positions", function()
  it("of true elements in any number of dims", function()
    for _, shape in ipairs { { 7 }, { 5, 1 }, { 1, 70 }, { 3, 33 }, { 40, 3 }, { 2, 3, 65 }, { 3, 1, 2, 9 },
      { 130, 130 } } do
      for _, share in ipairs { 0, 0.1, 0.9, 1 } do
        local mask = lm.rand(shape):lt(share)
        local flat, rows = mask:flatten():tolist(), {}
        for k = 1, #flat do
          if flat[k] == true or flat[k] == 1 then
            local row, rest = {}, k - 1
            for d = #shape, 1, -1 do row[d], rest = rest % shape[d] + 1, math.floor(rest / shape[d]) end
            for d = 1, #shape do rows[#rows + 1] = row[d] end
          end
        end
        same(mask:nonzero():flatten():tolist(), rows, table.concat(shape, "x"))
        local x = lm.rand(shape)
        same(x:masked_select(mask):tolist(), (function()
          local kept, all = {}, x:flatten():tolist()
          for k = 1, #flat do if flat[k] == true or flat[k] == 1 then kept[#kept + 1] = all[k] end end
          return kept
        end)(), "masked_select")
      end
    end
  end)

  it("in sorted rows, of NaN and of equal ones", function()
    for _, n in ipairs(lengths) do
      for _, dtype in ipairs { "float32", "float64", "int64" } do
        local sorted, v = values(n, false, 30), values(21, dtype ~= "int64", 40)
        table.sort(sorted)
        for _, right in ipairs { false, true } do
          local expected = {}
          for k, wanted in ipairs(v) do
            local at = 1
            while at <= n and (wanted ~= wanted or sorted[at] < wanted or right and sorted[at] == wanted) do
              at = at + 1
            end
            expected[k] = at
          end
          local rows, wanted = lm.tensor(sorted, { dtype = dtype }), lm.tensor(v, { dtype = dtype })
          same(lm.searchsorted(rows, wanted, { right = right }):tolist(), expected, dtype)
        end
      end
    end
  end)

  it("of labels, one in each row, whichever thread writes it", function()
    for _, size in ipairs {{0, 3}, {1, 1}, {5, 1}, {1, 7}, {3000, 37}, {20, 30000}} do
      local n, classes = unpack(size)
      local labels = n > 0 and lm.randint(1, classes + 1, {n}) or lm.zeros(0, {dtype = "int64"})
      local want = labels:unsqueeze(-1):eq(lm.arange(1, classes + 1)):long()
      lm.randint(1, 100, {n, classes}) -- the next result may have this memory
      assert.is_true(lm.equal(want, lm.one_hot(labels, classes)), n .. " labels of " .. classes)
    end
    assert.error_matches(function() lm.one_hot(lm.tensor({1, 2, 4}, {dtype = "int64"}), 3) end,
      "label 4 at position 3 is out of range", 1, true)
  end)

  it("of few elements in order, equal ones as they were", function()
    for n = 1, 70 do
      for _, dtype in ipairs { "float32", "float64", "int64", "int16" } do
        for _, few in ipairs { 5, 10000 } do
          local x, order = values(n, dtype:find "float" and few == 5, few), {}
          for k = 1, n do order[k] = k end
          table.sort(order, function(a, b)
            if x[a] == x[b] or (x[a] ~= x[a] and x[b] ~= x[b]) then return a < b end
            return x[b] ~= x[b] or x[a] < x[b]
          end)
          local t = lm.tensor(x, { dtype = dtype })
          same(t:argsort(1, { stable = true }):tolist(), order, ("%s, %d"):format(dtype, n))
          local columns = lm.stack({ t, t }, 2)
          same(select(2, columns:sort(1)):select(2, 2):contiguous():tolist(), order, "columns")
        end
      end
    end
  end)
end)

describe("filling", function()
  it("writes every element of any dtype and layout, and no other", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
      "bool" } do
      for _, n in ipairs { 1, 15, 513, 5001 } do
        local x = lm.zeros({ n + 2 }, { dtype = dtype })
        x:narrow(1, 2, n):fill_(1)
        local list = x:to("float64"):tolist()
        assert(list[1] == 0 and list[n + 2] == 0 and x:to("float64"):sum():item() == n, dtype .. " of " .. n)
      end
      local t = lm.zeros({ 9, 70 }, { dtype = dtype })
      t:t():narrow(1, 3, 11):fill_(1)
      assert.equal(99, t:to("float64"):sum():item())
    end
    local x = lm.tensor { 1, 2, 3 }
    assert.same({ 2, 2, 2 }, x:fill_(x[2]):tolist())
  end)
end)

describe("Fourier transforms", function()
  it("of lengths with factors 7, 11 and 13 are the sums that define them", function()
    for _, n in ipairs { 7, 11, 13, 14, 22, 39, 49, 77, 91, 121, 143, 169 } do
      local x, k = lm.randn({ 3, n, 2 }, { dtype = "float64" }), lm.arange(0, n, { dtype = "float64" })
      local angle = k:unsqueeze(2) * k:unsqueeze(1) * (-2 * math.pi / n)
      local re, im = x:select(3, 1), x:select(3, 2)
      local c, s = angle:cos(), angle:sin()
      local expected = lm.stack({ re:mm(c) - im:mm(s), re:mm(s) + im:mm(c) }, 3)
      assert(lm.allclose(lm.fft.fft(x), expected, { rtol = 1e-10, atol = 1e-10 }), "length " .. n)
      assert(lm.allclose(lm.fft.ifft(lm.fft.fft(x:float())), x:float(), { rtol = 1e-4, atol = 1e-5 }), "back " .. n)
    end
  end)
end)

describe("sums by index in half precision", function()
  for _, dtype in ipairs { "float16", "bfloat16" } do
    -- Returns the greatest difference from the sums in float64, in ulps at the greatest sum.
    local function ulps(y, exact)
      local ulp = dtype == "float16" and 2 ^ -10 or 2 ^ -7
      return (y:double() - exact):abs():max():item() / (exact:abs():max():item() * ulp)
    end

    it("round once, of " .. dtype .. ", in a table of more entries than are named", function()
      lm.manual_seed(3)
      local index = lm.randint(1, 9, { 200 }):mul(5) -- each entry many times
      for _, entry in ipairs { {}, { 1 }, { 7 }, { 3, 5 } } do
        local src = lm.randn(200, unpack(entry)):to(dtype)
        for _, x in ipairs { lm.randn(500, unpack(entry)):to(dtype), lm.randn(100, unpack(entry)):to(dtype) } do
          local exact = x:double():index_add(1, index, src:double())
          assert.is_true(ulps(x:index_add(1, index, src), exact) <= 1)
          assert.is_true(ulps(lm.stack({ x, x }, -1):select(-1, 1):index_add(1, index, src), exact) <= 1)
        end
      end
      for _, padding in ipairs { 0, 10 } do
        local weight = lm.randn(500, 7):to(dtype):requires_grad_()
        local g = lm.randn(200, 7):to(dtype)
        lm.nn.functional.embedding(index, weight, { padding_idx = padding }):backward(g)
        local exact = lm.zeros(500, 7, { dtype = "float64" })
        exact:index_add_(1, index, g:double() * index:ne(padding):double():unsqueeze(2))
        assert.is_true(ulps(weight.grad, exact) <= 1)
      end
    end)

    it("need no copy of a " .. dtype .. " table in float32", function()
      local weight = lm.zeros(20000, 16, { dtype = dtype }):requires_grad_()
      local y = lm.nn.functional.embedding(lm.tensor({ 3, 19999, 3 }, { dtype = "int64" }), weight)
      collectgarbage()
      lm.reset_peak_memory_stats()
      local before = lm.max_memory_allocated()
      y:sum():backward()
      assert.is_true(lm.max_memory_allocated() - before < 1.5 * 20000 * 16 * 2)
    end)
  end
end)
