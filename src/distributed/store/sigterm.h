/* Delays SIGTERM if no one else handles it, so that a rank that waits for others can first report the cause: launchers
 * send it within milliseconds of another rank's death. A script that wants to save first can poll for it instead. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* Start and stop (counted) to catch SIGTERM, if its action is the default. If a call waits for other ranks, or failed a
 * moment ago, the process gets a second to report that; then the signal ends it. */
lm_status lm_sigterm_watch(void);
void lm_sigterm_unwatch(void);
/* Begin and end a call that waits for other ranks; without a system call. */
void lm_sigterm_wait_begins(void);
void lm_sigterm_wait_ends(void);
void lm_sigterm_failed(void); /* notes that a call just failed because of other ranks */
bool lm_sigterm_asked(void);  /* true once a SIGTERM is delayed */
/* Adds `by` (1 or -1) to the process's stores; with a store, the end waits until its last messages are sent. */
void lm_sigterm_stores(int by);

/* Makes the first SIGTERM only set a flag, which lm_sigterm_came returns, as do those of the next second: systems send
 * one to each process, and launchers forward theirs. A later one has its usual effect. Another handler that is already
 * installed stays in use: it is called each time, after the flag is set. */
LM_API void lm_sigterm_defer(void);
LM_API bool lm_sigterm_came(void);
