/* How many cores this process may use. */
#pragma once

#include "base/status.h"

/* At least 1: those of its affinity, or fewer whole ones if its control group grants less time (`docker run --cpus`),
 * since threads beyond that are stopped for part of each period while the others wait for them. Reads it at each call.
 */
LM_API int lm_cores(void);

/* The core that this thread is on; -1: unknown. It may be on another one the moment after. */
int lm_this_core(void);

/* Moves this thread to any other core of its affinity, which stays as it is; without another one it does nothing. The
 * scheduler leaves two threads that wait for one another in turn on one core, beside an idle one, for 100 ms and more,
 * since the waiting one looks as if it needed none. */
void lm_leave_core(int core);
