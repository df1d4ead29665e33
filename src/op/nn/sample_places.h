/* Weighted sums of places, whichever of the three ops it is. */
#ifndef LM_OP_SAMPLE_PLACES_H
#define LM_OP_SAMPLE_PLACES_H

#include "op/op.h"

/* x: [n, c, m, i], y: [n, c, p, i], places and weight: [n or 1, j, p]; all contiguous, none empty. */
typedef struct lm_sample_call {
  int64_t n, c, m, i, j, p;
  lm_tensor *x, *y, *weight; /* one of them is computed, the others are read; weight may be NULL, for 1 */
  const int64_t *places;
  int64_t places_step, weight_step; /* elements from one n to the next: 0 where all have the same */
} lm_sample_call;

/* From the arguments and output of the slot of sample_places, sample_places_input or sample_places_weight. */
LM_API lm_sample_call lm_sample_call_of(lm_op_id op, const void *args, lm_tensor *const *out);

#endif
