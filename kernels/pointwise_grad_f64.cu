/* Instantiates fused gradients in double. */
#include "pointwise.cuh"

#include "pointwise_grad_f64.inc"
