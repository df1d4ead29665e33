--- Linear algebra: factorizations and what is solved by them, of matrices in the last two dims. float32 and float64.
--- Gradients are PyTorch's (torch/csrc/autograd/FunctionsManual.cpp).
local op = ...

op "inverse" {
  "x", operands = {"x: [*, n, n] matrix strided"}, results = {"y: [*, n, n] of x"}, host = true,
  grad = {x = "-matmul(matmul(transpose(y, -2, -1), g), transpose(y, -2, -1))"},
  autocast = "keep", help = "Computes the inverse of square matrices.",
}
op "det" {
  "x", operands = {"x: [*, n, n] matrix strided"},
  results = {"y: [*] of x", "LU: [*, n, n] of x", "pivots: [*, n] int32"}, hidden = 2, host = true,
  grad = {x = "det_grad(g, y, x, y1, y2)"},
  autocast = "keep",
  help = "Computes the determinant of square matrices.",
}
op "slogdet" {
  "x", operands = {"x: [*, n, n] matrix strided"},
  results = {"sign: [*] of x", "logarithm: [*] of x", "LU: [*, n, n] of x", "pivots: [*, n] int32"}, hidden = 2,
  host = true,
  grad = {x = "slogdet_grad(g1, x, y2, y3)"},
  autocast = "keep", help = "Computes the sign and the logarithm of the absolute value of the determinant.",
}
op "logdet" {
  "x",
  formula = "logdet_of(x)",
  autocast = "keep", help = "Computes the logarithm of the determinant of square matrices.",
}
op "cholesky" {
  "x", "upper = false",
  operands = {"x: [*, n, n] matrix strided"}, results = {"y: [*, n, n] of x"}, host = true,
  grad = {x = "cholesky_grad(g, y, upper)"},
  autocast = "keep",
  help = "Computes the Cholesky factor L of positive definite matrices, x = L L^T.",
}
op "linalg_solve" {
  "A", "B", options = {"left = true"},
  operands = {"A: [*, n, n] matrix strided", "B: [*, r, c] matrix of A strided", "solves(A, B, left)"},
  results = {"X: [*, r, c] of B columns(!left)", "LU: [*, n, n] of A", "pivots: [*, n] int32"}, hidden = 2, host = true,
  grad = {
    A = "solve_grad_matrix(solve_grad_right(g, A, y1, y2, left), y, left)",
    B = "solve_grad_right(g, A, y1, y2, left)",
  },
  autocast = "keep", internal = true,
  help = "X with A X = B, or X A = B without left; A [..., n, n], B [..., n, k]; batches broadcast",
}
op "linalg_solve_triangular" {
  "A", "B", options = {"upper = false", "left = true", "unitriangular = false"},
  operands = {"A: [*, n, n] matrix strided", "B: [*, r, c] matrix of A strided", "solves(A, B, left)"},
  results = {"X: [*, r, c] of B columns(!left)"}, host = true,
  grad = {
    A = "triangular_grad(linalg_solve_triangular(transpose(A, -2, -1), g, !upper, left, unitriangular), y, upper, "
      .. "left, unitriangular)",
    B = "linalg_solve_triangular(transpose(A, -2, -1), g, !upper, left, unitriangular)",
  },
  autocast = "keep", internal = true,
  help = "X with A X = B (X A = B without left) by one triangle of A; unitriangular: with ones on its diagonal",
}
op "linalg_lu_factor" {
  "A", options = {"check = true"},
  operands = {"A: [*, m, n] matrix strided"}, results = {"LU: [*, m, n] of A", "pivots: [*, min(m, n)] int32"},
  host = true,
  grad = {A = "lu_factor_grad(g, y, y1)"},
  autocast = "keep", internal = true,
  help = "L below the diagonal and U on and above it in one matrix, and int32 pivots: row i was exchanged with row "
    .. "pivots[i]; check: an error where U has a zero on its diagonal",
}
op "linalg_lu_solve" {
  "LU", "pivots", "B", options = {"left = true", "adjoint = false"},
  operands = {
    "LU: [*, n, n] matrix strided", "B: [*, r, c] matrix of LU strided", "solves(LU, B, left)", "pivots(pivots, LU)",
    "pivots: [*, n] strided",
  },
  results = {"X: [*, r, c] of B columns(!left)"}, host = true,
  grad = {
    LU = "lu_solve_grad(linalg_lu_solve(LU, pivots, g, left, !adjoint), y, LU, pivots, left, adjoint)",
    B = "linalg_lu_solve(LU, pivots, g, left, !adjoint)",
  },
  autocast = "keep", internal = true,
  help = "X with A X = B from linalg_lu_factor(A); adjoint: A^T X = B; without left X A = B",
}
op "lu_pivots_to_matrix" {
  "pivots", "like",
  operands = {"like: [*, m, n] matrix strided", "pivots(pivots, like)", "pivots: [*, k] strided"},
  results = {"P: [*, m, m] of like"}, host = true, grad = "none", internal = true,
  help = "P of A = P L U from the pivots of linalg_lu_factor, of like's dtype, with as many rows as like [..., m, n]",
}
op "lu_unpack" {
  "LU_data", "LU_pivots", results = 3,
  needs = {
    {"ndim_of(LU_data) > 1", "expected LU_data to have shape [*, m, n], got {LU_data}"},
    {"is_float(LU_data)", "LU_data must be float32 or float64, got {dtype_of(LU_data)}; linalg.lu_factor returns it"},
    {"ndim_of(LU_pivots) == ndim_of(LU_data) - 1", "LU_pivots must have one dim less than LU_data, got "
      .. "{LU_pivots} and {LU_data}; linalg.lu_factor returns both"},
  },
  formula = {
    "lu_pivots_to_matrix(LU_pivots, LU_data)",
    "lower_of_lu(LU_data)",
    "upper_of_lu(LU_data)",
  },
  help = "Returns the factors P, L and U of matrices from the result of lm.lu or lm.linalg.lu_factor.",
}
op "linalg_qr" {
  "A", "mode: qr_mode = reduced",
  operands = {"A: [*, m, n] matrix strided"},
  results = {
    "Q: [*, m, mode == 'complete' ? m : min(m, n)] of A columns if mode != 'r' else [0]",
    "R: [*, mode == 'complete' ? m : min(m, n), n] of A columns",
  },
  host = true,
  needs = {{"ndim_of(A) > 1", "expected A to have shape [*, m, n], got {A}"}},
  grad = {A = "qr_grad(g, g1, y, y1, mode)"},
  autocast = "keep", internal = true,
  help = "Q with orthonormal columns and upper triangular R, A = Q R; mode: reduced, complete (Q square), r (no Q)",
}
op "orgqr" {
  "x", "tau",
  needs = {
    {"ndim_of(x) > 1 && size_of(x)[-2] >= size_of(x)[-1]",
      "expected x to have shape [*, m, n] with m at least n, got {x}"},
    {"ndim_of(tau) > 0 && size_of(tau)[-1] <= size_of(x)[-1]",
      "expected tau to have shape [*, k] with k at most {size_of(x)[-1]}, a reflector for each column of x, got {tau}"},
  },
  operands = {"x: [*, m, n] matrix", "tau: [*, k] of x"}, results = {"Q: [*, m, n] of x"}, host = true, grad = "none",
  autocast = "keep", help = "Computes the first columns of a product of Householder matrices.",
}
op "linalg_eigh" {
  "A", "UPLO: triangle = L",
  operands = {"A: [*, n, n] matrix strided"}, results = {"values: [*, n] of A", "vectors: [*, n, n] of A columns"},
  host = true,
  grad = {A = "eigh_grad(g, g1, y, y1)"},
  autocast = "keep", internal = true,
  help = "eigenvalues, ascending, and in the columns of a matrix the eigenvectors, of symmetric matrices, of which "
    .. "one triangle is read",
}
op "linalg_eigvalsh" {
  "A", "UPLO: triangle = L",
  operands = {"A: [*, n, n] matrix strided"}, results = {"values: [*, n] of A"}, host = true,
  grad = {A = "eigvalsh_grad(g, A, UPLO)"},
  autocast = "keep", internal = true, help = "the eigenvalues of symmetric matrices, ascending",
}
op "linalg_svd" {
  "A", "full_matrices = true",
  operands = {"A: [*, m, n] matrix strided"},
  results = {
    "U: [*, m, full_matrices ? m : min(m, n)] of A columns", "S: [*, min(m, n)] of A",
    "Vh: [*, full_matrices ? n : min(m, n), n] of A columns",
  },
  host = true,
  grad = {A = "svd_grad(g, g1, g2, y, y1, y2)"},
  autocast = "keep", internal = true,
  help = "U, singular values S in descending order, and V transposed: A = U diag(S) Vh; without full_matrices U "
    .. "[..., m, k] and Vh [..., k, n], k the smaller of m and n",
}
op "linalg_svdvals" {
  "A", operands = {"A: [*, m, n] matrix strided"}, results = {"S: [*, min(m, n)] of A"}, host = true,
  grad = {A = "svdvals_grad(g, A)"},
  autocast = "keep", internal = true, help = "the singular values of matrices, in descending order",
}
op "linalg_pinv" {
  "A", options = {"atol: scalar?", "rtol: scalar?", "hermitian = false"},
  grad = {A = "pinv_grad(g, y, A)", atol = "nil", rtol = "nil"},
  autocast = "keep", internal = true,
  help = "the pseudoinverse [..., n, m]; singular values up to the larger of atol and rtol times the largest count as "
    .. "0; rtol is by default the larger of m and n times the dtype's precision where atol is 0",
}
op "linalg_lstsq" {
  "A", "B", options = {"rcond: number?", "driver: lstsq_driver = gelsy"},
  operands = {"A: [*, m, n] matrix strided", "B: [*, m, k] matrix of A strided"},
  results = {
    "X: [*, n, k] of A columns", "residuals: [*, k] of A if m > n && driver != 'gelsy' else [0]",
    "rank: [*] int64 if driver != 'gels' else [0]",
    "values: [*, min(m, n)] of A if driver == 'gelsd' || driver == 'gelss' else [0]",
  },
  host = true,
  grad = {A = "lstsq_grad_matrix(g, g1, g3, A, B, y)", B = "lstsq_grad_right(g, g1, A, B, y)"},
  autocast = "keep", internal = true,
  help = "X that makes |A X - B| least, its residuals (of gels, gelsd and gelss), the ranks of A (not of gels), its "
    .. "singular values (of gelsd and gelss)",
}
op "cholesky_solve" {
  "B", "L", "upper = false",
  grad = {
    B = "cholesky_solve(g, L, upper)",
    L = "cholesky_solve_grad(cholesky_solve(g, L, upper), y, L, upper)",
  },
  autocast = "keep", help = "Solves A X = B with the Cholesky factor L of A.",
}
op "cholesky_inverse" {
  "L", "upper = false",
  needs = {{"ndim_of(L) > 1 && size_of(L)[-1] == size_of(L)[-2]", "expected L to have shape [*, n, n], got {L}"}},
  formula = "cholesky_solve(identity_like(L), L, upper)",
  autocast = "keep", help = "Computes the inverse of matrices from their Cholesky factor L.",
}
op "triangular_solve" {
  "b", "A", "upper = true", "transpose = false", "unitriangular = false", results = 2,
  formula = {
    "transpose ? linalg_solve_triangular(transpose(A, -2, -1), b, !upper, true, unitriangular) : "
      .. "linalg_solve_triangular(A, b, upper, true, unitriangular)",
    "clone(A)",
  },
  autocast = "keep", help = "Solves A X = b with a triangular matrix A, and returns X and a copy of A.",
}
