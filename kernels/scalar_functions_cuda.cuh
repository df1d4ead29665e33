/* Defines the functions in capitals of pointwise_scalars.h on a CUDA device, chosen by the argument's type: float,
 * double or int64. kernels/scalar_functions_cpu.h is the CPU's. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "erfinv.h"
#include "gamma_functions.h"
#include "launch.cuh"

#define LM_SCALAR_FUNCTION(name, f32, f64)           \
  LM_DEVICE float lm_##name(float x) { return f32; } \
  LM_DEVICE double lm_##name(double x) { return f64; }
LM_SCALAR_FUNCTION(exp, expf(x), exp(x))
LM_SCALAR_FUNCTION(expm1, expm1f(x), expm1(x))
LM_SCALAR_FUNCTION(log, logf(x), log(x))
LM_SCALAR_FUNCTION(log1p, log1pf(x), log1p(x))
LM_SCALAR_FUNCTION(sqrt, sqrtf(x), sqrt(x))
LM_SCALAR_FUNCTION(sin, sinf(x), sin(x))
LM_SCALAR_FUNCTION(cos, cosf(x), cos(x))
LM_SCALAR_FUNCTION(tanh, tanhf(x), tanh(x))
LM_SCALAR_FUNCTION(erf, erff(x), erf(x))
LM_SCALAR_FUNCTION(exp2, exp2f(x), exp2(x))
LM_SCALAR_FUNCTION(log2, log2f(x), log2(x))
LM_SCALAR_FUNCTION(log10, log10f(x), log10(x))
LM_SCALAR_FUNCTION(tan, tanf(x), tan(x))
LM_SCALAR_FUNCTION(asin, asinf(x), asin(x))
LM_SCALAR_FUNCTION(acos, acosf(x), acos(x))
LM_SCALAR_FUNCTION(atan, atanf(x), atan(x))
LM_SCALAR_FUNCTION(asinh, asinhf(x), asinh(x))
LM_SCALAR_FUNCTION(acosh, acoshf(x), acosh(x))
LM_SCALAR_FUNCTION(atanh, atanhf(x), atanh(x))
LM_SCALAR_FUNCTION(erfc, erfcf(x), erfc(x))
LM_SCALAR_FUNCTION(erfinv, lm_inverse_erff(x), lm_inverse_erf(x))
LM_SCALAR_FUNCTION(abs, fabsf(x), fabs(x))
LM_SCALAR_FUNCTION(floor, floorf(x), floor(x))
LM_SCALAR_FUNCTION(ceil, ceilf(x), ceil(x))
LM_SCALAR_FUNCTION(round, rintf(x), rint(x))
LM_SCALAR_FUNCTION(trunc, truncf(x), trunc(x))
LM_SCALAR_FUNCTION(signed_zero, copysignf(0, x), copysign(0.0, x)) /* a zero with x's sign */
#undef LM_SCALAR_FUNCTION

LM_DEVICE float lm_fmod(float a, float b) { return fmodf(a, b); }
LM_DEVICE double lm_fmod(double a, double b) { return fmod(a, b); }
LM_DEVICE float lm_pow(float a, float b) { return powf(a, b); }
LM_DEVICE double lm_pow(double a, double b) { return pow(a, b); }
LM_DEVICE float lm_atan2(float a, float b) { return atan2f(a, b); }
LM_DEVICE double lm_atan2(double a, double b) { return atan2(a, b); }
LM_DEVICE float lm_hypot(float a, float b) { return hypotf(a, b); }
LM_DEVICE double lm_hypot(double a, double b) { return hypot(a, b); }
LM_DEVICE float lm_copysign(float a, float b) { return copysignf(a, b); }
LM_DEVICE double lm_copysign(double a, double b) { return copysign(a, b); }

LM_DEVICE bool lm_isnan(float x) { return x != x; }
LM_DEVICE bool lm_isnan(double x) { return x != x; }

