/* Elementwise operations in float. */
#include "point.cuh"

#include "point_f32.inc"
LM_POINT_LAUNCHER(lm_point_f32_copy, lm_row_copy, float, LM_F32)
