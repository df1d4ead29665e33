/* Maps elementwise kernels to ops: an op's kernel id is its LM_OP_ id; those of fused gradients follow. */
#pragma once

#include "op/op.h"

/* Returns the op that a kernel belongs to. */
LM_API int lm_pointwise_op(int kernel);
/* Returns the input, from 1, that must not be 0 for integers; 0: none. */
LM_API int lm_pointwise_divisor(int kernel);
/* Returns the index of a kernel in the CPU's tables of loops, which do not change with ops of other kinds. */
LM_API int lm_pointwise_row(int kernel);
