#include "op/layout.h"

#include <stdio.h>

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

lm_status lm_laid_out(lm_tensor *t, lm_format format, lm_tensor **out) {
  bool fits = format == LM_CHANNELS_LAST ? lm_is_channels_last(t) : lm_is_contiguous(t);
  if (format == LM_PRESERVE && t->ndim == 4) fits = fits || lm_is_channels_last(t);
  if (fits) {
    *out = lm_retain(t);
    return LM_OK;
  }
  lm_tensor *fresh;
  lm_status status = lm_tensor_empty(t->dtype, t->device, t->ndim, t->size,
                                     format == LM_CHANNELS_LAST ? LM_CHANNELS_LAST : LM_CONTIGUOUS, &fresh);
  return status == LM_OK ? copied(t, fresh, out) : status;
}

lm_status lm_laid_out_like(lm_tensor *t, const lm_tensor *like, lm_tensor **out) {
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

lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out) {
  if (t->dtype != LM_I64 && t->dtype != LM_I32 && t->dtype != LM_U8)
    return lm_fail(LM_E_DTYPE, "%s: %s has to be int64, int32 or uint8, is %s; convert it with :long()",
                   lm_ops[op].name, arg, lm_dtype_name(t->dtype));
  if (t->dtype == LM_I64) return lm_laid_out(t, LM_CONTIGUOUS, out);
  lm_tensor *fresh;
  lm_status status = lm_tensor_empty(LM_I64, t->device, t->ndim, t->size, LM_CONTIGUOUS, &fresh);
  return status == LM_OK ? copied(t, fresh, out) : status;
}

lm_status lm_bad_label(lm_op_id op, const char *arg, const lm_tensor *t, int64_t place, int64_t label,
                       int64_t classes) {
  const char *name = lm_ops[op].name;
  char where[LM_MAX_DIMS * 24] = "";
  int64_t at[LM_MAX_DIMS];
  for (int d = t->ndim - 1; d >= 0; d--) at[d] = place % t->size[d] + 1, place /= t->size[d];
  for (int d = 0, n = 0; d < t->ndim; d++)
    n += snprintf(where + n, sizeof where - (size_t)n, "%s%lld", d ? ", " : "", (long long)at[d]);
  if (label == 0)
    return lm_fail(LM_E_INDEX, "%s: a label of 0 at %s[%s]: labels count from 1, here up to %lld", name, arg, where,
                   (long long)classes);
  return lm_fail(LM_E_INDEX, "%s: a label of %lld at %s[%s]: labels go from 1 to %lld here", name, (long long)label,
                 arg, where, (long long)classes);
}
