/* Fused gradients in float. */
#include "point.cuh"

#include "point_grad_f32.inc"
