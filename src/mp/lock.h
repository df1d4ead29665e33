/* Implements locks in shared memory, and waits for words in it. A lock whose holder ends passes to the next one, who is
 * notified. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "mp/handle.h"

typedef struct lm_lock_words {
  pthread_mutex_t mutex;      /* robust: the kernel passes it on when its holder's thread ends */
  _Atomic uint32_t abandoned; /* 1 if its holder's state was closed or its handle collected */
} lm_lock_words;

typedef enum lm_acquire_result { LM_ACQUIRE_TIMEOUT, LM_ACQUIRE_OK, LM_ACQUIRE_ABANDONED } lm_acquire_result;

/* Creates a robust mutex for several processes in zeroed memory. */
lm_status lm_robust_init(pthread_mutex_t *m);
/* Waits at most `seconds` (0: only tries), which no signal shortens. LM_E_STATE if this thread holds it already. */
lm_status lm_robust_lock(pthread_mutex_t *m, double seconds, lm_acquire_result *out);
/* Sleeps while *word is `value`, until a wake or for at most `seconds`. Returns false if a signal arrived. */
bool lm_word_wait(_Atomic uint32_t *word, uint32_t value, double seconds);
void lm_word_wake(_Atomic uint32_t *word); /* wakes all sleepers */

LM_API lm_status lm_lock_new(lm_handle **out);
/* Locks as lm_robust_lock does. A handle that holds the lock already acquires it once more. */
LM_API lm_status lm_lock_acquire(lm_handle *h, double seconds, lm_acquire_result *out);
LM_API lm_status lm_lock_release(lm_handle *h);
/* Releases the lock, if held, before its handle is freed; the next holder is notified, as after a death. */
void lm_lock_abandon(lm_handle *h);
