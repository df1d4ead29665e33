--- lm.linalg: Computes norms, products and factorizations of matrices under the names of torch.linalg. Dims count from
--- 1. Matrices are the last two dims, float32 or float64; the dims before them are a batch. Factorizations run on the
--- CPU with LAPACK: tensors on other devices are copied there and back. Complex numbers, and eigenvalues of matrices
--- that are not symmetric, are not supported.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local products = require "luminary.tensor.products"
local matrix = require("luminary.tensor.shapes").check_matrix

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local matrices = require "luminary.tensor.matrices"
local linalg = {multi_dot = products.multi_dot}

local function in_dtype(x, dtype) return dtype and x:to(dtype) or x end

local common = ", dim: dims?, keepdim = false, dtype: string?)"

--- Computes a norm of vectors over dim, or of all elements.
linalg.vector_norm = signature.of("vector_norm(x: tensor, ord = 2" .. common, function(x, ord, dim, keepdim, dtype)
  if not core.is_floating_point(x) and not dtype then
    options.wrong_dtype("vector_norm", "x", "floating", x, "convert it with :float() or {dtype = …}")
  end
  return ops.norm(in_dtype(x, dtype), ord, dim, {keepdim = keepdim})
end)

local function some_entry(who, x, n, ord)
  if n == 0 and ord ~= "nuc" then fail("%s: x is %s; ord %g needs at least one element", who, describe(x), ord) end
end

