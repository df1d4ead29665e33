#include "backend/cpu/isa/gather_weighted.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"

enum {
  TILE = 256,        /* sums that stay in the first-level cache */
  TABLE = 4096,      /* positions that do */
  SHORT_ROW = 64,    /* of fewer elements several positions' are summed up in registers */
  SHORT_HALVES = 16, /* the same where these are converted, which takes whole vectors */
  GROUP = LM_GATHER_WEIGHTED_GROUP
};

#define LM_TEMPLATE "backend/cpu/isa/templates/gather_weighted.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_gather_weighted_loops LM_ISA_NAME(lm_gather_weighted_loops) = {
    .forward = {LM_FLOATS(forward)},
    .input = {LM_FLOATS(input)},
    .weight = {LM_FLOATS(weight)},
};
