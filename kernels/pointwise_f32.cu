/* Instantiates elementwise operations in float. */
#include "pointwise.cuh"

#include "pointwise_f32.inc"
LM_POINTWISE_LAUNCHER(lm_pointwise_f32_copy, lm_row_copy, float, LM_F32)
