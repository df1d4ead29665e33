#include "backend/cpu/isa/gather_weighted.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"

enum {
  TILE = 256,        /* sums that stay in the L1 cache */
  TABLE = 4096,      /* positions that stay in the L1 cache */
  SHORT_ROW = 64,    /* elements; rows of fewer are summed for several positions in registers */
  SHORT_HALVES = 16, /* elements of a short row of halves, whose conversion takes whole vectors */
  GROUP = LM_GATHER_WEIGHTED_GROUP
};

#define LM_TEMPLATE "backend/cpu/isa/templates/gather_weighted.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_gather_weighted_loops LM_ISA_NAME(lm_gather_weighted_loops) = {
    .forward = {LM_FLOATS(forward)},
    .input = {LM_FLOATS(input)},
    .weight = {LM_FLOATS(weight)},
};
