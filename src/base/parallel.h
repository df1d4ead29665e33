/* Runs loops on several threads: one pool for the process, which only this library uses. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Runs units first .. last - 1 of a loop. */
typedef void lm_parallel_fn(void *ctx, int64_t first, int64_t last);

/* Calls fn for ranges that make up [0, units), on this thread and on idle threads of the pool, and returns when all are
 * done. Ranges differ from call to call: results must not depend on where they begin. `work` is the time of all units
 * on one thread, in nanoseconds, estimated. A loop with little work runs here, in one range, as do calls from within fn
 * and after fork(). Each thread's lm_scratch has `scratch_bytes` bytes. Returns LM_E_OOM if they cannot be allocated
 * (nothing ran), else the first failure that fn noted, with its message. */
LM_API lm_status lm_parallel(int64_t units, double work, size_t scratch_bytes, lm_parallel_fn *fn, void *ctx);

/* Records, within fn, a failure for lm_parallel to return; ignores LM_OK. */
LM_API void lm_parallel_note(lm_status status);

/* Returns, within fn, this thread's uninitialized memory, aligned to 64 bytes; NULL for a loop without scratch. */
LM_API void *lm_scratch(void);

/* Returns the number of threads lm_parallel would use for `work`, for loops that are split differently for several. */
LM_API int lm_threads_for(double work);

enum { LM_MAX_THREADS = 256 };
/* Returns the maximum number of threads for a loop of this thread: the number set, at first OMP_NUM_THREADS or
 * lm_cores; 1 in a forked child until it sets one. The first loop with enough work starts them; if the system refuses
 * to start that many, it prints one line, and the number is lower from then on. */
LM_API int lm_num_threads(void);
/* Sets that number for this thread if it runs its own script, else for the process; 0 restores the first one. */
LM_API void lm_set_num_threads(int n);

/* Returns the index at which part p of `parts` nearly equal parts of n items begins. */
static inline int64_t lm_part_begin(int64_t n, int64_t p, int64_t parts) {
  return n / parts * p + (n % parts < p ? n % parts : p);
}

/* Lowers *least, which starts as INT64_MAX, to `value`: finds the first index at which any thread sees an error. */
static inline void lm_note_least(_Atomic int64_t *least, int64_t value) {
  int64_t before = atomic_load_explicit(least, memory_order_relaxed);
  while (value < before && !atomic_compare_exchange_weak(least, &before, value)) continue;
}
