/* Loops of gather_weighted and its gradients. */
#pragma once

#include "backend/cpu/isa.h"
#include "op/nn/gather_weighted_job.h"

enum { LM_GATHER_WEIGHTED_GROUP = 4 }; /* planes that input does at a time where i is 1 */

/* A call, and what a unit of its work is: forward, `width` of p of c_width channels; input, `width` of i of c_width
 * channels, which is 1 unless i is; weight, at most 4096 of p, `width`, of one n and j. */
typedef struct lm_gather_weighted_work {
  lm_gather_weighted_job call;
  int64_t width, c_width;
} lm_gather_weighted_work;

/* Units from .. to - 1. scratch: input of half types, a float for each [c_width, m, width]. */
typedef void (*lm_gather_weighted_loop)(const lm_gather_weighted_work *work, int64_t from, int64_t to, void *scratch);

struct lm_gather_weighted_loops { /* by dtype; NULL where there is none */
  lm_gather_weighted_loop forward[LM_DTYPE_COUNT], input[LM_DTYPE_COUNT], weight[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_gather_weighted_loops, lm_gather_weighted_loops);
