#include "backend/cpu/matmul/openblas.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cblas.h> /* last: it defines I, as complex.h does */

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
