/* Declares products with a matrix in panels, of float or double, or of bfloat16 by the processor's own instructions:
 * for blocks of all products, and for attention and recurrent layers, whose matrices stay in the caches. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Computes c [m, n] = alpha a [m, k] b [k, n] + beta c. With beta 0, c is not read; beta times a row `bias` [n]
 * replaces c, if there is one. b is in panels of `width` columns, `panel_step` elements apart, each of k rows,
 * `panel_row` elements apart; positions beyond the last column are 0. Element (i, j) of a is a[i * a_row + j * a_col],
 * and one of both steps is 1; or a is packed (pack_rows). c has c_row elements a row. An element of c depends on its
 * row of a and its column of b alone, and on one_row. An element of bfloat16's a and b is a pair of terms, 4 bytes, and
 * c is float. */
typedef struct lm_panel_product {
  int64_t m, n, k;
  const void *a, *panels, *bias;
  void *c;
  int64_t a_row, a_col, panel_step, panel_row, c_row;
  double alpha, beta;
  bool packed_rows;
  bool one_row; /* true if the whole product has one row, whatever part this is: its terms are summed in two halves */
} lm_panel_product;

/* Computes c [m, n] = sums + beta c, or + beta `bias` [n] if that is set; beta 0 reads no c. transposed: c [n, m]. */
typedef struct lm_panel_sums {
  int64_t m, n;
  const void *sums, *bias;
  void *c;
  int64_t sums_row, c_row;
  double beta;
  bool transposed;
} lm_panel_sums;

struct lm_panel_loops {
  int64_t width, height; /* columns of a panel; rows that are in registers at a time */
  /* Packs b [depth, n], whose element (i, j) is b[i * b_row + j * b_col], with one of both steps 1, into contiguous
   * panels. */
  void (*pack)(void *panels, const void *b, int64_t b_row, int64_t b_col, int64_t depth, int64_t n);
  /* Packs a [m, k], whose element (i, j) is a[i + j * a_col]. */
  void (*pack_rows)(void *to, const void *a, int64_t a_col, int64_t m, int64_t k);
  void (*product)(const lm_panel_product *p);
  void (*put)(const lm_panel_sums *s);
};

LM_ISA_DECLARE_REAL(struct lm_panel_loops, lm_panel_loops)
/* Its functions are NULL at levels without such products, and at others only some processors have them. */
LM_ISA_DECLARE(struct lm_panel_loops, lm_panel_loops_BF16);
