/* Elementwise operations in double. */
#include "point.cuh"

#include "point_f64.inc"
LM_POINT_LAUNCHER(lm_point_f64_copy, lm_row_copy, double, LM_F64)
