/* Gradients of linear algebra, after PyTorch's torch/csrc/autograd/FunctionsManual.cpp; T is
 * the transposed, o the elementwise product. NULL is zero. */
#include "autograd/expr.h"
#include "autograd/formulas.h"

static lm_tensor *mm(lm_expr *e, lm_tensor *a, lm_tensor *b) { return lm_e_matmul(e, a, b); }
static lm_tensor *transposed(lm_expr *e, lm_tensor *a) { return lm_e_transpose(e, a, -2, -1); }
static lm_tensor *plus(lm_expr *e, lm_tensor *a, lm_tensor *b) { return !a ? b : !b ? a : lm_e_add(e, a, b, 1); }
static lm_tensor *minus(lm_expr *e, lm_tensor *a, lm_tensor *b) {
  if (!b) return a;
  return a ? lm_e_sub(e, a, b, 1) : lm_e_neg(e, b);
}
static lm_tensor *as_row(lm_expr *e, lm_tensor *v) { return lm_e_unsqueeze(e, v, -2); }
static lm_tensor *as_column(lm_expr *e, lm_tensor *v) { return lm_e_unsqueeze(e, v, -1); }
static int64_t rows_of(const lm_tensor *a) { return a->size[a->ndim - 2]; }
static int64_t columns_of(const lm_tensor *a) { return a->size[a->ndim - 1]; }

/* Columns or rows first to first + n - 1 (from 1). */
static lm_tensor *part(lm_expr *e, lm_tensor *a, int dim, int64_t first, int64_t n) {
  return a ? lm_e_narrow(e, a, a->ndim + dim, first, n) : NULL;
}

/* True where the column compares to the row. */
typedef lm_tensor *compare(lm_expr *e, lm_tensor *x, lm_tensor *other);
static lm_tensor *indices(lm_expr *e, lm_tensor *a, compare *is) {
  lm_tensor *r = as_column(e, lm_e_arange(e, 0, (double)rows_of(a), 1, LM_I64, a->device));
  lm_tensor *c = as_row(e, lm_e_arange(e, 0, (double)columns_of(a), 1, LM_I64, a->device));
  return is(e, c, r);
}
/* The entries on and below (above) the diagonal. */
static lm_tensor *lower(lm_expr *e, lm_tensor *a, int64_t diagonal) { return lm_e_tril(e, a, diagonal); }
static lm_tensor *upper_part(lm_expr *e, lm_tensor *a, int64_t diagonal) { return lm_e_triu(e, a, diagonal); }
static lm_tensor *diagonal_alone(lm_expr *e, lm_tensor *a) {
  return a ? lm_e_masked_fill(e, a, indices(e, a, lm_e_ne), lm_e_number(e, 0)) : NULL;
}
static lm_tensor *triangle(lm_expr *e, lm_tensor *a, bool upper, bool strict) {
  return upper ? upper_part(e, a, strict) : lower(e, a, strict ? -1 : 0);
}

/* diag(v): a matrix with v as its diagonal. */
static lm_tensor *diagonal(lm_expr *e, lm_tensor *v) {
  if (!v) return NULL;
  lm_ints size = lm_f_size_of(NULL, v);
  size.v[size.n] = size.v[size.n - 1];
  size.n++;
  return diagonal_alone(e, lm_e_expand(e, as_column(e, v), size));
}

lm_tensor *lm_f_identity_like(lm_expr *e, lm_tensor *t) {
  return diagonal_alone(e, lm_e_ones_like(e, t, LM_NO_DTYPE, LM_NO_DEVICE));
}

/* ---- determinants */

lm_tensor *lm_f_logdet_of(lm_expr *e, lm_tensor *x) {
  lm_tensor *sign = lm_e_slogdet(e, x), *log_of = e->last[1];
  if (!sign) return NULL;
  return lm_e_masked_fill(e, log_of, lm_e_lt(e, sign, lm_e_number(e, 0)), lm_e_number(e, NAN));
}

/* x^-T times g by the factors of x, or where that is recorded by new ones, which depend on x; those of a singular x
 * have something small on the diagonal of U in place of zeros. */
