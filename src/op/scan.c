/* Scans: each result is made of the elements up to its own along one dim. Outputs are laid out like x. */
#include "base/message.h"
#include "op/check.h"

/* What scans have in common: args is the op's struct, into whose *x goes what the slot reads and into whose *dim the
 * dim from 0. */
static lm_status scan(lm_op_id op, void *args, lm_tensor **x, int64_t *dim, lm_dtype dtype, lm_dtype result_dtype,
                      lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *given = *x, *lines = NULL, *result[2] = {NULL, NULL};
  int along;
  TRY(lm_dim(lm_ops[op].name, *dim, given->ndim, &along));
  TRY(lm_at_least_1d(given, dtype, &lines));
  *x = lines;
  *dim = along;
  TRY(lm_tensor_empty_like(lines, result_dtype, lines->device, &result[0]));
  if (lm_ops[op].outs == 2) TRY(lm_tensor_empty_like(lines, LM_I64, lines->device, &result[1]));
  if (lines->numel > 0) TRY(lm_dispatch(op, lines->device, args, result));
  for (int i = 0; i < lm_ops[op].outs; i++) {
    result[i]->ndim = given->ndim; /* 0-d again if x is */
    out[i] = result[i];
    result[i] = NULL;
  }
done:
  lm_release(lines);
  lm_release(result[0]);
  lm_release(result[1]);
  return status;
}

/* The dtype of sums and products: that asked for, or x's own; of integers int64. */
static lm_dtype total_dtype(const lm_tensor *x, lm_dtype asked) {
  if (asked != LM_NO_DTYPE) return asked;
  return lm_dtype_is_float(x->dtype) ? x->dtype : LM_I64;
}

lm_status lm_op_cumsum(const lm_cumsum_args *a, lm_tensor **out) {
  lm_cumsum_args args = *a;
  return scan(LM_OP_cumsum, &args, &args.x, &args.dim, a->dtype, total_dtype(a->x, a->dtype), out);
}

lm_status lm_op_cumprod(const lm_cumprod_args *a, lm_tensor **out) {
  lm_cumprod_args args = *a;
  return scan(LM_OP_cumprod, &args, &args.x, &args.dim, a->dtype, total_dtype(a->x, a->dtype), out);
}

lm_status lm_op_logcumsumexp(const lm_logcumsumexp_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_logcumsumexp_args args = *a;
  TRY(lm_check_float(LM_OP_logcumsumexp, "x", a->x));
  TRY(scan(LM_OP_logcumsumexp, &args, &args.x, &args.dim, LM_NO_DTYPE, a->x->dtype, out));
done:
  return status;
}

lm_status lm_op_cummax(const lm_cummax_args *a, lm_tensor **out) {
  lm_cummax_args args = *a;
  return scan(LM_OP_cummax, &args, &args.x, &args.dim, LM_NO_DTYPE, a->x->dtype, out);
}

lm_status lm_op_cummin(const lm_cummin_args *a, lm_tensor **out) {
  lm_cummin_args args = *a;
  return scan(LM_OP_cummin, &args, &args.x, &args.dim, LM_NO_DTYPE, a->x->dtype, out);
}

/* The slot gets x and decay contiguous and of one dtype. */
lm_status lm_op_linear_recurrence(const lm_linear_recurrence_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_linear_recurrence_args args = *a;
  lm_tensor *given[] = {a->x, a->decay}, *ready[2] = {NULL, NULL};
  lm_dtype dtype = lm_result_type(2, given);
  TRY(lm_check_same_device(LM_OP_linear_recurrence, 2, given));
  TRY(lm_check_float(LM_OP_linear_recurrence, "x", a->x));
  TRY(lm_check_float(LM_OP_linear_recurrence, "decay", a->decay));
  if (!lm_same_shape(a->x, a->decay)) {
    return lm_fail_shapes("linear_recurrence", "x", lm_shape_of(a->x), "decay", lm_shape_of(a->decay));
  }
  for (int i = 0; i < 2; i++) {
    if (given[i]->dtype == dtype && lm_is_contiguous(given[i])) {
      ready[i] = lm_retain(given[i]);
      continue;
    }
    TRY(lm_op_to_copy(
        &(lm_to_copy_args){.x = given[i], .dtype = dtype, .device = given[i]->device, .memory_format = LM_CONTIGUOUS},
        &ready[i]));
  }
  args.x = ready[0];
  args.decay = ready[1];
  TRY(scan(LM_OP_linear_recurrence, &args, &args.x, &args.dim, LM_NO_DTYPE, dtype, out));
done:
  lm_release(ready[0]);
  lm_release(ready[1]);
  return status;
}
