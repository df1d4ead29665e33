/* Declares matrix products on raw memory, which matmul.c and conv/ share. */
#pragma once

#include "op/kernels.h"
#include "tensor/prepack.h"

/* A matrix that is read: dense rows, `ld` elements apart, or those of the transposed matrix. Matrices of a batch are
 * `step` elements apart (0: one for all). */
typedef struct lm_gemm_matrix {
  const void *data;
  int64_t ld;
  bool transposed;
  int64_t step;
  const lm_tensor *tensor; /* owner of the memory, whose forms may be kept (b only), or NULL */
} lm_gemm_matrix;

static inline lm_gemm_matrix lm_gemm_matrix_of(const void *data, int64_t ld, bool transposed) {
  return (lm_gemm_matrix){.data = data, .ld = ld, .transposed = transposed};
}

/* Computes C[i] = alpha A[i] B[i] + beta C[i] for each i of a batch, A [m, k], B [k, n]. C's rows are dense, ldc
 * elements apart. With beta 0, C is not read. With a `bias` [n] beta multiplies this row in place of each row of
 * C[i]. */
typedef struct lm_cpu_gemm_job {
  lm_dtype dtype;
  int64_t batch, m, n, k;
  lm_gemm_matrix a, b;
  const void *bias;
  void *c;
  int64_t ldc, step_c;
  double alpha, beta;
  /* Called for rows and columns of C once they are complete, if not NULL, by the kernel of packed panels, which then
   * sets *finished. */
  void (*finish)(const void *ctx, int64_t row, int64_t rows, int64_t column, int64_t columns);
  const void *finish_ctx;
  bool *finished;
  bool alone; /* true: on this thread, as others would wait for their parts longer than they compute */
} lm_cpu_gemm_job;

/* Returns the job of one product. */
static inline lm_cpu_gemm_job lm_cpu_gemm_job_of(lm_dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                                                 lm_gemm_matrix a, lm_gemm_matrix b, double beta, void *c,
                                                 int64_t ldc) {
  return (lm_cpu_gemm_job){dtype, 1, m, n, k, a, b, NULL, c, ldc, 0, alpha, beta, NULL, NULL, NULL, false};
}

/* Returns true if lm_cpu_gemm makes a C [m, n] of k terms of float16 or bfloat16, of an A that is not transposed: of
 * few rows, as for the next token of a language model, or a column of few terms. */
bool lm_cpu_gemm_takes_rows(lm_dtype dtype, int64_t m, int64_t n, int64_t k);
/* Returns true if lm_cpu_gemm sums all terms of an element before it adds them to C: with a beta of 1 it has the bits
 * of a sum of two tensors. */
bool lm_cpu_gemm_adds_once(const lm_cpu_gemm_job *job);
/* Returns true if lm_cpu_gemm multiplies bfloat16 of any shape. */
bool lm_cpu_gemm_has_bf16(void);
/* Multiplies any dtype but bool; float16 and bfloat16 only where the two above return true. */
lm_status lm_cpu_gemm(const lm_cpu_gemm_job *job);
/* Multiplies bfloat16 by oneDNN; *done is false where it has no implementation worth using. */
lm_status lm_cpu_gemm_bf16(const lm_cpu_gemm_job *job, bool *done);
