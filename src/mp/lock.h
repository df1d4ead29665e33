/* Locks and flags (what lm.mp calls events) in shared memory. Whoever ends while it holds a lock leaves it to the next
 * one, who is notified. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "mp/handle.h"

typedef struct lm_lock_words {
  pthread_mutex_t mutex;      /* robust: the kernel hands it on when its holder's thread ends */
  _Atomic uint32_t abandoned; /* its holder forgot it: the state was closed, or the handle collected */
} lm_lock_words;

typedef struct lm_flag_words {
  _Atomic uint32_t set;
} lm_flag_words;

typedef enum lm_acquire_result { LM_ACQUIRE_TIMEOUT, LM_ACQUIRE_OK, LM_ACQUIRE_ABANDONED } lm_acquire_result;

/* A robust mutex between processes, made in zeroed memory. */
LM_API lm_status lm_robust_init(pthread_mutex_t *m);
/* `seconds` at most (0: only tries), which no signal cuts short. LM_E_STATE if this thread has it already. */
LM_API lm_status lm_robust_lock(pthread_mutex_t *m, double seconds, lm_acquire_result *out);
/* Sleeps while *word is `value`: until it is woken or `seconds` are over. False if a signal came. */
LM_API bool lm_word_wait(_Atomic uint32_t *word, uint32_t value, double seconds);
LM_API void lm_word_wake(_Atomic uint32_t *word); /* all who sleep there */

LM_API lm_status lm_lock_new(lm_handle **out);
/* As lm_robust_lock. A handle that has it already gets it once more. */
LM_API lm_status lm_lock_acquire(lm_handle *h, double seconds, lm_acquire_result *out);
LM_API lm_status lm_lock_release(lm_handle *h);
/* The handle goes: a lock that is held through it is the next one's, as after a death. */
LM_API void lm_lock_abandon(lm_handle *h);

LM_API lm_status lm_flag_new(lm_handle **out);
LM_API void lm_flag_set(lm_handle *h, bool on);
/* Whether it is set; `seconds` at most, or until a signal comes. */
LM_API bool lm_flag_wait(lm_handle *h, double seconds);
