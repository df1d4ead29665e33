#include "op/input_layout.h"

lm_format lm_format_of(const lm_tensor *t) {
  return t->ndim == 4 && lm_is_channels_last(t) && !lm_is_contiguous(t) ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
}

lm_format lm_gradient_format(const lm_ints *size) {
  return size->n == 4 && size->v[1] > 1 ? LM_CHANNELS_LAST : LM_CONTIGUOUS;
}

static lm_status copied(lm_tensor *t, lm_tensor *fresh, lm_tensor **out) {
  lm_status status = lm_copy(t, fresh);
  if (status == LM_OK) {
    *out = fresh;
  } else {
    lm_release(fresh);
  }
  return status;
}

/* Sets *out to t if it fits, else to a copy in that format; a new reference. */
static lm_status fitted(lm_tensor *t, bool fits, lm_format format, lm_tensor **out) {
  if (fits) {
    *out = lm_retain(t);
    return LM_OK;
  }
  lm_tensor *fresh;
  lm_status status = lm_tensor_empty(t->dtype, t->device, t->ndim, t->size, format, &fresh);
  return status == LM_OK ? copied(t, fresh, out) : status;
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
  bool fits = true;
  for (int d = 0; d < t->ndim; d++) fits = fits && (t->size[d] == 1 || t->stride[d] == like->stride[d]);
  if (fits) {
    *out = lm_retain(t);
    return LM_OK;
  }
  lm_tensor *fresh;
  lm_status status = lm_tensor_empty_like(like, t->dtype, t->device, &fresh);
  return status == LM_OK ? copied(t, fresh, out) : status;
}

lm_status lm_at_least_1d(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *converted = NULL;
  if (dtype != LM_NO_DTYPE && dtype != x->dtype) {
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = x, .dtype = dtype, .device = x->device, .memory_format = LM_PRESERVE},
                      &converted));
    x = converted;
  }
  if (x->ndim == 0) {
    TRY(lm_op_unsqueeze(&(lm_unsqueeze_args){.x = x, .dim = 0}, out));
  } else {
    *out = lm_retain(x);
  }
done:
  lm_release(converted);
  return status;
}
