/* Multiplies matrices that cuBLASLt has no kernel for: integers, and rare cases of floats. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* A batch of products y = alpha a b + beta c; y [m, n], a [m, k], b [k, n]. Strides in elements; those of c may be 0. c
 * is not read if beta is 0; alpha and beta are whole numbers for integer dtypes, which wrap. */
typedef struct lm_matmul_side {
  void *data;
  int64_t step, row, column; /* step: from one matrix to the next */
} lm_matmul_side;
typedef struct lm_matmul_job {
  int dtype; /* dtype of all four; any but bool */
  int64_t batch, m, n, k;
  lm_matmul_side a, b, c, y;
  double alpha, beta;
} lm_matmul_job;
LM_C int lm_k_matmul(const lm_matmul_job *job, void *stream);
