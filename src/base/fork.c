#include "base/fork.h"

#include <stdlib.h>

enum { MOST = 64 };

static pthread_mutex_t *mutexes[MOST];
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

void lm_fork_takes(pthread_mutex_t *mutex) {
  if (count == MOST) abort(); /* a constructor is one too many: no user's program sees it */
  if (count == 0) pthread_atfork(take_all, release_all, release_all);
  mutexes[count++] = mutex;
}
