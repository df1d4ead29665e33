/* Weighted sums of elements, whichever of the three ops it is. */
#pragma once

#include "op/op.h"

/* x: [n, c, m, i], y: [n, c, p, i], indices and weight: [n or 1, j, p]; all contiguous, none empty. */
typedef struct lm_gather_weighted_call {
  int64_t n, c, m, i, j, p;
  lm_tensor *x, *y, *weight; /* one of them is computed, the others are read; weight may be NULL, for 1 */
  const int64_t *indices;
  int64_t indices_step, weight_step; /* elements from one n to the next: 0 where all have the same */
} lm_gather_weighted_call;

/* From the arguments and output of the slot of gather_weighted, gather_weighted_input or gather_weighted_weight. */
LM_API lm_gather_weighted_call lm_gather_weighted_call_of(lm_op_id op, const void *args, lm_tensor *const *out);
