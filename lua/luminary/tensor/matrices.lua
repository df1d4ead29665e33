--- Implements factorizations and powers of matrices, under their names in torch; lm.linalg has more.
local core = require "luminary.core"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops, arg, fail = core.ops, options.arg, options.fail
local matrices = {}

local function identities(x)
  return ops.expand(ops.eye(x.shape[x.ndim], {dtype = x.dtype, device = x.device}), x.shape)
end

--- Computes the singular value decomposition of matrices, x = U diag(S) V^T.
matrices.svd = signature.of("svd(x, some: any? = (true), compute_uv: any? = (true))", function(x, some, compute_uv)
  shapes.check_matrix("svd", "x", x)
  if compute_uv == false then
    local s = ops.linalg_svdvals(x)
    local function zeros(k)
      local shape = x.shape
      shape[x.ndim - 1], shape[x.ndim] = k, k
      return ops.zeros(shape, {dtype = x.dtype, device = x.device})
    end
    return zeros(x.shape[x.ndim - 1]), s, zeros(x.shape[x.ndim])
  end
  local u, s, vh = ops.linalg_svd(x, {full_matrices = some == false})
  return u, s, ops.transpose(vh, -1, -2)
end)

--- Computes the QR decomposition of matrices, x = Q R.
matrices.qr = signature.of("qr(x, some: any? = (true))", function(x, some)
  return ops.linalg_qr(shapes.check_matrix("qr", "x", x), {mode = some == false and "complete" or "reduced"})
end)

--- Computes the LU factorization of matrices, with its pivots.
matrices.lu = signature.of("lu(x, pivot: any? = (true), get_infos: any? = (false))", function(x, pivot, get_infos)
  if pivot == false then fail("lu: pivot = false is not supported") end
  local lu, pivots = ops.linalg_lu_factor(shapes.check_matrix("lu", "x", x), {check = not get_infos})
  if not get_infos then return lu, pivots end
  local shape = pivots.shape
  if table.remove(shape) == 0 then return lu, pivots, ops.zeros(shape, {dtype = "int32", device = x.device}) end
  local zero = ops.eq(ops.diagonal(lu, 0, -2, -1), 0)
  local infos = ops.where(ops.any(zero, -1), ops.argmax(zero:long(), -1), 0)
  return lu, pivots, infos:to "int32"
end)

--- Solves A X = b with the result of lm.lu(A).
matrices.lu_solve = signature.of("lu_solve(b, LU_data, LU_pivots)", function(b, LU_data, LU_pivots)
  shapes.check_matrix("lu_solve", "LU_data", LU_data, true)
  return ops.linalg_lu_solve(LU_data, LU_pivots, shapes.check_matrix("lu_solve", "b", b))
end)

--- Computes the pseudoinverse of matrices.
matrices.pinverse = signature.of("pinverse(x, rcond: any? = (1e-15))", function(x, rcond)
  return ops.linalg_pinv(shapes.check_matrix("pinverse", "x", x), {rtol = rcond or 1e-15})
end)

--- Computes the n-th power of square matrices.
matrices.matrix_power = signature.of("matrix_power(x, n: integer)", function(x, n)
  shapes.check_matrix("matrix_power", "x", x, true, true)
  if n == 0 then return ops.masked_fill(x, ops.ones_like(x, {dtype = "bool"}), 0) + identities(x) end
  if n == 1 then return ops.clone(x) end
  if n < 0 then x, n = ops.inverse(x), -n end
  local result
  while n > 0 do
    if n % 2 == 1 then result = result and ops.matmul(result, x) or x end
    n = math.floor(n / 2)
    if n > 0 then x = ops.matmul(x, x) end
  end
  return result
end)

local DEGREE, LARGEST = 20, 1 -- Taylor's degree, and the largest norm for which it is exact in float64

-- Returns Taylor's polynomial of the exponential, in powers of x^4 with polynomials of degree 3 as coefficients.
local function taylor(x)
  local one = identities(x)
  local x2 = ops.matmul(x, x)
  local powers = {x, x2, ops.matmul(x, x2)}
  local x4 = ops.matmul(x2, x2)
  local factor = {[0] = 1}
  for k = 1, DEGREE do factor[k] = factor[k - 1] / k end
  local result
  for first = DEGREE, 0, -4 do
    local part = one * factor[first]
    for k, power in ipairs(powers) do
      if first + k <= DEGREE then part = part + power * factor[first + k] end
    end
    result = result and part + ops.matmul(result, x4) or part
  end
  return result
end

--- Computes the matrix exponential of square matrices.
matrices.matrix_exp = signature.of("matrix_exp(x)", function(x)
  shapes.check_matrix("matrix_exp", "x", x, true)
  if core.is_autocast_enabled() then return full_precision.call(matrices.matrix_exp, x) end
  if x:numel() == 0 then return ops.clone(x) end
  local halvings = core.no_grad(function()
    local norm = ops.amax(ops.sum(ops.abs(x), -2, {keepdim = true}), -1, {keepdim = true})
    norm = ops.masked_fill(norm, ops.logical_not(ops.isfinite(norm)), 0)
    return ops.clamp(ops.ceil(ops.log2(norm / LARGEST)), 0)
  end)
  local result = taylor(ops.ldexp(x, -halvings))
  for k = 1, ops.amax(halvings):item() do
    result = ops.where(ops.ge(halvings, k), ops.matmul(result, result), result)
  end
  return result
end)

--- Returns the Vandermonde matrix of a vector: its powers as columns.
matrices.vander = signature.of("vander(x: tensor, N: any?, increasing: any? = (false))", function(x, N, increasing)
  if x.ndim ~= 1 then options.must_be("vander", "x", "1-d", x) end
  N = arg("vander", "N", N or x.shape[1], "natural")
  local powers = ops.arange(0, N, {dtype = "int64", device = x.device})
  return ops.pow(ops.unsqueeze(x, -1), increasing and powers or N - 1 - powers)
end)

return signature.all(matrices)
