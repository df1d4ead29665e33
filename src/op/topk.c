/* The largest or smallest along a dim, with their places. */
#include <string.h>

#include "op/check.h"

/* NaN counts as the largest; equal values keep their order. */
lm_status lm_op_topk(const lm_topk_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *result[2] = {NULL, NULL};
  int dim;
  int64_t size[LM_MAX_DIMS];
  TRY(lm_dim("topk", a->dim == LM_NO_DIM ? -1 : a->dim, a->x->ndim, &dim));
  if (a->x->ndim == 0) {
    TRY(lm_op_unsqueeze(&(lm_unsqueeze_args){.x = a->x, .dim = 0}, &x));
  } else {
    x = lm_retain(a->x);
  }
  if (a->k < 0 || a->k > x->size[dim]) {
    status = lm_fail(LM_E_ARG, "topk: k is %lld; dim %d of %s has %lld entries", (long long)a->k, dim + 1,
                     lm_shape_of(a->x), (long long)x->size[dim]);
    goto done;
  }
  memcpy(size, x->size, sizeof size);
  size[dim] = a->k;
  TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, x->ndim, size, LM_CONTIGUOUS, &result[0]));
  TRY(lm_tensor_empty(LM_I64, x->device, x->ndim, size, LM_CONTIGUOUS, &result[1]));
  if (result[0]->numel > 0) {
    lm_topk_args args = {.x = x, .k = a->k, .dim = dim, .largest = a->largest, .sorted = a->sorted};
    TRY(lm_dispatch(LM_OP_topk, x->device, &args, result));
  }
  for (int i = 0; i < 2; i++) {
    if (a->x->ndim == 0 && a->k == 1) result[i]->ndim = 0;
    out[i] = result[i];
    result[i] = NULL;
  }
done:
  lm_release(x);
  lm_release(result[0]);
  lm_release(result[1]);
  return status;
}
