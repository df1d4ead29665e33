/* Copies and converts tensors: clone, to, copy_. */
#include <string.h>

#include "base/message.h"
#include "op/check.h"

/* Creates a dense tensor of x's sizes in a memory format. */
static lm_status new_like(lm_op_id op, const lm_tensor *x, lm_dtype dtype, lm_device device, int format,
                          lm_tensor **out) {
  if (format == LM_PRESERVE) return lm_tensor_empty_like(x, dtype, device, out);
  if (format == LM_CHANNELS_LAST) { NEED(lm_check_ndim(op, "x (for channels_last)", x, 4)); }
  return lm_tensor_empty(dtype, device, x->ndim, x->size, (lm_format)format, out);
}

static lm_status copy_to_dtype(lm_op_id op, const lm_tensor *x, lm_dtype dtype, lm_device device, int format,
                               bool later, lm_tensor **out) {
  LM_OWNED *result = NULL;
  NEED(new_like(op, x, dtype, device, format, &result));
  NEED(lm_copy_later(x, result, later));
  *out = lm_tensor_take(&result);
  return LM_OK;
}

lm_status lm_op_clone(const lm_clone_args *a, lm_tensor **out) {
  return copy_to_dtype(LM_OP_clone, a->x, a->x->dtype, a->x->device, a->memory_format, false, out);
}

lm_status lm_op_to_copy(const lm_to_copy_args *a, lm_tensor **out) {
  return copy_to_dtype(LM_OP_to_copy, a->x, a->dtype == LM_NO_DTYPE ? a->x->dtype : a->dtype,
                       a->device == LM_NO_DEVICE ? a->x->device : a->device, a->memory_format, a->non_blocking, out);
}

lm_status lm_op_copy_(const lm_copy__args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  LM_OWNED *src = NULL, *wide = NULL;
  lm_ints size = {.n = x->ndim};
  memcpy(size.v, x->size, sizeof x->size);
  if (x->storage == a->src->storage && x->data == a->src->data && x->dtype == a->src->dtype &&
      lm_same_shape(x, a->src) && memcmp(x->stride, a->src->stride, sizeof(int64_t) * x->ndim) == 0) {
    *out = lm_retain(x);
    return LM_OK;
  }
  if (x->storage == a->src->storage) { /* x:copy_(x:t()): elements must be read before they are written */
    NEED(lm_op_clone(&(lm_clone_args){.x = a->src, .memory_format = LM_PRESERVE}, &src));
  } else {
    src = lm_retain(a->src);
  }
  lm_status status = lm_op_expand(&(lm_expand_args){.x = src, .size = size}, &wide);
  if (status == LM_E_SHAPE) return lm_fail_broadcast("copy_", "src", lm_shape_of(src), lm_shape_of(x));
  NEED(status);
  NEED(lm_copy_later(wide, x, a->non_blocking));
  *out = lm_retain(x);
  return LM_OK;
}
