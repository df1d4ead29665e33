/* Runs softmax, log-softmax and their gradients along one dim; outputs have their input's layout. */
#include "base/message.h"
#include "op/input_layout.h"

/* Runs softmax or a gradient, which is computed in y's dtype and layout. */
lm_status lm_op_softmax_along(lm_op_id op, const lm_softmax_along_args *a, lm_tensor **out) {
  lm_tensor *like = a->y ? a->y : a->x;
  LM_OWNED *x = NULL, *y = NULL, *result = NULL;
  int dim;
  if (a->y) {
    if (!lm_same_shape(a->x, a->y)) {
      return lm_fail_shapes(lm_ops[op].name, "grad", lm_shape_of(a->x), "y", lm_shape_of(a->y));
    }
    NEED(lm_check_same_device(op, 2, (lm_tensor *[]){a->x, a->y}));
    NEED(lm_check_float(op, "grad", a->x));
    NEED(lm_check_float(op, "y", a->y));
  }
  NEED(lm_dim(lm_ops[op].name, a->dim, like->ndim, &dim));
  NEED(lm_at_least_1d(a->x, a->y ? a->y->dtype : a->dtype, &x));
  if (a->y) {
    NEED(lm_at_least_1d(a->y, LM_NO_DTYPE, &y));
  } else {
    NEED(lm_check_float(op, a->dtype == LM_NO_DTYPE ? "x" : "dtype", x));
  }
  NEED(lm_tensor_empty_like(y ? y : x, x->dtype, like->device, &result));
  lm_softmax_along_args args = {.x = x, .y = y, .dim = dim, .kind = a->kind, .dtype = a->dtype};
  if (result->numel > 0) NEED(lm_dispatch(LM_OP_softmax_along, like->device, &args, &result));
  result->ndim = like->ndim; /* 0-d again if x is */
  *out = lm_tensor_take(&result);
  return LM_OK;
}
