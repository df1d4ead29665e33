/* Computes matmul of operands with any number of dims by mm or bmm. */
#include "autograd/composite.h"

#include <string.h>

#include "autograd/expr.h"
#include "autograd/formulas.h"
#include "base/message.h"
#include "op_entries.h"

static lm_status fail_bad_matmul(const lm_tensor *x, const lm_tensor *other, int64_t n, int64_t m) {
  return lm_fail(LM_E_SHAPE, "matmul: inner sizes of x and other must match, got %lld and %lld in %s and %s",
                 (long long)n, (long long)m, lm_shape_of(x), lm_shape_of(other));
}

/* Multiplies x [..., n, k] by other [k, m] in one product over all rows of x. */
static lm_tensor *folded(lm_expr *e, lm_tensor *x, lm_tensor *other) {
  lm_ints size = lm_f_size_of(x), rows = {2, {1, x->size[x->ndim - 1]}};
  for (int d = 0; d < x->ndim - 1; d++) rows.v[0] *= x->size[d];
  size.v[size.n - 1] = other->size[1];
  return lm_e_reshape(e, lm_e_mm(e, x->ndim == 2 ? x : lm_e_reshape(e, x, rows), other), size);
}

/* Broadcasts the leading dims of t [..., n, k] to `batch`; returns [b, n, k]. */
static lm_tensor *batched(lm_expr *e, lm_tensor *t, int nbatch, const int64_t *batch) {
  lm_ints wide = {.n = nbatch + 2}, flat = {3, {1, t->size[t->ndim - 2], t->size[t->ndim - 1]}};
  for (int d = 0; d < nbatch; d++) {
    wide.v[d] = batch[d];
    flat.v[0] *= batch[d];
  }
  wide.v[nbatch] = flat.v[1];
  wide.v[nbatch + 1] = flat.v[2];
  return lm_e_reshape(e, lm_e_expand(e, t, wide), flat);
}

lm_status lm_composite_matmul(const lm_matmul_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = a->x, *other = a->other, *result;
  lm_expr whole, *e = &whole;
  lm_ints size = {.n = 0};
  int64_t batch[LM_MAX_DIMS];
  int nbatch;
  if (x->ndim == 0 || other->ndim == 0) {
    return lm_remedy(lm_fail_value("matmul", "x and other", "at least 1-d",
                                   lm_text("%s and %s", lm_shape_of(x), lm_shape_of(other))),
                     "use * for numbers");
  }
  int64_t k = x->size[x->ndim - 1], k2 = other->size[other->ndim > 1 ? other->ndim - 2 : 0];
  if (k != k2) return fail_bad_matmul(x, other, k, k2);

  lm_expr_begin(e);
  if (x->ndim == 1) x = lm_e_unsqueeze(e, x, 0);             /* a row */
  if (other->ndim == 1) other = lm_e_unsqueeze(e, other, 1); /* a column */
  TRY(e->status);
  if (x->ndim == 2 && other->ndim == 2) {
    result = lm_e_mm(e, x, other);
  } else if (other->ndim == 2) {
    result = folded(e, x, other);
  } else {
    TRY(lm_broadcast("matmul", x->ndim - 2, x->size, other->ndim - 2, other->size, &nbatch, batch));
    result = lm_e_bmm(e, batched(e, x, nbatch, batch), batched(e, other, nbatch, batch));
    lm_ints all = {.n = nbatch + 2};
    memcpy(all.v, batch, sizeof *batch * (size_t)nbatch);
    all.v[nbatch] = x->size[x->ndim - 2];
    all.v[nbatch + 1] = other->size[other->ndim - 1];
    if (nbatch != 1) result = lm_e_reshape(e, result, all);
  }
  TRY(e->status);
  if (a->x->ndim > 1 && a->other->ndim > 1) return lm_expr_finish(e, result, out);
  for (int d = 0; d < result->ndim; d++) { /* drop the dim of an unsqueezed row or column */
    bool added = (a->x->ndim == 1 && d == result->ndim - 2) || (a->other->ndim == 1 && d == result->ndim - 1);
    if (!added) size.v[size.n++] = result->size[d];
  }
  return lm_expr_finish(e, lm_e_reshape(e, result, size), out);
done:
  lm_expr_end(e);
  return status;
}
