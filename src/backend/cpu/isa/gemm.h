/* Matrix products by plain loops: any strides, small sizes, and the integer types no library multiplies. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* For each of a batch, C [m, n] = alpha A B + beta C; element (i, j) of A [m, k] is a[i * a_row + j * a_col], so of B
 * [k, n]; C has ldc elements a row. beta 0 never reads C; of floats it multiplies a row `bias` [n] in C's place, if
 * there is one; integers wrap around. */
typedef struct lm_small_gemm {
  int64_t batch, m, n, k;
  const void *a, *b, *bias;
  void *c;
  int64_t a_row, a_col, b_row, b_col, ldc;
  int64_t step_a, step_b, step_c;
  double alpha, beta;
} lm_small_gemm;

/* c [rows] = alpha A x + beta c, from row `first` on: rows of A [.., k] begin lda elements apart, and each x [k], one
 * run of memory, is for rows_of_x of them; the next one begins step_x on, 0: it is the same. c's elements are c_row
 * apart. beta 0 never reads c; it multiplies `bias` in c's place, if there is one, of elements bias_row apart. */
typedef struct lm_row_dots {
  int64_t first, rows, k;
  const void *a, *x, *bias;
  void *c;
  int64_t lda, rows_of_x, step_x, c_row, bias_row;
  double alpha, beta;
} lm_row_dots;

struct lm_gemm_loops {
  void (*of[LM_DTYPE_COUNT])(const lm_small_gemm *g); /* NULL for bool and 16-bit floats */
  /* The sum of n products of neighbors in memory; of float and double. */
  double (*dot[LM_DTYPE_COUNT])(const void *a, const void *b, int64_t n);
  void (*row_dots[LM_DTYPE_COUNT])(const lm_row_dots *d); /* of floating dtypes */
};

LM_ISA_DECLARE(struct lm_gemm_loops, lm_gemm_loops);