lm_tensor *lm_f_slogdet_grad(lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots) {
  if (!g) return NULL;
  if (lm_grad_enabled()) {
    lu = lm_e_linalg_lu_factor(e, x, false);
    pivots = e->last[1];
    if (!lu) return NULL;
    lm_tensor *zero = lm_e_logical_and(e, lm_e_eq(e, lu, lm_e_number(e, 0)), indices(e, lu, lm_e_eq));
    lu = lm_e_masked_fill(e, lu, zero, lm_e_number(e, lm_f_epsilon_of(NULL, x)));
  }
  lm_tensor *identity = lm_e_eye(e, rows_of(x), LM_NO_INT, x->dtype, x->device);
  return lm_e_linalg_lu_solve(e, lu, pivots, lm_e_mul(e, as_column(e, as_column(e, g)), identity), true, true);
}

/* g times the cofactors of each of x [k, n, n], without an inverse: of x = U S V^T the singular values become the
 * products of all others, and det U det V is 1 or -1. */
static lm_tensor *cofactors(lm_expr *e, lm_tensor *g, lm_tensor *x) {
  lm_tensor *u = lm_e_linalg_svd(e, x, false), *s = e->last[1], *vh = e->last[2];
  if (!u) return NULL;
  lm_tensor *weight = lm_e_mul(e, g, lm_e_mul(e, lm_e_det(e, u), lm_e_det(e, vh)));
  lm_tensor *others = lm_e_mul(e, as_column(e, weight), lm_f_product_of_others(e, s));
  return mm(e, lm_e_mul(e, u, as_row(e, others)), vh);
}

/* Which determinants' matrices lm_f_det_grad cannot divide by: bool, or NULL if there are none. Where the gradient is
 * recorded its own has the inverse squared, and what is nearly singular counts. */
static lm_tensor *without_inverse(lm_expr *e, lm_tensor *det, lm_tensor *x, lm_tensor *lu) {
  const lm_ints matrix = {2, {-2, -1}}, line = {1, {-1}};
  lm_tensor *bad = lm_e_ne(e, lm_e_div(e, det, det, LM_EXACT), lm_e_number(e, 1)); /* 0, infinite or NaN */
  if (lm_grad_enabled()) {
    lm_tensor *u = lm_e_abs(e, lm_e_diagonal(e, lu, 0, -2, -1));
    lm_tensor *least = lm_e_mul(e, lm_e_amax(e, u, line, false), lm_e_number(e, 100 * lm_f_epsilon_of(NULL, x)));
    bad = lm_e_logical_or(e, bad, lm_e_lt(e, lm_e_amin(e, u, line, false), least));
  }
  lm_tensor *found = lm_e_nonzero(e, bad, false);
  if (!found || found->size[0] == 0) return NULL;
  return lm_e_logical_and(e, bad, lm_e_isfinite(e, lm_e_amax(e, lm_e_abs(e, x), matrix, false)));
}

lm_tensor *lm_f_det_grad(lm_expr *e, lm_tensor *g, lm_tensor *det, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots) {
  if (!g) return NULL;
  lm_tensor *bad = x->numel > 0 ? without_inverse(e, det, x, lu) : NULL;
  if (!bad) return lm_f_slogdet_grad(e, lm_e_mul(e, g, det), x, lu, pivots);
  lm_tensor *each = as_column(e, as_column(e, bad)), *sound = x;
  if (lm_grad_enabled()) sound = lm_e_where(e, each, lm_f_identity_like(e, x), x);
  lm_tensor *weight = lm_e_mul(e, g, lm_e_masked_fill(e, det, bad, lm_e_number(e, 0)));
  lm_tensor *grad = lm_f_slogdet_grad(e, weight, sound, lu, pivots);
  const lm_ints size = lm_f_size_of(NULL, x), matrices = {3, {det->numel, rows_of(x), rows_of(x)}}, line = {1, {-1}};
  lm_tensor *indices = lm_e_reshape(e, lm_e_nonzero(e, lm_e_reshape(e, bad, line), false), line);
  lm_tensor *own = cofactors(e, lm_e_index_select(e, lm_e_reshape(e, g, line), 0, indices),
                             lm_e_index_select(e, lm_e_reshape(e, x, matrices), 0, indices));
  grad = lm_e_index_put(e, lm_e_reshape(e, grad, matrices), (lm_list){1, &indices}, own, false);
  return lm_e_reshape(e, grad, size);
}

