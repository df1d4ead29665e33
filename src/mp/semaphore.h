/* Semaphores in shared memory. Each permit is a robust mutex of its own, which the kernel takes back from a holder that
 * ends; only permits that somebody released who held none are a mere count. */
#pragma once

#include "mp/lock.h"

typedef struct lm_semaphore_words {
  uint32_t permits;
  _Atomic uint32_t extra;   /* permits released by who held none */
  _Atomic uint32_t changed; /* how often any was released: what is slept on */
  pthread_mutex_t permit[];
} lm_semaphore_words;

enum { LM_SEMAPHORE_MAX = 65536 }; /* permits */
LM_API lm_status lm_semaphore_new(uint32_t permits, lm_handle **out);
/* As lm_robust_lock, but a signal ends it, and it may end early without one. */
LM_API lm_status lm_semaphore_acquire(lm_handle *h, double seconds, lm_acquire_result *out);
/* bounded: LM_E_STATE if all permits are there. */
LM_API lm_status lm_semaphore_release(lm_handle *h, bool bounded);
/* The number of free permits. */
LM_API uint32_t lm_semaphore_value(lm_handle *h);
/* A number that every release changes; and to sleep as long as it is that one: whether it is another. */
LM_API uint32_t lm_semaphore_changed(const lm_handle *h);
LM_API bool lm_semaphore_wait(lm_handle *h, uint32_t changed, double seconds);
/* The handle goes: what is held through it is given back. */
LM_API void lm_semaphore_abandon(lm_handle *h);
