/* The CUDA backend's table, which the core asks for when a CUDA device is first named. */
#include "backend/cuda/cuda.h"

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &lm_cuda_driver,
    .op =
        {
#define X(name) [LM_OP_##name] = lm_cuda_##name,
            LM_CUDA_KERNELS(X)
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
