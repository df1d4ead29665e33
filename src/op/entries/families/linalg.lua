--- Defines linear algebra: factorizations and solvers of matrices in the last two dims, of float32 and float64.
--- Gradients are PyTorch's (torch/csrc/autograd/FunctionsManual.cpp).
local op = ...

op "inverse(x)" {
  operands = {"x: [*, n, n] matrix strided"}, results = {"y: [*, n, n] of x"}, host = true,
  grad = {x = "-(y.T @ g @ y.T)"},
  autocast = "keep", values = "fail", help = "Computes the inverse of square matrices.",
}
op "det(x)" {
  operands = {"x: [*, n, n] matrix strided"},
  results = {"y: [*] of x", "LU: [*, n, n] of x", "pivots: [*, n] int32"}, hidden = 2, host = true,
  grad = {x = "det_grad(g, y, x, y1, y2)"},
  autocast = "keep",
  help = "Computes the determinant of square matrices.",
}
op "slogdet(x)" {
  operands = {"x: [*, n, n] matrix strided"},
  results = {"sign: [*] of x", "logarithm: [*] of x", "LU: [*, n, n] of x", "pivots: [*, n] int32"}, hidden = 2,
  host = true,
  grad = {x = "slogdet_grad(g1, x, y2, y3)"},
  autocast = "keep", values = "fail",
  help = "Computes the sign and the logarithm of the absolute value of the determinant.",
}
op "logdet(x)" {
  formula = {"sign = slogdet(x)", "log_of = result(sign, 2)", "masked_fill(log_of, sign < 0, nan)"},
  autocast = "keep", help = "Computes the logarithm of the determinant of square matrices.",
}
op "cholesky(x, upper = false)" {
  operands = {"x: [*, n, n] matrix strided"}, results = {"y: [*, n, n] of x"}, host = true,
  -- (M + M^T) / 4, M = L^-T (P + tril(P, -1)) L^-1, P = tril(L^T g): entries below the diagonal count twice
  grad = {
    x = {
      "l = upper ? y.T : y",
      "p = l.T @ (upper ? g.T : g)",
      "half = linalg_solve_triangular(l, tril(p) + tril(p, -1), false, false)",
      "both = linalg_solve_triangular(l.T, half, true)",
      "(both + both.T) * 0.25",
    },
  },
  autocast = "keep",
  values = "fail", help = "Computes the Cholesky factor L of positive definite matrices, x = L L^T.",
}
op "linalg_solve(A, B, {left = true})" {
  operands = {"A: [*, n, n] matrix strided", "B: [*, r, c] matrix of A strided", "solves(A, B, left)"},
  results = {"X: [*, r, c] of B columns(!left)", "LU: [*, n, n] of A", "pivots: [*, n] int32"}, hidden = 2, host = true,
  grad = {
    A = {
      "gb = recorded() ? linalg_solve(A.T, g, left) : linalg_lu_solve(y1, y2, g, left, true)",
      "left ? -gb @ y.T : y.T @ -gb",
    },
    B = "recorded() ? linalg_solve(A.T, g, left) : linalg_lu_solve(y1, y2, g, left, true)",
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "X with A X = B, or X A = B without left; A [..., n, n], B [..., n, k]; batches broadcast",
}
op "linalg_solve_triangular(A, B, {upper = false, left = true, unitriangular = false})" {
  operands = {"A: [*, n, n] matrix strided", "B: [*, r, c] matrix of A strided", "solves(A, B, left)"},
  results = {"X: [*, r, c] of B columns(!left)"}, host = true,
  grad = {
    A = {
      "gb = linalg_solve_triangular(A.T, g, !upper, left, unitriangular)",
      "ga = left ? -gb @ y.T : y.T @ -gb",
      "upper ? triu(ga, unitriangular) : tril(ga, unitriangular ? -1 : 0)",
    },
    B = "linalg_solve_triangular(A.T, g, !upper, left, unitriangular)",
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "X with A X = B (X A = B without left) by one triangle of A; unitriangular: with ones on its diagonal",
}
op "linalg_lu_factor(A, {check = true})" {
  operands = {"A: [*, m, n] matrix strided"}, results = {"LU: [*, m, n] of A", "pivots: [*, min(m, n)] int32"},
  host = true,
  -- With A = P L U, L1 and U1 the square parts, L2 the rows below, U2 the columns beside: A1 gets
  -- P L1^-T (tril(L1^T gL1 - gU2 U2^T, -1) + triu(gU1 U1^T - L2^T gL2)) U1^-T, A2 below gL2 U1^-T, A2 beside L1^-T gU2.
  grad = {
    A = {
      "m = size_of(y)[-2]",
      "n = size_of(y)[-1]",
      "k = m < n ? m : n",
      "l = lower_of_lu(y)",
      "u = upper_of_lu(y)",
      "gl = tril(narrow(g, -1, 1, k), -1)",
      "gu = triu(narrow(g, -2, 1, k))",
      "l1t = narrow(l, -2, 1, k).T",
      "u1t = narrow(u, -1, 1, k).T",
      "gl2 = m > k ? narrow(gl, -2, k + 1, m - k) : nil",
      "gu2 = n > k ? narrow(gu, -1, k + 1, n - k) : nil",
      "below = minus(l1t @ narrow(gl, -2, 1, k), n > k ? gu2 @ narrow(u, -1, k + 1, n - k).T : nil)",
      "above = minus(narrow(gu, -1, 1, k) @ u1t, m > k ? narrow(l, -2, k + 1, m - k).T @ gl2 : nil)",
      "part = linalg_solve_triangular(u1t, tril(below, -1) + triu(above), false, false)",
      "square = linalg_solve_triangular(l1t, part, true, true, true)",
      "lu_pivots_to_matrix(y1, y) @ (n > k ? cat([square, linalg_solve_triangular(l1t, gu2, true, true, true)], -1) "
        .. ": m > k ? cat([square, linalg_solve_triangular(u1t, gl2, false, false)], -2) : square)",
    },
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "L below the diagonal and U on and above it in one matrix, and int32 pivots: row i was exchanged with row "
    .. "pivots[i]; check: an error where U has a zero on its diagonal",
}
op "linalg_lu_solve(LU, pivots, B, {left = true, adjoint = false})" {
  operands = {
    "LU: [*, n, n] matrix strided", "B: [*, r, c] matrix of LU strided", "solves(LU, B, left)", "pivots(pivots, LU)",
    "pivots: [*, n] strided",
  },
  results = {"X: [*, r, c] of B columns(!left)"}, host = true,
  -- the gradient of A = P L U, and its parts for L and U: tril(W U^T, -1) + triu(L^T W), W = -P^T gA
  grad = {
    LU = {
      "gb = linalg_lu_solve(LU, pivots, g, left, !adjoint)",
      "ga = left ? gb @ y.T : y.T @ gb",
      "w = -(lu_pivots_to_matrix(pivots, LU).T @ (adjoint ? ga.T : ga))",
      "tril(w @ upper_of_lu(LU).T, -1) + triu(lower_of_lu(LU).T @ w)",
    },
    B = "linalg_lu_solve(LU, pivots, g, left, !adjoint)",
  },
  autocast = "keep", internal = true,
  values = "fail", help = "X with A X = B from linalg_lu_factor(A); adjoint: A^T X = B; without left X A = B",
}
op "lu_pivots_to_matrix(pivots, like)" {
  operands = {"like: [*, m, n] matrix strided", "pivots(pivots, like)", "pivots: [*, k] strided"},
  results = {"P: [*, m, m] of like"}, host = true, grad = "none", internal = true,
  help = "P of A = P L U from the pivots of linalg_lu_factor, of like's dtype, with as many rows as like [..., m, n]",
}
op "lu_unpack(LU_data, LU_pivots)" {
  results = 3,
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
op "linalg_qr(A, mode: qr_mode = reduced)" {
  operands = {"A: [*, m, n] matrix strided"},
  results = {
    "Q: [*, m, mode == 'complete' ? m : min(m, n)] of A columns if mode != 'r' else [0]",
    "R: [*, mode == 'complete' ? m : min(m, n), n] of A columns",
  },
  host = true,
  needs = {{"ndim_of(A) > 1", "expected A to have shape [*, m, n], got {A}"}},
  -- [gQ + Q sym(triu(gR R^T - Q^T gQ))] R^-T, where sym mirrors the upper triangle. For a wide A = [A1, A2], R = [R1,
  -- R2]: A2 gets Q gR2, and Q also A2 gR2^T = Q R2 gR2^T.
  grad = {
    A = {
      "q = reduced_q(y, y1, mode)",
      "m = size_of(q)[-2]",
      "n = size_of(y1)[-1]",
      "gr2 = n > m ? narrow(g1, -1, m + 1, n - m) : nil",
      "r2 = n > m ? narrow(y1, -1, m + 1, n - m) : nil",
      "r1 = n > m ? narrow(y1, -1, 1, m) : y1",
      "gq = plus(g, n > m ? q @ (r2 @ gr2.T) : nil)",
      "inner = minus((n > m ? narrow(g1, -1, 1, m) : g1) @ r1.T, q.T @ gq)",
      "both = plus(gq, q @ plus(triu(inner), triu(inner, 1).T))",
      "ga1 = linalg_solve_triangular(r1.T, both, false, false)",
      "n > m ? cat([ga1, defined(g1) ? q @ gr2 : zeros_of(q, size_of(r2))], -1) : ga1",
    },
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "Q with orthonormal columns and upper triangular R, A = Q R; mode: reduced, complete (Q square), r (no Q)",
}
op "orgqr(x, tau)" {
  needs = {
    {"ndim_of(x) > 1 && size_of(x)[-2] >= size_of(x)[-1]",
      "expected x to have shape [*, m, n] with m at least n, got {x}"},
    {"ndim_of(tau) > 0 && size_of(tau)[-1] <= size_of(x)[-1]",
      "expected tau to have shape [*, k] with k at most {size_of(x)[-1]}, a reflector for each column of x, got {tau}"},
  },
  operands = {"x: [*, m, n] matrix", "tau: [*, k] of x"}, results = {"Q: [*, m, n] of x"}, host = true, grad = "none",
  autocast = "keep", help = "Computes the first columns of a product of Householder matrices.",
}
op "linalg_eigh(A, UPLO: triangle = L)" {
  operands = {"A: [*, n, n] matrix strided"}, results = {"values: [*, n] of A", "vectors: [*, n, n] of A columns"},
  host = true,
  -- V (diag(gl) + V^T gV / E) V^T, E[i][j] = l[j] - l[i] off the diagonal; halved, as the matrix is symmetric
  grad = {
    A = {
      "gaps = defined(g1) ? unsqueeze(y, -2) - unsqueeze(y, -1) : nil",
      "on = is_diagonal(gaps)",
      "inner = masked_fill(y1.T @ g1 / masked_fill(gaps, on, 1), on, 0)",
      "defined(g1) ? y1 @ plus((inner + inner.T) * 0.5, diagonal_matrix(g)) @ y1.T : y1 * unsqueeze(g, -2) @ y1.T",
    },
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "eigenvalues, ascending, and in the columns of a matrix the eigenvectors, of symmetric matrices, of which "
    .. "one triangle is read",
}
op "linalg_eigvalsh(A, UPLO: triangle = L)" {
  operands = {"A: [*, n, n] matrix strided"}, results = {"values: [*, n] of A"}, host = true,
  grad = {A = {"l = linalg_eigh(A, UPLO)", "v = result(l, 2)", "v * unsqueeze(g, -2) @ v.T"}},
  autocast = "keep", internal = true, values = "fail",
  help = "the eigenvalues of symmetric matrices, ascending",
}
op "linalg_svd(A, full_matrices = true)" {
  operands = {"A: [*, m, n] matrix strided"},
  results = {
    "U: [*, m, full_matrices ? m : min(m, n)] of A columns", "S: [*, min(m, n)] of A",
    "Vh: [*, full_matrices ? n : min(m, n), n] of A columns",
  },
  host = true,
  -- U [skew(U^T gU) / E S + S skew(V^T gV) / E + diag(gS)] V^T, E[i][j] = S[j]^2 - S[i]^2, plus the part outside the
  -- columns of U and V that are not square. Full matrices' columns beyond the singular values have no gradient.
  grad = {
    A = {
      "k = size_of(y1)[-1]",
      "u = narrow(y, -1, 1, k)",
      "vh = narrow(y2, -2, 1, k)",
      "gu = narrow(g, -1, 1, k)",
      "gvh = narrow(g2, -2, 1, k)",
      "vectors = defined(gu) || defined(gvh)",
      "row = unsqueeze(y1, -2)",
      "column = unsqueeze(y1, -1)",
      "apart = vectors ? (row - column) * (row + column) : nil",
      "gaps = masked_fill(apart, is_diagonal(apart), 1)",
      "utg = u.T @ gu",
      "vtg = vh @ gvh.T",
      "inner = plus((utg - utg.T) / gaps * row, (vtg - vtg.T) / gaps * column)",
      "su = size_of(y)[-2] > k ? gu / row : nil",
      "sv = size_of(y2)[-1] > k ? gvh / column : nil",
      "left = plus(u @ plus(inner, diagonal_matrix(g1)), minus(su, u @ (u.T @ su)))",
      "vectors ? plus(left @ vh, u @ minus(sv, sv @ vh.T @ vh)) : u * unsqueeze(g1, -2) @ vh",
    },
  },
  autocast = "keep", internal = true,
  values = "fail",
  help = "U, singular values S in descending order, and V transposed: A = U diag(S) Vh; without full_matrices U "
    .. "[..., m, k] and Vh [..., k, n], k the smaller of m and n",
}
op "linalg_svdvals(A)" {
  operands = {"A: [*, m, n] matrix strided"}, results = {"S: [*, min(m, n)] of A"}, host = true,
  grad = {A = {"u = linalg_svd(A, false)", "vh = result(u, 3)", "u * unsqueeze(g, -2) @ vh"}},
  autocast = "keep", internal = true, values = "fail",
  help = "the singular values of matrices, in descending order",
}
op "linalg_pinv(A, {atol: scalar?, rtol: scalar?, hermitian = false})" {
  grad = {
    A = {
      "wide = size_of(A)[-2] <= size_of(A)[-1]",
      "k = wide ? g.T @ y : y @ g.T",
      "kt = wide ? k @ y.T : y.T @ k",
      "wide ? kt - (y @ k).T - A @ y @ kt + y.T @ y @ (g.T - k @ A) "
        .. ": kt - (k @ y).T + (g.T - A @ k) @ y @ y.T - kt @ y @ A",
    },
    atol = "nil", rtol = "nil",
  },
  autocast = "keep", internal = true,
  help = "the pseudoinverse [..., n, m]; singular values up to the larger of atol and rtol times the largest count as "
    .. "0; rtol is by default the larger of m and n times the dtype's precision where atol is 0",
}
op "linalg_lstsq(A, B, {rcond: number?, driver: lstsq_driver = gelsy})" {
  operands = {"A: [*, m, n] matrix strided", "B: [*, m, k] matrix of A strided"},
  results = {
    "X: [*, n, k] of A columns", "residuals: [*, k] of A if m > n && driver != 'gelsy' else [0]",
    "rank: [*] int64 if driver != 'gels' else [0]",
    "values: [*, min(m, n)] of A if driver == 'gelsd' || driver == 'gelss' else [0]",
  },
  host = true,
  -- With P the pseudoinverse of A and R = B - A X: -P^T g X^T + R (P P^T g)^T + P^T X (g - P A g)^T. It is pinv's
  -- gradient of g B^T with only B's columns. P^T g is the least-squares solution for A^T.
  grad = {
    A = {
      "errors = numel_of(g1) > 0 ? (A @ y - B) * (unsqueeze(g1, -2) * 2) : nil",
      "p = defined(g) ? linalg_pinv(A) : nil",
      "on_b = p.T @ g",
      "outside = g - p @ (A @ g)",
      "ga = (B - A @ y) @ (p @ on_b).T - on_b @ y.T + p.T @ y @ outside.T",
      "u = numel_of(g3) > 0 ? linalg_svd(A, false) : nil",
      "vh = result(u, 3)",
      "plus(plus(ga, u * unsqueeze(g3, -2) @ vh), errors @ y.T)",
    },
    B = {
      "errors = numel_of(g1) > 0 ? (A @ y - B) * (unsqueeze(g1, -2) * 2) : nil",
      "minus(linalg_lstsq(A.T, g), errors)",
    },
  },
  autocast = "keep", internal = true,
  values = "shape",
  help = "X that makes |A X - B| least, its residuals (of gels, gelsd and gelss), the ranks of A (not of gels), its "
    .. "singular values (of gelsd and gelss)",
}
op "cholesky_solve(B, L, upper = false)" {
  grad = {
    B = "cholesky_solve(g, L, upper)",
    L = { -- as in PyTorch, non-zero in the triangle of L that is not read
      "p = cholesky_solve(g, L, upper) @ y.T",
      "-(upper ? L @ (p + p.T) : (p + p.T) @ L)",
    },
  },
  autocast = "keep", values = "fail", help = "Solves A X = B with the Cholesky factor L of A.",
}
op "cholesky_inverse(L, upper = false)" {
  needs = {{"ndim_of(L) > 1 && size_of(L)[-1] == size_of(L)[-2]", "expected L to have shape [*, n, n], got {L}"}},
  formula = "cholesky_solve(identity_like(L), L, upper)",
  autocast = "keep", help = "Computes the inverse of matrices from their Cholesky factor L.",
}
op "triangular_solve(b, A, upper = true, transpose = false, unitriangular = false)" {
  results = 2,
  formula = {
    "transpose ? linalg_solve_triangular(A.T, b, !upper, true, unitriangular) : "
      .. "linalg_solve_triangular(A, b, upper, true, unitriangular)",
    "clone(A)",
  },
  autocast = "keep", help = "Solves A X = b with a triangular matrix A, and returns X and a copy of A.",
}
