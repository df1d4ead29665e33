/* How many threads compute, and that they can be had.
 *
 * OpenMP's threads are libgomp's. It ends the process when the system refuses one, and they would catch the signals of
 * whoever starts them, in handlers that expect the script's thread. So before a region needs more threads than this
 * thread's team has, as many are started for a moment to see whether they can be, and then the team itself; and libgomp
 * starts all of its threads with signals blocked. */
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/cpu.h"
#include "base/hook_import.h"
#include "base/thread_state.h"

static _Atomic int threads;             /* 0: not set */
static _Atomic int max_granted;         /* what the system granted, if it was less than wanted; 0: no limit seen */
static int at_start;                    /* OpenMP's own number, before anybody set one */
static _Thread_local int own_threads;   /* of a worker; 0: as the process */
static _Thread_local int team_size = 1; /* how many this thread has had in a region */

/* Faults of the thread itself cannot be blocked to any use. */
static int create_quietly(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *arg) {
  sigset_t quiet, before;
  sigfillset(&quiet);
  for (const int *s = (const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, 0}; *s; s++)
    sigdelset(&quiet, *s);
  pthread_sigmask(SIG_SETMASK, &quiet, &before);
  int error = pthread_create(id, attributes, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

static void *wait_for(void *gate) {
  free(malloc(1)); /* what a thread costs includes its part of the heap */
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* How many of n threads can be there at once. Their stacks stay with the C library, for those that come next. */
static int startable(int n) {
  int got = 0;
  pthread_t *id = malloc((size_t)n * sizeof *id);
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&gate);
  while (id && got < n && create_quietly(&id[got], NULL, wait_for, &gate) == 0) got++;
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < got; i++) pthread_join(id[i], NULL);
  free(id);
  return got;
}

static void lead_thread_starts_here(void) {
  lm_hook_import((void *)omp_get_max_threads, "pthread_create", (void *)create_quietly);
}

/* Grows this thread's team to n threads, or fewer where the system refuses. */
static int grow(int n) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (omp_in_parallel() || omp_get_max_active_levels() == 0) return n; /* where no team is made */
  pthread_once(&once, lead_thread_starts_here);
  int got = 1 + startable(n - 1);
  if (got < n) {
    got -= got / 4; /* the computation wants something too */
    atomic_store(&max_granted, got);
    fprintf(stderr, "luminary: computing on %d %s, since the system does not grant %d (ulimit -u, ulimit -v)\n", got,
            got == 1 ? "thread" : "threads", n);
  }
#pragma omp parallel num_threads(got)
  { /* libgomp has them from now on */
  }
  return team_size = got;
}

int lm_cpu_threads(void) {
  int n = own_threads > 0 ? own_threads : atomic_load_explicit(&threads, memory_order_relaxed);
  if (n == 0) n = at_start;
  int granted = atomic_load_explicit(&max_granted, memory_order_relaxed), limit = lm_thread_limit();
  if (granted > 0 && granted < n) n = granted;
  if (limit > 0 && limit < n) n = limit;
  return n <= team_size ? n : grow(n);
}

void lm_cpu_set_threads(int n) {
  if (lm_is_script_thread()) {
    own_threads = n > 0 ? n : 0;
  } else {
    atomic_store_explicit(&threads, n > 0 ? n : 0, memory_order_relaxed);
  }
}

/* A region costs a microsecond, and much more when the cores are busy: it must be worth that many times over. */
int lm_cpu_share(double work) {
  const double min_work = 30e3, each = 15e3; /* nanoseconds: of the whole, of one thread's part */
  if (work < min_work || omp_in_parallel()) return 1;
  int all = lm_cpu_threads();
  return work / each < all ? (int)(work / each) : all;
}

/* After a bare fork() libgomp has no threads, and would wait for those it had. */
static void be_alone(void) {
  atomic_store(&max_granted, 1);
  omp_set_num_threads(1);
}

void lm_cpu_threads_start(void) {
  at_start = omp_get_max_threads();
  pthread_atfork(NULL, NULL, be_alone);
}
