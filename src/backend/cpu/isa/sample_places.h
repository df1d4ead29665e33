/* Loops of sample_places and its gradients. */
#ifndef LM_CPU_ISA_SAMPLE_PLACES_H
#define LM_CPU_ISA_SAMPLE_PLACES_H

#include "backend/cpu/isa.h"
#include "op/nn/sample_places.h"

enum { LM_SAMPLE_GROUP = 4 }; /* planes that input does at a time where i is 1 */

/* A call, and what a unit of its work is: forward, `width` of p of c_width channels; input, `width` of i of c_width
 * channels, which is 1 unless i is; weight, at most 4096 of p, `width`, of one n and j. */
typedef struct lm_sample_work {
  lm_sample_call call;
  int64_t width, c_width;
} lm_sample_work;

/* Units from .. to - 1. scratch: input of half types, a float for each [c_width, m, width]. */
typedef void (*lm_sample_loop)(const lm_sample_work *work, int64_t from, int64_t to, void *scratch);

struct lm_sample_loops { /* by dtype; NULL where there is none */
  lm_sample_loop forward[LM_DTYPE_COUNT], input[LM_DTYPE_COUNT], weight[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_sample_loops, lm_sample_loops);

#endif
