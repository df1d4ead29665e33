/* Runs reductions: dims, result dtypes (PyTorch's rules), empty inputs.
 *
 * A kernel gets its output in keepdim form; the reduced dims are removed from its header afterwards. */
#include "base/message.h"
#include "op/check.h"
#include "op/input_layout.h"

static lm_status new_reduced(const lm_tensor *x, const lm_ints *dims, lm_dtype dtype, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = x->size[d];
  for (int i = 0; i < dims->n; i++) size[dims->v[i]] = 1;
  return lm_tensor_empty(dtype, x->device, x->ndim, size, LM_CONTIGUOUS, out);
}

/* Rules for the dtype that x is converted to, and for the result's dtype. */
typedef enum dtype_rule {
  OWN,      /* x's dtype, of any kind */
  FLOATING, /* x's dtype, or the one passed; must be floating */
  MADE_FLOATING,
  TOTAL, /* the dtype passed, else x's, int64 for sums of integers */
  TO_BOOL,
  TO_INT64,
} dtype_rule;

/* Result dtype of each statistic, and its value for no elements; REFUSED: an error. */
#define REFUSED (-1)
static const struct statistic {
  dtype_rule dtype;
  double empty;
} statistics[] = {
    [LM_STATISTIC_SUM] = {TOTAL, 0},
    [LM_STATISTIC_NANSUM] = {TOTAL, 0},
    [LM_STATISTIC_PROD] = {TOTAL, 1},
    [LM_STATISTIC_MEAN] = {FLOATING, NAN},
    [LM_STATISTIC_VAR] = {FLOATING, NAN},
    [LM_STATISTIC_NORM] = {FLOATING, 0},
    [LM_STATISTIC_LOGSUMEXP] = {MADE_FLOATING, -INFINITY},
    [LM_STATISTIC_AMAX] = {OWN, REFUSED},
    [LM_STATISTIC_AMIN] = {OWN, REFUSED},
    [LM_STATISTIC_ALL] = {TO_BOOL, 1},
    [LM_STATISTIC_ANY] = {TO_BOOL, 0},
    [LM_STATISTIC_COUNT_NONZERO] = {TO_INT64, 0},
};

static lm_status choose_dtypes(lm_op_id op, const lm_reduce_args *a, lm_dtype *from, lm_dtype *to) {
  const bool floating = lm_dtype_is_float(a->x->dtype);
  *from = a->dtype == LM_NO_DTYPE ? a->x->dtype : a->dtype;
  *to = *from;
  switch (statistics[a->statistic].dtype) {
    case OWN: break;
    case FLOATING:
      if (a->statistic != LM_STATISTIC_MEAN) return lm_check_float(op, "x", a->x);
      if (lm_dtype_is_float(*to)) break;
      return lm_remedy(lm_fail_dtype("mean", "dtype", "floating point", lm_dtype_name(*to)),
                       "use x:float():mean() or pass a floating dtype");
    case MADE_FLOATING:
      if (!floating) *from = *to = lm_default_dtype();
      break;
    case TOTAL:
      if (a->dtype == LM_NO_DTYPE && !floating) *to = LM_I64;
      break;
    case TO_BOOL: *to = LM_BOOL; break;
    case TO_INT64: *to = LM_I64; break;
  }
  return LM_OK;
}

/* Refuses a dim of size 0, for reductions without a neutral element. statistic: LM_STATISTICS for none of them. */
static lm_status check_not_empty(lm_op_id op, const lm_tensor *x, const lm_ints *dims, int statistic) {
  for (int i = 0; i < dims->n; i++) {
    if (x->size[dims->v[i]] > 0) continue;
    const int dim = (int)dims->v[i] + 1;
    lm_status status = lm_fail_empty_dim(lm_ops[op].name, dim, lm_shape_of(x));
    const bool max = statistic == LM_STATISTIC_AMAX;
    if ((!max && statistic != LM_STATISTIC_AMIN) || !lm_dtype_is_float(x->dtype)) return status;
    const char *sign = max ? "-" : "";
    return lm_remedy(status, "for the %sinf of ONNX and of NumPy's initial use lm.full_like(x:sum(%d), %smath.huge)",
                     sign, dim, sign);
  }
  return LM_OK;
}

/* Runs a reduction. norm's p: 2 Euclidean, 1 sum of |x|, 0 count of nonzeros, math.huge largest |x|, -math.huge
 * smallest. */
lm_status lm_op_reduce(lm_op_id op, const lm_reduce_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL, *result = NULL;
  lm_reduce_args args = *a;
  lm_dtype from, to;
  double empty = statistics[a->statistic].empty;
  NEED(choose_dtypes(op, a, &from, &to));
  if (a->statistic == LM_STATISTIC_NORM) {
    if (isnan(a->parameter)) return lm_fail_number("norm", "p", "a number", a->parameter);
    if (a->parameter < 0 || isinf(a->parameter)) empty = REFUSED;
  }
  NEED(lm_dims(op, &a->dim, a->x->ndim, &args.dim));
  if (empty == REFUSED) NEED(check_not_empty(op, a->x, &args.dim, a->statistic));
  NEED(lm_to_dtype(a->x, from, &x));
  args.x = x;
  NEED(new_reduced(x, &args.dim, lm_widened(to), &result));
  if (x->numel > 0) {
    NEED(lm_dispatch(LM_OP_reduce, x->device, &args, &result));
  } else if (result->numel > 0) {
    NEED(lm_fill_number(result, empty));
  }
  if (!a->keepdim) lm_drop_dims(result, &args.dim);
  *out = lm_tensor_take(&result);
  return LM_OK;
}

/* Finds indices, from 1, of the extremes along a dim or of the flattened x, which the kernel sees contiguous and 1-d.
 * The kernel's results are the indices and, if the op returns them first, the values. */
lm_status lm_op_extreme_along(lm_op_id op, const lm_extreme_along_args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  LM_OWNED *lines = NULL;
  LM_OWNED_ARRAY(result, 2);
  const bool flat = a->dim == LM_NO_DIM;
  const int outs = lm_ops[op].outs;
  int dim = 0;
  if (flat) {
    NEED(lm_to_line(x, &lines));
  } else {
    NEED(lm_dim(lm_ops[op].name, a->dim, x->ndim, &dim));
    NEED(lm_at_least_1d(x, LM_NO_DTYPE, &lines));
  }
  lm_ints dims = {1, {dim}};
  NEED(check_not_empty(op, lines, &dims, LM_STATISTICS));
  NEED(new_reduced(lines, &dims, LM_I64, &result[0]));
  if (outs == 2) NEED(new_reduced(lines, &dims, x->dtype, &result[1]));
  if (result[0]->numel > 0) {
    lm_extreme_along_args args = {.x = lines, .dim = dim, .keepdim = true, .largest = a->largest};
    NEED(lm_dispatch(LM_OP_extreme_along, x->device, &args, result));
  }
  for (int i = 0; i < outs; i++) {
    lm_tensor *r = result[outs - 1 - i];
    if (!a->keepdim || x->ndim == 0) {
      lm_drop_dims(r, &dims);
    } else if (flat) {
      r->ndim = x->ndim;
      for (int d = 0; d < x->ndim; d++) r->size[d] = r->stride[d] = 1;
    }
    out[i] = lm_retain(r);
  }
  return LM_OK;
}
