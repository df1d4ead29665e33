/* Elementwise operations in int64, for every integer dtype and bool. */
#include "point.cuh"

#define LM_CLASS_ARITH(...) __VA_ARGS__
#define LM_CLASS_TEST(...) __VA_ARGS__
#define LM_CLASS_FLOAT(...)
#define UNARY(name, class, e) LM_CLASS_##class(LM_POINT_LAUNCHER(lm_point_i64_##name, lm_row_##name, int64_t, LM_I64))
#define BINARY UNARY
#define TERNARY UNARY
#include "pointwise.def"
LM_POINT_LAUNCHER(lm_point_i64_copy, lm_row_copy, int64_t, LM_I64)
