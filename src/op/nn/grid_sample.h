/* Declares the common call of grid_sample and its two gradients, for kernels. */
#pragma once

#include "grid_taps.h"
#include "tensor/tensor.h"

/* Converts the arguments and output of the kernel of grid_sample, grid_sample_input or grid_sample_grid. */
LM_API lm_grid_call lm_grid_call_of(int op, const void *args, lm_tensor *const *out);
