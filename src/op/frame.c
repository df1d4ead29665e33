#include "op/frame.h"

#include <assert.h>
#include <string.h>

#include "base/message.h"
#include "op/index_checks.h"

void lm_frame_drop(lm_frame *f) {
  for (int i = 0; i < f->n; i++) lm_release(f->held[i]);
  for (int i = 0; i < LM_MAX_OUTS; i++) lm_tensor_drop(&f->result[i]);
}

lm_status lm_frame_end(lm_frame *f, lm_tensor **out) {
  const int results = lm_ops[f->op].outs + lm_ops[f->op].aux;
  for (int i = 0; i < results; i++) out[i] = lm_tensor_take(&f->result[i]);
  return LM_OK;
}

lm_tensor *lm_frame_hold(lm_frame *f, lm_tensor *t) {
  assert(f->n < LM_FRAME_TENSORS);
  f->held[f->n++] = t;
  return t;
}

/* Replaces *t by *made, which the frame takes over, if status is LM_OK. */
static lm_status replace_input(lm_frame *f, lm_status status, lm_tensor **replacement, lm_tensor **t) {
  if (status == LM_OK) *t = lm_frame_hold(f, *replacement);
  return status;
}

/* ---- operands */

lm_status lm_frame_batch(lm_frame *f, lm_tensor **t, int ndim) {
  lm_tensor *batch = NULL;
  if ((*t)->ndim != ndim - 1) return LM_OK;
  f->unbatched = true;
  return replace_input(f, lm_op_unsqueeze(&(lm_unsqueeze_args){.x = *t, .dim = 0}, &batch), &batch, t);
}

void lm_frame_batch_sizes(lm_frame *f, lm_ints *size, int ndim) {
  if (size->n != ndim - 1) return;
  memmove(size->v + 1, size->v, sizeof *size->v * (size_t)size->n);
  size->v[0] = 1;
  size->n = ndim;
  f->unbatched = true;
}

/* Converts *t unless it is in the format: then the frame needs no reference, as the caller has one. */
lm_status lm_frame_layout(lm_frame *f, lm_tensor **t, lm_format format) {
  lm_tensor *own = NULL;
  if (!*t || (format != LM_CHANNELS_LAST && lm_is_contiguous(*t))) return LM_OK;
  return replace_input(f, lm_to_layout(*t, format, &own), &own, t);
}

lm_status lm_frame_layout_like(lm_frame *f, lm_tensor **t, const lm_tensor *like) {
  lm_tensor *own = NULL;
  if (!*t) return LM_OK;
  return replace_input(f, lm_to_layout_like(*t, like, &own), &own, t);
}

lm_status lm_frame_dense(lm_frame *f, lm_tensor **t) {
  return !*t || lm_is_dense(*t) ? LM_OK : lm_frame_layout(f, t, LM_CONTIGUOUS);
}

static bool is_private(const lm_tensor *t) {
  return lm_is_contiguous(t) && (LM_DEVICE_KIND(t->device) != LM_CPU || lm_storage_is_private(t->storage));
}

lm_status lm_frame_private(lm_frame *f, lm_tensor **t) {
  lm_tensor *own = NULL;
  if (!*t || is_private(*t)) return LM_OK;
  return replace_input(f, lm_to_private_copy(*t, &own), &own, t);
}

lm_status lm_frame_index(lm_frame *f, const char *name, lm_tensor **t) {
  lm_tensor *own = NULL;
  if (!*t || ((*t)->dtype == LM_I64 && is_private(*t))) return LM_OK;
  return replace_input(f, lm_index_int64(f->op, name, *t, &own), &own, t);
}

lm_status lm_frame_convert(lm_frame *f, lm_tensor **t, lm_dtype dtype) {
  lm_tensor *own = NULL;
  if (!*t || (*t)->dtype == dtype) return LM_OK;
  return replace_input(f, lm_to_dtype(*t, dtype, &own), &own, t);
}

lm_status lm_frame_contiguous_in(lm_frame *f, lm_tensor **t, lm_dtype dtype, lm_device device) {
  lm_tensor *own = NULL;
  if ((*t)->dtype == dtype && (*t)->device == device && lm_is_contiguous(*t)) return LM_OK;
  lm_to_copy_args args = {.x = *t, .dtype = dtype, .device = device, .memory_format = LM_CONTIGUOUS};
  return replace_input(f, lm_op_to_copy(&args, &own), &own, t);
}

lm_status lm_frame_at_least_1d(lm_frame *f, lm_tensor **t) {
  lm_tensor *own = NULL;
  if ((*t)->ndim > 0) return LM_OK;
  return replace_input(f, lm_op_unsqueeze(&(lm_unsqueeze_args){.x = *t, .dim = 0}, &own), &own, t);
}

lm_status lm_frame_line(lm_frame *f, lm_tensor **x, int64_t *dim) {
  int from_0;
  NEED(lm_dim(lm_ops[f->op].name, *dim, (*x)->ndim, &from_0));
  *dim = from_0;
  return lm_frame_at_least_1d(f, x);
}

lm_status lm_frame_reshape(lm_frame *f, lm_tensor **t, int ndim, const int64_t *size) {
  lm_tensor *view = NULL;
  int64_t stride[LM_MAX_DIMS];
  if (!*t) return LM_OK;
  lm_dense_strides(ndim, size, stride);
  return replace_input(f, lm_tensor_view(*t, ndim, size, stride, 0, &view), &view, t);
}

lm_status lm_frame_broadcast(const lm_frame *f, lm_ints *batch, const lm_tensor *t, int last) {
  const lm_ints before = *batch;
  return lm_broadcast(lm_ops[f->op].name, before.n, before.v, t->ndim - last, t->size, &batch->n, batch->v);
}

