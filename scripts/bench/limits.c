/* Measures the machine's limits for scripts/bench/all: prints "copy GB/S" (bytes read and written, of arrays far
 * larger than caches), and "float32 GF/S" and "float64 GF/S" of fused multiply-adds in registers.
 *   cc -O2 -march=... -pthread limits.c -o limits; ./limits THREADS
 * Each is the best of several rounds in which all threads work at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
enum { CHAINS = 12, STEPS = 4000000, ROUNDS = 7, BYTES = 192 << 20 };
typedef float floats __attribute__((vector_size(WIDTH)));
typedef double doubles __attribute__((vector_size(WIDTH)));

static pthread_barrier_t begin, end;
static volatile double kept; /* takes results, so that none is left out */

/* CHAINS sums of their own hide the latency of an addition; `a` and `b` are read where no compiler sees them. */
#define CHAIN(name, vector)                                                              \
  static void name(void *unused) {                                                       \
    (void)unused;                                                                        \
    vector sum[CHAINS] = {0}, a = (vector){0} + 1, b = (vector){0} + 1;                  \
    __asm__ volatile("" : "+m"(a), "+m"(b));                                             \
    for (int step = 0; step < STEPS; step++)                                             \
      _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * a + b; \
    for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];                                   \
    kept = (double)sum[0][0];                                                            \
  }
CHAIN(chain_float, floats)
CHAIN(chain_double, doubles)

static void copy(void *memory) { memcpy(memory, (char *)memory + BYTES, BYTES); }

static void (*work)(void *);

/* Keeps a thread on the i-th processor that it may use: two that wake up often share one for a while. */
static void stay(pthread_t id, int i) {
  cpu_set_t may, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof may, &may) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &may) && i-- == 0) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) == 1) pthread_setaffinity_np(id, sizeof one, &one);
}

static void *thread(void *memory) {
  for (int round = 0; round < 3 * ROUNDS; round++) {
    pthread_barrier_wait(&begin);
    work(memory);
    pthread_barrier_wait(&end);
  }
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double least_seconds(void (*f)(void *)) {
  double least = 1e9;
  work = f;
  for (int round = 0; round < ROUNDS; round++) {
    double start = now(); /* after `begin` this thread may not run before the others are done */
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    double seconds = now() - start;
    if (seconds < least) least = seconds;
  }
  return least;
}

int main(int count, char **arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 1;
  if (threads < 1 || threads > 1024) return fprintf(stderr, "limits: THREADS must be from 1 to 1024\n"), 2;
  pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);
  pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
  for (int i = 0; i < threads; i++) {
    pthread_t id;
    char *memory = malloc(2 * (size_t)BYTES);
    if (!memory) return fprintf(stderr, "limits: out of memory\n"), 1;
    memset(memory, 1, 2 * (size_t)BYTES);
    if (pthread_create(&id, NULL, thread, memory) != 0) return fprintf(stderr, "limits: no thread\n"), 1;
    stay(id, i);
  }
  double flops = 2.0 * STEPS * CHAINS * threads;
  printf("copy %.2f\n", 2.0 * BYTES * threads / least_seconds(copy) / 1e9);
  printf("float32 %.1f\n", flops * (WIDTH / sizeof(float)) / least_seconds(chain_float) / 1e9);
  printf("float64 %.1f\n", flops * (WIDTH / sizeof(double)) / least_seconds(chain_double) / 1e9);
  return 0;
}
