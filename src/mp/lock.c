#include "mp/lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/message.h"
#include "base/thread.h"

/* ---- mutexes */

lm_status lm_robust_init(pthread_mutex_t *m) {
  pthread_mutexattr_t a;
  int problem = pthread_mutexattr_init(&a);
  if (!problem) problem = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  if (!problem) problem = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  if (!problem) problem = pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  if (!problem) problem = pthread_mutex_init(m, &a);
  pthread_mutexattr_destroy(&a);
  return problem ? lm_fail_cannot(LM_E_IO, "create a lock", problem) : LM_OK;
}

static struct timespec lock_deadline(clockid_t clock, double seconds) {
  struct timespec t;
  clock_gettime(clock, &t);
  return lm_timespec((double)t.tv_sec + (double)t.tv_nsec * 1e-9 + seconds);
}

lm_status lm_robust_lock(pthread_mutex_t *m, double seconds, lm_acquire_result *out) {
  *out = LM_ACQUIRE_TIMEOUT;
  int problem = pthread_mutex_trylock(m);
  if (problem == EBUSY && seconds > 0) {
#ifdef __SANITIZE_THREAD__ /* ThreadSanitizer does not know pthread_mutex_clocklock */
    struct timespec until = lock_deadline(CLOCK_REALTIME, seconds);
    problem = pthread_mutex_timedlock(m, &until);
#else
    struct timespec until = lock_deadline(CLOCK_MONOTONIC, seconds);
    problem = pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &until);
#endif
  }
  if (problem == EBUSY || problem == ETIMEDOUT) return LM_OK;
  if (problem == EDEADLK) return lm_fail(LM_E_STATE, "this thread already holds the lock through another object");
  bool died = problem == EOWNERDEAD;
  if (died) problem = pthread_mutex_consistent(m);
  if (problem) return lm_fail(LM_E_IO, "the lock is broken: %s", strerror(problem));
  *out = died ? LM_ACQUIRE_ABANDONED : LM_ACQUIRE_OK;
  return LM_OK;
}

/* ---- words */

bool lm_word_wait(_Atomic uint32_t *word, uint32_t value, double seconds) {
  if (seconds <= 0) return true;
  struct timespec t = lm_timespec(seconds);
  return syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0) == 0 || errno != EINTR;
}

void lm_word_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* ---- locks */

static lm_lock_words *lock_of(const lm_handle *h) { return (lm_lock_words *)h->words->base; }

lm_status lm_lock_new(lm_handle **out) {
  lm_status status = lm_handle_with_words(LM_LOCK, NULL, out);
  if (status != LM_OK || (status = lm_robust_init(&lock_of(*out)->mutex)) == LM_OK) return status;
  lm_handle_free(*out);
  *out = NULL;
  return status;
}

lm_status lm_lock_acquire(lm_handle *h, double seconds, lm_acquire_result *out) {
  if (h->depth > 0) {
    h->depth++;
    *out = LM_ACQUIRE_OK;
    return LM_OK;
  }
  lm_lock_words *w = lock_of(h);
  lm_status status = lm_robust_lock(&w->mutex, seconds, out);
  if (status != LM_OK || *out == LM_ACQUIRE_TIMEOUT) return status;
  if (atomic_exchange(&w->abandoned, 0)) *out = LM_ACQUIRE_ABANDONED;
  h->depth = 1;
  return LM_OK;
}

lm_status lm_lock_release(lm_handle *h) {
  if (h->depth == 0) return lm_fail(LM_E_STATE, "the lock is not held by this object");
  if (h->depth > 1) {
    h->depth--;
    return LM_OK;
  }
  int problem = pthread_mutex_unlock(&lock_of(h)->mutex);
  if (problem) return lm_fail_cannot(LM_E_STATE, "release the lock on this thread", problem);
  h->depth = 0;
  return LM_OK;
}

void lm_lock_abandon(lm_handle *h) {
  if (h->depth == 0) return;
  atomic_store(&lock_of(h)->abandoned, 1);
  if (pthread_mutex_unlock(&lock_of(h)->mutex) == 0) h->depth = 0;
}
