/* Reads the monotonic clock. */
#pragma once

#include "base/status.h"

/* Returns the seconds since an arbitrary start; never decreases. */
LM_API double lm_seconds(void);
