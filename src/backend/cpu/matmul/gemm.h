/* Matrix products on raw memory: what matmul.c and conv/ share. */
#pragma once

#include "op/backend.h"
#include "tensor/tensor.h"

/* For each i of a batch: C[i] = alpha A[i] B[i] + beta C[i], row-major; C [m, n] dense in its rows.
 * A [m, k] has lda elements a row, or is stored transposed, [k, m], with `ta`; so has B [k, n].
 * Matrices of a batch lie `step` elements apart (0: one for all). beta 0 never reads C. With a `bias` [n] beta
 * multiplies this row in place of each row of C[i]. */
typedef struct lm_cpu_gemm_job {
  lm_dtype dtype;
  lm_device device; /* whose allocator returns scratch memory */
  int64_t batch, m, n, k;
  bool ta, tb;
  const void *a, *b, *bias;
  void *c;
  int64_t lda, ldb, ldc;
  int64_t step_a, step_b, step_c;
  double alpha, beta;
  bool alone; /* by this thread: others would wait for their parts longer than they compute */
} lm_cpu_gemm_job;

/* Whether lm_cpu_gemm makes a C [m, n] of k terms of float16 or bfloat16, of an A that is not transposed: of few rows,
 * as for the next token of a model of language, or a column of few terms. */
bool lm_cpu_gemm_takes_rows(lm_dtype dtype, int64_t m, int64_t n, int64_t k);
/* Whether lm_cpu_gemm multiplies all of bfloat16. */
bool lm_cpu_gemm_has_bf16(void);
/* Any dtype but bool, and of float16 and bfloat16 what the two above say. */
lm_status lm_cpu_gemm(const lm_cpu_gemm_job *job);
/* bfloat16 by oneDNN; *done is false where it has no implementation worth having. */
lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
