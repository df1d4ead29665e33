/* How a reduction is laid over the device: which threads fold which elements. */
#pragma once

#include "backend/cuda/cuda.h"
#include "reduce.h"

/* The least power of two that is not below n, and at most `limit`, itself one. */
static inline int lm_cuda_power(int64_t n, int limit) {
  int power = 1;
  while (power < n && power < limit) power *= 2;
  return power;
}

/* Runs the fold that job says, over x's dims with reduced[d]. `out` has x's sizes along the others and 1 along those.
 * The job's kind, finish, p and correction are the caller's, and out and place for what is not a plain result in `out`.
 */
lm_status lm_cuda_fold(lm_cuda_frame *f, lm_reduce_job *job, const lm_tensor *x, const lm_tensor *out,
                       const bool *reduced);
