/* Matrix products by plain loops: any strides, small sizes, and the integer types no library multiplies. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* C [m, n] = alpha A B + beta C; element (i, j) of A [m, k] is a[i * a_row + j * a_col], so of B
 * [k, n]; C has ldc elements a row. beta 0 never reads C; integers wrap around. */
typedef struct lm_small_gemm {
  int64_t m, n, k;
  const void *a, *b;
  void *c;
  int64_t a_row, a_col, b_row, b_col, ldc;
  double alpha, beta;
} lm_small_gemm;

struct lm_gemm_loops {
  void (*of[LM_DTYPE_COUNT])(const lm_small_gemm *g); /* NULL for bool and 16-bit floats */
  /* The sum of n products of neighbors in memory; of float and double. */
  double (*dot[LM_DTYPE_COUNT])(const void *a, const void *b, int64_t n);
};

LM_ISA_DECLARE(struct lm_gemm_loops, lm_gemm_loops);
