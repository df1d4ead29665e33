/* Implements semaphores in shared memory. Each permit is a robust mutex, which the kernel takes back from a holder that
 * ends; only permits released by threads that held none are a plain count. */
#pragma once

#include "mp/lock.h"

typedef struct lm_semaphore_words {
  uint32_t permits;
  _Atomic uint32_t extra;   /* number of permits released by threads that held none */
  _Atomic uint32_t changed; /* number of releases; waiters sleep on it */
  pthread_mutex_t permit[];
} lm_semaphore_words;

enum { LM_SEMAPHORE_MAX = 65536 }; /* permits */
LM_API lm_status lm_semaphore_new(uint32_t permits, lm_handle **out);
/* Acquires as lm_robust_lock does, but a signal ends the wait, and it may end early without one. */
LM_API lm_status lm_semaphore_acquire(lm_handle *h, double seconds, lm_acquire_result *out);
/* Releases a permit. With `bounded`, LM_E_STATE if all permits are free. */
LM_API lm_status lm_semaphore_release(lm_handle *h, bool bounded);
/* Returns the number of free permits. */
LM_API uint32_t lm_semaphore_value(lm_handle *h);
/* Returns the count of releases, for lm_semaphore_wait: it sleeps while the count is `changed`; true if it differs. */
LM_API uint32_t lm_semaphore_changed(const lm_handle *h);
LM_API bool lm_semaphore_wait(lm_handle *h, uint32_t changed, double seconds);
/* Returns the permits held through the handle before it is freed. */
void lm_semaphore_abandon(lm_handle *h);
