/* Loops of src/base/parallel.h as scripts, forks and exits meet them: pool_check
 * callers|nested|fork|exit|failing|noted|cores|spare. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/large_array.h"
#include "base/mem.h"
#include "base/parallel.h"

enum { UNITS = 10000, CALLERS = 5, THREADS = 4 };
static const double much = 1e9; /* nanoseconds: worth any number of threads */

typedef struct counting {
  unsigned char seen[UNITS];
  _Atomic int wrong;
} counting;

static void see(void *ctx, int64_t first, int64_t last) {
  counting *c = ctx;
  unsigned char *scratch = lm_scratch();
  if (((uintptr_t)scratch & 63) != 0) c->wrong++;
  if (scratch) memset(scratch, (int)first, 1000);
  for (int64_t i = first; i < last; i++) c->seen[i]++;
  for (int i = 0; scratch && i < 1000; i++)
    if (scratch[i] != (unsigned char)first) c->wrong++;
}

static int check(const counting *c) {
  for (int i = 0; i < UNITS; i++)
    if (c->seen[i] != 1) return 1;
  return c->wrong;
}

static int loop(int64_t units, size_t scratch) {
  counting *c = calloc(1, sizeof *c);
  memset(c->seen + units, 1, (size_t)(UNITS - units));
  int bad = lm_parallel(units, much, scratch, see, c) != LM_OK || check(c);
  free(c);
  return bad;
}

static void *call(void *bad) {
  for (int i = 0; i < 2000; i++)
    if (loop(i % 7 == 0 ? i % 13 : UNITS, i % 3 ? 0 : 1000)) atomic_fetch_add((_Atomic int *)bad, 1);
  return NULL;
}

static int callers(void) {
  static _Atomic int bad;
  pthread_t id[CALLERS];
  for (int i = 0; i < CALLERS; i++) pthread_create(&id[i], NULL, call, (void *)&bad);
  for (int i = 0; i < CALLERS; i++) pthread_join(id[i], NULL);
  return bad;
}

static void inner(void *ctx, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) {
    unsigned char *own = lm_scratch();
    memset(own, 7, 500);
    if (lm_threads_for(much) != 1 && lm_num_threads() == THREADS) ((counting *)ctx)->wrong++;
    if (loop(100, 1000)) ((counting *)ctx)->wrong++;
    if (lm_scratch() != own) ((counting *)ctx)->wrong++;
    for (int k = 0; k < 500; k++)
      if (own[k] != 7) ((counting *)ctx)->wrong++;
  }
}

static int nested(void) {
  static counting c;
  for (int i = 0; i < 200; i++)
    if (lm_parallel(16, much, 500, inner, &c) != LM_OK) return 1;
  return c.wrong;
}

static int forked(void) {
  int status;
  if (loop(UNITS, 1000)) return 1;
  pid_t child = fork();
  if (child == 0) {
    int wrong = loop(UNITS, 1000) || lm_num_threads() != 1 || lm_threads_for(much) != 1;
    lm_set_num_threads(THREADS);
    _exit(wrong || loop(UNITS, 1000) || lm_threads_for(much) != THREADS ? 1 : 5);
  }
  return waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5 || loop(UNITS, 0);
}

static void *call_for_ever(void *none) {
  for (;;) loop(UNITS, 1000);
  return none;
}

static int amid(void) {
  pthread_t id;
  pthread_create(&id, NULL, call_for_ever, NULL);
  usleep(20000);
  return 0;
}

static void note(void *ctx, int64_t first, int64_t last) {
  const int64_t *bad = ctx;
  lm_parallel_note(LM_OK);
  for (int64_t i = first; i < last; i++)
    if (i == *bad) lm_parallel_note(lm_fail(LM_E_SHAPE, "unit %lld", (long long)i));
}

static void note_within(void *ctx, int64_t first, int64_t last) {
  (void)first, (void)last;
  lm_status status = lm_parallel(UNITS, much, 0, note, ctx); /* is its caller's to pass on */
  if (status != LM_E_SHAPE) abort();
}

/* Tests that a failure in any unit is the loop's, with its message; one of a loop within is not. */
static int noted(void) {
  for (int64_t bad = 0; bad < UNITS; bad += 999) {
    char expected[32];
    snprintf(expected, sizeof expected, "unit %lld", (long long)bad);
    if (lm_parallel(UNITS, much, 0, note, &bad) != LM_E_SHAPE || strcmp(lm_error(), expected) != 0) return 1;
    if (lm_parallel(8, much, 0, note_within, &bad) != LM_OK) return 1;
  }
  int64_t none = UNITS;
  return lm_parallel(UNITS, much, 0, note, &none) != LM_OK;
}

