#include "base/message.h"
#include "op/frame.h"

lm_status lm_op_dropout(const lm_dropout_args *a, lm_tensor **out) {
  lm_dropout_args run = *a;
  if (!(a->p >= 0 && a->p <= 1)) return lm_fail_number("dropout", "p", "from 0 to 1", a->p);
  LM_FRAME(f, LM_OP_dropout);
  if (!a->training || a->p == 0) { /* a view: the same values in the same memory */
    NEED(lm_tensor_view(a->x, a->x->ndim, a->x->size, a->x->stride, 0, &f.result[0]));
    return lm_frame_end(&f, out);
  }
  NEED(lm_check_float(f.op, "x", a->x));
  NEED(lm_frame_dense(&f, &run.x));
  NEED(lm_frame_result_like(&f, 0, run.x->dtype, run.x));
  NEED(lm_frame_result_like(&f, 1, LM_BOOL, run.x));
  NEED(lm_frame_dispatch(&f, run.x->device, &run)); /* kernels draw from the default generator (tensor/generator.c) */
  return lm_frame_end(&f, out);
}
