/* Computes the inverse of erf. For C and CUDA, without branches, so that loops vectorize. */
#pragma once

#include <math.h>

#if defined(__CUDACC__)
#define LM_INVERSE_ERF __host__ __device__ static inline
#else
#define LM_INVERSE_ERF static inline __attribute__((always_inline, unused))
#endif

/* Returns erf^-1(x), at most about 4 ulp off: Giles, Approximating the erfinv function (GPU Computing Gems, 2011). */
LM_INVERSE_ERF float lm_inverse_erff(float x) {
  float w = -logf((1 - x) * (1 + x)), v = w - 2.5f, s = sqrtf(w) - 3.0f;
  float near = 2.81022636e-08f;
  near = near * v + 3.43273939e-07f;
  near = near * v + -3.5233877e-06f;
  near = near * v + -4.39150654e-06f;
  near = near * v + 0.00021858087f;
  near = near * v + -0.00125372503f;
  near = near * v + -0.00417768164f;
  near = near * v + 0.246640727f;
  near = near * v + 1.50140941f;
  float far = -0.000200214257f;
  far = far * s + 0.000100950558f;
  far = far * s + 0.00134934322f;
  far = far * s + -0.00367342844f;
  far = far * s + 0.00573950773f;
  far = far * s + -0.0076224613f;
  far = far * s + 0.00943887047f;
  far = far * s + 1.00167406f;
  far = far * s + 2.83297682f;
  float y = (w < 5 ? near : far) * x, end = x * INFINITY;
  return fabsf(x) == 1 ? end : y;
}

/* Returns erf^-1(x) by Blair, Edwards and Johnson's rational approximations (1976) as PyTorch has them, of x within
 * 0.7, and of sqrt(-log((1 - |x|) / 2)) beyond; then one step by Halley. */
LM_INVERSE_ERF double lm_inverse_erf(double x) {
  double s = x * x, z = sqrt(-log((1 - fabs(x)) * 0.5));
  double near = x * (((-0.140543331 * s + 0.914624893) * s - 1.645349621) * s + 0.886226899) /
                ((((0.012229801 * s - 0.329097515) * s + 1.442710462) * s - 2.118377725) * s + 1);
  double far = (((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454) /
               ((1.637067800 * z + 3.543889200) * z + 1);
  double first = fabs(x) <= 0.7 ? near : copysign(far, x);
  double beyond = copysign(1 - fabs(x) - erfc(fabs(first)), x); /* erf(first) - x would have no digits left */
  double off = (fabs(x) <= 0.7 ? erf(first) - x : beyond) / (1.1283791670955126 * exp(-(first * first)));
  double y = first - off / (1 + first * off), end = x * INFINITY;
  return fabs(x) == 1 ? end : y;
}
