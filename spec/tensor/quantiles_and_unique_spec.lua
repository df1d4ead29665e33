-- Functions made of sorting, scans and counts: diff, mode, quantiles, distinct elements, histograms, covariance.
-- Expected values are PyTorch's, positions and labels counting from 1.
local lm = require "luminary"
local nan, inf = 0 / 0, math.huge

local function int(values) return lm.tensor(values, { dtype = "int64" }) end
local function gives(want, got, what)
  what = what or "result"
  assert.equal(want.dtype, got.dtype, what)
  assert.equal(table.concat(want.shape, ","), table.concat(got.shape, ","), what)
  local near = lm.allclose(got, want, { rtol = 1e-5, atol = 1e-6, equal_nan = true })
  assert(near, ("%s: %s instead of %s"):format(what, tostring(got), tostring(want)))
end
local function message(pattern, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  assert(tostring(why):find(pattern), ("%s: no match for %s"):format(tostring(why), pattern))
end
local function in_double(f, ...)
  local inputs = { ... }
  for i, x in ipairs(inputs) do inputs[i] = x:double():requires_grad_() end
  lm.autograd.gradcheck(f, inputs)
  lm.autograd.gradgradcheck(f, inputs)
end

describe("diff", function()
  it("takes what comes before from each, n times over, after what is joined to it", function()
    local x = lm.tensor { { 1, 4, 9, 16 }, { 2, 3, 5, 8 } }
    gives(lm.tensor { { 3, 5, 7 }, { 1, 2, 3 } }, x:diff())
    gives(lm.tensor { { 2, 2 }, { 1, 1 } }, lm.diff(x, 2))
    gives(lm.tensor { { 1, -1, -4, -8 } }, x:diff(1, 1))
    gives(lm.tensor { { 1, 3, 5, 7, -16 }, { 2, 1, 2, 3, -8 } },
      x:diff { prepend = lm.zeros(2, 1), append = lm.zeros(2, 1) })
    gives(lm.zeros(2, 0), x:diff(9))
    gives(x, x:diff(0))
    gives(lm.tensor { true, false }, lm.tensor({ true, false, false }):diff())
    in_double(function(y) return y:diff(2, 2) end, x)
  end)
  it("refuses what is no list", function()
    message("diff: x must be a tensor of at least 1 dim, got a tensor %[%]", lm.diff, lm.zeros({}))
    message("diff: dim must be from 1 to 2 or from %-2 to %-1, got 3", lm.diff, lm.zeros(2, 2), 1, 3)
    message("diff: n must be an integer of at least 0, got %-1", lm.diff, lm.zeros(2), -1)
  end)
end)

describe("mode", function()
  it("is the element there most often, the smallest of such", function()
    local values, indices = lm.tensor({ { 3, 1, 3, 2, 1 }, { 5, 5, 4, 4, 4 } }):mode()
    gives(lm.tensor { 1, 4 }, values)
    gives(int { 5, 5 }, indices)
    values, indices = int({ { 2, 7 }, { 2, 6 }, { 3, 6 } }):mode(1, { keepdim = true })
    gives(int { { 2, 6 } }, values)
    gives(int { { 2, 3 } }, indices)
    gives(lm.tensor(7), (lm.tensor(7):mode()))
    local x = lm.tensor({ { 3, 1 }, { 3, 2 }, { 5, 2 } }):requires_grad_()
    x:mode(1):sum():backward()
    gives(lm.tensor { { 0, 0 }, { 1, 0 }, { 0, 1 } }, x.grad)
    message("mode: dim 2 of a tensor %[2, 0%] is empty", lm.mode, lm.zeros(2, 0))
  end)
end)

describe("quantile", function()
  local x
  before_each(function() x = lm.tensor { { 4, 1, 3, 2 }, { 8, nan, 6, 5 } } end)
  after_each(function() x = nil end)

  it("lies between two elements, by every way of interpolation", function()
    local row = x:select(1, 1)
    for way, want in pairs { linear = 2.2, lower = 2, higher = 3, midpoint = 2.5, nearest = 2 } do
      gives(lm.tensor(want), row:quantile(0.4, { interpolation = way }), way)
    end
    gives(lm.tensor { 1, 2.5, 4 }, row:quantile { q = lm.tensor { 0, 0.5, 1 } })
    gives(lm.tensor(2), lm.tensor(2):quantile(0.3))
    in_double(function(y) return y:quantile(0.4, 1), y:quantile(lm.tensor({ 0.1, 0.7 }, { dtype = "float64" })) end,
      lm.tensor { { 4, 1 }, { 3, 2 }, { 8, 7 } })
  end)
  it("is NaN at an infinity, by a number and by a tensor", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local with_inf = lm.tensor({ 1, 2, math.huge, 3 }, { dtype = dtype })
      for _, case in ipairs { { "linear", 0.5, 2.5 }, { "linear", 0.9 }, { "linear", 1 }, { "midpoint", 0.5, 2.5 },
        { "midpoint", 1 }, { "lower", 0.9, 3 }, { "lower", 1, math.huge }, { "higher", 0.9, math.huge },
        { "higher", 1, math.huge }, { "nearest", 0.9, math.huge }, { "nearest", 1, math.huge } } do
        for _, q in ipairs { case[2], lm.tensor({ case[2] }, { dtype = dtype }) } do
          local got = with_inf:quantile(q, { interpolation = case[1] }):item()
          assert(case[3] and got == case[3] or not case[3] and got ~= got, ("%s %g: %g"):format(case[1], case[2], got))
        end
      end
    end
  end)

  it("goes along a dim; q's own comes first", function()
    gives(lm.tensor { 2.5, nan }, x:quantile(0.5, 2))
    gives(lm.tensor { 2.5, 6 }, x:nanquantile(0.5, 2))
    gives(lm.tensor { { { 1 }, { nan } }, { { 4 }, { nan } } }, x:quantile({ 0, 1 }, 2, { keepdim = true }))
    gives(lm.tensor { { 4, 1, 3, 2 }, { 8, 1, 6, 5 } }, x:nanquantile({ 0, 1 }, 1))
    gives(lm.tensor { { 4 } }, x:nanquantile(0.5, { keepdim = true }))
    gives(lm.tensor(nan), lm.tensor({ nan, nan }):nanquantile(0.5))
  end)
  it("refuses what has no quantiles", function()
    message("quantile: x must be float32 or float64, got int64", lm.quantile, int { 1 }, 0.5)
    message("quantile: q must be from 0 to 1, got 1.5", lm.quantile, x, 1.5)
    message("quantile: x must be a tensor with elements, got a tensor %[0%]", lm.quantile, lm.zeros(0), 0.5)
    message("quantile: interpolation.*midpoint", lm.quantile, x, 0.5, { interpolation = "cubic" })
    message("nanquantile: dim must be from 1 to 2 or from %-2 to %-1, got 3", lm.nanquantile, x, 0.5, 3)
    message("quantile: q must be a number or a 1%-d tensor of dtype float32, got", lm.quantile, x, lm.zeros(2, 2))
  end)
end)

describe("unique", function()
  it("has each element once, in order, where it is and how often", function()
    local values, inverse, counts = int({ { 3, 1 }, { 3, 2 } }):unique { return_inverse = true, return_counts = true }
    gives(int { 1, 2, 3 }, values)
    gives(int { { 3, 1 }, { 3, 2 } }, inverse)
    gives(int { 1, 1, 2 }, counts)
    values, counts = lm.unique(lm.tensor { true, false, true }, { return_counts = true })
    gives(lm.tensor { false, true }, values)
    gives(int { 1, 2 }, counts)
    gives(lm.tensor { -inf, 1, nan, nan }, (lm.tensor({ nan, 1, -inf, nan, 1 }):unique()))
    values, inverse, counts = lm.zeros(0):unique { return_inverse = true, return_counts = true }
    gives(lm.zeros(0), values)
    gives(int {}, inverse)
    gives(int {}, counts)
  end)
  it("has each entry of a dim once, by the first elements that differ", function()
    local x = lm.tensor { { 2, 1, 9 }, { 1, 5, 0 }, { 2, 1, 3 }, { 1, 5, 0 } }
    local values, inverse, counts = x:unique { dim = 1, return_inverse = true, return_counts = true }
    gives(lm.tensor { { 1, 5, 0 }, { 2, 1, 3 }, { 2, 1, 9 } }, values)
    gives(int { 3, 1, 2, 1 }, inverse)
    gives(int { 2, 1, 1 }, counts)
    gives(lm.tensor { { 1, 2 }, { 3, 4 } }, (lm.tensor({ { 2, 1, 2 }, { 4, 3, 4 } }):unique { dim = 2 }))
    local many = lm.cat({ lm.zeros(3, 40), lm.tensor { { 2 }, { 1 }, { 2 } } }, 2)
    gives(many:index_select(1, int { 2, 1 }), (many:unique { dim = 1 }))
  end)
  it("consecutive looks at neighbours alone", function()
    local x = int { 1, 1, 2, 2, 2, 1 }
    local values, inverse, counts = x:unique_consecutive { return_inverse = true, return_counts = true }
    gives(int { 1, 2, 1 }, values)
    gives(int { 1, 1, 2, 2, 2, 3 }, inverse)
    gives(int { 2, 3, 1 }, counts)
    gives(int { { 1 }, { 2 }, { 1 } }, (int({ { 1 }, { 1 }, { 2 }, { 1 } }):unique_consecutive { dim = 1 }))
  end)
  it("refuses dims that are not there", function()
    message("unique: dim must be 1 or %-1, got 2", lm.unique, lm.zeros(3), { dim = 2 })
    message("unique: cannot compare slices along dim 1 of a tensor %[2, 0%],", lm.unique, lm.zeros(2, 0), { dim = 1 })
    message("unique: unknown option 'return_count'", lm.unique, lm.zeros(2), { return_count = true })
  end)
end)

describe("isin", function()
  it("says which elements are among others", function()
    local x = int { { 1, 2 }, { 3, 4 } }
    gives(lm.tensor { { false, true }, { false, true } }, lm.isin(x, int { 4, 2, 9 }))
    gives(lm.tensor { { true, false }, { true, false } }, x:isin(int { 4, 2, 9 }, { invert = true }))
    gives(lm.tensor { { false, true }, { false, false } }, lm.isin(x, 2))
    gives(lm.tensor(true), lm.isin(3, x))
    gives(lm.zeros({ 2, 2 }, { dtype = "bool" }), lm.isin(x, int {}))
    gives(lm.tensor { false, true }, lm.isin(lm.tensor { nan, 1 }, lm.tensor { nan, 1 }))
    message("isin: elements must be a tensor, got 2", lm.isin, 1, 2)
  end)
end)

describe("bincount and histc", function()
  it("count labels from 1, or sum up their weights", function()
    local x = int { 1, 3, 3, 5 }
    gives(int { 1, 0, 2, 0, 1 }, x:bincount())
    gives(int { 1, 0, 2, 0, 1, 0, 0 }, lm.bincount(x, { minlength = 7 }))
    gives(lm.tensor { 0.5, 0, 3, 0, 4 }, x:bincount { weights = lm.tensor { 0.5, 1, 2, 4 } })
    gives(lm.tensor({ 1, 0, 5, 0, 4 }, { dtype = "float64" }), x:bincount { weights = int { 1, 2, 3, 4 } })
    gives(int { 0, 0 }, int({}):bincount { minlength = 2 })
    local many = lm.randint(1, 31, { 300000 }) -- threads share this sort
    local by_value = lm.sort(many)
    local ends = lm.searchsorted(by_value, lm.arange(1, 31, { dtype = "int64" }), { right = true })
    gives(many:bincount():cumsum(1) + 1, ends)
    local ones = lm.ones({ 300000 }, { dtype = "int32" })
    local counts = lm.full({ 30 }, 5, { dtype = "int32" }):scatter_add(1, many, ones)
    gives((many:bincount() + 5):int(), counts)
    message("bincount: x must be at least 1, got 0", lm.bincount, int { 0, 1 })
    message("bincount: x must be 1%-d and integer, got float32 a tensor %[2%]", lm.bincount, lm.zeros(2))
    message("bincount: shapes of weights and x must match, got %[2%] and", lm.bincount, x, { weights = lm.zeros(2) })
  end)
  it("count equal numbers in the middle, also where bins beside them have no width", function()
    for _, case in ipairs { { 3e38, "float32" }, { -3e38, "bfloat16" }, { 1e17, "float64" }, { 1e17, "float32" },
      { 60000, "float16" }, { 2, "float32" }, { 0, "float16" } } do
      local x = lm.full({ 4 }, case[1], { dtype = case[2] })
      assert.same({ 0, 0, 4, 0, 0 }, lm.histc(x, 5):totable())
      assert.same({ 0, 0, 4, 0 }, lm.histc(x, 4):totable())
    end
  end)

  it("count what falls between bounds", function()
    local x = lm.tensor { 0, 1, 1.5, 2, 4, nan, 5 }
    gives(lm.tensor { 1, 2, 1, 1 }, x:histc(4, 0, 4))
    gives(lm.tensor { 2, 0, 0, 1 }, lm.tensor({ 1, 1, 2 }):histc(4))
    gives(lm.tensor { 0, 2 }, lm.tensor({ 3, 3 }):histc(2))
    gives(lm.zeros(3), lm.zeros(0):histc { bins = 3 })
    message("histc: min and max must be finite and in ascending order, got 2 and 1", lm.histc, x, 4, 2, 1)
    message("histc: x must be floating, got int64", lm.histc, int { 1 }, 4)
    message("histc: bins must be an integer of at least 1, got 0", lm.histc, x, 0)
  end)
end)

describe("cov and corrcoef", function()
  it("are of rows", function()
    local x = lm.tensor { { 0, 1, 2, 5 }, { 2, 1, 0, 3 } }
    gives(lm.tensor { { 4.6666667, 1.3333333 }, { 1.3333333, 1.6666667 } }, x:cov())
    gives(lm.tensor { { 3.5, 1 }, { 1, 1.25 } }, lm.cov(x, { correction = 0 }))
    gives(lm.tensor { { 1, 0.4780914 }, { 0.4780914, 1 } }, x:corrcoef())
    gives(lm.tensor(4.6666667), x:select(1, 1):cov())
    gives(lm.tensor { { 4.6666667, 1.7333333 }, { 1.7333333, 1.4666667 } }, x:cov { fweights = int { 1, 2, 1, 2 } })
    in_double(function(y) return y:cov(), y:corrcoef() end, x)
    message("cov: expected x to have shape %[variables, observations%], got %[1, 1, 1%]", lm.cov, lm.zeros(1, 1, 1))
    message("cov: expected aweights to have shape %[4%], got %[3%]", lm.cov, x, { aweights = lm.ones(3) })
  end)
end)

describe("sorting, scans and medians of many elements", function()
  it("are those of few", function()
    lm.manual_seed(3)
    local x = lm.randn(3, 70000)
    local values, places = x:sort(2)
    assert.is_true(lm.ge(values:diff(), 0):all():item())
    gives(values, x:gather(2, places))
    gives(lm.arange(1, 70001):long(), (places:select(1, 2):sort()))
    local few = int({ 2, 1, 3 }):repeat_tensor(40000)
    values, places = few:sort { descending = true }
    assert.equal(40000, few:eq(3):sum():item())
    gives(lm.ones({ 39999 }, { dtype = "int64" }) * 3, places:narrow(1, 1, 40000):diff(), "equal ones keep their order")
    assert.equal(2, values[40001])
    gives(x:sort(2):select(2, 35000), (x:median(2)))
    gives(x:sort(2):select(2, 69), (x:kthvalue(69, 2)))
    gives(x:double():cumsum(2):float(), x:cumsum(2))
    gives(x:double():cumsum(2), x:double():t():contiguous():cumsum(1):t())
    local long = lm.ones(200000):cumsum(1)
    gives(lm.arange(1, 200001):float(), long)
    gives(lm.ones(200000):cumsum(1, { reverse = true }), lm.arange(200000, 0, -1):float())
  end)
  it("take median with dim or without, nanmedian too", function()
    local x = lm.tensor { { 1, nan, 3 }, { 5, 4, 6 } }
    gives(lm.tensor(nan), x:median())
    gives(lm.tensor(4), x:nanmedian())
    local values, indices = x:median(2)
    gives(lm.tensor { nan, 5 }, values)
    gives(int { 2, 1 }, indices)
    gives(lm.tensor { 1, 5 }, (x:nanmedian(2)))
    local sorter = int { 2, 3, 1 }
    gives(int { { 1, 3 } }, lm.searchsorted(lm.tensor { 3, 1, 2 }, lm.tensor { { 0, 3 } }, { sorter = sorter }))
    local y = lm.tensor { 1, 2, 3 }
    gives(lm.tensor { 1, 3, 6 }, y:cumsum_(1))
    gives(lm.tensor { 1, 3, 18 }, y:cumprod_(1))
    gives(lm.tensor { 1, 3, 18 }, y)
    gives(int { 2, 5 }, lm.searchsorted(lm.tensor { 1, 2, nan, nan }, lm.tensor { 1.5, nan }), "NaN is the largest")
    gives(int { 2 }, lm.searchsorted(lm.tensor { 1, 2 }, lm.tensor { 1 }, { side = "right" }))
  end)
end)

describe("numbers that are too far apart", function()
  it("are told of", function()
    local function told(text, f, ...)
      local ok, problem = pcall(f, ...)
      assert(not ok and tostring(problem):find(text, 1, true), tostring(problem))
    end
    local x = lm.tensor { 1e38, -1e38, 3e38, -3e38 }
    told("histc: bins from -3e+38 to 3e+38 are out of the range of float32", x.histc, x, 3)
    local labels = lm.tensor({ 9e18 }, { dtype = "int64" })
    told("bincount: x must be at most 2^40, got 9e+18", labels.bincount, labels)
    told("rfftn: dim must be a number or a list of numbers, got string 'a'", lm.fft.rfftn, x, nil, "a")
    told("fftshift: dim[1] must be an integer, got string 'a'", lm.fft.fftshift, x, { "a" })
    told("norm: dim must be a number or a list of numbers, got true", lm.linalg.norm, x, 2, true)
    told("matrix_rank: atol must be a number, got string 'a'", lm.linalg.matrix_rank, lm.eye(2), nil, "a")
  end)
end)

describe("integrals and histograms", function()
  it("trapezoid and cumulative_trapezoid, over samples apart by one number or at places", function()
    local y, x = lm.tensor { { 1, 2, 4 }, { 0, 3, 1 } }, lm.tensor { 0, 1, 4 }
    gives(lm.tensor { 10.5, 7.5 }, lm.trapezoid(y, x))
    gives(lm.tensor { 1, 5, 5 }, lm.trapezoid(y, { dx = 2, dim = 1 }))
    gives(lm.tensor { { 1.5, 10.5 }, { 1.5, 7.5 } }, lm.cumulative_trapezoid(y, x))
    gives(lm.tensor { { 1.5, 10.5 }, { 1.5, 7.5 } }, lm.cumulative_trapezoid(y, x:expand(2, 3)))
    gives(lm.tensor(4.5), lm.trapz(int { 1, 2, 4 }))
    gives(lm.zeros(2), lm.trapezoid(lm.zeros(2, 0)))
    in_double(lm.trapezoid, y, x)
    message("trapezoid: x is a tensor %[2%], y is a tensor %[2, 3%]; expected one value", lm.trapezoid, y, lm.ones(2))
    message("trapz: x and dx are mutually exclusive", lm.trapz, y, x, { dx = 1 })
    message("cumulative_trapezoid: y must be a tensor of at least 1 dim, got a", lm.cumulative_trapezoid, lm.ones({}))
  end)

  it("histogram, over a range or between edges, weighted and as a density", function()
    local x = lm.tensor { 1, 2, 1, 5, nan }
    local counts, edges = lm.histogram(x, 3, { range = { 1, 4 }, weight = lm.tensor { 1, 2, 3, 4, 5 }, density = true })
    gives(lm.tensor { 2 / 3, 1 / 3, 0 }, counts)
    gives(lm.tensor { 1, 2, 3, 4 }, edges)
    counts, edges = x:narrow(1, 1, 3):histogram(2)
    gives(lm.tensor { 2, 1 }, counts)
    gives(lm.tensor { 1, 1.5, 2 }, edges)
    gives(lm.tensor { 0, 2 }, (lm.histogram(lm.tensor { 3, 3 }, 2)))
    gives(lm.tensor { 1, 3 }, (lm.histogram(lm.tensor { 1, 2, 2.5, 4 }, lm.tensor { 1, 2, 4 })))
    gives(lm.zeros(2), (lm.histogram(lm.zeros(0), 2)))
    message("histogram: x must be float32 or float64, got int64", lm.histogram, int { 1 }, 2)
    message("histogram: range must be a list of two numbers, got 3", lm.histogram, x, 2, { range = 3 })
    message("histogram: bins must be an integer of at least 1, got 0", lm.histogram, x, 0)
    message("histogram: weight must have the dtype and shape of x, float32 a tensor %[5%], got float32 a tensor %[2%]",
      lm.histogram, x, 2, { range = { 0, 1 }, weight = lm.ones(2) })
  end)

  it("renorm and logspace", function()
    local x = lm.tensor { { 3, 4 }, { 0.3, 0.4 } }
    gives(lm.tensor { { 0.6, 0.8 }, { 0.3, 0.4 } }, lm.renorm(x, 2, 1, 1))
    in_double(function(y) return y:renorm(2, 1, 1) end, x)
    assert.equal(x, x:renorm_(inf, 2, 0.4))
    gives(lm.tensor { { 0.4, 0.4 }, { 0.04, 0.04 } }, x)
    message("renorm: x must be a tensor of at least 2 dims, got a tensor %[2%]", lm.renorm, lm.ones(2), 2, 1, 1)
    message("renorm: p must be above 0, got 0", lm.renorm, x, 0, 1, 1)
    gives(lm.tensor { 1, 10, 100 }, lm.logspace(0, 2, 3))
    gives(lm.tensor({ 1, 2, 4 }, { dtype = "float64" }), lm.logspace(0, 2, 3, { base = 2, dtype = "float64" }))
    message("logspace: steps must be an integer of at least 0, got %-1", lm.logspace, 0, 1, -1)
  end)
end)
