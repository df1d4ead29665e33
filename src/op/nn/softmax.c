/* Runs softmax, log-softmax and their gradients along one dim; outputs have their input's layout. */
#include "base/message.h"
#include "op/input_layout.h"

/* Runs softmax or a gradient, which is computed in y's dtype and layout. */
lm_status lm_op_softmax_along(lm_op_id op, const lm_softmax_along_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_softmax_along_args args = *a;
  lm_tensor *like = a->y ? a->y : a->x, *result = NULL;
  int dim;
  args.x = args.y = NULL;
  if (a->y) {
    if (!lm_same_shape(a->x, a->y)) {
      return lm_fail_shapes(lm_ops[op].name, "grad", lm_shape_of(a->x), "y", lm_shape_of(a->y));
    }
    TRY(lm_check_same_device(op, 2, (lm_tensor *[]){a->x, a->y}));
    TRY(lm_check_float(op, "grad", a->x));
    TRY(lm_check_float(op, "y", a->y));
  }
  TRY(lm_dim(lm_ops[op].name, a->dim, like->ndim, &dim));
  args.dim = dim;
  TRY(lm_at_least_1d(a->x, a->y ? a->y->dtype : a->dtype, &args.x));
  if (a->y) {
    TRY(lm_at_least_1d(a->y, LM_NO_DTYPE, &args.y));
  } else {
    TRY(lm_check_float(op, a->dtype == LM_NO_DTYPE ? "x" : "dtype", args.x));
  }
  TRY(lm_tensor_empty_like(args.y ? args.y : args.x, args.x->dtype, like->device, &result));
  if (result->numel > 0) TRY(lm_dispatch(LM_OP_softmax_along, like->device, &args, &result));
  result->ndim = like->ndim; /* 0-d again if x is */
  *out = result;
  result = NULL;
done:
  lm_release(args.x);
  lm_release(args.y);
  lm_release(result);
  return status;
}
