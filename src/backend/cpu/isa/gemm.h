/* Declares matrix products by plain loops: any strides, small sizes, and the integer types no library multiplies. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Computes C [m, n] = alpha A B + beta C for each of a batch. Element (i, j) of A [m, k] is a[i * a_row + j * a_col]; B
 * [k, n] likewise; C has ldc elements a row. With beta 0, C is not read. In floats, beta multiplies a row `bias` [n]
 * instead of C, if there is one; integers wrap around. */
typedef struct lm_small_gemm {
  int64_t batch, m, n, k;
  const void *a, *b, *bias;
  void *c;
  int64_t a_row, a_col, b_row, b_col, ldc;
  int64_t step_a, step_b, step_c;
  double alpha, beta;
} lm_small_gemm;

/* Computes c [rows] = alpha A x + beta c, from row `first` on. Rows of A [.., k] are lda elements apart. Each
 * contiguous x [k] serves rows_of_x rows; the next one is step_x further on (0: the same). c's elements are c_row
 * apart. With beta 0, c is not read; beta multiplies `bias` instead, if there is one, with elements bias_row apart. */
typedef struct lm_row_dots {
  int64_t first, rows, k;
  const void *a, *x, *bias;
  void *c;
  int64_t lda, rows_of_x, step_x, c_row, bias_row;
  double alpha, beta;
} lm_row_dots;

struct lm_gemm_loops {
  void (*of[LM_DTYPE_COUNT])(const lm_small_gemm *g); /* NULL for bool and 16-bit floats */
  /* Returns the sum of n products of contiguous elements; for float and double. */
  double (*dot[LM_DTYPE_COUNT])(const void *a, const void *b, int64_t n);
  void (*row_dots[LM_DTYPE_COUNT])(const lm_row_dots *d); /* floating dtypes only */
};

LM_ISA_DECLARE(struct lm_gemm_loops, lm_gemm_loops);
