/* Declares matrix products on raw memory, which matmul.c and conv/ share. */
#pragma once

#include "op/backend.h"
#include "tensor/tensor.h"

/* Computes C[i] = alpha A[i] B[i] + beta C[i] for each i of a batch, row-major; C [m, n] is dense in its rows. A [m, k]
 * has lda elements a row, or is stored transposed, [k, m], with `ta`; B [k, n] likewise. Matrices of a batch are `step`
 * elements apart (0: one for all). With beta 0, C is not read. With a `bias` [n] beta multiplies this row in place of
 * each row of C[i]. */
typedef struct lm_cpu_gemm_job {
  lm_dtype dtype;
  lm_device device; /* device whose allocator returns scratch memory */
  int64_t batch, m, n, k;
  bool ta, tb;
  const void *a, *b, *bias;
  void *c;
  int64_t lda, ldb, ldc;
  int64_t step_a, step_b, step_c;
  double alpha, beta;
  bool alone; /* true: on this thread, as others would wait for their parts longer than they compute */
} lm_cpu_gemm_job;

/* Returns true if lm_cpu_gemm makes a C [m, n] of k terms of float16 or bfloat16, of an A that is not transposed: of
 * few rows, as for the next token of a language model, or a column of few terms. */
bool lm_cpu_gemm_takes_rows(lm_dtype dtype, int64_t m, int64_t n, int64_t k);
/* Returns true if lm_cpu_gemm multiplies bfloat16 of any shape. */
bool lm_cpu_gemm_has_bf16(void);
/* Multiplies any dtype but bool; float16 and bfloat16 only where the two above return true. */
lm_status lm_cpu_gemm(const lm_cpu_gemm_job *job);
/* Multiplies bfloat16 by oneDNN; *done is false where it has no implementation worth using. */
lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
