/* Declares loops for the p-norm distances of one row from a tile of others, float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_DISTANCE_TILE = 64 };

struct lm_distance_loops {
  /* Computes `count` distances of x [m] from rows that are the columns of tile [m][LM_DISTANCE_TILE]. */
  void (*direct)(double p, int64_t m, const void *x, const void *tile, int64_t count, void *out);
  /* Computes out[k], k < m: the sum over r rows of others of g[row], signed as x[k] - others[row][k] is. */
  void (*signs)(int64_t r, int64_t m, const void *g, const void *x, const void *others, void *out);
  /* Replaces x's products with n others, in row, by sqrt(square + squares[j] - 2 row[j]), or 0 where that is none. */
  void (*from_products)(int64_t n, double square, const void *squares, void *row);
};
LM_ISA_DECLARE_REAL(struct lm_distance_loops, lm_distance_loops)
