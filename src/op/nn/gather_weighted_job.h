/* Declares the common job of the three gather_weighted ops, weighted sums of elements. */
#pragma once

#include "gather_weighted.h"
#include "tensor/tensor.h"

/* Converts arguments and output of gather_weighted, gather_weighted_input or gather_weighted_weight's kernel. */
LM_API lm_gather_weighted_job lm_gather_weighted_job_of(int op, const void *args, lm_tensor *const *out);
