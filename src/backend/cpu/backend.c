/* Registers the CPU backend when the library is loaded, and finds the instruction level of this CPU. */
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa.h"
#include "base/environment_variable.h"
#include "op/backend.h"

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
  const char *wanted = lm_variable_get(LM_VAR_CPU_LEVEL);
  if (wanted && wanted[0] < '0' + level) level = wanted[0] - '0';
  return level;
}

static _Atomic int level_found; /* level + 1; 0 before it is known */

int lm_cpu_level(void) {
  int found = atomic_load_explicit(&level_found, memory_order_relaxed);
  if (found == 0) {
    found = find_level() + 1;
    atomic_store_explicit(&level_found, found, memory_order_relaxed);
  }
  return found - 1;
}

/* Pass a kernel the arguments of its op. */
#define X(name) \
  static lm_status run_##name(const void *args, lm_tensor *const *out) { return lm_cpu_##name(args, out); }
LM_CPU_KERNELS(X)
#undef X

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &lm_cpu_driver,
#define X(name) [LM_OP_##name] = run_##name,
    .op = (const lm_kernel[LM_SLOT_COUNT]){LM_CPU_KERNELS(X)},
#undef X
    .pointwise = lm_cpu_pointwise,
    .copy = lm_cpu_copy,
    .optim = lm_cpu_optim,
    .norms = lm_cpu_norms,
    .rescale = lm_cpu_rescale,
    .set_threads = lm_set_num_threads,
    .get_threads = lm_num_threads,
};

/* Registers the backend as the library is loaded; ignores the status, since only another ABI number could fail. */
__attribute__((constructor)) static void register_cpu(void) {
  if (lm_cpu_level() < LM_NEEDED_LEVEL) return; /* luaopen_luminary_core raises the error */
  lm_backend_register(&backend);
}
