/* Instantiates fused gradients in float. */
#include "pointwise.cuh"

#include "pointwise_grad_f32.inc"
