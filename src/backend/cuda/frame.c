/* Runs slots, and owns their resources until they return. */
#include <assert.h>

#include "backend/cuda/cuda.h"

lm_status lm_cuda_run(lm_cuda_slot *slot, lm_device device, const void *args, lm_tensor *const *out) {
  lm_cuda_frame f;
  f.device = device;
  f.n = f.tensors = 0;
  f.handle = NULL;
  lm_status status = lm_cuda_enter(device, &f.stream);
  if (status == LM_OK) status = slot(args, out, &f);
  for (int i = 0; i < f.tensors; i++) lm_cuda_release(f.tensor[i]);
  for (int i = 0; i < f.n; i++) lm_cuda_scratch_done(&f.scratch[i]);
  if (f.handle) f.put(device, f.handle);
  return status;
}

lm_status lm_cuda_take(lm_cuda_frame *f, size_t bytes, void **out) {
  assert(f->n < LM_CUDA_HELD);
  lm_cuda_memory *memory = &f->scratch[f->n];
  lm_status status = lm_cuda_scratch(f->device, bytes, memory);
  if ((*out = memory->p)) f->n++;
  return status;
}

static lm_status hold_in_frame(lm_cuda_frame *f, lm_status status, lm_tensor **out) {
  assert(f->tensors < LM_CUDA_HELD);
  if (status == LM_OK) f->tensor[f->tensors++] = *out;
  return status;
}

lm_status lm_cuda_take_tensor(lm_cuda_frame *f, lm_dtype dtype, int ndim, const int64_t *size, lm_tensor **out) {
  return hold_in_frame(f, lm_tensor_empty(dtype, f->device, ndim, size, LM_CONTIGUOUS, out), out);
}

lm_status lm_cuda_take_like(lm_cuda_frame *f, const lm_tensor *like, lm_dtype dtype, lm_tensor **out) {
  return hold_in_frame(f, lm_tensor_empty_like(like, dtype, f->device, out), out);
}

lm_status lm_cuda_lay_out(lm_cuda_frame *f, lm_tensor *t, lm_format format, bool read, lm_tensor **out) {
  bool fits = format == LM_CHANNELS_LAST ? lm_is_channels_last(t) : lm_is_contiguous(t);
  *out = t;
  if (fits && (uintptr_t)t->data % LM_CUDA_ALIGN == 0) return LM_OK;
  NEED(hold_in_frame(f, lm_tensor_empty(t->dtype, t->device, t->ndim, t->size, format, out), out));
  return read ? lm_cuda_copy(t, *out) : LM_OK;
}

lm_status lm_cuda_take_sums(lm_cuda_frame *f, const lm_tensor *result, void **out) {
  const bool narrow = lm_dtype_size(result->dtype) < sizeof(float);
  return lm_cuda_take(f, narrow ? (size_t)result->numel * sizeof(float) : 0, out);
}
