/* Runs scans: each result depends on the elements up to its own along one dim. Outputs have x's layout. */
#include "base/message.h"
#include "op/input_layout.h"
#include "scan_kinds.h"

/* Makes x and decay of a recurrence contiguous and of one dtype. */
static lm_status recurrence_inputs(const lm_scan_args *a, lm_tensor **ready) {
  lm_tensor *given[] = {a->x, a->decay};
  lm_dtype dtype = lm_result_type(2, given);
  NEED(lm_check_same_device(LM_OP_linear_recurrence, 2, given));
  NEED(lm_check_float(LM_OP_linear_recurrence, "x", a->x));
  NEED(lm_check_float(LM_OP_linear_recurrence, "decay", a->decay));
  if (!lm_same_shape(a->x, a->decay)) {
    return lm_fail_shapes("linear_recurrence", "x", lm_shape_of(a->x), "decay", lm_shape_of(a->decay));
  }
  for (int i = 0; i < 2; i++) {
    if (given[i]->dtype == dtype && lm_is_contiguous(given[i])) {
      ready[i] = lm_retain(given[i]);
      continue;
    }
    NEED(lm_op_to_copy(
        &(lm_to_copy_args){.x = given[i], .dtype = dtype, .device = given[i]->device, .memory_format = LM_CONTIGUOUS},
        &ready[i]));
  }
  return LM_OK;
}

/* Runs a scan. Sums and products are in the dtype passed, else x's own, int64 for integers. */
lm_status lm_op_scan(lm_op_id op, const lm_scan_args *a, lm_tensor **out) {
  LM_OWNED *lines = NULL;
  LM_OWNED_ARRAY(ready, 2);
  LM_OWNED_ARRAY(result, 2);
  const int outs = lm_ops[op].outs;
  int dim;
  if (a->kind == LM_SCAN_LOGSUMEXP) NEED(lm_check_float(op, "x", a->x));
  if (a->decay) NEED(recurrence_inputs(a, ready));
  NEED(lm_dim(lm_ops[op].name, a->dim, a->x->ndim, &dim));
  NEED(lm_at_least_1d(a->decay ? ready[0] : a->x, a->dtype, &lines));
  lm_dtype dtype = lines->dtype;
  bool total = a->kind == LM_SCAN_SUM || a->kind == LM_SCAN_PRODUCT;
  if (total && a->dtype == LM_NO_DTYPE && !lm_dtype_is_float(dtype)) dtype = LM_I64;
  NEED(lm_tensor_empty_like(lines, dtype, lines->device, &result[0]));
  if (outs == 2) NEED(lm_tensor_empty_like(lines, LM_I64, lines->device, &result[1]));
  lm_scan_args args = {.x = lines, .decay = ready[1], .dim = dim, .reverse = a->reverse, .kind = a->kind};
  if (lines->numel > 0) NEED(lm_dispatch(LM_OP_scan, lines->device, &args, result));
  for (int i = 0; i < outs; i++) {
    result[i]->ndim = a->x->ndim; /* 0-d again if x is */
    out[i] = lm_retain(result[i]);
  }
  return LM_OK;
}
