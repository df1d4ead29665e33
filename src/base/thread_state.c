#include "base/thread_state.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/thread.h"

static _Thread_local bool script_thread;
static _Thread_local int limit;

void lm_script_thread_begin(void) { script_thread = true; }
bool lm_is_script_thread(void) { return script_thread; }

int lm_busy_threads(int change) {
  static _Atomic int busy;
  return atomic_fetch_add(&busy, change) + change;
}

void lm_set_thread_limit(int n) { limit = n; }
int lm_thread_limit(void) { return limit; }

/* ---- forks */

static pthread_mutex_t *mutexes[64];
static int count;

/* Waits for one mutex at a time, holding none, so that the order in which other threads nest them does not matter. */
static void take_all(void) {
  for (int first = 0, i;; first = i) {
    pthread_mutex_lock(mutexes[first]);
    for (i = 0; i < count && (i == first || pthread_mutex_trylock(mutexes[i]) == 0);) i++;
    if (i == count) return;
    pthread_mutex_unlock(mutexes[first]);
    for (int k = 0; k < i; k++)
      if (k != first) pthread_mutex_unlock(mutexes[k]);
  }
}

static void release_all(void) {
  for (int i = 0; i < count; i++) pthread_mutex_unlock(mutexes[i]);
}

void lm_lock_at_fork(pthread_mutex_t *mutex) {
  if (count == sizeof mutexes / sizeof *mutexes) abort(); /* more constructors than any user's program has */
  if (count == 0) pthread_atfork(take_all, release_all, release_all);
  mutexes[count++] = mutex;
}
