/* How many cores this process may use. */
#pragma once

#include "base/status.h"

/* At least 1: those of its affinity, or fewer whole ones if its control group grants less time (`docker run --cpus`),
 * since threads beyond that are stopped for part of each period while the others wait for them. Reads it at each call.
 */
LM_API int lm_cores(void);
