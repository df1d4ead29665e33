/* Computes linear algebra's helpers for gradient formulas, after PyTorch's torch/csrc/autograd/FunctionsManual.cpp. */
#include "autograd/expr.h"
#include "autograd/formulas.h"
#include "op_entries.h"

static lm_tensor *as_row(lm_expr *e, lm_tensor *v) { return lm_e_unsqueeze(e, v, -2); }
static lm_tensor *as_column(lm_expr *e, lm_tensor *v) { return lm_e_unsqueeze(e, v, -1); }
static int64_t rows_of(const lm_tensor *a) { return a->size[a->ndim - 2]; }
static int64_t columns_of(const lm_tensor *a) { return a->size[a->ndim - 1]; }

bool lm_f_recorded(void) { return lm_grad_enabled(); }

lm_tensor *lm_f_is_diagonal(lm_expr *e, lm_tensor *a) {
  if (!a) return NULL;
  lm_tensor *r = as_column(e, lm_e_arange(e, 0, (double)rows_of(a), 1, LM_I64, a->device));
  return lm_e_eq(e, r, as_row(e, lm_e_arange(e, 0, (double)columns_of(a), 1, LM_I64, a->device)));
}

/* Returns a with 0 off the diagonal. */
static lm_tensor *diagonal_alone(lm_expr *e, lm_tensor *a) {
  return lm_e_masked_fill(e, a, lm_e_logical_not(e, lm_f_is_diagonal(e, a)), lm_e_number(e, 0));
}

lm_tensor *lm_f_diagonal_matrix(lm_expr *e, lm_tensor *v) {
  if (!v) return NULL;
  lm_ints size = lm_f_size_of(v);
  size.v[size.n] = size.v[size.n - 1];
  size.n++;
  return diagonal_alone(e, lm_e_expand(e, as_column(e, v), size));
}

lm_tensor *lm_f_identity_like(lm_expr *e, lm_tensor *t) {
  return diagonal_alone(e, lm_e_ones_like(e, t, LM_NO_DTYPE, LM_NO_DEVICE));
}

/* ---- determinants */

/* Returns x^-T times g from the factors of x. If recorded, x is factored again, so that the factors depend on x; zeros
 * on the diagonal of a singular x's U become epsilon. */
lm_tensor *lm_f_slogdet_grad(lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots) {
  if (!g) return NULL;
  if (lm_grad_enabled()) {
    lu = lm_e_linalg_lu_factor(e, x, false);
    pivots = e->last[1];
    if (!lu) return NULL;
    lm_tensor *zero = lm_e_logical_and(e, lm_e_eq(e, lu, lm_e_number(e, 0)), lm_f_is_diagonal(e, lu));
    lu = lm_e_masked_fill(e, lu, zero, lm_e_number(e, lm_f_epsilon_of(x)));
  }
  lm_tensor *identity = lm_e_eye(e, rows_of(x), LM_NO_INT, x->dtype, x->device);
  return lm_e_linalg_lu_solve(e, lu, pivots, lm_e_mul(e, as_column(e, as_column(e, g)), identity), true, true);
}

/* Returns g times the cofactor matrix of each x [k, n, n], without an inverse: in x = U S V^T each singular value is
 * replaced by the product of all others; det U det V is 1 or -1. */
static lm_tensor *cofactors(lm_expr *e, lm_tensor *g, lm_tensor *x) {
  lm_tensor *u = lm_e_linalg_svd(e, x, false), *s = e->last[1], *vh = e->last[2];
  if (!u) return NULL;
  lm_tensor *weight = lm_e_mul(e, g, lm_e_mul(e, lm_e_det(e, u), lm_e_det(e, vh)));
  lm_tensor *others = lm_e_mul(e, as_column(e, weight), lm_f_product_of_others(e, s));
  return lm_e_matmul(e, lm_e_mul(e, u, as_row(e, others)), vh);
}

/* Determinants that are 0, infinite or NaN: a mask, and g det split into two factors, each with the square root of
 * |det|, since the product with an inverse may be in range again. */
typedef struct beyond_range {
  lm_tensor *which, *weight, *root, *sign; /* root, sign: NULL if there are none, or the gradient is recorded */
} beyond_range;

static beyond_range beyond_range_of(lm_expr *e, lm_tensor *g, lm_tensor *det, lm_tensor *x) {
  beyond_range b = {.which = lm_e_ne(e, lm_e_div(e, det, det, LM_EXACT), lm_e_number(e, 1)),
                    .weight = lm_e_mul(e, g, det)};
  lm_tensor *found = lm_e_nonzero(e, b.which, false);
  if (lm_grad_enabled() || !found || found->size[0] == 0) return b;
  b.sign = lm_e_slogdet(e, x);
  b.root = lm_e_exp(e, lm_e_mul(e, e->last[1], lm_e_number(e, 0.5)));
  b.weight = lm_e_where(e, b.which, lm_e_mul(e, g, lm_e_mul(e, b.sign, b.root)), b.weight);
  b.root = lm_e_masked_fill(e, b.root, lm_e_logical_not(e, b.which), lm_e_number(e, 1));
  return b;
}

