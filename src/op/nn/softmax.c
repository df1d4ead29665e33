/* Softmax, its logarithm, and their gradients: along one dim, outputs laid out like their input. */
#include "base/message.h"
#include "op/check.h"

static lm_status forward(lm_op_id op, lm_tensor *x, int64_t asked, lm_dtype dtype, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *lines = NULL, *result = NULL;
  int dim;
  TRY(lm_dim(lm_ops[op].name, asked, x->ndim, &dim));
  TRY(lm_at_least_1d(x, dtype, &lines));
  TRY(lm_check_float(op, dtype == LM_NO_DTYPE ? "x" : "dtype", lines));
  TRY(lm_tensor_empty_like(lines, lines->dtype, lines->device, &result));
  if (result->numel > 0) {
    if (op == LM_OP_softmax) {
      TRY(lm_dispatch(op, x->device, &(lm_softmax_args){.x = lines, .dim = dim, .dtype = dtype}, &result));
    } else {
      TRY(lm_dispatch(op, x->device, &(lm_log_softmax_args){.x = lines, .dim = dim, .dtype = dtype}, &result));
    }
  }
  result->ndim = x->ndim; /* 0-d again if x is */
  *out = result;
  result = NULL;
done:
  lm_release(lines);
  lm_release(result);
  return status;
}

lm_status lm_op_softmax(const lm_softmax_args *a, lm_tensor **out) {
  return forward(LM_OP_softmax, a->x, a->dim, a->dtype, out);
}

lm_status lm_op_log_softmax(const lm_log_softmax_args *a, lm_tensor **out) {
  return forward(LM_OP_log_softmax, a->x, a->dim, a->dtype, out);
}

static lm_status backward(lm_op_id op, lm_tensor *grad, lm_tensor *y, int64_t asked, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *grads = NULL, *lines = NULL, *result = NULL;
  int dim;
  if (!lm_same_shape(grad, y)) {
    return lm_fail_shapes(lm_ops[op].name, "grad", lm_shape_of(grad), "y", lm_shape_of(y));
  }
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){grad, y}));
  TRY(lm_check_float(op, "grad", grad));
  TRY(lm_check_float(op, "y", y));
  TRY(lm_dim(lm_ops[op].name, asked, y->ndim, &dim));
  TRY(lm_at_least_1d(grad, y->dtype, &grads));
  TRY(lm_at_least_1d(y, LM_NO_DTYPE, &lines));
  TRY(lm_tensor_empty_like(lines, lines->dtype, lines->device, &result));
  if (result->numel > 0) {
    if (op == LM_OP_softmax_backward) {
      lm_softmax_backward_args args = {.grad = grads, .y = lines, .dim = dim};
      TRY(lm_dispatch(op, y->device, &args, &result));
    } else {
      lm_log_softmax_backward_args args = {.grad = grads, .y = lines, .dim = dim};
      TRY(lm_dispatch(op, y->device, &args, &result));
    }
  }
  result->ndim = y->ndim;
  *out = result;
  result = NULL;
done:
  lm_release(grads);
  lm_release(lines);
  lm_release(result);
  return status;
}

lm_status lm_op_softmax_backward(const lm_softmax_backward_args *a, lm_tensor **out) {
  return backward(LM_OP_softmax_backward, a->grad, a->y, a->dim, out);
}

lm_status lm_op_log_softmax_backward(const lm_log_softmax_backward_args *a, lm_tensor **out) {
  return backward(LM_OP_log_softmax_backward, a->grad, a->y, a->dim, out);
}
