/* Memory over a file that somebody may cut short. What is lost reads as 0 instead of ending the process by SIGBUS, and
 * whoever computed with it is notified before the result is seen. */
#pragma once

#include <stdatomic.h>

#include "base/status.h"

typedef struct lm_mapping_guard lm_mapping_guard;

/* From now on until lm_mapping_guard_free, which is before the memory is unmapped. `data` lies at the beginning of a
 * page. */
lm_status lm_mapping_guard_new(const char *path, char *data, size_t bytes, lm_mapping_guard **out);
void lm_mapping_guard_free(lm_mapping_guard *w); /* NULL is fine */
int lm_mapping_guards(void);                     /* that there are */

/* A thread that begins to run a script is notified of what is lost from then on. */
void lm_truncation_begin(void);

/* What a system call that got memory at `position` could not read (EFAULT): LM_E_IO as below if it is lost. */
lm_status lm_truncation_check_read(const void *position);

extern LM_API _Atomic unsigned lm_truncations;
LM_API lm_status lm_truncation_report(void);

/* LM_E_IO, naming the files, if memory was read that is lost, since this thread was last notified: by whatever thread,
 * since several compute for one. What is read once more is reported once more. */
static inline lm_status lm_truncation_check(void) {
  return __builtin_expect(atomic_load_explicit(&lm_truncations, memory_order_relaxed) > 0, 0) ? lm_truncation_report()
                                                                                              : LM_OK;
}
