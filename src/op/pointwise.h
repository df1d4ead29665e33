/* Maps elementwise kernels to ops: an op's kernel id is its LM_OP_ id; those of fused gradients follow. */
#pragma once

#include "op/op.h"

/* Returns the op that a kernel belongs to. */
LM_API int lm_pointwise_op(int kernel);
/* Returns the input, from 1, that must not be 0 for integers; 0: none. */
static inline int lm_pointwise_divisor(int kernel) { return kernel < LM_OP_COUNT ? lm_ops[kernel].divisor_arg : 0; }
