/* Computes weighted sums of elements, and their gradients. Functions enqueue on the stream, return a cudaError_t. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* x: [n, c, m, i], y: [n, c, p, i], indices and weight: [n or 1, j, p]; all contiguous, none empty. An index counts
 * from 1; one outside 1 .. m adds nothing. weight: float, or double beside double; NULL where each is 1. The steps are
 * elements from one n to the next, 0 where all n share them. */
typedef struct lm_gather_weighted_job {
  int dtype; /* dtype of x and y */
  int64_t n, c, m, i, j, p, indices_step, weight_step;
  void *x, *y, *weight;
  const int64_t *indices;
} lm_gather_weighted_job;

LM_C int lm_k_gather_weighted_forward(const lm_gather_weighted_job *job, void *stream);
/* Computes x's gradient by atomics, in any order. sums: [n, c, m, i] of float for 16-bit dtypes, else NULL. */
LM_C int lm_k_gather_weighted_input(const lm_gather_weighted_job *job, float *sums, void *stream);
LM_C int lm_k_gather_weighted_weight(const lm_gather_weighted_job *job, void *stream);
