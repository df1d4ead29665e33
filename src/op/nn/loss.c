/* Checks operands of negative log-likelihood: x [C], [N, C] or [N, C, d1, ...], classes [], [N] or [N, d1, ...]. */

#include "base/message.h"
#include "op/operand_checks.h"

lm_status lm_check_classes(lm_op_id op, int ndim, const int64_t *size, int64_t *classes, lm_ints *target) {
  if (ndim < 1) return lm_fail_shape(lm_ops[op].name, "x", "[C], [N, C] or [N, C, ...]", lm_shape_text(ndim, size));
  *classes = size[ndim > 1];
  *target = (lm_ints){.n = ndim - 1};
  for (int d = 0; d < ndim - 1; d++) target->v[d] = size[d ? d + 1 : 0];
  return LM_OK;
}

lm_status lm_check_reduced(lm_op_id op, int reduction, const lm_ints *target, lm_ints *shape) {
  (void)op;
  *shape = reduction == LM_NONE ? *target : (lm_ints){.n = 0};
  return LM_OK;
}

/* Keeps x's layout if one stride spans the dims after C, else copies. */
lm_status lm_layout_classes(lm_frame *f, lm_tensor **t) {
  const lm_tensor *x = *t;
  lm_tensor *merged = NULL;
  bool walks = true;
  for (int d = 2; d + 1 < x->ndim; d++) walks = walks && x->stride[d] == x->stride[d + 1] * x->size[d + 1];
  if (!walks) NEED(lm_frame_layout(f, t, LM_PRESERVE));
  x = *t;
  int64_t size[3] = {1, x->size[x->ndim > 1], 1}, stride[3] = {0, x->stride[x->ndim > 1], 0};
  if (x->ndim > 1) size[0] = x->size[0], stride[0] = x->stride[0];
  for (int d = 2; d < x->ndim; d++) size[2] *= x->size[d];
  if (x->ndim > 2) stride[2] = x->stride[x->ndim - 1];
  NEED(lm_tensor_view(*t, 3, size, stride, 0, &merged));
  *t = lm_frame_hold(f, merged);
  return LM_OK;
}
