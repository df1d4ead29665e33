/* Describes the element types of kernels/dtypes.h: size, name, range, promotion, conversion of elements. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "dtypes.h"

LM_API size_t lm_dtype_size(lm_dtype dtype);
LM_API const char *lm_dtype_name(lm_dtype dtype);
/* Finds a dtype by name, PyTorch's aliases (float, double, half, long, int, short) included; the error suggests one. */
LM_API lm_status lm_dtype_parse(const char *name, lm_dtype *out);
static inline bool lm_dtype_is_float(lm_dtype d) { return d >= LM_F16; }
static inline bool lm_dtype_is_half(lm_dtype d) { return d == LM_F16 || d == LM_BF16; }
static inline bool lm_dtype_is_int(lm_dtype d) { return d > LM_BOOL && d < LM_F16; }
/* Test and return the range of integers that a dtype represents exactly. */
LM_API bool lm_dtype_holds(lm_dtype dtype, int64_t low, int64_t high);
LM_API void lm_dtype_integers(lm_dtype dtype, int64_t *low, int64_t *high);
/* Returns the largest finite number of a floating dtype; 0 for other dtypes. */
LM_API double lm_dtype_largest(lm_dtype dtype);
/* True if a number converts to the dtype, by rounding or, for integers, by truncation. As in PyTorch, floats take
 * infinity and NaN, bool any number, and unsigned integers a negative number that wraps once. */
LM_API bool lm_dtype_has(lm_dtype dtype, double number);
/* Returns PyTorch's result type of two dtypes of equal priority (both of dimensioned tensors, say). */
LM_API lm_dtype lm_dtype_promote(lm_dtype a, lm_dtype b);

LM_API float lm_half_to_float(uint16_t h);
LM_API uint16_t lm_float_to_half(float f); /* rounds to nearest even */
static inline float lm_bf16_to_float(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)h << 16};
  return v.f;
}
static inline uint16_t lm_float_to_bf16(float f) { /* rounds to nearest even; NaN stays NaN */
  union {
    float f;
    uint32_t u;
  } v = {f};
  if (f != f) return (uint16_t)(v.u >> 16 | 0x40);
  return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

/* Return element i of an array of a bool or integer dtype, and of a floating dtype. */
static inline int64_t lm_integer_at(lm_dtype dtype, const void *p, int64_t i) {
  switch (dtype) {
    case LM_BOOL: return ((const uint8_t *)p)[i] != 0;
#define X(id, name, type, ...) \
  case LM_##id: return ((const type *)p)[i];
      LM_INTEGER_DTYPES(X)
#undef X
    default: return 0;
  }
}
static inline double lm_real_at(lm_dtype dtype, const void *p, int64_t i) {
  switch (dtype) {
    case LM_F16: return lm_half_to_float(((const uint16_t *)p)[i]);
    case LM_BF16: return lm_bf16_to_float(((const uint16_t *)p)[i]);
    case LM_F32: return ((const float *)p)[i];
    default: return ((const double *)p)[i];
  }
}
