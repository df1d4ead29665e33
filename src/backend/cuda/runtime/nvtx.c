/* Marks ranges for NVIDIA's tools. The headers of NVTX 3 load the tool by themselves, and do nothing without one. */
#include "backend/cuda/runtime/nvtx.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_NVTX 1
#endif
#endif

#ifdef HAS_NVTX
void lm_nvtx_push(const char *name) { nvtxRangePushA(name); }
void lm_nvtx_pop(void) { nvtxRangePop(); }
void lm_nvtx_mark(const char *name) { nvtxMarkA(name); }
#else
void lm_nvtx_push(const char *name) { (void)name; }
void lm_nvtx_pop(void) {}
void lm_nvtx_mark(const char *name) { (void)name; }
#endif
