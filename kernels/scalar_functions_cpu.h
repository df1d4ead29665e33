/* Defines functions of one element for loops on the CPU, written, or declared, so that the compiler vectorizes them.
 * For C; CUDA has its own. Includes nothing from src/. */
#pragma once

#include <math.h>
#include <stdint.h>

/* glibc's libmvec has vector forms of these (at most 4 ulp off); this declares them, so that loops call them without
 * -ffast-math. Other libraries' loops call the scalar ones. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 35)
#define LM_VECTOR __attribute__((simd("notinbranch"), const))
/* clang-format off */
#define LM_OF_ONE(X)                                                                                                  \
  X(expm1) X(log) X(log1p) X(sin) X(cos) X(tanh) X(erf) X(exp2) X(log2) X(log10) X(tan) X(asin) X(acos) X(asinh)      \
  X(acosh) X(atanh) X(erfc)
#define LM_OF_TWO(X) X(pow) X(atan2) X(hypot)
/* clang-format on */
#define X(name)                   \
  LM_VECTOR float name##f(float); \
  LM_VECTOR double name(double);
LM_OF_ONE(X)
#undef X
#define X(name)                          \
  LM_VECTOR float name##f(float, float); \
  LM_VECTOR double name(double, double);
LM_OF_TWO(X)
#undef X
LM_VECTOR double exp(double); /* float's exp and atan are written below */
LM_VECTOR double atan(double);
#endif
#endif

#include "erfinv.h"
#include "gamma_functions.h"

#define LM_SCALAR static inline __attribute__((always_inline, unused))

/* Returns e^r of x = n ln 2 + r, |r| <= ln 2 / 2, and *exponent = n: e^x = 2^n e^r; |x| below 2^21. Adding 1.5 * 2^23
 * rounds to n, which is then in the lowest bits. ln 2 is split in two so that n times the upper part is exact; the
 * polynomial is Cephes' (expf.c). */
LM_SCALAR float lm_exp_rest(float x, int32_t *exponent) {
  union {
    float value;
    uint32_t bits;
  } rounded = {x * 1.44269504088896341f + 0x1.8p23f};
  float n = rounded.value - 0x1.8p23f;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  *exponent = (int32_t)(rounded.bits - 0x4b400000);
  return p * (r * r) + r + 1.0f;
}

/* Returns e^x, about 1 ulp off at most, without branches. 2^n is applied in two steps, so that results below the
 * smallest normal number and above the largest come out right. */
LM_SCALAR float lm_expf(float x) {
  float in = x < -104.0f ? -104.0f : x;
  in = in > 89.0f ? 89.0f : in; /* NaN fails both tests and stays */
  int32_t exponent;
  float p = lm_exp_rest(in, &exponent);
  uint32_t both = (uint32_t)exponent + 2 * 127, half = both >> 1;
  union {
    uint32_t bits;
    float value;
  } first = {half << 23}, second = {(both - half) << 23};
  return p * first.value * second.value;
}

/* LM_NEAR bounds |a / b|: a quotient rounded to its type is then off by less than one, and a - q b is exact (by fma, or
 * for float by double): a few instructions without branches, which loops vectorize. */
#define LM_NEAR 0x1p22f
#define LM_IS_NEAR_F32(a, b) (fabsf(a) < fabsf(b) * LM_NEAR)
#define LM_IS_NEAR_F64(a, b) (fabs(a) < fabs(b) * LM_NEAR)

LM_SCALAR float lm_fmod_nearf(float a, float b) {
  float q = truncf(a / b);
  float r = (float)((double)a - (double)q * b);
  r = (r < 0) != (a < 0) && r != 0 ? r + copysignf(b, a) : r; /* the quotient was rounded up to q */
  return q == 0 ? a : copysignf(r, a);
}

LM_SCALAR double lm_fmod_near(double a, double b) {
  double q = trunc(a / b);
  double r = fma(-q, b, a);
  r = (r < 0) != (a < 0) && r != 0 ? r + copysign(b, a) : r;
  return q == 0 ? a : copysign(r, a);
}

/* Define division rounded down and its remainder, which has b's sign: as Python's, and exact where a / b is; `fmod` may
 * be either one. */
#define LM_FLOAT_DIVISION(type, suffix, fmod, end)                                 \
  LM_SCALAR type lm_remainder##end(type a, type b) {                               \
    type r = fmod(a, b), other = r + b;                                            \
    return copysign##suffix(1, r) != copysign##suffix(1, b) && r != 0 ? other : r; \
  }                                                                                \
  LM_SCALAR type lm_floor_divide##end(type a, type b) {                            \
    type r = fmod(a, b), q = (a - r) / b, exact = a / b, less = q - 1;             \
    q = copysign##suffix(1, r) != copysign##suffix(1, b) && r != 0 ? less : q;     \
    type down = floor##suffix(q), up = down + 1;                                   \
    type whole = q - down > (type)0.5 ? up : down; /* q was rounded */             \
    whole = q == 0 ? copysign##suffix(0, exact) : whole;                           \
    return b == 0 ? exact : whole;                                                 \
  }
LM_FLOAT_DIVISION(float, f, fmodf, f)
LM_FLOAT_DIVISION(double, , fmod, )
LM_FLOAT_DIVISION(float, f, lm_fmod_nearf, _nearf)
LM_FLOAT_DIVISION(double, , lm_fmod_near, _near)
#undef LM_FLOAT_DIVISION

/* Defines powers of negative numbers by those of their absolute values: vector forms would take each negative base by
 * itself. */
