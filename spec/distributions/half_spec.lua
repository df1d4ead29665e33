-- lm.distributions in half precision against float64: values, samples and gradients to a half's rounding.
local lm = require "luminary"
local D = lm.distributions

local EPS = {float16 = 2 ^ -11, bfloat16 = 2 ^ -8}
local MOST = {float16 = 65504, bfloat16 = 3e38}

-- Class, parameters, and values; parameters and values are exact in bfloat16.
local function cases()
  local t = function(list) return lm.tensor(list, {dtype = "float64"}) end
  local loc, scale = t {0.5, -2, 30}, t {1.5, 0.25, 3}
  local spd = t {{2, 0.5}, {0.5, 1}}
  local p, weights = t {0.25, 0.5, 0.9375}, t {0.25, 0.5, 1.25}
  local a, b = t {0.5, 2, 20}, t {2, 0.75, 40}
  return {
    {"Normal", {loc, scale}, t {0.25, -2.5, 36}}, {"Laplace", {loc, scale}, t {0.25, -2.5, 36}},
    {"Cauchy", {loc, scale}, t {0.25, -2.5, 36}}, {"Gumbel", {loc, scale}, t {0.25, -2.5, 36}},
    {"Uniform", {t {-1, 2, 100}, t {3, 2.5, 200}}, t {0.5, 2.25, 150}},
    {"Exponential", {t {0.25, 2, 30}}, t {1, 0.5, 0.0625}}, {"LogNormal", {t {0.5, -1, 2}, scale}, t {0.25, 1, 40}},
    {"HalfNormal", {scale}, t {0.25, 0.5, 4}}, {"HalfCauchy", {scale}, t {0.25, 0.5, 40}},
    {"GeneralizedPareto", {t {0, 1, 2}, scale, t {0.25, 0.125, -0.5}}, t {1, 2, 3}},
    {"VonMises", {t {0.5, -1, 2}, t {0.25, 4, 30}}, t {0.25, 1, 2.25}},
    {"ContinuousBernoulli", {p}, t {0.25, 0.75, 0.5}},
    {"ContinuousBernoulli", {{logits = t {-2, 0.25, 5}}}, t {0.25, 0.75, 0.5}},
    {"Pareto", {scale, t {3, 4, 8}}, t {2, 0.5, 4}}, {"Weibull", {scale, t {0.5, 2, 8}}, t {2, 0.5, 4}},
    {"Kumaraswamy", {t {0.5, 2, 5}, t {2, 0.75, 6}}, t {0.25, 0.75, 0.5}},
    {"LogisticNormal", {t {0.5, -1}, t {1, 0.5}}, t {0.25, 0.5, 0.25}},
    {"Bernoulli", {p}, t {0, 1, 1}}, {"Bernoulli", {{logits = t {-2, 0.25, 5}}}, t {0, 1, 1}},
    {"Geometric", {p}, t {3, 1, 0}}, {"Poisson", {t {0.5, 4, 90}}, t {1, 3, 100}},
    {"Binomial", {t {20, 20, 20}, p}, t {3, 8, 19}}, {"NegativeBinomial", {t {3, 2, 40}, p}, t {3, 8, 120}},
    {"Categorical", {weights}, lm.tensor {1, 3}}, {"Categorical", {{logits = t {-2, 0.25, 5}}}, lm.tensor {1, 3}},
    {"OneHotCategorical", {weights}, t {0, 1, 0}}, {"OneHotCategoricalStraightThrough", {weights}, t {0, 1, 0}},
    {"Multinomial", {6, weights}, t {1, 2, 3}},
    {"LogitRelaxedBernoulli", {t {0.5}, p}, t {-1, 0.5, 3}}, {"RelaxedBernoulli", {t {0.5}, p}, t {0.25, 0.75, 0.9375}},
    {"ExpRelaxedCategorical", {t {0.5}, weights}, t {-3, -1, -0.5}},
    {"RelaxedOneHotCategorical", {t {0.5}, weights}, t {0.25, 0.25, 0.5}},
    {"Gamma", {a, b}, t {0.25, 2, 0.5}}, {"Chi2", {t {1, 3, 40}}, t {0.25, 2, 50}},
    {"InverseGamma", {t {0.5, 2, 5}, t {2, 0.75, 4}}, t {0.25, 2, 0.5}},
    {"Dirichlet", {t {0.5, 2, 20}}, t {0.125, 0.25, 0.625}}, {"Beta", {a, b}, t {0.25, 0.75, 0.25}},
    {"StudentT", {t {1, 3, 40}, loc, scale}, t {0.25, -2.5, 36}},
    {"FisherSnedecor", {t {1, 3, 40}, t {2, 6, 30}}, t {0.25, 2, 1.25}},
    {"MultivariateNormal", {t {0.5, 1}, {covariance_matrix = spd}}, t {1.5, 0.25}},
    {"MultivariateNormal", {t {0.5, 1}, {precision_matrix = spd}}, t {1.5, 0.25}},
    {"MultivariateNormal", {t {0.5, 1}, {scale_tril = spd:tril()}}, t {1.5, 0.25}},
    {"LowRankMultivariateNormal", {t {0.5, 1}, t {{1}, {0.5}}, t {0.5, 0.25}}, t {1.5, 0.25}},
    {"Wishart", {t {4}, {covariance_matrix = spd}}, t {{3, 0.5}, {0.5, 2}}},
    {"MixtureSameFamily", {weights, loc, scale}, t {0.25}, function(w, l, s)
      return D.MixtureSameFamily(D.Categorical(w), D.Normal(l, s))
    end},
    {"Independent", {a, b}, t {0.25, 2, 0.5}, function(...) return D.Independent(D.Gamma(...), 1) end},
    {"TransformedDistribution", {t {0.5, -2, 1}, t {1.5, 0.25, 1}}, t {1.25, 2, 4}, function(l, s)
      return D.TransformedDistribution(D.Normal(l, s), {D.ExpTransform(), D.AffineTransform(1, 0.5)})
    end},
    {"LKJCholesky", {3, t {1.5}}, t {{1, 0, 0}, {0.6, 0.8, 0}, {0, 0.6, 0.8}}},
  }