/* Tests that the caller gets all the work if there is no memory. */
static int failing(void) {
  if (loop(UNITS, 1000)) return 1;
  lm_alloc_fail_from(1);
  static counting c;
  int told = lm_parallel(UNITS, much, 1 << 20, see, &c) == LM_E_OOM && c.seen[0] == 0;
  lm_alloc_fail_from(2);
  int ran = lm_parallel(UNITS, much, 1 << 20, see, &c) == LM_OK && check(&c) == 0;
  lm_alloc_fail_from(0);
  return !told || !ran;
}

/* A loop of two pieces that wait for one another, so that each has a thread of its own. */
typedef struct meeting {
  pthread_t caller;
  cpu_set_t both;
  bool brings; /* the worker to its caller's core */
  _Atomic int there, caller_core, apart;
} meeting;

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void meet(void *ctx, int64_t first, int64_t last) {
  meeting *m = ctx;
  if (last - first != 1) m->apart = -1;
  bool calls = pthread_equal(pthread_self(), m->caller);
  if (calls) m->caller_core = sched_getcpu();
  m->there++;
  for (double begin = seconds(); m->there < 2 && seconds() < begin + 1;) sched_yield();
  if (calls) return;
  m->apart += sched_getcpu() != m->caller_core;
  if (!m->brings) return;
  for (double begin = seconds(); seconds() < begin + 0.002;) continue; /* a worker may have moved just now */
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(m->caller_core, &one);
  sched_setaffinity(0, sizeof one, &one);
  sched_setaffinity(0, sizeof m->both, &m->both);
}

/* Tests that a worker on its caller's core, where it would stay for long, leaves it. */
static int cores(void) {
  enum { TRIES = 40 };
  static meeting m;
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&m.both) < 2; cpu++)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &m.both);
  if (CPU_COUNT(&m.both) < 2) return 0;
  sched_setaffinity(0, sizeof m.both, &m.both);
  lm_set_num_threads(2);
  m.caller = pthread_self();
  int apart = 0;
  for (int i = 0; i < TRIES; i++) {
    for (int brings = 1; brings >= 0; brings--) {
      m.brings = brings, m.there = m.apart = 0;
      if (lm_parallel(2, much, 0, meet, &m) != LM_OK) return 1;
    }
    apart += m.apart;
  }
  cpu_set_t left;
  sched_getaffinity(0, sizeof left, &left);
  if (apart < TRIES * 3 / 4) printf("on another core in %d of %d loops\n", apart, TRIES);
  return apart < TRIES * 3 / 4 || !CPU_EQUAL(&left, &m.both);
}

static int fill_arrays(int value) {
  enum { N = 100000 };
  int wrong = 0;
  LM_LARGE(unsigned char, first, N);
  memset(first, value, N);
  {
    LM_LARGE(unsigned char[2], second, N);
    LM_LARGE(char, none, value < 0);
    memset(second, value + 1, 2 * N);
    wrong += none != NULL || ((uintptr_t)second & 63) != 0;
  }
  LM_LARGE(unsigned char, third, N);
  memset(third, value + 2, N);
  for (int i = 0; i < N; i++) wrong += first[i] != value || third[i] != value + 2;
  return wrong;
}

static pthread_barrier_t refused;

static void *fill_often(void *bad) {
  pthread_barrier_wait(&refused);
  for (int i = 0; i < 100; i++) *(int *)bad += fill_arrays(i) != 0;
  return NULL;
}

/* Tests large arrays of threads to which the system refuses stacks for them. */
static int spare(void) {
  static int bad[CALLERS];
  pthread_t id[CALLERS];
  struct rlimit before, none;
  pthread_barrier_init(&refused, NULL, CALLERS + 1);
  for (int i = 0; i < CALLERS; i++) pthread_create(&id[i], NULL, fill_often, &bad[i]);
  getrlimit(RLIMIT_AS, &before);
  none = (struct rlimit){1, before.rlim_max};
  setrlimit(RLIMIT_AS, &none);
  pthread_barrier_wait(&refused);
  for (int i = 0; i < CALLERS; i++) pthread_join(id[i], NULL);
  setrlimit(RLIMIT_AS, &before);
  int wrong = fill_arrays(5);
  for (int i = 0; i < CALLERS; i++) wrong += bad[i];
  return wrong;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  const struct {
    const char *name;
    int (*run)(void);
  } checks[] = {{"callers", callers}, {"nested", nested}, {"fork", forked}, {"exit", amid},
                {"failing", failing}, {"noted", noted},   {"cores", cores}, {"spare", spare}};
  lm_set_num_threads(THREADS);
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    if (strcmp(how, checks[i].name) != 0) continue;
    int bad = checks[i].run();
    printf("%s: %s\n", how, bad ? "BAD" : "good");
    return bad != 0;
  }
  return 2;
}
