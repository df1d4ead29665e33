--- Defines parametrizations of weights: weight_norm, spectral_norm, orthogonal.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Module = require "luminary.nn.module"
local parametrize = require "luminary.nn.utils.parametrize"
local records = require "luminary.nn.module_fields"

local ops, fail, linalg = core.ops, options.fail, require "luminary.linalg"
local norms = {}

-- Returns the norms of w's slices along dim, as a tensor of size 1 in all other dims; without dim the norm of w.
local function slice_norms(w, dim)
  if not dim then return ops.norm(w) end
  local others = {}
  for i = 1, w.ndim do
    if i ~= dim then others[#others + 1] = i end
  end
  if #others == 0 then return w:abs() end
  return (w * w):sum(others, {keepdim = true}):sqrt()
end

local WeightNorm = class.define("_WeightNorm", Module)
WeightNorm.old_names = {original0 = "_g", original1 = "_v"}
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return v * (g / slice_norms(v, self.dim)) end
function WeightNorm:right_inverse(w) return slice_norms(w, self.dim), w end

-- Returns a parameter of a module, or its value if it has parametrizations already.
local function value_of(module, name)
  records.check_sized("register_parametrization", module)
  if not parametrize.is_parametrized(module, name) then return records.of(module).values[name] end
  return core.no_grad(function() return module[name] end)
end

-- Fails for a parameter that has parametrizations already: the one at hand changes its original, so it must be first.
local function check_first(who, module, name)
  if parametrize.is_parametrized(module, name) then
    fail("%s: '%s' has a parametrization already; register %s first", who, name, who)
  end
end

local function dim_of(who, module, name, dim, default)
  local w = value_of(module, name)
  if not core.is_tensor(w) then fail("%s: %s has no parameter '%s'", who, module.__name, tostring(name)) end
  if dim == false or dim == -1 and not default then return nil, w end -- PyTorch takes -1 as None
  dim = dim or default or 1
  local at = dim < 0 and w.ndim + dim + 1 or dim
  if at < 1 or at > w.ndim then fail("%s: dim %d is out of range for %s", who, dim, options.describe(w)) end
  return at, w
end

--- Applies weight normalization to a parameter of a module.
norms.weight_norm = signature.of([[weight_norm(module: module, {name = "weight",
  dim: integer|false})]], function(module, opts)
  local who = "weight_norm"
  check_first(who, module, opts.name)
  local dim = dim_of(who, module, opts.name, opts.dim)
  return parametrize.register_parametrization(module, opts.name, WeightNorm(dim))
end)

local SpectralNorm = class.define("_SpectralNorm", Module)
SpectralNorm.old_names = {original = "_orig", ["0._u"] = "_u", ["0._v"] = "_v"}

function SpectralNorm:init(w, dim, iterations, eps)
  self.dim, self.n_power_iterations, self.eps = dim, iterations, eps
  core.no_grad(function()
    local m = self:as_matrix(w:detach())
    self:register_buffer("_u", self:unit(ops.randn({m.shape[1]}, {dtype = w.dtype, device = w.device})))
    self:register_buffer("_v", self:unit(ops.randn({m.shape[2]}, {dtype = w.dtype, device = w.device})))
    self:iterate(m, 15)
  end)
end

function SpectralNorm:unit(x) return x / x:norm():clamp(self.eps) end

function SpectralNorm:as_matrix(w)
  if self.dim ~= 1 then w = w:transpose(1, self.dim) end
  return w:reshape({w.shape[1], -1})
end

-- Iterates the power method `times` times: moves _u and _v toward the singular vectors of the largest singular value.
function SpectralNorm:iterate(m, times)
  for _ = 1, times do
    self._u:copy_(self:unit(m:matmul(self._v)))
    self._v:copy_(self:unit(m:t():matmul(self._u)))
  end
end

function SpectralNorm:forward(w)
  if w.ndim == 1 then return w / w:norm():clamp(self.eps) end
  local m = self:as_matrix(w)
  local _, again = core.is_checkpointing() -- backward needs the vectors of the first run
  if self.training and not again then core.no_grad(function() self:iterate(m:detach(), self.n_power_iterations) end) end
  local u, v = self._u:clone(), self._v:clone()
  return w / (u * m:matmul(v)):sum()
end

function SpectralNorm:right_inverse(w) return w end -- luacheck: ignore self

--- Applies spectral normalization to a parameter of a module.
norms.spectral_norm = signature.of([[spectral_norm(module: module, {name = "weight", n_power_iterations: count = 1,
  eps: positive = 1e-12, dim: integer})]], function(module, opts)
  local transposed = module.__name:find "^ConvTranspose"
  local dim, w = dim_of("spectral_norm", module, opts.name, opts.dim, transposed and 2 or 1)
  return parametrize.register_parametrization(module, opts.name,
    SpectralNorm(w, dim, opts.n_power_iterations, opts.eps))
end)

local Orthogonal = class.define("_Orthogonal", Module)

-- Sets the map. The exponential and Cayley transforms without a base have no right_inverse, which not every value has.
function Orthogonal:init(map, has_base)
  self.map = map
  self.right_inverse = has_base and self.based or map == "householder" and self.reflected or nil
end

-- Returns an orthogonal matrix of a square X by matrix_exp or cayley, or its first k columns for X [..., n, k].
local function orthogonal_by_skew(map, X, n, k)
  X = X:tril()
  if n > k then X = ops.pad(X, {0, n - k}) end
  local A = X - X:transpose(-2, -1)
  if map == "matrix_exp" then return linalg.matrix_exp(A):narrow(-1, 1, k) end
  local id = ops.eye(n, {dtype = A.dtype, device = A.device})
  return linalg.solve(id - A * 0.5, id + A * 0.5):narrow(-1, 1, k)
end

-- Returns the product of Householder reflections by the columns of X below the diagonal, with the diagonal's signs.
local function multiply_reflections(X, n, k)
  local A, id = X:tril(-1), ops.eye(n, k, {dtype = X.dtype, device = X.device})
  local tau, V, Q = 2 / ((A * A):sum(-2, {keepdim = true}) + 1), A + id, id
  for i = k, 1, -1 do
    local v = V:narrow(-1, i, 1)
    Q = Q - tau:narrow(-1, i, 1) * v:matmul(v:transpose(-2, -1):matmul(Q))
  end
  return Q * X:detach():diagonal(0, -2, -1):trunc():unsqueeze(-2)
end

-- Factors Q as LAPACK's geqrf does: returns the vectors of the Householder reflections, below the diagonal, and on it
-- the signs by which the factor R has a positive diagonal.
function Orthogonal.reflected(_, Q)
  local rows, columns = Q.shape[Q.ndim - 1], Q.shape[Q.ndim]
  local result = Q:clone()
  local A = rows < columns and result:transpose(-2, -1) or result
  local n, k = math.max(rows, columns), math.min(rows, columns)
  for i = 1, k do
    local below = A:narrow(-2, i, n - i + 1)
    local x, right = below:narrow(-1, i, 1), below:narrow(-1, i + 1, k - i)
    local first, rest = x:narrow(-2, 1, 1), x:narrow(-2, 2, n - i)
    local tail = (rest * rest):sum(-2, {keepdim = true})
    local is_zero, norm = tail:eq(0), (first * first + tail):sqrt() -- geqrf has no reflection if the rest is zero
    local beta = ops.where(first:ge(0), -norm, norm)
    local v = ops.cat({ops.ones_like(first), rest / (first - beta):masked_fill(is_zero, 1)}, -2)
    local tau = (2 / (v * v):sum(-2, {keepdim = true})):masked_fill(is_zero, 0)
    right:sub_(tau * v:matmul(v:transpose(-2, -1):matmul(right)))
    rest:copy_(v:narrow(-2, 2, n - i))
    first:copy_(ops.where(is_zero, -first, beta):sign())
  end
  return result
end

function Orthogonal:forward(X)
  local n, k = X.shape[X.ndim - 1], X.shape[X.ndim]
  local is_wide = n < k
  if is_wide then X, n, k = X:transpose(-2, -1), k, n end
  local Q = self.map == "householder" and multiply_reflections(X, n, k) or orthogonal_by_skew(self.map, X, n, k)
  if self.base then Q = self.base:matmul(Q) end
  return is_wide and Q:transpose(-2, -1) or Q
end

-- Sets base to the value, made orthogonal and square; the original becomes -I.
function Orthogonal:based(value)
  local tall = value.shape[value.ndim - 1] < value.shape[value.ndim] and value:transpose(-2, -1) or value
  local n, k = tall.shape[tall.ndim - 1], tall.shape[tall.ndim]
  local whole = tall
  if n > k then
    local shape = {unpack(tall.shape, 1, tall.ndim - 1)}
    shape[#shape + 1] = n - k
    whole = ops.cat({tall, ops.randn(shape, {dtype = tall.dtype, device = tall.device})}, -1)
  end
  local Q, R = linalg.qr(whole)
  self:register_buffer("base", Q * R:diagonal(0, -2, -1):sign():unsqueeze(-2))
  local id = ops.eye(value.shape[value.ndim - 1], value.shape[value.ndim], {dtype = value.dtype, device = value.device})
  return (-id):expand(value.shape):clone()
end

--- Applies an orthogonal parametrization to a matrix, or a batch of matrices, of a module.
norms.orthogonal = signature.of([[orthogonal(module: module, {name = "weight",
  orthogonal_map: "matrix_exp" | "cayley" | "householder", *, use_trivialization = true})]], function(module, o)
  local w = value_of(module, o.name)
  if not core.is_tensor(w) or w.ndim < 2 then
    fail("orthogonal: %s has no matrix '%s'", module.__name, tostring(o.name))
  end
  local map = o.orthogonal_map or w.shape[w.ndim - 1] == w.shape[w.ndim] and "matrix_exp" or "householder"
  if o.use_trivialization then check_first("orthogonal", module, o.name) end
  return parametrize.register_parametrization(module, o.name, Orthogonal(map, o.use_trivialization), {unsafe = true})
end)

for _, which in ipairs {"weight_norm", "spectral_norm"} do
  --- remove_weight_norm(module [, name = "weight"]): Removes the normalization of a parameter of a module.
  norms["remove_" .. which] = function(module, name)
    name = options.arg("remove_" .. which, "name", name == nil and "weight" or name, "string")
    if not parametrize.is_parametrized(module, name) then
      local owner = records.is_module(module) and module.__name or options.describe(module)
      options.fail("remove_%s: %s has no %s of '%s'", which, owner, which, name)
    end
    return parametrize.remove_parametrizations(module, name)
  end
end

return norms