lm_tensor *lm_f_solve_grad_right(lm_expr *e, lm_tensor *g, lm_tensor *a, lm_tensor *lu, lm_tensor *pivots, bool left) {
  if (!g) return NULL;
  return lm_grad_enabled() ? lm_e_linalg_solve(e, transposed(e, a), g, left)
                           : lm_e_linalg_lu_solve(e, lu, pivots, g, left, true);
}

/* ---- triangles */

/* A quarter of L^-T (P + tril(P, -1)) L^-1 and its transposed, P = tril(L^T g): below the diagonal all counts twice. */
lm_tensor *lm_f_cholesky_grad(lm_expr *e, lm_tensor *g, lm_tensor *y, bool upper) {
  if (!g) return NULL;
  lm_tensor *l = upper ? transposed(e, y) : y, *lt = transposed(e, l);
  lm_tensor *phi = mm(e, lt, upper ? transposed(e, g) : g);
  phi = plus(e, lower(e, phi, 0), lower(e, phi, -1));
  phi = lm_e_linalg_solve_triangular(e, l, phi, false, false, false);
  phi = lm_e_linalg_solve_triangular(e, lt, phi, true, true, false);
  return lm_e_mul(e, plus(e, phi, transposed(e, phi)), lm_e_number(e, 0.25));
}

lm_tensor *lm_f_solve_grad_matrix(lm_expr *e, lm_tensor *gb, lm_tensor *x, bool left) {
  lm_tensor *less = lm_e_neg(e, gb);
  return left ? mm(e, less, transposed(e, x)) : mm(e, transposed(e, x), less);
}

lm_tensor *lm_f_triangular_grad(lm_expr *e, lm_tensor *gb, lm_tensor *x, bool upper, bool left, bool unitriangular) {
  return triangle(e, lm_f_solve_grad_matrix(e, gb, x, left), upper, unitriangular);
}

/* -(gB X^T + X gB^T) L, or of the upper factor -U (gB X^T + X gB^T). */
lm_tensor *lm_f_cholesky_solve_grad(lm_expr *e, lm_tensor *gb, lm_tensor *x, lm_tensor *l, bool upper) {
  if (!gb) return NULL;
  lm_tensor *product = mm(e, gb, transposed(e, x));
  product = plus(e, product, transposed(e, product));
  return lm_e_neg(e, upper ? mm(e, l, product) : mm(e, product, l));
}

/* ---- LU */

lm_tensor *lm_f_lower_of_lu(lm_expr *e, lm_tensor *lu) {
  int64_t k = rows_of(lu) < columns_of(lu) ? rows_of(lu) : columns_of(lu);
  lm_tensor *l = part(e, lu, -1, 1, k);
  return l ? lm_e_masked_fill(e, lower(e, l, -1), indices(e, l, lm_e_eq), lm_e_number(e, 1)) : NULL;
}

lm_tensor *lm_f_upper_of_lu(lm_expr *e, lm_tensor *lu) {
  int64_t k = rows_of(lu) < columns_of(lu) ? rows_of(lu) : columns_of(lu);
  return upper_part(e, part(e, lu, -2, 1, k), 0);
}

/* With A = P L U, L1 and U1 the square parts, L2 the rows below, U2 the columns beside:
 * A1 gets P L1^-T (tril(L1^T gL1 - gU2 U2^T, -1) + triu(gU1 U1^T - L2^T gL2)) U1^-T, A2 below gL2 U1^-T, A2 beside
 * L1^-T gU2. */
