/* Guards memory-mapped files against truncation. Lost bytes read as 0 instead of ending the process by SIGBUS, and the
 * thread that computed with them gets an error before it sees the result. */
#pragma once

#include <stdatomic.h>

#include "base/status.h"

typedef struct lm_mapping_guard lm_mapping_guard;

/* Guards `bytes` bytes at `data`, the start of a page, until lm_mapping_guard_free, which must precede munmap.
 * LM_E_OOM. */
lm_status lm_mapping_guard_new(const char *path, char *data, size_t bytes, lm_mapping_guard **out);
void lm_mapping_guard_free(lm_mapping_guard *w); /* NULL is fine */
LM_API int lm_mapping_guards(void);              /* the number of guards in use */

/* Makes this thread, which begins to run a script, see only the losses from now on. */
LM_API void lm_truncation_begin(void);

/* Returns lm_truncation_check's error if a system call failed with EFAULT at `position` because that memory is lost. */
lm_status lm_truncation_check_read(const void *position);

extern LM_API _Atomic unsigned lm_truncations;
LM_API lm_status lm_truncation_report(void);

/* Returns LM_E_IO, naming the files, if any thread read lost memory since this thread's last report; several threads
 * compute for one. Reading it again is reported again. */
static inline lm_status lm_truncation_check(void) {
  return __builtin_expect(atomic_load_explicit(&lm_truncations, memory_order_relaxed) > 0, 0) ? lm_truncation_report()
                                                                                              : LM_OK;
}
