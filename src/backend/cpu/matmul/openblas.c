#include "backend/cpu/matmul/openblas.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/isa.h"

#include <cblas.h> /* last: it defines I, as complex.h does */

/* OpenBLAS has kernels for each CPU that was known when it was released, and takes those of 2004 for later ones. It
 * chooses when it is loaded; here it is made to choose again, where AVX2 would have stayed idle. */
#if defined(__x86_64__)
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

__attribute__((constructor)) static void choose_kernels(void) {
  static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", NULL};
  bool is_old = false;
  if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit || getenv("OPENBLAS_CORETYPE")) return;
  for (const char *const *name = old; *name; name++) is_old = is_old || strcmp(openblas_get_corename(), *name) == 0;
  int level = is_old ? lm_cpu_level() : 0;
  if (level == 0 || setenv("OPENBLAS_CORETYPE", level == 2 ? "SkylakeX" : "Haswell", 1) != 0) return;
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
}
#endif

static void single_threaded_blas(void) { openblas_set_num_threads(1); }

static _Atomic int blas_callers; /* threads about to be in OpenBLAS */
static _Atomic int blas_buffers; /* how many it could have at once */

bool lm_blas_enter(int parts) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const size_t each = (128 << 20) + (64 << 10);
  pthread_once(&once, single_threaded_blas);
  int callers = atomic_fetch_add(&blas_callers, parts) + parts, buffers = atomic_load(&blas_buffers);
  if (callers <= buffers) return true;
  size_t bytes = (size_t)(callers - buffers) * each;
  void *probe = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) {
    atomic_fetch_sub(&blas_callers, parts);
    return false;
  }
  munmap(probe, bytes);
  while (buffers < callers && !atomic_compare_exchange_weak(&blas_buffers, &buffers, callers)) continue;
  return true;
}

void lm_blas_leave(int parts) { atomic_fetch_sub(&blas_callers, parts); }