lm_tensor *lm_f_lu_factor_grad(lm_expr *e, lm_tensor *g, lm_tensor *lu, lm_tensor *pivots) {
  if (!g) return NULL;
  int64_t m = rows_of(lu), n = columns_of(lu), k = m < n ? m : n;
  lm_tensor *p = lm_e_lu_pivots_to_matrix(e, pivots, lu);
  lm_tensor *l = lm_f_lower_of_lu(e, lu), *u = lm_f_upper_of_lu(e, lu);
  lm_tensor *gl = lower(e, part(e, g, -1, 1, k), -1), *gu = upper_part(e, part(e, g, -2, 1, k), 0);
  if (!p || !l || !u || !gl || !gu) return NULL;
  lm_tensor *l1t = transposed(e, part(e, l, -2, 1, k)), *u1t = transposed(e, part(e, u, -1, 1, k));
  lm_tensor *below = mm(e, l1t, part(e, gl, -2, 1, k)), *above = mm(e, part(e, gu, -1, 1, k), u1t);
  lm_tensor *other = NULL;
  if (n > k) {
    other = part(e, gu, -1, k + 1, n - k);
    below = minus(e, below, mm(e, other, transposed(e, part(e, u, -1, k + 1, n - k))));
  } else if (m > k) {
    other = part(e, gl, -2, k + 1, m - k);
    above = minus(e, above, mm(e, transposed(e, part(e, l, -2, k + 1, m - k)), other));
  }
  lm_tensor *r = plus(e, lower(e, below, -1), upper_part(e, above, 0));
  r = lm_e_linalg_solve_triangular(e, u1t, r, false, false, false);
  r = lm_e_linalg_solve_triangular(e, l1t, r, true, true, true);
  if (n > k) {
    other = lm_e_linalg_solve_triangular(e, l1t, other, true, true, true);
    r = e->status == LM_OK ? lm_e_cat(e, (lm_list){2, (lm_tensor *[]){r, other}}, -1) : NULL;
  } else if (m > k) {
    other = lm_e_linalg_solve_triangular(e, u1t, other, false, false, false);
    r = e->status == LM_OK ? lm_e_cat(e, (lm_list){2, (lm_tensor *[]){r, other}}, -2) : NULL;
  }
  return mm(e, p, r);
}

/* The gradient of A, and of that what falls on L and U: tril(W U^T, -1) + triu(L^T W), W = P^T gA. */
lm_tensor *lm_f_lu_solve_grad(lm_expr *e, lm_tensor *gb, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots, bool left,
                              bool adjoint) {
  if (!gb) return NULL;
  lm_tensor *ga = left ? mm(e, gb, transposed(e, x)) : mm(e, transposed(e, x), gb);
  if (adjoint) ga = transposed(e, ga);
  lm_tensor *w = lm_e_neg(e, mm(e, transposed(e, lm_e_lu_pivots_to_matrix(e, pivots, lu)), ga));
  lm_tensor *on_l = mm(e, w, transposed(e, lm_f_upper_of_lu(e, lu)));
  lm_tensor *on_u = mm(e, transposed(e, lm_f_lower_of_lu(e, lu)), w);
  return plus(e, lower(e, on_l, -1), upper_part(e, on_u, 0));
}

/* ---- QR */

/* [gQ + Q sym(triu(gR R^T - Q^T gQ))] R^-T, where sym puts the upper triangle below too. Of a wide A = [A1, A2],
 * R = [R1, R2]: A2 gets Q gR2, and Q besides A2 gR2^T = Q R2 gR2^T. */
lm_tensor *lm_f_qr_grad(lm_expr *e, lm_tensor *gq, lm_tensor *gr, lm_tensor *q, lm_tensor *r, int mode) {
  lm_tensor *beside = NULL;
  if (!gq && !gr) return NULL;
  if (mode == LM_QR_R || (mode == LM_QR_COMPLETE && q && rows_of(q) > columns_of(r))) {
    lm_e_ok(e, lm_fail(LM_E_ARG, "linalg_qr: mode '%s'%s has no gradient; use 'reduced'",
                       mode == LM_QR_R ? "r" : "complete",
                       mode == LM_QR_R ? "" : " of a matrix with more rows than columns"));
    return NULL;
  }
  int64_t m = rows_of(q), n = columns_of(r);
  if (n > m) {
    lm_tensor *gr2 = part(e, gr, -1, m + 1, n - m);
    beside = gr ? mm(e, q, gr2) : lm_f_zeros_of(e, q, lm_f_size_of(NULL, part(e, r, -1, m + 1, n - m)));
    if (gr) gq = plus(e, gq, mm(e, q, mm(e, part(e, r, -1, m + 1, n - m), transposed(e, gr2))));
    gr = part(e, gr, -1, 1, m);
    r = part(e, r, -1, 1, m);
  }
  lm_tensor *rt = transposed(e, r);
  lm_tensor *of_r = gr ? mm(e, gr, rt) : NULL, *of_q = gq ? mm(e, transposed(e, q), gq) : NULL;
  lm_tensor *inner = minus(e, of_r, of_q);
  inner = plus(e, upper_part(e, inner, 0), transposed(e, upper_part(e, inner, 1)));
  lm_tensor *result = plus(e, gq, mm(e, q, inner));
  result = lm_e_linalg_solve_triangular(e, rt, result, false, false, false);
  if (!beside || !result) return result;
  return lm_e_cat(e, (lm_list){2, (lm_tensor *[]){result, beside}}, -1);
}

