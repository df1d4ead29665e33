/* Signals at the process from a thread of its own, caught on whatever stack the caught thread has, as a host's are. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static volatile long count, stopped;
static int pause_us;
static pthread_t thread;

static void caught(int number) {
  (void)number;
  __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}

static void *send(void *unused) {
  for (int k = 0; !stopped; k++) {
    usleep((useconds_t)pause_us);
    kill(getpid(), k % 2 ? SIGINT : SIGPROF);
  }
  return unused;
}

int storm_begin(int microseconds) {
  struct sigaction how = {.sa_handler = caught, .sa_flags = SA_RESTART};
  sigset_t all, before;
  sigaction(SIGINT, &how, NULL);
  sigaction(SIGPROF, &how, NULL);
  pause_us = microseconds;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, NULL, send, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

long storm_caught(void) { return count; }

void storm_end(void) {
  stopped = 1;
  pthread_join(thread, NULL);
}