/* Returns the remainder of division rounded down, which has b's sign: as Python's, and exact where a / b is. */
template <class num>
LM_DEVICE num lm_remainder(num a, num b) {
  num r = lm_fmod(a, b);
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

template <class num>
LM_DEVICE num lm_floor_divide(num a, num b) {
  if (b == 0) return a / b;
  num r = lm_fmod(a, b), q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return lm_signed_zero(a / b);
  num down = lm_floor(q);
  return q - down > (num)0.5 ? down + 1 : down; /* q was rounded */
}

template <class num>
LM_DEVICE num lm_trunc_divide(num a, num b) {
  return lm_trunc(a / b);
}

/* int64: kernels report a divisor of 0 and continue with 0; -1 would overflow for the least number. */
LM_DEVICE int64_t lm_abs(int64_t x) { return x < 0 ? (int64_t)(0 - (uint64_t)x) : x; }
LM_DEVICE int64_t lm_floor(int64_t x) { return x; }
LM_DEVICE int64_t lm_ceil(int64_t x) { return x; }
LM_DEVICE int64_t lm_round(int64_t x) { return x; }
LM_DEVICE int64_t lm_trunc(int64_t x) { return x; }
LM_DEVICE bool lm_isnan(int64_t) { return false; }

template <>
LM_DEVICE int64_t lm_floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

template <>
LM_DEVICE int64_t lm_trunc_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

template <>
LM_DEVICE int64_t lm_remainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t r = a % b;
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

LM_DEVICE int64_t lm_copysign(int64_t a, int64_t sign) { return sign < 0 ? -lm_abs(a) : lm_abs(a); }
LM_DEVICE int64_t lm_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

LM_DEVICE int64_t lm_shift_left(int64_t v, int64_t by) { return by < 0 || by > 63 ? 0 : v << (by & 63); }
LM_DEVICE int64_t lm_shift_right(int64_t v, int64_t by) { return v >> (by < 0 || by > 63 ? 63 : by); }

LM_DEVICE int64_t lm_gcd(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = lm_fmod(a, b);
    a = b;
    b = rest;
  }
  return lm_abs(a);
}

/* Returns a^e, which wraps; for a negative e the whole part of 1 / a^|e|, as PyTorch's tensor exponents do. */
LM_DEVICE int64_t lm_pow(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 == 0 ? 1 : -1) : 0;
  uint64_t y = 1, x = (uint64_t)a;
  for (; e > 0; e >>= 1, x *= x) {
    if (e & 1) y *= x;
  }
  return (int64_t)y;
}

#define K(c) ((num)(c))
#define EXP lm_exp
#define EXPM1 lm_expm1
#define LOG lm_log
#define LOG1P lm_log1p
#define SQRT lm_sqrt
#define SIN lm_sin
#define COS lm_cos
#define TANH lm_tanh
#define ERF lm_erf
#define POW lm_pow
#define ABS lm_abs
#define FLOOR lm_floor
#define CEIL lm_ceil
#define ROUND lm_round
#define TRUNC lm_trunc
#define FLOOR_DIVIDE lm_floor_divide
#define TRUNC_DIVIDE lm_trunc_divide
#define REMAINDER lm_remainder
#define EXP2 lm_exp2
#define LOG2 lm_log2
#define LOG10 lm_log10
#define TAN lm_tan
#define ASIN lm_asin
#define ACOS lm_acos
#define ATAN lm_atan
#define ASINH lm_asinh
#define ACOSH lm_acosh
#define ATANH lm_atanh
#define ERFC lm_erfc
#define ERFINV lm_erfinv
#define ATAN2 lm_atan2
#define HYPOT lm_hypot
#define COPYSIGN lm_copysign
#define FMOD lm_fmod
#define GCD lm_gcd
#define SHIFT_LEFT lm_shift_left
#define SHIFT_RIGHT lm_shift_right
#define LGAMMA (num) lm_lgamma
#define DIGAMMA (num) lm_digamma
#define POLYGAMMA (num) lm_polygamma
#define IGAMMA (num) lm_igamma
#define IGAMMAC (num) lm_igammac
#define GAMMA_SLOPE (num) lm_gamma_slope
#define ISNAN lm_isnan