lm_status lm_frame_expand(lm_frame *f, lm_tensor **t, const lm_ints *batch, int last) {
  lm_expand_args wide = {.x = *t, .size = *batch};
  lm_tensor *own = NULL;
  if (lm_sizes_are(batch, (*t)->ndim, (*t)->size, 0, last)) return LM_OK;
  memcpy(wide.size.v + wide.size.n, (*t)->size + (*t)->ndim - last, sizeof *wide.size.v * (size_t)last);
  wide.size.n += last;
  return replace_input(f, lm_op_expand(&wide, &own), &own, t);
}

/* ---- sizes */

lm_ints lm_sizes_between(int ndim, const int64_t *size, int lead, int tail) {
  lm_ints sizes = {.n = ndim - lead - tail};
  for (int d = 0; d < sizes.n; d++) sizes.v[d] = size[lead + d];
  return sizes;
}

bool lm_sizes_are(const lm_ints *sizes, int ndim, const int64_t *size, int lead, int tail) {
  bool same = ndim == lead + sizes->n + tail;
  for (int d = 0; same && d < sizes->n; d++) same = size[lead + d] == sizes->v[d];
  return same;
}

lm_status lm_sizes_join(const lm_frame *f, int lead, const int64_t *before, const lm_ints *sizes, int tail,
                        const int64_t *after, lm_ints *out) {
  out->n = lead + sizes->n + tail;
  if (out->n > LM_MAX_DIMS)
    return lm_fail_int(lm_ops[f->op].name, "the number of dims of the result", lm_text("at most %d", LM_MAX_DIMS),
                       out->n);
  for (int d = 0; d < lead; d++) out->v[d] = before[d];
  for (int d = 0; d < sizes->n; d++) out->v[lead + d] = sizes->v[d];
  for (int d = 0; d < tail; d++) out->v[lead + sizes->n + d] = after[d];
  return LM_OK;
}

/* Formats sizes without brackets, "" if there are none. */
static const char *sizes_text(const lm_ints *sizes, const char *format) {
  const char *shape = lm_shape_text(sizes->n, sizes->v);
  return sizes->n ? lm_text(format, (int)strlen(shape) - 2, shape + 1) : "";
}
const char *lm_sizes_before(const lm_ints *sizes) { return sizes_text(sizes, "%.*s, "); }
const char *lm_sizes_after(const lm_ints *sizes) { return sizes_text(sizes, ", %.*s"); }

/* ---- results */

lm_status lm_frame_result(lm_frame *f, int i, lm_dtype dtype, lm_device device, int ndim, const int64_t *size,
                          lm_format format) {
  lm_status status = lm_tensor_empty(dtype, device, ndim, size, format, &f->result[i]);
  f->slot[i] = f->result[i];
  return status;
}

lm_status lm_frame_result_like(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like) {
  lm_status status = lm_tensor_empty_like(like, dtype, like->device, &f->result[i]);
  f->slot[i] = f->result[i];
  return status;
}

lm_status lm_frame_result_near(lm_frame *f, int i, lm_dtype dtype, const lm_tensor *like, int ndim,
                               const int64_t *size) {
  bool same = like->ndim == ndim && memcmp(like->size, size, sizeof *size * (size_t)ndim) == 0;
  for (int d = 0; same && d < ndim - 1; d++) /* rows that overlap would get another innermost dim */
    same = like->size[d] == 1 || like->stride[d] != like->stride[ndim - 1];
  if (same) return lm_frame_result_like(f, i, dtype, like);
  return lm_frame_result(f, i, dtype, like->device, ndim, size, LM_CONTIGUOUS);
}

void lm_frame_columns(lm_frame *f, int i) {
  lm_tensor *t = f->result[i];
  const int64_t rows = t->size[t->ndim - 2];
  t->stride[t->ndim - 2] = 1;
  t->stride[t->ndim - 1] = rows > 0 ? rows : 1;
}

static bool has_elements(const lm_frame *f) {
  for (int i = 0; i < LM_MAX_OUTS; i++) {
    if (f->slot[i] && f->slot[i]->numel > 0) return true;
  }
  return false;
}

lm_status lm_frame_dispatch(lm_frame *f, lm_device device, const void *run) {
  return has_elements(f) ? lm_dispatch(lm_ops[f->op].slot, device, run, f->slot) : LM_OK;
}

lm_status lm_frame_dispatch_or_host(lm_frame *f, lm_device device, const void *run) {
  return has_elements(f) ? lm_dispatch_or_host(lm_ops[f->op].slot, device, run, f->slot) : LM_OK;
}

lm_status lm_frame_zero(lm_frame *f) {
  lm_status status = LM_OK;
  for (int i = 0; i < LM_MAX_OUTS && status == LM_OK; i++) {
    lm_tensor *t = f->result[i], *zeroed = NULL;
    if (t && t->numel > 0) status = lm_op_zero_(&(lm_zero__args){.x = t}, &zeroed);
    lm_release(zeroed);
  }
  return status;
}

lm_status lm_frame_convert_result(lm_frame *f, int i, lm_dtype dtype) {
  lm_tensor *t = f->result[i];
  if (!t || t->dtype == dtype) return LM_OK;
  return lm_to_dtype(lm_frame_hold(f, t), dtype, &f->result[i]);
}

void lm_frame_unbatch(lm_frame *f, int i) {
  lm_tensor *t = f->result[i];
  if (!f->unbatched || !t) return;
  t->ndim--;
  memmove(t->size, t->size + 1, sizeof *t->size * t->ndim);
  memmove(t->stride, t->stride + 1, sizeof *t->stride * t->ndim);
}
