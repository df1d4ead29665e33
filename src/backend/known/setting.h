/* Stores scripts' settings for libraries that may not be loaded, or be absent; backends read them when they run.
 * lm.backends.* in Lua. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* id, name, default: PyTorch's */
#define LM_SETTINGS(X)                            \
  X(MATMUL_TF32, "cuda.matmul.allow_tf32", false) \
  X(CUDNN_TF32, "cudnn.allow_tf32", true)         \
  X(CUDNN_ENABLED, "cudnn.enabled", true)         \
  X(CUDNN_BENCHMARK, "cudnn.benchmark", false)    \
  X(CUDNN_DETERMINISTIC, "cudnn.deterministic", false)

typedef enum lm_setting {
#define X(id, name, value) LM_SETTING_##id,
  LM_SETTINGS(X)
#undef X
      LM_SETTING_COUNT
} lm_setting;

LM_API bool lm_setting_get(lm_setting setting);
LM_API void lm_setting_set(lm_setting setting, bool value);
/* Finds a setting by name; LM_E_ARG if there is none. */
LM_API lm_status lm_setting_find(const char *name, lm_setting *out);
