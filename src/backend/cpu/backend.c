/* The CPU's table, threads, and the instruction level. Registered when the library is loaded. */
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa.h"
#include "base/worker.h"

static _Atomic int threads;           /* 0: not set */
static int at_start;                  /* OpenMP's own number, before anybody set one */
static _Thread_local int own_threads; /* of a worker; 0: as the process */

int lm_cpu_threads(void) {
  int n = own_threads > 0 ? own_threads : atomic_load_explicit(&threads, memory_order_relaxed);
  if (n == 0) n = at_start;
  int limit = lm_thread_limit();
  return limit > 0 && limit < n ? limit : n;
}

void lm_cpu_set_threads(int n) {
  if (lm_is_worker()) {
    own_threads = n > 0 ? n : 0;
  } else {
    atomic_store_explicit(&threads, n > 0 ? n : 0, memory_order_relaxed);
  }
}

/* A region costs a microsecond, and much more when the cores are busy: it has to be worth that many times over. */
int lm_cpu_share(double work) {
  const double least = 30e3, each = 15e3; /* nanoseconds: of the whole, of one thread's part */
  if (work < least || omp_in_parallel()) return 1;
  int most = lm_cpu_threads();
  return work / each < most ? (int)(work / each) : most;
}

static int find_level(void) {
  int level = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    level = 1;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      level = 2;
    }
  }
#endif
  const char *wanted = getenv("LM_CPU_LEVEL");
  if (wanted && wanted[0] >= '0' && wanted[0] < '0' + level && wanted[1] == '\0') level = wanted[0] - '0';
  return level;
}

static _Atomic int level_found; /* level + 1; 0: not yet */

int lm_cpu_level(void) {
  int found = atomic_load_explicit(&level_found, memory_order_relaxed);
  if (found == 0) {
    found = find_level() + 1;
    atomic_store_explicit(&level_found, found, memory_order_relaxed);
  }
  return found - 1;
}

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &lm_cpu_driver,
#define X(name) [LM_OP_##name] = lm_cpu_##name,
    .op = {LM_CPU_KERNELS(X)},
#undef X
    .point = lm_cpu_point,
    .copy = lm_cpu_copy,
    .optim = lm_cpu_optim,
    .norms = lm_cpu_norms,
    .set_threads = lm_cpu_set_threads,
    .get_threads = lm_cpu_threads,
};

/* Cannot fail but by an ABI number, and both come from one build. */
__attribute__((constructor)) static void register_cpu(void) {
  at_start = omp_get_max_threads();
  lm_backend_register(&backend);
}
