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

/* Merges the dims after C; copies x unless one stride spans them. */
lm_status lm_layout_classes(lm_frame *f, lm_tensor **t) {
  const int ndim = (*t)->ndim;
  const int64_t *size = (*t)->size;
  lm_view_args args = {.size = {3, {ndim > 1 ? size[0] : 1, size[ndim > 1], 1}}};
  lm_tensor *merged = NULL;
  for (int d = 2; d < ndim; d++) args.size.v[2] *= size[d];
  args.x = *t;
  if (lm_op_view(&args, &merged) != LM_OK) {
    NEED(lm_frame_layout(f, t, LM_CONTIGUOUS));
    args.x = *t;
    NEED(lm_op_view(&args, &merged));
  }
  *t = lm_frame_hold(f, merged);
  return LM_OK;
}
