/* Compiles kernels that are written at run time. NVRTC is loaded at need; it may be missing, or left out by
 * LM_CUDA_WITHOUT=nvrtc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "device/device.h"

typedef struct lm_cuda_code lm_cuda_code;

/* Returns in *out the code of a text, which begins with kernels/generated.cuh, for a device; it lives as long as the
 * process. The text has a kernel lm_group with one parameter. LM_E_MISSING, with a message, if it cannot be compiled
 * here. */
lm_status lm_cuda_compile(lm_device device, const char *text, size_t bytes, const lm_cuda_code **out);
/* Enqueues its kernel. */
lm_status lm_cuda_launch_code(const lm_cuda_code *code, int64_t blocks, int threads, void *parameters, size_t bytes,
                              void *stream);
