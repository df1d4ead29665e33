--- Distributions of vectors with a covariance, and of matrices.
local core = require "luminary.core"
local options = require "luminary.base.options"
local combined = require "luminary.distributions.combined"
local constraints = require "luminary.distributions.constraints"
local distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local finfo = special.finfo
local ops, fail, define, joined = core.ops, options.fail, distribution.define, distribution._joined

local list = {}

local LOG_2PI = math.log(2 * math.pi)
local matrices = {"covariance_matrix", "precision_matrix", "scale_tril"}
local of_matrices = {covariance_matrix = "positive_definite", precision_matrix = "positive_definite",
  scale_tril = "lower_cholesky"}

local function mT(m) return m:transpose(-1, -2) end
local function solve_lower(l, b) return ops.linalg_solve_triangular(l, b, {upper = false}) end
local function times(m, x) return m:matmul(x:unsqueeze(-1)):squeeze(-1) end
local function log_diagonal(m) return m:diagonal(0, -2, -1):log():sum(-1) end
local function sum_squares(m) return m:square():sum(-1):sum(-1) end
-- The squared length of x in the metric of L L^T.
local function mahalanobis(l, x) return sum_squares(solve_lower(l, x:unsqueeze(-1))) end

local function eye(n, like) return ops.eye(n, {dtype = like.dtype, device = like.device}) end

