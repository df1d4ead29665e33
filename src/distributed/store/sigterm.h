/* SIGTERM, where nobody else handles it: a rank that waits for others learns first why it is being ended. Launchers
 * send it within milliseconds of another rank's death. Or a script that wants to save first asks whether it came. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* Between the two (they count), SIGTERM is caught if its action was the default: if a call waits for other ranks, or
 * failed a moment ago, the process gets a second to say so; then the signal takes its course. */
lm_status lm_sigterm_watch(void);
void lm_sigterm_unwatch(void);
/* Around each call that waits for other ranks. Without a system call. */
void lm_sigterm_wait_begins(void);
void lm_sigterm_wait_ends(void);
void lm_sigterm_failed(void); /* a call has failed for what happened to others */
bool lm_sigterm_asked(void);
/* This process has one more store (or one less): what the others have yet to hear gets a moment to leave. */
void lm_sigterm_stores(int by);

/* From now on the first SIGTERM only sets a flag, which lm_sigterm_came returns, as do those of the next second:
 * systems send one to each process, and launchers pass theirs on. A later one takes its course. A handler of another
 * owner stays in use: it is called each time, after the flag is set. */
LM_API void lm_sigterm_defer(void);
LM_API bool lm_sigterm_came(void);
