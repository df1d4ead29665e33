/* Elementwise operations in float. */
#include "point.cuh"

#define UNARY(name, class, e) LM_POINT_LAUNCHER(lm_point_f32_##name, lm_row_##name, float, LM_F32)
#define BINARY UNARY
#define TERNARY UNARY
#include "pointwise.def"
LM_POINT_LAUNCHER(lm_point_f32_copy, lm_row_copy, float, LM_F32)
