#include "base/message.h"
#include "op/input_layout.h"

lm_status lm_op_dropout(const lm_dropout_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *y = NULL, *mask = NULL;
  if (!(a->p >= 0 && a->p <= 1)) return lm_fail_number("dropout", "p", "from 0 to 1", a->p);
  if (!a->training || a->p == 0) { /* the same values in the same memory */
    out[1] = NULL;
    return lm_tensor_view(a->x, a->x->ndim, a->x->size, a->x->stride, 0, &out[0]);
  }
  TRY(lm_check_float(LM_OP_dropout, "x", a->x));
  if (lm_is_dense(a->x)) {
    x = lm_retain(a->x);
  } else {
    TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  }
  TRY(lm_tensor_empty_like(x, x->dtype, x->device, &y));
  TRY(lm_tensor_empty_like(x, LM_BOOL, x->device, &mask));
  lm_dropout_args job = *a;
  job.x = x;
  TRY(lm_dispatch(LM_OP_dropout, x->device, &job, (lm_tensor *[]){y, mask}));
  out[0] = lm_retain(y);
  out[1] = lm_retain(mask);
done:
  lm_release(x);
  lm_release(y);
  lm_release(mask);
  return status;
}
