/* Weighted sums of elements, whichever of the three ops it is. */
#pragma once

#include "gather_weighted.h"
#include "op/op.h"

/* From the arguments and output of the slot of gather_weighted, gather_weighted_input or gather_weighted_weight. */
LM_API lm_gather_weighted_job lm_gather_weighted_job_of(lm_op_id op, const void *args, lm_tensor *const *out);
