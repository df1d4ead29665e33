/* Launchers of the fused gradients: the POINT rows of op/rules.def, as kernels/point.h has those of pointwise.def. */
#ifndef LM_CUDA_POINT_GRAD_H
#define LM_CUDA_POINT_GRAD_H

#include "point.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POINT(op, in, formula) lm_point_launcher lm_point_f32_grad_##op##_##in, lm_point_f64_grad_##op##_##in;
#include "op/point_rows.def"

#ifdef __cplusplus
}
#endif

#endif
