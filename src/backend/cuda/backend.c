/* Defines the CUDA backend's table, which the core loads when a CUDA device is first named. */
#include "backend/cuda/cuda.h"

#define X(name)                                                                             \
  static lm_status slot_##name(const void *args, lm_tensor *const *out, lm_cuda_frame *f) { \
    return lm_cuda_##name(args, out, f);                                                    \
  }                                                                                         \
  static lm_status run_##name(const void *args, lm_tensor *const *out) {                    \
    return lm_cuda_run(slot_##name, out[0]->device, args, out);                             \
  }
LM_CUDA_KERNELS(X)
#undef X

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &lm_cuda_driver,
    .op =
        (const lm_kernel[LM_SLOT_COUNT]){
#define X(name) [LM_OP_##name] = run_##name,
            LM_CUDA_KERNELS(X)
#undef X
                [LM_OP_recurrent_weights] = lm_cuda_recurrent_weights,
        },
    .pointwise = lm_cuda_pointwise,
    .copy = lm_cuda_copy,
    .optim = lm_cuda_optim,
    .norms = lm_cuda_norms,
    .rescale = lm_cuda_rescale,
#ifdef LM_HAS_NVRTC
    .group_prepare = lm_cuda_group_prepare,
    .group_run = lm_cuda_group_run,
    .sum_parts = lm_cuda_sum_parts,
#endif
    .conv_contiguous = lm_cuda_conv_contiguous,
    .version = lm_cuda_version,
};

__attribute__((visibility("default"))) lm_status lm_backend_plugin(void) { return lm_backend_register(&backend); }
