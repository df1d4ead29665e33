#include "backend/known/device_kinds.h"

#include <stddef.h>

#include "device/known.h"

static const char *const cuda_traces[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap", "/dev/nvhost-ctrl", NULL};
static const char *const cuda_read_once[] = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LM_CUDA_VIRTUAL", NULL};

const lm_known_kind lm_known_kinds[] = {
    [LM_CPU] = {.name = "cpu"},
    [LM_CUDA] = {.name = "cuda",
                 .title = "CUDA",
                 .traces = cuda_traces,
                 .symbol = "cudaGetDeviceCount",
                 .split = LM_VAR_CUDA_VIRTUAL,
                 .read_once = cuda_read_once,
                 .group = "nccl"},
};
const int lm_known_count = sizeof lm_known_kinds / sizeof *lm_known_kinds;
