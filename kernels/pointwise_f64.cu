/* Instantiates elementwise operations in double. */
#include "pointwise.cuh"

#include "pointwise_f64.inc"
LM_POINTWISE_LAUNCHER(lm_pointwise_f64_copy, lm_row_copy, double, LM_F64)
