/* Elementwise operations in double. */
#include "point.cuh"

#define UNARY(name, class, e) LM_POINT_LAUNCHER(lm_point_f64_##name, lm_row_##name, double, LM_F64)
#define BINARY UNARY
#define TERNARY UNARY
#include "pointwise.def"
LM_POINT_LAUNCHER(lm_point_f64_copy, lm_row_copy, double, LM_F64)
