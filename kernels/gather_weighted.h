/* Weighted sums of elements, and their gradients. All functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x: [n, c, m, i], y: [n, c, p, i], indices and weight: [n or 1, j, p]; all contiguous, none empty. A place counts from
 * 1; one that is not among m is nothing. weight: float, or double beside double; NULL where each is 1. The steps lead
 * from one n to the next, 0 where all have the same. */
typedef struct lm_gather_weighted_job {
  int dtype; /* of x and y */
  int64_t n, c, m, i, j, p, indices_step, weight_step;
  void *x, *y, *weight;
  const int64_t *indices;
} lm_gather_weighted_job;

int lm_k_gather_weighted_forward(const lm_gather_weighted_job *job, void *stream);
/* sums: [n, c, m, i] of float for 16-bit dtypes, else NULL. In any order, by atomics. */
int lm_k_gather_weighted_input(const lm_gather_weighted_job *job, float *sums, void *stream);
int lm_k_gather_weighted_weight(const lm_gather_weighted_job *job, void *stream);

#ifdef __cplusplus
}
#endif
