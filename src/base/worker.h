/* A thread that runs a script of its own, as a process would: what belongs to the process elsewhere (environment
 * variables that scripts set, random state, the number of compute threads) it has for itself. */
#ifndef LM_BASE_WORKER_H
#define LM_BASE_WORKER_H

#include <stdbool.h>

#include "base/status.h"

/* This thread is one from now on. */
LM_API void lm_worker_begin(void);
LM_API bool lm_is_worker(void);

#endif
