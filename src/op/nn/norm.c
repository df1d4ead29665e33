/* Checks operands of batch norm, layer norm and similar ops, beyond sizes and dtypes. */
#include "base/message.h"
#include "op/operand_checks.h"
#include "op/stream_order.h"

lm_status lm_check_channels(lm_op_id op, const lm_tensor *x, int64_t *channels) {
  *channels = x->ndim > 1 ? x->size[1] : 0;
  if (x->ndim > 1 || (x->ndim == 1 && x->numel == 0)) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, "x", "[N, C] or [N, C, ...]", lm_shape_of(x));
}

lm_status lm_check_statistics(lm_op_id op, const lm_tensor *x, int64_t channels, bool training,
                              const lm_tensor *running_mean, const lm_tensor *running_var) {
  if (training && x->numel == channels && channels > 0)
    return lm_fail(LM_E_SHAPE,
                   "%s: x must have more than one value per channel in training, got %s; use a larger batch or :eval()",
                   lm_ops[op].name, lm_shape_of(x));
  if (training || (running_mean && running_var)) return LM_OK;
  return lm_fail_value(lm_ops[op].name, "running_mean and running_var", "tensors when not training", "nil");
}

lm_status lm_check_known_statistics(lm_op_id op, bool training, const lm_tensor *save_mean,
                                    const lm_tensor *save_invstd, const lm_tensor *running_mean,
                                    const lm_tensor *running_var) {
  if (training ? save_mean && save_invstd : running_mean && running_var) return LM_OK;
  return lm_fail_value(lm_ops[op].name, training ? "save_mean and save_invstd" : "running_mean and running_var",
                       "tensors", "nil");
}

/* Returns the mask's bytes: one for the elements of 16 bytes if kernels load such packs, else one for each element. */
int64_t lm_relu_mask_bytes(const lm_tensor *x, const lm_tensor *addend) {
  const int64_t pack = 16 / (int64_t)lm_dtype_size(x->dtype),
                plane = x->numel ? x->numel / (x->size[0] * x->size[1]) : 1;
  const bool rows = plane == 1 || !lm_is_contiguous(x);
  const bool aligned = (uintptr_t)x->data % 16 == 0 && (uintptr_t)addend->data % 16 == 0;
  return aligned && (rows ? x->size[1] : plane) % pack == 0 ? x->numel / pack : x->numel;
}

bool lm_needs_relu_mask(const lm_tensor *x) { return lm_is_ordered(x->device) && !lm_now_running.only_visible; }

lm_status lm_check_relu_mask(lm_op_id op, const lm_tensor *x, const lm_tensor *mask) {
  const int64_t pack = 16 / (int64_t)lm_dtype_size(x->dtype);
  if (!mask || mask->numel == x->numel || mask->numel * pack == x->numel) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, "mask",
                       lm_text("[%lld] or [%lld]", (long long)x->numel, (long long)(x->numel / pack)),
                       lm_shape_of(mask));
}

lm_status lm_check_groups(lm_op_id op, const lm_tensor *x, int64_t groups) {
  if (x->numel == 0) return lm_fail_shape(lm_ops[op].name, "x", "[N, C, ...] without an empty dim", lm_shape_of(x));
  if (groups < 1) return lm_fail_int(lm_ops[op].name, "groups", "at least 1", groups);
  if (x->size[1] % groups == 0) return LM_OK;
  return lm_fail_divisible(lm_ops[op].name, "channels of x", x->size[1], "groups", groups);
}

lm_status lm_check_normalized(lm_op_id op, const lm_tensor *x, const lm_ints *normalized_shape, lm_ints *rows) {
  const int first = x->ndim - normalized_shape->n;
  if (normalized_shape->n < 1) return lm_fail_value(lm_ops[op].name, "normalized_shape", "at least one size", "{}");
  if (first < 0 || !lm_sizes_are(normalized_shape, x->ndim, x->size, first, 0))
    return lm_fail_shape(lm_ops[op].name, "x",
                         lm_text("[*, normalized_shape] with normalized_shape %s", lm_sizes_text(normalized_shape)),
                         lm_shape_of(x));
  *rows = lm_sizes_between(x->ndim, x->size, 0, 0);
  for (int d = first; d < x->ndim; d++) rows->v[d] = 1;
  return LM_OK;
}
