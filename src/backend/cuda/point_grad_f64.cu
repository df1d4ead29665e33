/* Fused gradients in double. */
#include "backend/cuda/point_grad.cuh"

#define POINT(op, in, formula) LM_POINT_LAUNCHER(lm_point_f64_grad_##op##_##in, lm_row_grad_##op##_##in, double, LM_F64)
#include "op/point_rows.def"
