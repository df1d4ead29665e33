#include "backend/known/setting.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic bool values[LM_SETTING_COUNT] = {
#define X(id, name, value) [LM_SETTING_##id] = value,
    LM_SETTINGS(X)
#undef X
};

bool lm_setting_get(lm_setting setting) { return atomic_load_explicit(&values[setting], memory_order_relaxed); }

void lm_setting_set(lm_setting setting, bool value) {
  atomic_store_explicit(&values[setting], value, memory_order_relaxed);
}

lm_status lm_setting_find(const char *name, lm_setting *out) {
#define X(id, known, value)       \
  if (strcmp(name, known) == 0) { \
    *out = LM_SETTING_##id;       \
    return LM_OK;                 \
  }
  LM_SETTINGS(X)
#undef X
  return lm_fail(LM_E_ARG, "unknown setting '%s'", lm_ellipsize(name, 60));
}
