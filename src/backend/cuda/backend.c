/* The CUDA backend's table, which the core asks for when a CUDA device is first named. */
#include "backend/cuda/cuda.h"

lm_status lm_cuda_run(lm_cuda_slot *slot, const void *args, lm_tensor *const *out) {
  lm_cuda_frame f = {.device = out[0]->device};
  lm_status status = lm_cuda_enter(f.device, &f.stream);
  if (status == LM_OK) status = slot(args, out, &f);
  for (int i = 0; i < f.n; i++) lm_cuda_scratch_done(f.device, f.scratch[i].p, f.scratch[i].bytes);
  return status;
}

lm_status lm_cuda_take(lm_cuda_frame *f, size_t bytes, void **out) {
  *out = NULL;
  if (bytes == 0) return LM_OK;
  lm_status status = lm_cuda_scratch(f->device, bytes, out);
  if (status != LM_OK) return status;
  f->scratch[f->n].p = *out;
  f->scratch[f->n++].bytes = bytes;
  return LM_OK;
}

lm_status lm_cuda_take_sums(lm_cuda_frame *f, const lm_tensor *result, void **out) {
  const bool narrow = lm_dtype_size(result->dtype) < sizeof(float);
  return lm_cuda_take(f, narrow ? (size_t)result->numel * sizeof(float) : 0, out);
}

#define X(name)                                                          \
  static lm_status run_##name(const void *args, lm_tensor *const *out) { \
    return lm_cuda_run(lm_cuda_##name, args, out);                       \
  }
LM_CUDA_FRAMED(X)
#undef X

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &lm_cuda_driver,
    .op =
        {
#define X(name) [LM_OP_##name] = lm_cuda_##name,
            LM_CUDA_KERNELS(X)
#undef X
#define X(name) [LM_OP_##name] = run_##name,
                LM_CUDA_FRAMED(X)
#undef X
        },
    .pointwise = lm_cuda_pointwise,
    .copy = lm_cuda_copy,
    .optim = lm_cuda_optim,
    .norms = lm_cuda_norms,
    .rescale = lm_cuda_rescale,
    .conv_contiguous = lm_cuda_conv_contiguous,
    .version = lm_cuda_version,
};

__attribute__((visibility("default"))) lm_status lm_backend_plugin(void) { return lm_backend_register(&backend); }
