/* Defines the functions that optimizers' updates of one element use (src/optim/generate.lua). For C and CUDA. */
#pragma once

#include <math.h>
#include <stdbool.h>

#ifndef LM_DEVICE_CODE
#if defined(__CUDACC__)
#define LM_DEVICE_CODE __host__ __device__ static inline
#else
#define LM_DEVICE_CODE static inline
#endif
#endif

/* Define the sign, -1, 0 or 1, and the larger of two numbers; both propagate NaN. */
#define LM_OPTIM_MATH(real, suffix)                                                  \
  LM_DEVICE_CODE real lm_sgn_##suffix(real x) { return x > 0 ? 1 : x < 0 ? -1 : x; } \
  LM_DEVICE_CODE real lm_larger_##suffix(real a, real b) { return ((a > b) | (a != a)) ? a : b; }

LM_OPTIM_MATH(float, f32)
LM_OPTIM_MATH(double, f64)
#undef LM_OPTIM_MATH