end

-- Returns the object with tensors in dtype, and the list of these, which require gradients.
local function build(case, dtype)
  local leaves = {}
  local function leaf(v)
    if lm.is_tensor(v) and v:is_floating_point() then
      v = v:to(dtype):clone():requires_grad_(true)
      leaves[#leaves + 1] = v
    end
    return v
  end
  local args = {}
  for i, v in ipairs(case[2]) do
    args[i] = leaf(v)
    for name, option in pairs(type(v) == "table" and v or {}) do args[i] = {[name] = leaf(option)} end
  end
  return (case[4] or D[case[1]])(unpack(args)), leaves
end

-- Returns lists of a computed tensor and the gradients of its sum, weighted, in float64, of a function f(d, x).
local function results(case, dtype, f)
  local d, leaves = build(case, dtype)
  local x = case[3]
  if x:is_floating_point() then
    x = x:to(dtype):clone():requires_grad_(true)
    leaves[#leaves + 1] = x
  end
  lm.manual_seed(3)
  local y = f(d, x)
  local all = {y:detach()}
  if y.requires_grad then
    local weights = lm.arange(1, y:numel() + 1):reshape(y.shape):to(dtype) / 2
    for _, g in ipairs(lm.grad((y * weights):double():sum(), leaves, {allow_unused = true})) do
      all[#all + 1] = g or false
    end
  end
  return all
end

-- Returns what of a half's results is further from the exact ones than `ulps` roundings of the largest element.
local function differences(got, want, dtype, ulps)
  if #got ~= #want then return ("%d results for %d"):format(#got, #want) end
  for i, w in ipairs(want) do
    local g = got[i]
    if (g == false) ~= (w == false) then return "a gradient is absent" end
    if g and (g.dtype ~= dtype and g.dtype ~= "int64" or g:numel() ~= w:numel()) then
      return ("result %d is %s"):format(i, g.dtype)
    end
    local gs, ws = g and g:double():reshape(-1):totable() or {}, w and w:double():reshape(-1):totable() or {}
    for k, v in ipairs(ws) do
      local far = math.abs(v) > MOST[dtype] and math.abs(gs[k]) >= MOST[dtype]
      if not (far or v ~= v and gs[k] ~= gs[k] or v == gs[k]
          or math.abs(v - gs[k]) <= ulps * EPS[dtype] * math.max(math.abs(v), 2 ^ -12)) then
        return ("%s %d: %.6g for %.6g"):format(i == 1 and "value" or "gradient", i == 1 and k or i - 1, gs[k], v)
      end
    end
  end
end

describe("distributions in half precision", function()
  for _, dtype in ipairs {"float16", "bfloat16"} do
    it("have values and gradients that are rounded once, in " .. dtype, function()
      local wrong, compared = {}, 0
      for _, case in ipairs(cases()) do
        case[3] = case[3]:is_floating_point() and case[3]:to(dtype):double() or case[3]
        for _, name in ipairs {"log_prob", "entropy", "cdf", "icdf", "mean", "variance"} do
          local function f(d, x)
            if name == "mean" or name == "variance" then return d[name] end
            return d[name](d, name == "icdf" and x * 0 + 0.25 or x)
          end
          local ok, want = pcall(results, case, "float64", f)
          if ok then
            compared = compared + 1
            local done, got = pcall(results, case, dtype, f)
            local what = done and differences(got, want, dtype, 2) or not done and got
            if what then wrong[#wrong + 1] = ("%s.%s: %s"):format(case[1], name, what) end
          end
        end
      end
      assert.same({}, wrong)
      assert.is_true(compared > 170, compared)
    end)

    it("have samples and their gradients as in float32, rounded once, in " .. dtype, function()
      local wrong = {}
      for _, case in ipairs(cases()) do
        local function f(d) return d.has_rsample and d:rsample {50} or d:sample {50} end
        local want = results(case, "float32", f)
        local done, got = pcall(results, case, dtype, f)
        local what = done and differences(got, want, dtype, 2) or not done and got
        if what then wrong[#wrong + 1] = ("%s: %s"):format(case[1], what) end
      end
      assert.same({}, wrong)
    end)
  end
end)
