/* Counts the cores this process may use, and moves a thread off a core. */
#pragma once

#include "base/status.h"

/* Returns the number of cores in the process's affinity, or the fewer whole cores that its control group grants
 * (`docker run --cpus`); at least 1. Threads beyond that number are stopped for part of each period while the others
 * wait for them. Reads both at each call. */
LM_API int lm_cores(void);

/* Returns the core this thread runs on, or -1 if unknown; the scheduler may move the thread at any time. */
int lm_this_core(void);

/* Moves this thread off `core` to any other core of its affinity, which stays the same; does nothing without another
 * one. The scheduler leaves two threads that wait for one another in turn on one core, beside an idle one, for 100 ms
 * and more, since the waiting thread looks as if it needed none. */
void lm_leave_core(int core);