/* ---- eigenvalues and singular values */

/* V (diag(gl) + V^T gV / E) V^T, E[i][j] = l[j] - l[i] beside the diagonal. */
lm_tensor *lm_f_eigh_grad(lm_expr *e, lm_tensor *gl, lm_tensor *gv, lm_tensor *l, lm_tensor *v) {
  lm_tensor *inner = NULL, *vt = transposed(e, v);
  if (!gl && !gv) return NULL;
  if (!gv) return mm(e, lm_e_mul(e, v, as_row(e, gl)), vt);
  lm_tensor *gaps = lm_e_sub(e, as_row(e, l), as_column(e, l), 1);
  if (!gaps) return NULL;
  gaps = lm_e_masked_fill(e, gaps, indices(e, gaps, lm_e_eq), lm_e_number(e, 1));
  inner = lm_e_div(e, mm(e, vt, gv), gaps, LM_EXACT);
  if (!inner) return NULL;
  inner = lm_e_masked_fill(e, inner, indices(e, inner, lm_e_eq), lm_e_number(e, 0));
  inner = lm_e_mul(e, plus(e, inner, transposed(e, inner)), lm_e_number(e, 0.5)); /* as the matrix is symmetric */
  return mm(e, mm(e, v, plus(e, inner, diagonal(e, gl))), vt);
}

lm_tensor *lm_f_eigvalsh_grad(lm_expr *e, lm_tensor *g, lm_tensor *x, int uplo) {
  if (!g) return NULL;
  lm_tensor *l = lm_e_linalg_eigh(e, x, uplo), *v = e->last[1];
  return l ? lm_f_eigh_grad(e, g, NULL, l, v) : NULL;
}

/* a - a^T */
static lm_tensor *skew(lm_expr *e, lm_tensor *a) { return minus(e, a, transposed(e, a)); }

/* U [skew(U^T gU) / E S + S skew(V^T gV) / E + diag(gS)] V^T, E[i][j] = S[j]^2 - S[i]^2, and of U and V that are not
 * square what is outside of their columns. Columns of full matrices beyond the singular values have no gradient. */
lm_tensor *lm_f_svd_grad(lm_expr *e, lm_tensor *gu, lm_tensor *gs, lm_tensor *gvh, lm_tensor *u, lm_tensor *s,
                         lm_tensor *vh) {
  if (!gu && !gs && !gvh) return NULL;
  int64_t k = columns_of(s), m = rows_of(u), n = columns_of(vh);
  u = part(e, u, -1, 1, k);
  vh = part(e, vh, -2, 1, k);
  gu = part(e, gu, -1, 1, k);
  gvh = part(e, gvh, -2, 1, k);
  if (!u || !vh) return NULL;
  if (!gu && !gvh) return mm(e, lm_e_mul(e, u, as_row(e, gs)), vh);
  lm_tensor *row = as_row(e, s), *column = as_column(e, s), *inner = NULL;
  lm_tensor *gaps = lm_e_mul(e, lm_e_sub(e, row, column, 1), lm_e_add(e, row, column, 1));
  if (!gaps) return NULL;
  gaps = lm_e_masked_fill(e, gaps, indices(e, gaps, lm_e_eq), lm_e_number(e, 1));
  if (gu) inner = lm_e_mul(e, lm_e_div(e, skew(e, mm(e, transposed(e, u), gu)), gaps, LM_EXACT), row);
  if (gvh) {
    lm_tensor *of_v = lm_e_div(e, skew(e, mm(e, vh, transposed(e, gvh))), gaps, LM_EXACT);
    inner = plus(e, inner, lm_e_mul(e, of_v, column));
  }
  inner = plus(e, inner, diagonal(e, gs));
  lm_tensor *left = mm(e, u, inner);
  if (m > k && gu) {
    lm_tensor *scaled = lm_e_div(e, gu, row, LM_EXACT);
    left = plus(e, left, minus(e, scaled, mm(e, u, mm(e, transposed(e, u), scaled))));
  }
  lm_tensor *result = mm(e, left, vh);
  if (n > k && gvh) {
    lm_tensor *scaled = lm_e_div(e, gvh, column, LM_EXACT);
    scaled = minus(e, scaled, mm(e, mm(e, scaled, transposed(e, vh)), vh));
    result = plus(e, result, mm(e, u, scaled));
  }
  return result;
}

