/* Instantiates elementwise operations in int64, for every integer dtype and bool. */
#include "pointwise.cuh"

#include "pointwise_i64.inc"
LM_POINTWISE_LAUNCHER(lm_pointwise_i64_copy, lm_row_copy, int64_t, LM_I64)
