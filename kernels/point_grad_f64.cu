/* Fused gradients in double. */
#include "point.cuh"

#include "point_grad_f64.inc"
