/* Lets a program fork while other threads compute. */
#pragma once

#include <pthread.h>

#include "base/status.h"

/* Makes fork() take a mutex for its duration: the child finds the data complete and the mutex free, though it lacks the
 * thread that may have held it. For mutexes that guard short work which never forks. */
LM_API void lm_fork_takes(pthread_mutex_t *mutex);

/* Defines a static mutex that fork() takes. */
#define LM_MUTEX(name)                                                                    \
  static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                \
  __attribute__((constructor)) static void name##_at_fork(void) { lm_fork_takes(&name); } \
  _Static_assert(1, "")
