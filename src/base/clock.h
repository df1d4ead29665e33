/* Monotonic time. */
#pragma once

#include "base/status.h"

/* Seconds since an arbitrary start; never goes back. */
LM_API double lm_seconds(void);
