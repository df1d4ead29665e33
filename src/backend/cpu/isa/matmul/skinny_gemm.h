/* Declares products of a few rows, as for the next token of a language model: they take as long as reading the matrix
 * from memory, each element once. Sums are float32. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Computes C [m, n] = alpha x B + beta C: rows of x [m, k] are x_row apart, rows of C ldc. With beta 0, C is not read;
 * beta multiplies a row `bias` [n] in C's place, if there is one. B, of C's dtype, is [k, n] with ldb elements a row,
 * or with `transposed` [n, k]; it comes from memory unless it is `cached`. */
typedef struct lm_skinny_gemm_job {
  int64_t m, n, k;
  const float *x;
  const void *b, *bias;
  void *c;
  int64_t x_row, ldb, ldc;
  bool transposed, cached;
  float alpha, beta;
} lm_skinny_gemm_job;

struct lm_skinny_gemm_loops { /* float32 and the 16-bit floats; others NULL */
  void (*product[LM_DTYPE_COUNT])(const lm_skinny_gemm_job *job);
  /* Compute C in two steps, if B is not transposed: sums [m, n], rows `row` apart; and C from such sums of `parts`
   * parts of k, `step` apart, which are added in order. */
  void (*sum[LM_DTYPE_COUNT])(const lm_skinny_gemm_job *job, float *sums, int64_t row);
  void (*finish[LM_DTYPE_COUNT])(const lm_skinny_gemm_job *job, const float *sums, int64_t row, int parts,
                                 int64_t step);
  void (*read[LM_DTYPE_COUNT])(const void *from, int64_t n, float *to);
};

LM_ISA_DECLARE(struct lm_skinny_gemm_loops, lm_skinny_gemm_loops);

/* Computes c = alpha x b + beta c for few rows of float32 and an unpacked b, whose rows are `ldb` apart; `transposed`:
 * b's columns are rows in memory. Packing b would take longer. */
static inline void lm_skinny_multiply(int64_t m, int64_t n, int64_t k, double alpha, const void *x, int64_t x_row,
                                      const void *b, int64_t ldb, bool transposed, double beta, void *c, int64_t ldc) {
  const lm_skinny_gemm_job job = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .x = x,
                                  .b = b,
                                  .c = c,
                                  .x_row = x_row,
                                  .ldb = ldb,
                                  .ldc = ldc,
                                  .transposed = transposed,
                                  .alpha = (float)alpha,
                                  .beta = (float)beta};
  LM_ISA_PICK(lm_skinny_gemm_loops)->product[LM_F32](&job);
}
