/* Plans a reduction on the device: which threads fold which elements. */
#pragma once

#include "backend/cuda/cuda.h"
#include "reduce.h"

/* Returns the least power of two that is not below n, but at most `limit`, itself one. */
static inline int lm_cuda_power(int64_t n, int limit) {
  int power = 1;
  while (power < n && power < limit) power *= 2;
  return power;
}

/* Runs the job's fold over x's dims with reduced[d]. `out` has x's sizes along the others and 1 along those. The caller
 * sets the job's kind, finish, p and correction, and also out and position for results that are not in `out`. */
lm_status lm_cuda_fold(lm_cuda_frame *f, lm_reduce_job *job, const lm_tensor *x, const lm_tensor *out,
                       const bool *reduced);
