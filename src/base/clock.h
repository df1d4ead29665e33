/* Reads the monotonic clock. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* Return the time since an arbitrary start, in nanoseconds and in seconds; it never decreases. */
int64_t lm_nanoseconds(void);
LM_API double lm_seconds(void);