-- Sets d.tril, the Cholesky factor of the covariance, not broadcast.
local function set_tril(d, given)
  local name, n = d.__name, d.event_shape[#d.event_shape]
  for _, key in ipairs(matrices) do
    local m = given[key]
    if m and (m.shape[m.ndim] ~= n or m.shape[m.ndim - 1] ~= n) then
      fail("%s: expected %s to have shape [..., %d, %d], got %s", name, key, n, n, options.describe(m))
    end
  end
  if given.scale_tril then
    d.tril = given.scale_tril
  elseif given.covariance_matrix then
    d.tril = ops.cholesky(given.covariance_matrix)
  else
    local flipped = ops.cholesky(given.precision_matrix:flip({-2, -1}))
    d.tril = solve_lower(mT(flipped:flip({-2, -1})), eye(n, flipped))
  end
  core.keep(d.tril)
end

local function matrix_shape(d)
  local n = d.event_shape[#d.event_shape]
  return joined(d.batch_shape, {n, n})
end

local matrix_properties = {
  scale_tril = function(d) return d.tril:expand(matrix_shape(d)) end,
  covariance_matrix = function(d) return d.tril:matmul(mT(d.tril)):expand(matrix_shape(d)) end,
  precision_matrix = function(d) return ops.cholesky_inverse(d.tril):expand(matrix_shape(d)) end,
}

local vector_dims = {loc = 1, covariance_matrix = 2, precision_matrix = 2, scale_tril = 2}
local function loc(d) return d.loc end
local function of_loc(d) return {d._given.loc.shape[d._given.loc.ndim]} end

list.MultivariateNormal = define "MultivariateNormal" {
  takes = {loc = "real_vector", covariance_matrix = of_matrices.covariance_matrix,
    precision_matrix = of_matrices.precision_matrix, scale_tril = of_matrices.scale_tril},
  order = {"loc", unpack(matrices)}, either = matrices, event_dims = vector_dims, event = of_loc, made = set_tril,
  support = "real_vector", help = "Creates a multivariate normal distribution", properties = matrix_properties,
  mean = loc, mode = loc,
  variance = function(d) return d.tril:square():sum(-1):expand(joined(d.batch_shape, d.event_shape)) end,
  rsample = function(d, shape) return d.loc + times(d.tril, d:noise("randn", shape)) end,
  log_prob = function(d, x)
    return -0.5 * (mahalanobis(d.tril, x - d.loc) + d.event_shape[1] * LOG_2PI) - log_diagonal(d.tril)
  end,
  entropy = function(d) return (log_diagonal(d.tril) + 0.5 * d.event_shape[1] * (1 + LOG_2PI)):expand(d.batch_shape) end,
}

list.LowRankMultivariateNormal = define "LowRankMultivariateNormal" {
  takes = {loc = "real_vector", cov_factor = constraints.independent(constraints.real, 2),
    cov_diag = constraints.independent(constraints.positive, 1)},
  order = {"loc", "cov_factor", "cov_diag"}, event_dims = {loc = 1, cov_factor = 2, cov_diag = 1}, event = of_loc,
  support = "real_vector",
  help = "Creates a multivariate normal distribution with the covariance matrix cov_factor @ cov_factor.T + cov_diag.",
  made = function(d, given)
    local n, w, diagonal = d.event_shape[1], given.cov_factor, given.cov_diag
    if w.shape[w.ndim - 1] ~= n or diagonal.shape[diagonal.ndim] ~= n then
      fail("LowRankMultivariateNormal: expected cov_factor [..., %d, m] and cov_diag [..., %d], got %s and %s", n, n,
        options.describe(w), options.describe(diagonal))
    end
    local scaled = mT(w) / diagonal:unsqueeze(-2)
    d.factor, d.diag, d.scaled = core.keep(w), core.keep(diagonal), core.keep(scaled)
    d.capacitance = core.keep(ops.cholesky(scaled:matmul(w) + eye(w.shape[w.ndim], w)))
  end,
  log_det = function(d) return 2 * log_diagonal(d.capacitance) + d.diag:log():sum(-1) end,
  mahalanobis = function(d, x)
    return (x:square() / d.diag):sum(-1) - mahalanobis(d.capacitance, times(d.scaled, x))
  end,
  -- A of d's precision matrix, 1 / cov_diag - A^T A.
  reduction = function(d) return solve_lower(d.capacitance, d.scaled) end,
  properties = {
    scale_tril = function(d)
      local root = d.diag:sqrt():unsqueeze(-1)
      local w = d.factor / root
      return (root * ops.cholesky(w:matmul(mT(w)) + eye(d.event_shape[1], w))):expand(matrix_shape(d))
    end,
    covariance_matrix = function(d)
      return (d.factor:matmul(mT(d.factor)) + d.diag:diag_embed()):expand(matrix_shape(d))
    end,
    precision_matrix = function(d)
      local a = d:reduction()
      return ((1 / d.diag):diag_embed() - mT(a):matmul(a)):expand(matrix_shape(d))
    end,
  },
  mean = loc, mode = loc,
  variance = function(d)
    return (d.factor:square():sum(-1) + d.diag):expand(joined(d.batch_shape, d.event_shape))
  end,
  rsample = function(d, shape)
    local m, like = d.factor.shape[d.factor.ndim], d.loc
    local z = ops.randn(joined(shape, d.batch_shape, {m}), {dtype = like.dtype, device = like.device})
    return d.loc + times(d.factor, z) + d.diag:sqrt() * d:noise("randn", shape)
  end,
  log_prob = function(d, x)
    return -0.5 * (d.event_shape[1] * LOG_2PI + d:log_det() + d:mahalanobis(x - d.loc))
  end,
  entropy = function(d) return (0.5 * (d.event_shape[1] * (1 + LOG_2PI) + d:log_det())):expand(d.batch_shape) end,
}

-- ---- of matrices

local function as_matrices(t) return t:unsqueeze(-1):unsqueeze(-1) end

list.Wishart = define("Wishart", combined.ExponentialFamily) {
  takes = {df = function(d) return constraints.greater_than(d.event_shape[1] - 1) end,
    covariance_matrix = of_matrices.covariance_matrix, precision_matrix = of_matrices.precision_matrix,
    scale_tril = of_matrices.scale_tril},
  order = {"df", unpack(matrices)}, either = matrices, made = set_tril, properties = matrix_properties,
  event_dims = {covariance_matrix = 2, precision_matrix = 2, scale_tril = 2}, support = "positive_definite",
  help = "Creates a Wishart distribution of matrices",
  mean = function(d) return as_matrices(d.df) * d.covariance_matrix end,
  mode = function(d)
    local factor = d.df - d.event_shape[1] - 1
    return as_matrices(ops.where(factor:le(0), 0 / 0, factor)) * d.covariance_matrix
  end,
  variance = function(d)
    local v = d.covariance_matrix
    local diagonal = v:diagonal(0, -2, -1)
    return as_matrices(d.df) * (v:square() + diagonal:unsqueeze(-1) * diagonal:unsqueeze(-2))
  end,
  -- By Bartlett's decomposition.
  rsample = function(d, shape)
    local n = d.event_shape[1]
    local steps = ops.arange(0, n, {dtype = d.df.dtype, device = d.df.device})
    local half = ((d.df:unsqueeze(-1) - steps) * 0.5):expand(joined(shape, d.batch_shape, {n}))
    local chi = (special.log_gamma_sample(half):exp() * 2):sqrt():to(d.df.dtype):clamp(finfo(d.df.dtype).eps)
    local factor = d.tril:matmul(d:noise("randn", shape):tril(-1) + chi:diag_embed())
    return factor:matmul(mT(factor))
  end,
  log_prob = function(d, x)
    local n, v = d.event_shape[1], d.df
    local _, log_det = ops.slogdet(x)
    return -v * (n * math.log(2) / 2 + log_diagonal(d.tril)) - (v / 2):mvlgamma(n) + (v - n - 1) / 2 * log_det
      - ops.cholesky_solve(x, d.tril):diagonal(0, -2, -1):sum(-1) / 2
  end,
  entropy = function(d)
    local n, v = d.event_shape[1], d.df
    local psi = 0
    for i = 0, n - 1 do psi = psi + ops.digamma((v - i) / 2) end
    return (n + 1) * (n * math.log(2) / 2 + log_diagonal(d.tril)) + (v / 2):mvlgamma(n) - (v - n - 1) / 2 * psi
      + v * n / 2
  end,
  natural_params = function(d) return -d.precision_matrix / 2, (d.df - d.event_shape[1] - 1) / 2 end,
  log_normalizer = function(d, x, y)
    local n = d.event_shape[1]
    local shape, _, log_det = y + (n + 1) / 2, ops.slogdet(-2 * x)
    return shape * (n * math.log(2) - log_det) + shape:mvlgamma(n)
  end,
}

list.LKJCholesky = define "LKJCholesky" {
  takes = {concentration = "positive"}, order = {"dim", "concentration"}, plain = {dim = "count"},
  defaults = {concentration = 1}, support = "corr_cholesky", event = function(d) return {d._given.dim, d._given.dim} end,
  help = "Creates the LKJ distribution of Cholesky factors of correlation matrices [dim, dim].",
  made = function(d)
    if d.dim < 2 then options.must_be("LKJCholesky", "dim", "at least 2", d.dim) end
  end,
  -- By the onion method (Lewandowski, Kurowicka and Joe 2009): each row has a random length and direction.
  sample = function(d, shape)
    local Beta, n, c = require("luminary.distributions.gamma").Beta, d.dim, d.concentration
    local offset = ops.arange(-1, n - 1, {dtype = c.dtype, device = c.device}):clamp(0)
    local y = Beta(offset + 0.5, (c + 0.5 * (n - 2)):unsqueeze(-1) - 0.5 * offset):_draw(shape):unsqueeze(-1)
    local z = d:noise("randn", shape):tril(-1)
    local w = y:sqrt() * z / z:square():sum(-1, {keepdim = true}):sqrt():clamp(finfo(c.dtype).tiny)
    return w + (1 - w:square():sum(-1)):clamp(finfo(c.dtype).tiny):sqrt():diag_embed()
  end,
  log_prob = function(d, x)
    local n, c = d.dim, d.concentration
    local order = 2 * (c - 1):unsqueeze(-1) + (n - ops.arange(2, n + 1, {dtype = c.dtype, device = c.device}))
    local alpha = c + 0.5 * (n - 1)
    local log = (order * x:diagonal(0, -2, -1):narrow(-1, 2, n - 1):log()):sum(-1)
    return log - (0.5 * (n - 1) * math.log(math.pi) + (alpha - 0.5):mvlgamma(n - 1) - ops.lgamma(alpha) * (n - 1))
  end,
}

-- Parts of divergences: of p's covariance in q's metric, and the logarithms of determinants.
list._parts = {
  MultivariateNormal = {
    log_det = function(d) return 2 * log_diagonal(d.tril) end,
    mahalanobis = function(d, x) return mahalanobis(d.tril, x) end,
    trace = function(d, ...)
      local sum = 0
      for _, m in ipairs {...} do sum = sum + sum_squares(solve_lower(d.tril, m)) end
      return sum
    end,
    roots = function(d) return d.tril end,
  },
  LowRankMultivariateNormal = {
    log_det = function(d) return d:log_det() end, mahalanobis = function(d, x) return d:mahalanobis(x) end,
    trace = function(d, ...)
      local sum, a = 0, d:reduction()
      for _, m in ipairs {...} do
        sum = sum + sum_squares(m / d.diag:sqrt():unsqueeze(-1)) - sum_squares(a:matmul(m))
      end
      return sum
    end,
    roots = function(d) return d.factor, d.diag:sqrt():diag_embed() end,
  },
}

return list
