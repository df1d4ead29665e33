/* Declares loops of grid_sample and its gradients. */
#pragma once

#include "backend/cpu/isa.h"
#include "base/parallel.h"
#include "op/nn/grid_sample.h"

enum { LM_GRID_TILE = 128 }; /* points, whose pixels and weights stay in the L1 cache */

/* A call, and the size of a unit of its work: points of an image (at most LM_GRID_TILE), or, for input, channels of an
 * image. */
typedef struct lm_grid_work {
  lm_grid_call call;
  int64_t points, channels;
} lm_grid_work;

/* Run units of a work. lm_scratch: for input of half types, a float for each of [channels, m]. */
struct lm_grid_loops { /* loops by dtype; NULL: none */
  lm_parallel_fn *forward[LM_DTYPE_COUNT], *input[LM_DTYPE_COUNT], *grid[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_grid_loops, lm_grid_loops);
