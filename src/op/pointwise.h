/* Elementwise kernels: ids are in op_entries.h, those of ops are their LM_OP_ ids; the fused gradients follow. */
#pragma once

#include "op/op.h"

/* The op a kernel belongs to. */
LM_API int lm_pointwise_op(int kernel);
/* Which input must not be 0 among integers, from 1; 0: none. */
static inline int lm_pointwise_divisor(int kernel) { return kernel < LM_OP_COUNT ? lm_ops[kernel].divisor_arg : 0; }
