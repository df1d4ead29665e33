/* Functions of one element for loops on the CPU: written, or declared, so that the compiler vectorizes them.
 * For C; CUDA has its own. Includes nothing from src/. */
#ifndef LM_KERNELS_SCALAR_H
#define LM_KERNELS_SCALAR_H

#include <math.h>
#include <stdint.h>

/* glibc's libmvec has vector forms of these (at most 4 ulp off); saying so lets loops call them without
 * -ffast-math. Elsewhere loops call the scalar ones. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 35)
#define LM_VECTOR __attribute__((simd("notinbranch"), const))
LM_VECTOR float expm1f(float);
LM_VECTOR float logf(float);
LM_VECTOR float log1pf(float);
LM_VECTOR float sinf(float);
LM_VECTOR float cosf(float);
LM_VECTOR float tanhf(float);
LM_VECTOR float erff(float);
LM_VECTOR float exp2f(float);
LM_VECTOR float log2f(float);
LM_VECTOR float log10f(float);
LM_VECTOR float tanf(float);
LM_VECTOR float asinf(float);
LM_VECTOR float acosf(float);
LM_VECTOR float atanf(float);
LM_VECTOR float asinhf(float);
LM_VECTOR float acoshf(float);
LM_VECTOR float atanhf(float);
LM_VECTOR float erfcf(float);
LM_VECTOR float powf(float, float);
LM_VECTOR float atan2f(float, float);
LM_VECTOR float hypotf(float, float);
LM_VECTOR double exp(double);
LM_VECTOR double expm1(double);
LM_VECTOR double log(double);
LM_VECTOR double log1p(double);
LM_VECTOR double sin(double);
LM_VECTOR double cos(double);
LM_VECTOR double tanh(double);
LM_VECTOR double erf(double);
LM_VECTOR double exp2(double);
LM_VECTOR double log2(double);
LM_VECTOR double log10(double);
LM_VECTOR double tan(double);
LM_VECTOR double asin(double);
LM_VECTOR double acos(double);
LM_VECTOR double atan(double);
LM_VECTOR double asinh(double);
LM_VECTOR double acosh(double);
LM_VECTOR double atanh(double);
LM_VECTOR double erfc(double);
LM_VECTOR double pow(double, double);
LM_VECTOR double atan2(double, double);
LM_VECTOR double hypot(double, double);
#endif
#endif

#include "gamma_functions.h"

#define LM_SCALAR static inline __attribute__((always_inline, unused))

/* e^x, about 1 ulp off at most, without branches: x = n ln 2 + r, |r| <= ln 2 / 2, e^x = 2^n e^r. ln 2 is split in two
 * so that n times the upper part is exact; the polynomial is Cephes' (expf.c). 2^n is applied in two steps, so that
 * results below the smallest normal number and above the largest come out right. */
LM_SCALAR float lm_expf(float x) {
  float in = x < -104.0f ? -104.0f : x;
  in = in > 89.0f ? 89.0f : in; /* NaN fails both tests and stays */
  float n = rintf(in * 1.44269504088896341f);
  float r = in - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  int32_t exponent = (int32_t)n, half = exponent >> 1;
  union {
    uint32_t bits;
    float value;
  } first = {(uint32_t)(half + 127) << 23}, second = {(uint32_t)(exponent - half + 127) << 23};
  return p * first.value * second.value;
}

/* fmodf, without its steps of one bit where the quotient is small enough to be exact in double. */
LM_SCALAR float lm_fmodf(float a, float b) {
  double quotient = (double)a / b;
  if (!(fabs(quotient) < 0x1p24)) return fmodf(a, b);
  double whole = trunc(quotient);
  return whole == 0 ? a : copysignf((float)(a - whole * b), a);
}

/* Division rounded down and its remainder, which has b's sign: as Python's, and exact where x / b is.
 * For int64, b = 0 gives 0 (callers refuse it before), and b = -1 does not trap. */
#define LM_FLOAT_DIVISION(type, suffix, fmod)                                \
  LM_SCALAR type lm_remainder##suffix(type a, type b) {                      \
    type r = fmod(a, b);                                                     \
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;                         \
  }                                                                          \
  LM_SCALAR type lm_floor_divide##suffix(type a, type b) {                   \
    if (b == 0) return a / b;                                                \
    type r = fmod(a, b), q = (a - r) / b;                                    \
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;                                \
    if (q == 0) return copysign##suffix(0, a / b);                           \
    type down = floor##suffix(q);                                            \
    return q - down > (type)0.5 ? down + 1 : down; /* q was a rounded one */ \
  }
LM_FLOAT_DIVISION(float, f, lm_fmodf)
LM_FLOAT_DIVISION(double, , fmod)
#undef LM_FLOAT_DIVISION

LM_SCALAR int64_t lm_floor_divide_i64(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return -a;
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

LM_SCALAR int64_t lm_trunc_divide_i64(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

LM_SCALAR int64_t lm_remainder_i64(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t r = a % b;
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

LM_SCALAR int64_t lm_fmod_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

LM_SCALAR int64_t lm_gcd_i64(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = lm_fmod_i64(a, b);
    a = b;
    b = rest;
  }
  return a < 0 ? -a : a;
}

/* Wraps around; a negative exponent gives the whole part of 1 / a^|e|, as PyTorch's tensor exponents do. */
LM_SCALAR int64_t lm_pow_i64(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 == 0 ? 1 : -1) : 0;
  int64_t y = 1;
  for (; e > 0; e >>= 1, a *= a) {
    if (e & 1) y *= a;
  }
  return y;
}

#endif
