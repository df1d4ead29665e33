#include "base/message.h"
#include "op/frame.h"

lm_status lm_op_dropout(const lm_dropout_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_dropout_args run = *a;
  lm_frame f;
  if (!(a->p >= 0 && a->p <= 1)) return lm_fail_number("dropout", "p", "from 0 to 1", a->p);
  lm_frame_begin(&f, LM_OP_dropout);
  if (!a->training || a->p == 0) { /* a view: the same values in the same memory */
    TRY(lm_tensor_view(a->x, a->x->ndim, a->x->size, a->x->stride, 0, &f.result[0]));
    goto done;
  }
  TRY(lm_check_float(f.op, "x", a->x));
  TRY(lm_frame_dense(&f, &run.x));
  TRY(lm_frame_result_like(&f, 0, run.x->dtype, run.x));
  TRY(lm_frame_result_like(&f, 1, LM_BOOL, run.x));
  TRY(lm_frame_dispatch(&f, run.x->device, &run)); /* kernels draw from the default generator (tensor/generator.c) */
done:
  return lm_frame_end(&f, status, out);
}
