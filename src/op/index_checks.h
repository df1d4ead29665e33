/* Converts tensors of indices or labels for kernels, and returns the errors for invalid values. */
#pragma once

#include "op/check.h"

/* Converts class labels or indices to contiguous int64; LM_E_DTYPE unless t has an integer dtype. */
lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out);
/* Returns the error for a label or index outside 1 .. classes: element `position` (from 0, in row-major order) of t,
 * the argument `arg`. */
lm_status lm_fail_bad_label(lm_op_id op, const char *arg, const lm_tensor *t, int64_t position, int64_t label,
                            int64_t classes);
