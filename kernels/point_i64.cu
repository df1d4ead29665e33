/* Elementwise operations in int64, for every integer dtype and bool. */
#include "point.cuh"

#include "point_i64.inc"
LM_POINT_LAUNCHER(lm_point_i64_copy, lm_row_copy, int64_t, LM_I64)
