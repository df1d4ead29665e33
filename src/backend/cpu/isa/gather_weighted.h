/* Declares loops of gather_weighted and its gradients. */
#pragma once

#include "backend/cpu/isa.h"
#include "base/parallel.h"
#include "op/nn/gather_weighted_job.h"

enum { LM_GATHER_WEIGHTED_GROUP = 4 }; /* planes that `input` sums at a time if i is 1 */

/* A call, and a unit of its work. Forward: `width` positions of p for c_width channels. Input: `width` positions of i
 * for c_width channels, 1 unless i is 1. Weight: `width` positions of p, at most 4096, for one n and j. */
typedef struct lm_gather_weighted_work {
  lm_gather_weighted_job call;
  int64_t width, c_width;
} lm_gather_weighted_work;

/* Run units of a work. lm_scratch: for input of half types, a float for each of [c_width, m, width]. */
struct lm_gather_weighted_loops { /* loops by dtype; NULL: none */
  lm_parallel_fn *forward[LM_DTYPE_COUNT], *input[LM_DTYPE_COUNT], *weight[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_gather_weighted_loops, lm_gather_weighted_loops);
