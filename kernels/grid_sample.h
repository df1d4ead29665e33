/* Computes grid_sample and its gradients. All functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include "c_linkage.h"
#include "grid_taps.h"

LM_C int lm_k_grid_forward(const lm_grid_call *call, void *stream);
/* Computes x's gradient by atomics, in any order. sums: a float for each element of x for 16-bit dtypes, else NULL. */
LM_C int lm_k_grid_input(const lm_grid_call *call, float *sums, void *stream);
LM_C int lm_k_grid_slopes(const lm_grid_call *call, void *stream);