local function matrix_norm(who, x, ord, dim, keepdim)
  if x.ndim < 2 then options.must_be(who, "x", "a tensor of at least 2 dims", x) end
  if not options.is_plain(dim) or #dim ~= 2 then
    options.must_be(who, "dim", "a list of two dims", dim)
  end
  local rows, columns = dim[1], dim[2]
  for _, d in ipairs(dim) do
    if type(d) ~= "number" or d % 1 ~= 0 or d == 0 or d < -x.ndim or d > x.ndim then
      fail("%s: dim %s is out of range for %s", who, tostring(d), describe(x))
    end
  end
  if rows < 0 then rows = x.ndim + 1 + rows end
  if columns < 0 then columns = x.ndim + 1 + columns end
  if rows == columns then fail("%s: dim must be two different dims, got dim %d twice", who, rows) end
  if not core.is_floating_point(x) then options.wrong_dtype(who, "x", "floating", x, "convert it with :float()") end
  if type(ord) == "cdata" then ord = tonumber(ord) end -- an int64
  if ord == "fro" then return ops.norm(x, 2, {rows, columns}, {keepdim = keepdim}) end
  if ord == "nuc" or ord == 2 or ord == -2 then
    local others = {}
    for d = 1, x.ndim do
      if d ~= rows and d ~= columns then others[#others + 1] = d end
    end
    others[#others + 1], others[#others + 2] = rows, columns
    local s = ops.linalg_svdvals(ops.permute(x, others))
    some_entry(who, x, s.shape[s.ndim], ord)
    local y = ord == "nuc" and ops.sum(s, -1) or (ord > 0 and ops.amax or ops.amin)(s, -1)
    for d = 1, keepdim and x.ndim or 0 do
      if d == rows or d == columns then y = ops.unsqueeze(y, d) end
    end
    return y
  end
  if ord ~= 1 and ord ~= -1 and ord ~= math.huge and ord ~= -math.huge then
    options.must_be(who, "ord", "'fro', 'nuc', 1, -1, 2, -2, math.huge or -math.huge", ord)
  end
  if math.abs(ord) ~= 1 then rows, columns = columns, rows end -- sums of rows, not of columns
  some_entry(who, x, x.shape[columns], ord)
  local sums = ops.norm(x, 1, rows, {keepdim = true})
  local y = (ord > 0 and ops.amax or ops.amin)(sums, columns, {keepdim = true})
  return keepdim and y or ops.squeeze(y, {rows, columns})
end

--- Computes a norm of matrices in two dims.
linalg.matrix_norm = signature.of([[matrix_norm(x: tensor, ord: any = "fro"]] .. common,
  function(x, ord, dim, keepdim, dtype)
    return matrix_norm("matrix_norm", in_dtype(x, dtype), ord, dim or {-2, -1}, keepdim)
  end)

--- Computes a norm of vectors or matrices, by the number of dims.
linalg.norm = signature.of("norm(x: tensor, ord: any?" .. common, function(x, ord, dim, keepdim, dtype)
  x = in_dtype(x, dtype)
  if dim ~= nil and type(dim) ~= "number" and not options.is_plain(dim) then
    options.must_be("norm", "dim", "a number or a list of numbers", dim)
  end
  local dims = dim ~= nil and (type(dim) == "number" and 1 or #dim) or x.ndim
  if ord == nil then return ops.norm(x, 2, dim, {keepdim = keepdim}) end
  if dims == 2 then return matrix_norm("norm", x, ord, dim or {1, 2}, keepdim) end
  if dims ~= 1 then fail("norm: with ord, x must have 1 or 2 dims, or dim must list 1 or 2; x is %s", describe(x)) end
  return ops.norm(x, arg("norm", "ord", ord, "number"), dim, {keepdim = keepdim})
end)

--- Computes the dot product of vectors along dim.
linalg.vecdot = signature.of("vecdot(x: tensor, other: tensor, dim: dim = -1)", function(x, other, dim)
  if not core.is_floating_point(x) then x = x:long() end -- as the sum, which products of small integers would leave
  return ops.sum(x * other, dim)
end)

--- linalg.cross(x, other [, {dim = -1}]): Computes the cross product of vectors along dim, of size 3.
function linalg.cross(x, other, opts) return ops.cross(x, other, opts or {}) end

--- linalg.matmul(A, B): Computes the matrix product of two tensors.
function linalg.matmul(A, B) return ops.matmul(A, B) end

--- Returns a view of the diagonals of matrices.
linalg.diagonal = signature.of([[diagonal(A: tensor, offset: integer = 0, dim1: integer = -2,
  dim2: integer = -1)]], function(...) return ops.diagonal(...) end)

-- ---- inverses, determinants, solutions

--- linalg.inv(A): Computes the inverse of square matrices.
function linalg.inv(A) return ops.inverse(matrix("inv", "A", A, true)) end

--- linalg.det(A): Computes the determinant of square matrices.
function linalg.det(A) return ops.det(matrix("det", "A", A, true)) end

--- linalg.slogdet(A): Computes the sign and the logarithm of the absolute value of the determinant.
function linalg.slogdet(A) return ops.slogdet(matrix("slogdet", "A", A, true)) end

--- Solves the linear systems A X = B, or X A = B without left.
linalg.solve = signature.of("solve(A, B: tensor, left: any? = (true))", function(A, B, left)
  matrix("solve", "A", A, true)
  left = left == nil or arg("solve", "left", left, "boolean")
  local batch_of_vectors = A.shape
  table.remove(batch_of_vectors)
  if B.ndim ~= 1 and B.shape ~= batch_of_vectors then return ops.linalg_solve(A, B, {left = left}) end
  local at = left and -1 or -2
  return ops.squeeze(ops.linalg_solve(A, ops.unsqueeze(B, at), {left = left}), at)
end)

--- Solves A X = B with triangular matrices A.
linalg.solve_triangular = signature.of([[solve_triangular(A, B, upper: any?, left: any? = (true),
  unitriangular: any? = (false))]], function(A, B, upper, left, unitriangular)
  return ops.linalg_solve_triangular(matrix("solve_triangular", "A", A, true), matrix("solve_triangular", "B", B), {
    upper = arg("solve_triangular", "upper", upper, "boolean"), left = left, unitriangular = unitriangular,
  })
end)

local function with_pivots(who, pivot)
  if pivot == false then fail("%s: pivot = false is not supported", who) end
end

--- Computes the LU factorization of matrices in compact form, and the pivots.
linalg.lu_factor = signature.of("lu_factor(A, pivot: any? = (true))", function(A, pivot)
  with_pivots("lu_factor", pivot)
  return ops.linalg_lu_factor(matrix("lu_factor", "A", A))
end)

--- Computes the LU decomposition of matrices, A = P L U.
linalg.lu = signature.of("lu(A, pivot: any? = (true))", function(A, pivot)
  with_pivots("lu", pivot)
  return ops.lu_unpack(ops.linalg_lu_factor(matrix("lu", "A", A), {check = false}))
end)

--- Solves A X = B with the result of lm.linalg.lu_factor(A).
linalg.lu_solve = signature.of([[lu_solve(LU, pivots, B, left: any? = (true),
  adjoint: any? = (false))]], function(LU, pivots, B, left, adjoint)
  matrix("lu_solve", "LU", LU, true)
  return ops.linalg_lu_solve(LU, pivots, matrix("lu_solve", "B", B), {left = left, adjoint = adjoint})
end)

--- Computes the inverse of a tensor with respect to lm.tensordot.
linalg.tensorinv = signature.of("tensorinv(A: tensor, ind: any? = (2))", function(A, ind)
  ind = arg("tensorinv", "ind", ind or 2, "count")
  local first, last, rows, columns = {}, {}, 1, 1
  for d, n in ipairs(A.shape) do
    if d <= ind then first[#first + 1], rows = n, rows * n else last[#last + 1], columns = n, columns * n end
  end
  if rows ~= columns then
    fail("tensorinv: A is %s; its first %d dims must have as many elements as the others, got %d and %d", describe(A),
      ind, rows, columns)
  end
  for _, n in ipairs(first) do last[#last + 1] = n end
  return ops.reshape(ops.inverse(ops.reshape(A, {rows, columns})), last)
end)

--- Solves tensordot(A, X, X.ndim) = B.
linalg.tensorsolve = signature.of("tensorsolve(A: tensor, B: tensor, dims: any?)", function(A, B, dims)
  dims = dims and arg("tensorsolve", "dims", dims, "integers")
  local last, order = {}, {}
  for _, d in ipairs(dims or {}) do last[d < 0 and A.ndim + 1 + d or d] = true end
  for d = 1, A.ndim do
    if not last[d] then order[#order + 1] = d end
  end
  for _, d in ipairs(dims or {}) do order[#order + 1] = d < 0 and A.ndim + 1 + d or d end
  A = ops.permute(A, order)
  local shape, columns = {}, 1
  for d = B.ndim + 1, A.ndim do shape[#shape + 1], columns = A.shape[d], columns * A.shape[d] end
  if columns ~= B:numel() or A:numel() ~= columns * columns then
    fail("tensorsolve: A is %s and B %s; A's dims beyond B's must have as many elements as B", describe(A), describe(B))
  end
  local flat = linalg.solve(ops.reshape(A, {columns, columns}), ops.reshape(B, {columns}))
  return ops.reshape(flat, shape)
end)

--- Solves the least squares problems of A X = B.
linalg.lstsq = signature.of([[lstsq(A, B: tensor, rcond: any?,
  driver: any? = ("gelsy"))]], function(A, B, rcond, driver)
  matrix("lstsq", "A", A)
  local vector = A.ndim >= 2 and B.ndim == A.ndim - 1
  local X, residuals, rank, singular_values = ops.linalg_lstsq(A, vector and ops.unsqueeze(B, -1) or B,
    {rcond = rcond, driver = driver})
  if vector then X = ops.squeeze(X, -1) end
  return X, residuals, rank, singular_values
end)

--- Computes the pseudoinverse of matrices.
linalg.pinv = signature.of([[pinv(A, rtol: any?, atol: any?,
  hermitian: any? = (false))]], function(A, rtol, atol, hermitian)
  return ops.linalg_pinv(matrix("pinv", "A", A, hermitian), {rtol = rtol, atol = atol, hermitian = hermitian})
end)

-- ---- factorizations

--- Computes the Cholesky factor L of positive definite matrices, A = L L^T.
linalg.cholesky = signature.of("cholesky(A, upper: any? = (false))", function(A, upper)
  return ops.cholesky(matrix("cholesky", "A", A, true), {upper = upper})
end)

--- linalg.qr(A [, mode = "reduced"]): Computes the QR decomposition of matrices, A = Q R.
function linalg.qr(A, mode) return ops.linalg_qr(matrix("qr", "A", A), {mode = mode}) end

--- Computes the eigenvalues and eigenvectors of symmetric matrices.
linalg.eigh = signature.of([[eigh(A, UPLO: any? = ("L"))]], function(A, UPLO)
  return ops.linalg_eigh(matrix("eigh", "A", A, true), {UPLO = UPLO})
end)

--- Computes the eigenvalues of symmetric matrices.
linalg.eigvalsh = signature.of([[eigvalsh(A, UPLO: any? = ("L"))]], function(A, UPLO)
  return ops.linalg_eigvalsh(matrix("eigvalsh", "A", A, true), {UPLO = UPLO})
end)

--- Computes the singular value decomposition of matrices, A = U diag(S) Vh.
linalg.svd = signature.of("svd(A, full_matrices: any? = (true))", function(A, full_matrices)
  return ops.linalg_svd(matrix("svd", "A", A), {full_matrices = full_matrices})
end)

--- linalg.svdvals(A): Computes the singular values of matrices, in descending order.
function linalg.svdvals(A) return ops.linalg_svdvals(matrix("svdvals", "A", A)) end

-- ---- powers, ranks

linalg.matrix_power, linalg.matrix_exp = matrices.matrix_power, matrices.matrix_exp

--- Computes the rank of matrices.
linalg.matrix_rank = signature.of([[matrix_rank(A, tol: any?, atol: any?, rtol: any?,
  hermitian: any? = (false))]], function(A, tol, atol, rtol, hermitian)
  matrix("matrix_rank", "A", A, hermitian)
  for name, v in pairs {tol = tol, atol = atol, rtol = rtol} do
    if not core.is_tensor(v) then arg("matrix_rank", name, v, "number") end
  end
  return core.no_grad(function()
    local s = hermitian and ops.abs(ops.linalg_eigvalsh(A)) or ops.linalg_svdvals(A)
    local m, n = A.shape[A.ndim - 1], A.shape[A.ndim]
    if m == 0 or n == 0 then return ops.sum(ops.gt(s, 0), -1) end
    local precision = A.dtype == "float64" and 2 ^ -52 or 2 ^ -23
    if tol ~= nil then
      atol, rtol = tol, 0
    elseif rtol == nil then
      rtol = math.max(m, n) * precision
      if core.is_tensor(atol) then rtol = ops.where(ops.gt(atol, 0), 0, rtol) elseif (atol or 0) > 0 then rtol = 0 end
    end
    local threshold = ops.amax(s, -1) * rtol
    if atol ~= nil then
      if not core.is_tensor(atol) then atol = ops.full({}, atol, {dtype = s.dtype, device = s.device}) end
      threshold = ops.maximum(threshold, atol)
    end
    return ops.sum(ops.gt(s, ops.unsqueeze(threshold, -1)), -1)
  end)
end)

--- Computes the condition number of matrices.
linalg.cond = signature.of("cond(A, p: any? = (2))", function(A, p)
  matrix("cond", "A", A, p ~= nil and p ~= 2 and p ~= -2)
  if p == nil or p == 2 or p == -2 then
    local s = ops.linalg_svdvals(A)
    local largest, smallest = ops.select(s, -1, 1), ops.select(s, -1, -1)
    return p == -2 and smallest / largest or largest / smallest
  end
  return matrix_norm("cond", A, p, {-2, -1}, false) * matrix_norm("cond", ops.inverse(A), p, {-2, -1}, false)
end)

--- Returns the Vandermonde matrix of vectors: their powers as columns.
linalg.vander = signature.of("vander(x: tensor, N: any?)", function(x, N)
  if x.ndim == 0 then x = ops.unsqueeze(x, 1) end
  N = arg("vander", "N", N or x.shape[x.ndim], "natural")
  return ops.pow(ops.unsqueeze(x, -1), ops.arange(0, N, {dtype = "int64", device = x.device}))
end)

return options.strict("linalg", signature.all(linalg))
