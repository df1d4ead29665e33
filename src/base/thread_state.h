/* A thread that runs a script of its own, as a process would: what belongs to the process elsewhere (environment
 * variables that scripts set, random state, the number of compute threads) it has for itself. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* This thread is one from now on. */
LM_API void lm_script_thread_begin(void);
LM_API bool lm_is_script_thread(void);

/* Threads of ours that run Lua or compute, but the caller's: +1, -1, and 0 to ask; returns how many there are. Where
 * there are any, exit() may not go its usual way: destructors would take from them what they use. */
LM_API int lm_busy_threads(int change);

/* The maximum number of threads of kernels called on this thread, while several threads compute at once for one
 * script; 0: the number that is set for the process. */
LM_API void lm_set_thread_limit(int n);
LM_API int lm_thread_limit(void);
