-- lm.distributions against torch.distributions, by random objects (scripts/dev/golden/gen_distributions.py).
local lm = require "luminary"
local cases = require "spec.support.distribution_cases"
local D = lm.distributions

describe("distributions, transforms, constraints and divergences", function()
  it("have PyTorch's values and gradients", function()
    local rows, numbers = cases.load "spec/golden/_distributions.safetensors"
    local counts, wrong, kinds = cases.counts(), {}, {}
    for i, row in ipairs(rows) do
      kinds[row.kind] = (kinds[row.kind] or 0) + 1
      for _, problem in ipairs(cases.check(row, numbers, counts)) do
        wrong[#wrong + 1] = ("%d %s"):format(i, problem)
      end
    end
    assert.same({}, wrong)
    assert(counts.checks > 1700 and counts.gradients > 1100, counts.checks .. " " .. counts.gradients)
    assert(kinds.kl == 96 and kinds.transform == 28 and kinds.constraint > 60 and kinds.distribution > 60)
  end)
end)

describe("the slope of a gamma's quantile", function()
  local function slope(a, y)
    return lm.core.ops.gamma_slope(lm.tensor(a, {dtype = "float64"}), lm.tensor(y, {dtype = "float64"})):item()
  end
  -- d log(x) / da at P(a, x) = p, by mpmath's incomplete gamma function with 50 digits: a, log(x), slope.
  it("is exact from 1e-3 to 1000", function()
    for _, row in ipairs {
      { 0.001, -400, 399424.42806819 }, { 0.001, 0.5, 418.814931635446 }, { 0.1, -5, 46.099624060856 },
      { 0.5, 1, 1.0351659134229 }, { 1, 0, 1.17356302722473 }, { 2.5, 0.3, 0.57165999143556 },
      { 8, 2, 0.132769144463165 }, { 20, 3.2, 0.0454440879792749 }, { 100, 4.5, 0.010552635019114 },
      { 1000, 6.95, 0.000979189531107627 },
    } do
      local got = slope(row[1], row[2])
      assert(math.abs(got / row[3] - 1) < 1e-12, ("%g, %g: %.15g"):format(row[1], row[2], got))
    end
  end)
  it("continues for large a, and below the least number", function()
    local below, above = slope(0.999e6, math.log(0.998e6)) * 0.998e6, slope(1.001e6, math.log(1.0e6)) * 1.0e6
    assert(math.abs(below - above) < 1e-5, below .. " " .. above)
    assert(math.abs(slope(1e-3, -800) / slope(1e-3, -700) - 800.5 / 700.5) < 1e-3)
  end)
end)

describe("the incomplete gamma function", function()
  it("continues for large shapes, as SciPy's", function()
    for _, row in ipairs {
      { 5e4, 5.02e4, 0.814533642938 }, { 2e6, 2.001e6, 0.760286560947 },
      { 2e6, 1.9995e6, 0.361914100661 }, { 3e7, 3e7, 0.500024278854 },
    } do
      local got = lm.igamma(lm.tensor(row[1], {dtype = "float64"}), lm.tensor(row[2], {dtype = "float64"})):item()
      assert(math.abs(got / row[3] - 1) < 1e-8, ("%g, %g: %.12g"):format(row[1], row[2], got))
    end
  end)
  it("has a complement that is exact where it is small, as SciPy's", function()
    for _, row in ipairs {
      { 0.5, 3.0, 0.01430587843543 }, { 2.0, 60.0, 5.341471565245e-25 },
      { 10.0, 200.0, 2.044095593581e-72 }, { 100.0, 180.0, 2.948294557648e-11 },
      { 50000.0, 52000.0, 5.270961229398e-19 }, { 2000000.0, 2010000.0, 8.351979541452e-13 },
      { 30000000.0, 30000000.0, 0.499975721146 }, { 3.0, 0.1, 0.9998453469297 }, { 0.0, 2.0, 0.0 },
      { 4.0, 0.0, 1.0 }, { 4.0, math.huge, 0.0 }, { math.huge, 4.0, 1.0 }, { 0.0, 0.0, 0 / 0 },
    } do
      local got = lm.igammac(lm.tensor(row[1], {dtype = "float64"}), lm.tensor(row[2], {dtype = "float64"})):item()
      assert(got == row[3] or got ~= got and row[3] ~= row[3] or math.abs(got / row[3] - 1) < 1e-8,
        ("%g, %g: %.12g"):format(row[1], row[2], got))
    end
  end)
  it("has gradients of both arguments", function()
    local a = lm.tensor({ 0.3, 1, 5, 40 }, {dtype = "float64", requires_grad = true})
    local x = lm.tensor({ 0.5, 0.2, 7, 39 }, {dtype = "float64", requires_grad = true})
    assert(lm.autograd.gradcheck(lm.igamma, { a, x }))
    assert(lm.autograd.gradcheck(lm.igammac, { a, x }))
    assert.same({ 0, 0 }, lm.autograd.grad(lm.igamma(a, x * 0):sum(), { a })[1]:narrow(1, 1, 2):totable())
  end)
end)

describe("the logarithm's tail in erfinv", function()
  it("is exact near 1, in float64", function() -- SciPy's values
    local got = lm.erfinv(lm.tensor({ 1 - 1e-10, 1 - 1e-13, 1 - 1e-15 }, {dtype = "float64"})):totable()
    for i, want in ipairs { 4.57282495854, 5.26148333137, 5.67591573974 } do
      assert(math.abs(got[i] - want) < 1e-8, got[i])
    end
  end)
end)

describe("a gradient through samples", function()
  -- Expects that the mean of dx/da over samples is the mean's derivative; the samples' own deviation bounds its error.
  local function agrees(name, make, x)
    lm.manual_seed(3)
    local sample = make(x):rsample {20000}
    local weights = sample.ndim > 2 and lm.arange(1, 4):double() or lm.tensor(1):double()
    local mean = lm.autograd.grad((sample * weights):sum() / 20000, {x})[1]
    local expected = lm.autograd.grad((make(x).mean * weights):sum(), {x})[1]
    assert((mean - expected):abs():le(0.05 * (1 + expected:abs())):all():item(),
      ("%s: %s instead of %s"):format(name, tostring(mean), tostring(expected)))
  end
  local function leaf(list) return lm.tensor(list, {dtype = "float64", requires_grad = true}) end
  it("of distributions made of gammas is that of their mean", function()
    agrees("Gamma", function(a) return D.Gamma(a, 2) end, leaf {0.3, 1, 4})
    agrees("Gamma's rate", function(b) return D.Gamma(3, b) end, leaf {0.7, 2})
    agrees("Chi2", function(a) return D.Chi2(a) end, leaf {0.5, 3})
    agrees("Beta", function(a) return D.Beta(a, 1.5) end, leaf {0.4, 2, 5})
    agrees("Dirichlet", function(a) return D.Dirichlet(a) end, leaf {{0.5, 2, 3}})
    agrees("InverseGamma", function(a) return D.InverseGamma(a, 2) end, leaf {5, 8})
    agrees("FisherSnedecor", function(a) return D.FisherSnedecor(4, a) end, leaf {12, 20})
    agrees("StudentT", function(a) return D.StudentT(9, a, 1) end, leaf {0.5, 2})
    agrees("Wishart", function(a) return D.Wishart(a, lm.eye(3, {dtype = "float64"})) end, leaf {5, 7})
  end)
  it("passes to a t-distribution's degrees of freedom", function()
    local df = leaf {3, 5}
    D.StudentT(df):rsample({4}):square():sum():backward()
    assert.is_true(df.grad:ne(0):all():item())
  end)
end)

describe("samples", function()
  local function near(name, d, x)
    local n = x.shape[1]
    local error = (d.variance / n):sqrt()
    assert(((x:double():mean(1) - d.mean):abs() / error):max():item() < 5, name .. ": mean")
    assert((x:double():var(1) / d.variance - 1):abs():max():item() < 0.2, name .. ": variance")
  end
  it("have the mean and variance of their distribution", function()
    lm.manual_seed(11)
    lm.set_default_dtype "float64"
    for _, d in ipairs {
      D.NegativeBinomial(4, 0.3), D.Multinomial(6, lm.tensor {1, 2, 3}), D.InverseGamma(6, 2), D.FisherSnedecor(4, 12),
      D.Weibull(2, 1.5), D.Kumaraswamy(2, 3), D.ContinuousBernoulli(0.2), D.GeneralizedPareto(1, 2, 0.1),
      D.LowRankMultivariateNormal(lm.tensor {1, 2}, lm.tensor {{1}, {2}}, lm.tensor {1, 0.5}), D.HalfNormal(2),
      D.MixtureSameFamily(D.Categorical(lm.tensor {1, 3}), D.Normal(lm.tensor {-2, 3}, lm.tensor {1, 2})),
      D.Wishart(5, lm.tensor {{2, 0.5}, {0.5, 1}}), D.Binomial(9, {logits = -1}), D.Poisson(30),
      D.OneHotCategoricalStraightThrough(lm.tensor {1, 2, 5}),
    } do
      near(tostring(d), d, d:sample(20000))
    end
    lm.set_default_dtype "float32"
  end)
  it("agree with the cumulative distribution function", function()
    lm.manual_seed(12)
    for _, d in ipairs {
      D.HalfCauchy(2), D.Cauchy(0, 1), D.Gumbel(1, 2), D.Laplace(0, 1), D.Gamma(0.2, 1), D.Pareto(1, 2),
      D.LogNormal(0, 1), D.GeneralizedPareto(0, 1, -0.5),
    } do
      local u = d:cdf(d:sample(4000)):sort():double()
      local gap = (u - (lm.arange(1, 4001):double() - 0.5) / 4000):abs():max():item()
      -- Kolmogorov and Smirnov's bound, which is passed with a probability below 0.002
      assert(gap < 1.9 / 4000 ^ 0.5, tostring(d) .. " " .. gap)
    end
  end)
  it("of angles have the mean resultant length", function()
    lm.manual_seed(13)
    local x = D.VonMises(1, 2):sample(20000)
    local length = (x - 1):cos():mean():item() -- I1(2) / I0(2)
    assert(math.abs(length - 0.697775) < 0.01, length)
    assert.is_true(x:abs():le(math.pi + 1e-5):all():item())
  end)
  it("of correlation matrices are valid", function()
    lm.manual_seed(14)
    local d = D.LKJCholesky(4, 1.5)
    local l = d:sample {500}
    assert.is_true(D.constraints.corr_cholesky:check(l):all():item())
    assert.is_true(d:log_prob(l):isfinite():all():item())
  end)
  it("of many categories take numbers for the draws alone", function()
    local p = lm.rand(50000)
    local d = D.Categorical(p)
    lm.manual_seed(15)
    local x = d:sample {3}
    assert.same({3}, x.shape)
    lm.manual_seed(15)
    assert.same(lm.multinomial(d.probs, 3, true):totable(), x:totable())
  end)
end)
