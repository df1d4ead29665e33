/* Loops on several threads: one pool for all of the process, which nothing but this library sees. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Units first .. last - 1 of a loop. */
typedef void lm_parallel_fn(void *ctx, int64_t first, int64_t last);

/* Calls fn for ranges that together make up [0, units), on this thread and on idle threads of the pool, and returns
 * when all are done. Which thread has which range differs from call to call: results must not depend on where ranges
 * begin. work: about how many nanoseconds one thread takes for all of it; too few are run here, in one range. So are a
 * call from within fn, and any after fork(). scratch_bytes: of each thread, for lm_scratch. LM_E_OOM: there was no
 * memory for that, and nothing ran. Else the first failure that fn noted, with its message. */
LM_API lm_status lm_parallel(int64_t units, double work, size_t scratch_bytes, lm_parallel_fn *fn, void *ctx);

/* Within fn: a failure for lm_parallel to return; LM_OK is none. */
LM_API void lm_parallel_note(lm_status status);

/* Within fn: memory of this thread alone, uninitialized, aligned to 64 bytes. NULL for a loop without scratch. */
LM_API void *lm_scratch(void);

/* On how many threads lm_parallel would run that work, for loops that are cut differently for several. */
LM_API int lm_threads_for(double work);

enum { LM_MAX_THREADS = 256 };
/* The largest number of threads for a loop of this thread: as set, all of them started. Fewer, and one line on standard
 * error, if the system refuses to start that many. At first OMP_NUM_THREADS, or lm_cores. */
LM_API int lm_num_threads(void);
/* For this thread if it runs a script of its own, else for the process; 0: as at first. */
LM_API void lm_set_num_threads(int n);

/* Where part p of `parts` of n things begins. */
static inline int64_t lm_part_begin(int64_t n, int64_t p, int64_t parts) {
  return n / parts * p + (n % parts < p ? n % parts : p);
}

/* An error or the like that any thread finds: the least value that was noted. Begins as INT64_MAX. */
static inline void lm_note_least(_Atomic int64_t *least, int64_t value) {
  int64_t before = atomic_load_explicit(least, memory_order_relaxed);
  while (value < before && !atomic_compare_exchange_weak(least, &before, value)) continue;
}
