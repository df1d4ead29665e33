/* Tensors of indices or labels as kernels take them, and the words for those that are wrong. */
#pragma once

#include "op/check.h"

/* Class labels or indices as contiguous int64; LM_E_DTYPE unless t is of integers. */
lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out);
/* The error for a label or index that is not one of `classes`: element `position` (from 0, in row-major
 * order) of `arg`, which is t. */
lm_status lm_bad_label(lm_op_id op, const char *arg, const lm_tensor *t, int64_t position, int64_t label,
                       int64_t classes);
