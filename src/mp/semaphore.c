#include "mp/semaphore.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>

#include "base/message.h"

static lm_semaphore_words *words_of(const lm_handle *h) { return (lm_semaphore_words *)h->words->base; }

/* Returns the number of permits, at most the segment's capacity, since another process may write any number there. */
static uint32_t permits_of(const lm_handle *h) {
  size_t capacity = (h->words->bytes - sizeof(lm_semaphore_words)) / sizeof(pthread_mutex_t);
  uint32_t permits = words_of(h)->permits;
  return permits < capacity ? permits : (uint32_t)capacity;
}

lm_status lm_semaphore_new(uint32_t permits, lm_handle **out) {
  lm_status status = LM_OK;
  lm_segment *words = NULL;
  *out = NULL;
  if (permits > LM_SEMAPHORE_MAX)
    TRY(lm_fail_int("Semaphore", "value", lm_text("at most %d", LM_SEMAPHORE_MAX), permits));
  TRY(lm_segment_new(sizeof(lm_semaphore_words) + permits * sizeof(pthread_mutex_t), &words));
  TRY(lm_handle_make(LM_SEMAPHORE, NULL, words, out));
  words_of(*out)->permits = permits;
  for (uint32_t i = 0; i < permits; i++) TRY(lm_robust_init(&words_of(*out)->permit[i]));
  return LM_OK;
done:
  lm_handle_free(*out);
  *out = NULL;
  return status;
}

static void notify_waiters(lm_semaphore_words *w) {
  atomic_fetch_add(&w->changed, 1);
  lm_word_wake(&w->changed);
}

static lm_status try_permit(pthread_mutex_t *m, lm_acquire_result *out) {
  int problem = pthread_mutex_trylock(m);
  *out = problem == 0 ? LM_ACQUIRE_OK : LM_ACQUIRE_TIMEOUT;
  if (problem == EOWNERDEAD && (problem = pthread_mutex_consistent(m)) == 0) *out = LM_ACQUIRE_ABANDONED;
  if (problem == 0 || problem == EBUSY || problem == EDEADLK) return LM_OK; /* EDEADLK: this thread holds it */
  return lm_fail(LM_E_IO, "the semaphore is broken: %s", strerror(problem));
}

static lm_status try_permits(lm_handle *h, lm_acquire_result *out) {
  lm_semaphore_words *w = words_of(h);
  *out = LM_ACQUIRE_TIMEOUT;
  for (uint32_t i = 0, n = permits_of(h); i < n; i++) {
    NEED(try_permit(&w->permit[i], out));
    h->depth += *out != LM_ACQUIRE_TIMEOUT;
    if (*out != LM_ACQUIRE_TIMEOUT) return LM_OK;
  }
  uint32_t extra = atomic_load(&w->extra);
  while (extra > 0 && !atomic_compare_exchange_weak(&w->extra, &extra, extra - 1)) continue;
  if (extra > 0) *out = LM_ACQUIRE_OK;
  return LM_OK;
}

lm_status lm_semaphore_acquire(lm_handle *h, double seconds, lm_acquire_result *out) {
  static const double LOOK = 0.05; /* the kernel wakes nobody for a permit it took back */
  uint32_t seen = lm_semaphore_changed(h);
  lm_status status = try_permits(h, out);
  if (status != LM_OK || *out != LM_ACQUIRE_TIMEOUT || seconds <= 0) return status;
  lm_semaphore_wait(h, seen, seconds < LOOK ? seconds : LOOK);
  return try_permits(h, out);
}

/* Unlocks one permit that this thread holds; false if it holds none. */
static bool unlock_permit(lm_handle *h) {
  for (uint32_t i = 0, n = permits_of(h); i < n; i++) {
    if (pthread_mutex_unlock(&words_of(h)->permit[i]) == 0) return true;
  }
  return false;
}

lm_status lm_semaphore_release(lm_handle *h, bool bounded) {
  if (unlock_permit(h)) {
    h->depth -= h->depth > 0;
  } else if (bounded && lm_semaphore_value(h) >= permits_of(h)) {
    return lm_fail(LM_E_STATE, "called more often than acquire()");
  } else {
    atomic_fetch_add(&words_of(h)->extra, 1);
  }
  notify_waiters(words_of(h));
  return LM_OK;
}

uint32_t lm_semaphore_value(lm_handle *h) {
  lm_semaphore_words *w = words_of(h);
  uint32_t n = 0;
  for (uint32_t i = 0, permits = permits_of(h); i < permits; i++) {
    /* Reads the robust mutex's word, its holder's thread id: unlike trylock, this takes no permit from anybody. */
    n += (__atomic_load_n(&w->permit[i].__data.__lock, __ATOMIC_ACQUIRE) & FUTEX_TID_MASK) == 0;
  }
  return n + atomic_load(&w->extra);
}

uint32_t lm_semaphore_changed(const lm_handle *h) { return atomic_load(&words_of(h)->changed); }

bool lm_semaphore_wait(lm_handle *h, uint32_t changed, double seconds) {
  if (lm_semaphore_changed(h) == changed) lm_word_wait(&words_of(h)->changed, changed, seconds);
  return lm_semaphore_changed(h) != changed;
}

void lm_semaphore_abandon(lm_handle *h) {
  for (; h->depth > 0; h->depth--) unlock_permit(h);
  notify_waiters(words_of(h));
}
