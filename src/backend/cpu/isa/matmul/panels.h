/* Products with a matrix in panels, of float or double: blocks of all products, and what attention and recurrent
 * layers, whose matrices stay in the caches, multiply by. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* c [m, n] = alpha a [m, k] b [k, n] + beta c, or beta 0: c is not read. b lies in panels of `width` columns,
 * `panel_step` elements apart, each of k rows, `panel_row` elements apart; positions beyond the last column are 0.
 * Element (i, j) of a is a[i * a_row + j * a_col], and one of both steps is 1; c has c_row elements a row. What an
 * element of c is depends on its row of a and its column of b alone, and on whether m is 1. */
typedef struct lm_panel_product {
  int64_t m, n, k;
  const void *a, *panels;
  void *c;
  int64_t a_row, a_col, panel_step, panel_row, c_row;
  double alpha, beta;
} lm_panel_product;

struct lm_panel_loops {
  int64_t width; /* columns of a panel */
  /* Element (i, j) of b [depth, n] is b[i * b_row + j * b_col]; its panels, of depth * width elements, lie one behind
   * the other. */
  void (*pack)(void *panels, const void *b, int64_t b_row, int64_t b_col, int64_t depth, int64_t n);
  void (*product)(const lm_panel_product *p);
};

LM_ISA_DECLARE(struct lm_panel_loops, lm_panels_F32);
LM_ISA_DECLARE(struct lm_panel_loops, lm_panels_F64);
