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
#define LM_OF_ONE(name) LM_SCALAR_FUNCTION(name, name##f(x), name(x))
#define LM_OF_TWO(name)                                                 \
  LM_DEVICE float lm_##name(float a, float b) { return name##f(a, b); } \
  LM_DEVICE double lm_##name(double a, double b) { return name(a, b); }
/* clang-format off */
LM_OF_ONE(exp) LM_OF_ONE(expm1) LM_OF_ONE(exp2) LM_OF_ONE(log) LM_OF_ONE(log1p) LM_OF_ONE(log2) LM_OF_ONE(log10)
LM_OF_ONE(sqrt) LM_OF_ONE(sin) LM_OF_ONE(cos) LM_OF_ONE(tan) LM_OF_ONE(tanh) LM_OF_ONE(asin) LM_OF_ONE(acos)
LM_OF_ONE(atan) LM_OF_ONE(asinh) LM_OF_ONE(acosh) LM_OF_ONE(atanh) LM_OF_ONE(erf) LM_OF_ONE(erfc)
LM_OF_ONE(floor) LM_OF_ONE(ceil) LM_OF_ONE(trunc)
LM_OF_TWO(fmod) LM_OF_TWO(pow) LM_OF_TWO(atan2) LM_OF_TWO(hypot) LM_OF_TWO(copysign)
    /* clang-format on */
    LM_SCALAR_FUNCTION(abs, fabsf(x), fabs(x)) LM_SCALAR_FUNCTION(round, rintf(x), rint(x))
        LM_SCALAR_FUNCTION(erfinv, lm_inverse_erff(x), lm_inverse_erf(x))
            LM_SCALAR_FUNCTION(signed_zero, copysignf(0, x), copysign(0.0, x)) /* a zero with x's sign */
#undef LM_OF_ONE
#undef LM_OF_TWO
#undef LM_SCALAR_FUNCTION

    LM_DEVICE bool lm_isnan(float x) {
  return x != x;
}
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

/* Compute with int64: kernels report a divisor of 0 and continue with 0; -1 would overflow for the least number. */
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
