/* Monotonic time. */
#ifndef LM_BASE_CLOCK_H
#define LM_BASE_CLOCK_H

#include "base/status.h"

/* Seconds since an arbitrary start; never goes back. */
LM_API double lm_seconds(void);

#endif
