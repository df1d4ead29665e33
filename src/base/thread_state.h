/* Marks threads that run a script of their own, as a process would. Such a thread has its own environment variables
 * (those scripts set), random state and number of compute threads, which elsewhere belong to the process. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* Marks this thread as one that runs its own script; the second returns true on such a thread. */
LM_API void lm_script_thread_begin(void);
LM_API bool lm_is_script_thread(void);

/* Adds `change` (+1, -1, 0 to read) to the number of our threads, except the caller, that run Lua or compute; returns
 * it. While it is not 0, exit() must not run as usual: destructors would free memory that they use. */
LM_API int lm_busy_threads(int change);

/* Sets the maximum number of threads for kernels called on this thread while several threads compute for one script; 0
 * means the process's number. */
void lm_set_thread_limit(int n);
int lm_thread_limit(void);