/* Returns a mask of the finite matrices that lm_f_det_grad cannot invert, or NULL for none: nearly singular ones
 * with a determinant out of range; either suffices if recorded, as that gradient's gradient squares the inverse. */
static lm_tensor *without_inverse(lm_expr *e, const beyond_range *b, lm_tensor *x, lm_tensor *lu) {
  const lm_ints matrix = {2, {-2, -1}}, line = {1, {-1}};
  lm_tensor *bad = b->which;
  if (lm_grad_enabled() || b->sign) {
    lm_tensor *u = lm_e_abs(e, lm_e_diagonal(e, lu, 0, -2, -1));
    lm_tensor *least = lm_e_mul(e, lm_e_amax(e, u, line, false), lm_e_number(e, 100 * lm_f_epsilon_of(x)));
    lm_tensor *small = lm_e_lt(e, lm_e_amin(e, u, line, false), least);
    if (b->sign) small = lm_e_logical_or(e, small, lm_e_eq(e, b->sign, lm_e_number(e, 0)));
    bad = b->sign ? lm_e_logical_and(e, bad, small) : lm_e_logical_or(e, bad, small);
  }
  lm_tensor *found = lm_e_nonzero(e, bad, false);
  if (!found || found->size[0] == 0) return NULL;
  return lm_e_logical_and(e, bad, lm_e_isfinite(e, lm_e_amax(e, lm_e_abs(e, x), matrix, false)));
}

lm_tensor *lm_f_det_grad(lm_expr *e, lm_tensor *g, lm_tensor *det, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots) {
  if (!g) return NULL;
  const beyond_range b = beyond_range_of(e, g, det, x);
  lm_tensor *weight = b.weight, *root = b.root ? as_column(e, as_column(e, b.root)) : NULL;
  lm_tensor *bad = x->numel > 0 ? without_inverse(e, &b, x, lu) : NULL;
  if (!bad) {
    lm_tensor *grad = lm_f_slogdet_grad(e, weight, x, lu, pivots);
    return root ? lm_e_mul(e, grad, root) : grad;
  }
  lm_tensor *each = as_column(e, as_column(e, bad)), *sound = x;
  if (lm_grad_enabled()) sound = lm_e_where(e, each, lm_f_identity_like(e, x), x);
  lm_tensor *grad = lm_f_slogdet_grad(e, lm_e_masked_fill(e, weight, bad, lm_e_number(e, 0)), sound, lu, pivots);
  if (root) grad = lm_e_mul(e, grad, root);
  const lm_ints size = lm_f_size_of(x), matrices = {3, {det->numel, rows_of(x), rows_of(x)}}, line = {1, {-1}};
  lm_tensor *indices = lm_e_reshape(e, lm_e_nonzero(e, lm_e_reshape(e, bad, line), false), line);
  lm_tensor *own = cofactors(e, lm_e_index_select(e, lm_e_reshape(e, g, line), 0, indices),
                             lm_e_index_select(e, lm_e_reshape(e, x, matrices), 0, indices));
  grad = lm_e_index_put(e, lm_e_reshape(e, grad, matrices), (lm_list){1, &indices}, own, false);
  return lm_e_reshape(e, grad, size);
}

/* ---- factors */

lm_tensor *lm_f_lower_of_lu(lm_expr *e, lm_tensor *lu) {
  int64_t k = rows_of(lu) < columns_of(lu) ? rows_of(lu) : columns_of(lu);
  lm_tensor *l = lm_e_narrow(e, lu, -1, 1, k);
  return l ? lm_e_masked_fill(e, lm_e_tril(e, l, -1), lm_f_is_diagonal(e, l), lm_e_number(e, 1)) : NULL;
}

lm_tensor *lm_f_upper_of_lu(lm_expr *e, lm_tensor *lu) {
  int64_t k = rows_of(lu) < columns_of(lu) ? rows_of(lu) : columns_of(lu);
  return lm_e_triu(e, lm_e_narrow(e, lu, -2, 1, k), 0);
}

lm_tensor *lm_f_reduced_q(lm_expr *e, lm_tensor *q, const lm_tensor *r, int mode) {
  bool reduced = mode == LM_QR_REDUCED || (mode == LM_QR_COMPLETE && !(q && rows_of(q) > columns_of(r)));
  if (reduced) return q;
  lm_e_ok(e,
          lm_fail(LM_E_ARG, "linalg_qr: mode '%s'%s has no gradient; use 'reduced'", mode == LM_QR_R ? "r" : "complete",
                  mode == LM_QR_R ? "" : " of a matrix with more rows than columns"));
  return NULL;
}
