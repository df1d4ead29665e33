/* Starts threads, and makes mutexes, conditions and wakeup descriptors for them to wait on. Times are lm_seconds()'s.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/message.h"

/* Makes fork() take a mutex for its duration: the child finds the data complete and the mutex free, though it lacks the
 * thread that may have held it. For mutexes that guard short work which never forks. */
LM_API void lm_lock_at_fork(pthread_mutex_t *mutex);

/* Defines a static mutex that fork() takes. */
#define LM_MUTEX(name)                                                                      \
  static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                  \
  __attribute__((constructor)) static void name##_at_fork(void) { lm_lock_at_fork(&name); } \
  _Static_assert(1, "")

/* Locks a mutex until the block ends. No goto may jump over the line. */
#define LM_LOCKED(mutex) \
  pthread_mutex_t *locked __attribute__((cleanup(lm_unlock_at), unused)) = (pthread_mutex_lock(mutex), (mutex))
static inline void lm_unlock_at(pthread_mutex_t **mutex) { pthread_mutex_unlock(*mutex); }

/* Starts a thread that blocks all signals, which are for the threads of scripts, except its own faults: the kernel
 * would end the process at a blocked one, before base/mapping_guard.h can handle it. LM_E_IO. The system's tools show
 * it as `name`, of 15 bytes at most. attributes: NULL for the system's. */
static inline lm_status lm_thread_start(const pthread_attr_t *attributes, const char *name, pthread_t *thread,
                                        void *(*body)(void *), void *arg) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int problem = pthread_create(thread, attributes, body, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (problem) return lm_fail_cannot(LM_E_IO, "create thread", problem);
  pthread_setname_np(*thread, name);
  return LM_OK;
}

/* Starts a thread that nobody joins, with default attributes. */
static inline lm_status lm_thread_start_detached(const char *name, void *(*body)(void *), void *arg) {
  pthread_t thread;
  NEED(lm_thread_start(NULL, name, &thread, body, arg));
  pthread_detach(thread);
  return LM_OK;
}

/* Converts seconds to a timespec; negative numbers and NaN become 0. */
static inline struct timespec lm_timespec(double seconds) {
  if (!(seconds > 0)) seconds = 0;
  if (seconds > 9e9) seconds = 9e9;
  time_t whole = (time_t)seconds;
  return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

/* Sleeps for a time, less if a signal comes. */
static inline void lm_sleep(double seconds) {
  struct timespec time = lm_timespec(seconds);
  nanosleep(&time, NULL);
}

static inline void lm_cond_init(pthread_cond_t *cond) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* Waits for a signal of cond; returns false if `until` (seconds) passes first; INFINITY waits without limit. */
static inline bool lm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double until) {
  struct timespec at = lm_timespec(until);
  if (until > 9e9) return pthread_cond_wait(cond, lock) == 0;
  return pthread_cond_timedwait(cond, lock, &at) != ETIMEDOUT;
}

/* Creates a wakeup descriptor (eventfd), which polls as readable from a signal until it is cleared. Returns -1 with
 * errno on failure. */
static inline int lm_wakeup_fd_new(void) { return lm_fd_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
static inline void lm_wakeup_fd_signal(int wakeup_fd) {
  uint64_t one = 1;
  while (write(wakeup_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* EAGAIN if full: it is signaled */
}
static inline void lm_wakeup_fd_clear(int wakeup_fd) {
  uint64_t rings;
  while (read(wakeup_fd, &rings, sizeof rings) < 0 && errno == EINTR) continue;
}
