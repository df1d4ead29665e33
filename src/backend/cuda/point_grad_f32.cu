/* Fused gradients in float. */
#include "backend/cuda/point_grad.cuh"

#define POINT(op, in, formula) LM_POINT_LAUNCHER(lm_point_f32_grad_##op##_##in, lm_row_grad_##op##_##in, float, LM_F32)
#include "op/point_rows.def"
