--- Defines distributions of vectors that have a covariance matrix, and of matrices.
local core = require "luminary.core"
local finfo = require("luminary.tensor.dtype_info").finfo
local options = require "luminary.base.options"
local combined = require "luminary.distributions.combined"
local constraints = require "luminary.distributions.constraints"
local distribution = require "luminary.distributions.distribution"
local known = require("luminary.distributions.formulas").known
local ops, fail, define, joined = core.ops, options.fail, distribution.define, known.joined

local list = {}

local matrices = {"covariance_matrix", "precision_matrix", "scale_tril"}
local matrix_dims = {covariance_matrix = 2, precision_matrix = 2, scale_tril = 2}
local of_matrices = "covariance_matrix: positive_definite, precision_matrix: positive_definite, "
  .. "scale_tril: lower_cholesky"

local function mT(m) return m:transpose(-1, -2) end
local function solve_lower(l, b) return ops.linalg_solve_triangular(l, b, {upper = false}) end
local function sum_squares(m) return m:square():sum(-1):sum(-1) end
local function eye(n, like) return ops.eye(n, {dtype = like.dtype, device = like.device}) end
known.mT, known.solve_lower, known.eye_like, known.sum_squares = mT, solve_lower, eye, sum_squares
function known.times(m, x) return m:matmul(x:unsqueeze(-1)):squeeze(-1) end
function known.log_diagonal(m) return m:diagonal(0, -2, -1):log():sum(-1) end
-- Returns x^T (L L^T)^-1 x, the squared Mahalanobis length of x.
function known.mahalanobis(l, x) return sum_squares(solve_lower(l, x:unsqueeze(-1))) end
function known.as_matrices(t) return t:unsqueeze(-1):unsqueeze(-1) end
-- Sets d.tril_, the Cholesky factor of the covariance, which is not broadcast to the batch shape.
local function set_tril(d, given)
  local name, n = d.__name, d.event_shape[#d.event_shape]
  for _, key in ipairs(matrices) do
    local m = given[key]
    if m and (m.shape[m.ndim] ~= n or m.shape[m.ndim - 1] ~= n) then
      fail("%s: expected %s to have shape [..., %d, %d], got %s", name, key, n, n, options.describe(m))
    end
  end
  if given.scale_tril then
    d.tril_ = given.scale_tril
  elseif given.covariance_matrix then
    d.tril_ = ops.cholesky(known.wide(given.covariance_matrix))
  else
    local flipped = ops.cholesky(known.wide(given.precision_matrix):flip({-2, -1}))
    d.tril_ = solve_lower(mT(flipped:flip({-2, -1})), eye(n, flipped))
  end
  core.keep(d.tril_)
end

local n_by_n = "n = event_shape[1]"
-- Returns the lines of a formula, expanded to a matrix for each distribution of a batch.
local function matrix(formula) return {n_by_n, ("(%s):expand(joined(batch_shape, {n, n}))"):format(formula)} end

local matrix_properties = {
  log_det = "2 * log_diagonal(tril_)", scale_tril = matrix "tril_",
  covariance_matrix = matrix "tril_:matmul(mT(tril_))", precision_matrix = matrix "cholesky_inverse(tril_)",
}

local function event_shape_of_loc(d) return {d._given.loc.shape[d._given.loc.ndim]} end

list.MultivariateNormal = define "MultivariateNormal" {
  takes = "loc: real, " .. of_matrices, either = matrices,
  event_dims = setmetatable({loc = 1}, {__index = matrix_dims}), event = event_shape_of_loc, after_init = set_tril,
  support = "real_vector", help = "Creates a multivariate normal distribution", properties = matrix_properties,
  mahalanobis = "mahalanobis(tril_, x)", trace = "sum_squares(solve_lower(tril_, x))",
  -- Returns a list of matrices R whose sum of R R^T is the covariance.
  _roots = function(d) return {d.tril_} end,
  mean = "loc", mode = "loc", variance = "square(tril_):sum(-1):expand(joined(batch_shape, event_shape))",
  rsample = "loc + times(tril_, normal)",
  log_prob = "-0.5 * (mahalanobis(tril_, x - loc) + event_shape[1] * LOG_2PI) - log_diagonal(tril_)",
  entropy = "(log_diagonal(tril_) + 0.5 * event_shape[1] * (1 + LOG_2PI)):expand(batch_shape)",
}
list.LowRankMultivariateNormal = define "LowRankMultivariateNormal" {
  takes = "loc: real, cov_factor: real, cov_diag: positive", event_dims = {loc = 1, cov_factor = 2, cov_diag = 1},
  event = event_shape_of_loc, support = "real_vector",
  help = "Creates a multivariate normal distribution with the covariance matrix cov_factor @ cov_factor.T + cov_diag.",
  -- Sets factor, diag, scaled (factor.T / diag) and the capacitance's Cholesky factor, which are not broadcast.
  after_init = function(d, given)
    local n, w, diagonal = d.event_shape[1], given.cov_factor, given.cov_diag
    if w.shape[w.ndim - 1] ~= n or diagonal.shape[diagonal.ndim] ~= n then
      fail("LowRankMultivariateNormal: expected cov_factor [..., %d, m] and cov_diag [..., %d], got %s and %s", n, n,
        options.describe(w), options.describe(diagonal))
    end
    local scaled = mT(w) / diagonal:unsqueeze(-2)
    d.factor, d.diag, d.scaled = core.keep(w), core.keep(diagonal), core.keep(scaled)
    d.capacitance = core.keep(ops.cholesky(known.wide(scaled:matmul(w) + eye(w.shape[w.ndim], w))))
  end,
  properties = {
    log_det = "2 * log_diagonal(capacitance) + log(diag):sum(-1)",
    -- reduction: A, where the precision matrix is 1 / diag - A^T A
    reduction = "solve_lower(capacitance, scaled)",
    scale_tril = {
      n_by_n, "root = sqrt(diag):unsqueeze(-1)", "w = factor / root",
      "(root * cholesky(w:matmul(mT(w)) + eye_like(n, w))):expand(joined(batch_shape, {n, n}))",
    },
    covariance_matrix = matrix "factor:matmul(mT(factor)) + diag:diag_embed()",
    precision_matrix = matrix "(1 / diag):diag_embed() - mT(reduction):matmul(reduction)",
  },
  mean = "loc", mode = "loc", variance = "(square(factor):sum(-1) + diag):expand(joined(batch_shape, event_shape))",
  rsample = function(d, shape)
    local m, like = d.factor.shape[d.factor.ndim], d.loc
    local z = ops.randn(joined(shape, d.batch_shape, {m}), {dtype = like.dtype, device = like.device})
    return d.loc + known.times(d.factor, z) + d.diag:sqrt() * d:noise("randn", shape)
  end,
  mahalanobis = "(square(x) / diag):sum(-1) - mahalanobis(capacitance, times(scaled, x))",
  trace = "sum_squares(x / sqrt(diag):unsqueeze(-1)) - sum_squares(reduction:matmul(x))",
  _roots = function(d) return {d.factor, d.diag:sqrt():diag_embed()} end,
  log_prob = '-0.5 * (event_shape[1] * LOG_2PI + log_det + d:_formula_of("mahalanobis", x - loc))',
  entropy = "(0.5 * (event_shape[1] * (1 + LOG_2PI) + log_det)):expand(batch_shape)",
}

-- ---- of matrices

list.Wishart = define("Wishart", combined.ExponentialFamily) {
  takes = "df, " .. of_matrices,
  limits = {df = function(d) return constraints.greater_than(d.event_shape[1] - 1) end},
  either = matrices, after_init = set_tril, properties = matrix_properties,
  event_dims = matrix_dims, support = "positive_definite", help = "Creates a Wishart distribution of matrices",
  mean = "as_matrices(df) * covariance_matrix",
  mode = {"f = df - event_shape[1] - 1", "as_matrices(where(le(f, 0), nan, f)) * covariance_matrix"},
  variance = {
    "v = covariance_matrix", "s = v:diagonal(0, -2, -1)",
    "as_matrices(df) * (square(v) + s:unsqueeze(-1) * s:unsqueeze(-2))",
  },
  -- Draws by Bartlett's decomposition.
  rsample = function(d, shape)
    local n = d.event_shape[1]
    local steps = ops.arange(0, n, {dtype = d.df.dtype, device = d.df.device})
    local half = ((d.df:unsqueeze(-1) - steps) * 0.5):expand(joined(shape, d.batch_shape, {n}))
    local chi = (known.log_gamma_sample(half):exp() * 2):sqrt():to(d.df.dtype):clamp(finfo(d.df.dtype).eps)
    local factor = d.tril_:matmul(d:noise("randn", shape):tril(-1) + chi:diag_embed())
    return factor:matmul(mT(factor))
  end,
  log_prob = function(d, x)
    local n, v = d.event_shape[1], d.df
    local _, log_det = ops.slogdet(x)
    return -v / 2 * (n * math.log(2) + d.log_det) - (v / 2):mvlgamma(n) + (v - n - 1) / 2 * log_det
      - ops.cholesky_solve(x, d.tril_):diagonal(0, -2, -1):sum(-1) / 2
  end,
  entropy = function(d)
    local n, v, psi = d.event_shape[1], d.df, 0
    for i = 0, n - 1 do psi = psi + ops.digamma((v - i) / 2) end
    return (n + 1) / 2 * (n * math.log(2) + d.log_det) + (v / 2):mvlgamma(n) - (v - n - 1) / 2 * psi
      + v * n / 2
  end,
  _natural_params = function(d) return -d.precision_matrix / 2, (d.df - d.event_shape[1] - 1) / 2 end,
  _log_normalizer = function(d, x, y)
    local n = d.event_shape[1]
    local shape, _, log_det = y + (n + 1) / 2, ops.slogdet(-2 * x)
    return shape * (n * math.log(2) - log_det) + shape:mvlgamma(n)
  end,
}
list.LKJCholesky = define "LKJCholesky" {
  takes = "dim, concentration: positive", plain = {dim = "integer(2)"},
  defaults = {concentration = 1}, support = "corr_cholesky",
  event = function(d) return {d._given.dim, d._given.dim} end,
  help = "Creates the LKJ distribution of Cholesky factors of correlation matrices [dim, dim].",
  -- Draws by the onion method (Lewandowski, Kurowicka and Joe 2009): each row has a random length and direction.
  sample = function(d, shape)
    local Beta, n, c = require("luminary.distributions.gamma").Beta, d.dim, d.concentration
    local tiny, offset = finfo(c.dtype).tiny, ops.arange(-1, n - 1, {dtype = c.dtype, device = c.device}):clamp(0)
    -- Row i has the squared length y of Beta((i - 1) / 2, c + (n - i) / 2) left of its diagonal, by the onion method of
    -- Lewandowski et al. (2009). PyTorch 2.15's first parameter is i - 3 / 2, by which its marginals are too broad.
    local y = Beta(0.5 * offset + 0.5, (c + 0.5 * (n - 2)):unsqueeze(-1) - 0.5 * offset):_draw(shape):unsqueeze(-1)
    local z = d:noise("randn", shape):tril(-1)
    local w = y:sqrt() * z / known.keep_sum(z:square()):sqrt():clamp(tiny)
    return w + (1 - w:square():sum(-1)):clamp(tiny):sqrt():diag_embed()
  end,
  log_prob = function(d, x)
    local n, c = d.dim, d.concentration
    local order = 2 * (c - 1):unsqueeze(-1) + (n - ops.arange(2, n + 1, {dtype = c.dtype, device = c.device}))
    local alpha = c + 0.5 * (n - 1)
    local log = (order * x:diagonal(0, -2, -1):narrow(-1, 2, n - 1):log()):sum(-1)
    return log - (0.5 * (n - 1) * math.log(math.pi) + (alpha - 0.5):mvlgamma(n - 1) - ops.lgamma(alpha) * (n - 1))
  end,
}

return list
