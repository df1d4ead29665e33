#include "op/input_layout.h"

lm_format lm_format_of(const lm_tensor *t) {
  return t->ndim == 4 && lm_is_channels_last(t) && !lm_is_contiguous(t) ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
}

lm_format lm_gradient_format(const lm_ints *size) {
  return size->n == 4 && size->v[1] > 1 ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
}

/* Sets *out to t if it fits, else to a copy in that format; a new reference. */
static lm_status fitted(lm_tensor *t, bool fits, lm_format format, lm_tensor **out) {
  if (fits) {
    *out = lm_retain(t);
    return LM_OK;
  }
  LM_OWNED *fresh = NULL;
  NEED(lm_tensor_empty(t->dtype, t->device, t->ndim, t->size, format, &fresh));
  NEED(lm_copy(t, fresh));
  *out = lm_tensor_take(&fresh);
  return LM_OK;
}

lm_status lm_to_layout(lm_tensor *t, lm_format format, lm_tensor **out) {
  bool fits = format == LM_CHANNELS_LAST ? lm_is_channels_last(t) : lm_is_contiguous(t);
  if (format == LM_PRESERVE && t->ndim == 4) fits = fits || lm_is_channels_last(t);
  return fitted(t, fits, format == LM_CHANNELS_LAST ? LM_CHANNELS_LAST : LM_CONTIGUOUS, out);
}

lm_status lm_to_private_copy(lm_tensor *t, lm_tensor **out) {
  bool ours = LM_DEVICE_KIND(t->device) != LM_CPU || lm_storage_is_private(t->storage);
  return fitted(t, ours && lm_is_contiguous(t), LM_CONTIGUOUS, out);
}

lm_status lm_to_layout_like(lm_tensor *t, const lm_tensor *like, lm_tensor **out) {
  if (lm_has_strides(t, like->stride)) {
    *out = lm_retain(t);
    return LM_OK;
  }
  LM_OWNED *fresh = NULL;
  NEED(lm_tensor_empty_like(like, t->dtype, t->device, &fresh));
  NEED(lm_copy(t, fresh));
  *out = lm_tensor_take(&fresh);
  return LM_OK;
}

lm_status lm_to_line(lm_tensor *x, lm_tensor **out) {
  LM_OWNED *contiguous = NULL;
  NEED(lm_to_layout(x, LM_CONTIGUOUS, &contiguous));
  return lm_op_view(&(lm_view_args){.x = contiguous, .size = {1, {x->numel}}}, out);
}

lm_status lm_to_dtype(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  if (dtype != x->dtype) {
    return lm_op_to_copy(&(lm_to_copy_args){.x = x, .dtype = dtype, .device = x->device, .memory_format = LM_PRESERVE},
                         out);
  }
  *out = lm_retain(x);
  return LM_OK;
}

lm_status lm_at_least_1d(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  LM_OWNED *converted = NULL;
  NEED(lm_to_dtype(x, dtype == LM_NO_DTYPE ? x->dtype : dtype, &converted));
  if (converted->ndim == 0) return lm_op_unsqueeze(&(lm_unsqueeze_args){.x = converted, .dim = 0}, out);
  *out = lm_tensor_take(&converted);
  return LM_OK;
}
