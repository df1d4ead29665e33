/* Declares loops of grid_sample and its gradients. */
#pragma once

#include "backend/cpu/isa.h"
#include "op/nn/grid_sample.h"

enum { LM_GRID_TILE = 128 }; /* points, whose pixels and weights stay in the L1 cache */

/* A call, and the size of a unit of its work: points of an image (at most LM_GRID_TILE), or, for input, channels of an
 * image. */
typedef struct lm_grid_work {
  lm_grid_call call;
  int64_t points, channels;
} lm_grid_work;

/* Runs units from .. to - 1. scratch: for input of half types, a float for each of [channels, m]. */
typedef void (*lm_grid_loop)(const lm_grid_work *work, int64_t from, int64_t to, void *scratch);

struct lm_grid_loops { /* loops for each dtype, or NULL */
  lm_grid_loop forward[LM_DTYPE_COUNT], input[LM_DTYPE_COUNT], grid[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_grid_loops, lm_grid_loops);