#define LM_FLOAT_POWER(type, suffix)                                                  \
  LM_SCALAR type lm_pow##suffix(type a, type e) {                                     \
    type y = pow##suffix(fabs##suffix(a), e);                                         \
    int whole = trunc##suffix(e) == e, odd = whole & (trunc##suffix(e / 2) != e / 2); \
    y = ((a < 0) & !whole & (a - a == 0)) ? (type)NAN : y;                            \
    return odd ? copysign##suffix(y, a) : y;                                          \
  }
LM_FLOAT_POWER(float, f)
LM_FLOAT_POWER(double, )
#undef LM_FLOAT_POWER

/* Returns erf(x), at most 4.2e-7 off (3 ulp, as libmvec's), without branches: x times a fraction in x^2, whose
 * coefficients are those of XLA's and Eigen's. */
LM_SCALAR float lm_erff(float x) {
  float in = x < -4.0f ? -4.0f : x;
  in = in > 4.0f ? 4.0f : in; /* NaN fails both tests and stays */
  float s = in * in;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-8f;
  p = p * s + -2.10102402082508e-6f;
  p = p * s + -5.69250639462346e-5f;
  p = p * s + -7.34990630326855e-4f;
  p = p * s + -2.95459980854025e-3f;
  p = p * s + -1.60960333262415e-2f;
  float q = -1.45660718464996e-5f;
  q = q * s + -2.13374055278905e-4f;
  q = q * s + -1.68282697438203e-3f;
  q = q * s + -7.37332916720468e-3f;
  q = q * s + -1.42647390514189e-2f;
  float y = in * p / q;
  y = y > 1.0f ? 1.0f : y;
  return y < -1.0f ? -1.0f : y;
}

/* Returns atan(x), at most 2 ulp off, without branches: beyond 1 as pi / 2 - atan(1 / x), the rest as t + t^3 times the
 * minimax polynomial in t^2. */
LM_SCALAR float lm_atanf(float x) {
  float a = fabsf(x), t = a > 1 ? -1 / a : a, from = a > 1 ? 1.57079632679489662f : 0.0f;
  float s = t * t;
  float p = 2.920598490e-3f;
  p = p * s + -1.636755466e-2f;
  p = p * s + 4.321125895e-2f;
  p = p * s + -7.552163303e-2f;
  p = p * s + 1.066598147e-1f;
  p = p * s + -1.421104968e-1f;
  p = p * s + 1.999377161e-1f;
  p = p * s + -3.333315253e-1f;
  return copysignf(from + (p * s * t + t), x);
}

/* Divide integers, rounding down or toward zero: b = 0 returns 0 (callers refuse it), and b = -1 does not trap. */
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

/* Computes by subtractions and shifts (Stein's algorithm), which take less time than divisions. */
LM_SCALAR int64_t lm_gcd_i64(int64_t a, int64_t b) {
  uint64_t u = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, v = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
  if (u == 0 || v == 0) return (int64_t)(u | v);
  const int shift = __builtin_ctzll(u | v);
  u >>= __builtin_ctzll(u);
  v >>= __builtin_ctzll(v);
  while (u != v) {
    const uint64_t apart = u > v ? u - v : v - u;
    v = u < v ? u : v;
    u = apart >> __builtin_ctzll(apart);
  }
  return (int64_t)(u << shift);
}

/* Divides int32 without branches: a quotient is exact in double once rounded towards 0. b = 0 returns 0. */
LM_SCALAR int32_t lm_trunc_divide_i32(int32_t a, int32_t b) {
  int32_t q = (int32_t)(int64_t)((double)a / (b == 0 ? 1 : b));
  return b == 0 ? 0 : q;
}

LM_SCALAR int32_t lm_fmod_i32(int32_t a, int32_t b) { return b == 0 ? 0 : a - lm_trunc_divide_i32(a, b) * b; }

LM_SCALAR int32_t lm_remainder_i32(int32_t a, int32_t b) {
  int32_t r = lm_fmod_i32(a, b);
  return ((r != 0) & ((r ^ b) < 0)) ? r + b : r;
}

LM_SCALAR int32_t lm_floor_divide_i32(int32_t a, int32_t b) {
  int32_t r = lm_fmod_i32(a, b);
  return lm_trunc_divide_i32(a, b) - ((r != 0) & ((r ^ b) < 0));
}

/* True if int32 holds both int64, INT32_MIN excluded, so that int32's functions do: |a / b| is at most |a|. */
#define LM_IS_NEAR_I64(a, b) \
  (((uint64_t)(a) + INT32_MAX <= UINT32_MAX - 1) & ((uint64_t)(b) + INT32_MAX <= UINT32_MAX - 1))

LM_SCALAR int32_t lm_quotient_near_i64(int32_t a, int32_t b) { return (int32_t)((double)a / b); }

LM_SCALAR int64_t lm_fmod_near_i64(int64_t a, int64_t b) {
  return (int32_t)a - lm_quotient_near_i64((int32_t)a, (int32_t)b) * (int32_t)b;
}

LM_SCALAR int64_t lm_remainder_near_i64(int64_t a_, int64_t b_) {
  int32_t b = (int32_t)b_, r = (int32_t)lm_fmod_near_i64(a_, b_);
  return ((r != 0) & ((r ^ b) < 0)) ? r + b : r;
}

LM_SCALAR int64_t lm_floor_divide_near_i64(int64_t a_, int64_t b_) {
  int32_t a = (int32_t)a_, b = (int32_t)b_, q = lm_quotient_near_i64(a, b), r = a - q * b;
  return q - ((r != 0) & ((r ^ b) < 0));
}

/* Returns a^e, which wraps; for a negative e the whole part of 1 / a^|e|, as PyTorch's tensor exponents do. */
LM_SCALAR int64_t lm_pow_i64(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 == 0 ? 1 : -1) : 0;
  int64_t y = 1;
  for (; e > 0; e >>= 1, a *= a) {
    if (e & 1) y *= a;
  }
  return y;
}