lm_tensor *lm_f_svdvals_grad(lm_expr *e, lm_tensor *g, lm_tensor *x) {
  if (!g) return NULL;
  lm_tensor *u = lm_e_linalg_svd(e, x, false), *s = e->last[1], *vh = e->last[2];
  return u ? lm_f_svd_grad(e, NULL, g, NULL, u, s, vh) : NULL;
}

/* ---- pseudoinverses */

lm_tensor *lm_f_pinv_grad(lm_expr *e, lm_tensor *g, lm_tensor *y, lm_tensor *x) {
  if (!g) return NULL;
  lm_tensor *gt = transposed(e, g), *yt = transposed(e, y), *k, *kt;
  if (rows_of(x) <= columns_of(x)) {
    k = mm(e, gt, y);
    kt = mm(e, k, yt);
    lm_tensor *r = minus(e, kt, transposed(e, mm(e, y, k)));
    r = minus(e, r, mm(e, mm(e, x, y), kt));
    return plus(e, r, mm(e, mm(e, yt, y), minus(e, gt, mm(e, k, x))));
  }
  k = mm(e, y, gt);
  kt = mm(e, yt, k);
  lm_tensor *r = minus(e, kt, transposed(e, mm(e, k, y)));
  r = plus(e, r, mm(e, mm(e, minus(e, gt, mm(e, x, k)), y), yt));
  return minus(e, r, mm(e, mm(e, kt, y), x));
}

/* 2 (x y - b) o gr, what the residuals' gradient gr makes of their errors; gr is of no size where there are none. */
static lm_tensor *on_errors(lm_expr *e, lm_tensor *gr, lm_tensor *x, lm_tensor *b, lm_tensor *y) {
  if (!gr || gr->numel == 0) return NULL;
  lm_tensor *errors = minus(e, mm(e, x, y), b);
  return lm_e_mul(e, errors, lm_e_mul(e, as_row(e, gr), lm_e_number(e, 2)));
}

/* With P the pseudoinverse of A and R = B - A X: -P^T g X^T + R (P P^T g)^T + P^T X (g - P A g)^T, which is what
 * pinv_grad makes of g B^T, but of no more columns than B has. */
lm_tensor *lm_f_lstsq_grad_matrix(lm_expr *e, lm_tensor *g, lm_tensor *gr, lm_tensor *gs, lm_tensor *x, lm_tensor *b,
                                  lm_tensor *y) {
  lm_tensor *errors = on_errors(e, gr, x, b, y), *result = NULL;
  if (g) {
    lm_tensor *p = lm_e_linalg_pinv(e, x, NULL, NULL, false), *pt = transposed(e, p), *on_b = mm(e, pt, g);
    lm_tensor *outside = minus(e, g, mm(e, p, mm(e, x, g)));
    result = mm(e, minus(e, b, mm(e, x, y)), transposed(e, mm(e, p, on_b)));
    result = minus(e, result, mm(e, on_b, transposed(e, y)));
    result = plus(e, result, mm(e, mm(e, pt, y), transposed(e, outside)));
  }
  if (gs && gs->numel > 0) result = plus(e, result, lm_f_svdvals_grad(e, gs, x));
  return errors ? plus(e, result, mm(e, errors, transposed(e, y))) : result;
}

/* P^T g is the least squares' solution for A^T. */
lm_tensor *lm_f_lstsq_grad_right(lm_expr *e, lm_tensor *g, lm_tensor *gr, lm_tensor *x, lm_tensor *b, lm_tensor *y) {
  lm_tensor *errors = on_errors(e, gr, x, b, y), *result = NULL;
  if (g) result = lm_e_linalg_lstsq(e, transposed(e, x), g, NAN, LM_GELSY);
  return errors ? minus(e, result, errors) : result;
}
