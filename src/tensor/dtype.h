/* Element types: what the core knows of those that kernels/dtypes.h lists. */
#ifndef LM_TENSOR_DTYPE_H
#define LM_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "dtypes.h"

LM_API size_t lm_dtype_size(lm_dtype dtype);
LM_API const char *lm_dtype_name(lm_dtype dtype);
/* By name, PyTorch's aliases included (float, double, half, long, int); the error names the nearest. */
LM_API lm_status lm_dtype_parse(const char *name, lm_dtype *out);
static inline bool lm_dtype_is_float(lm_dtype d) { return d >= LM_F16; }
static inline bool lm_dtype_is_int(lm_dtype d) { return d == LM_U8 || d == LM_I32 || d == LM_I64; }
/* PyTorch's promotion of two dtypes of the same standing (both dimensioned, say). */
LM_API lm_dtype lm_dtype_promote(lm_dtype a, lm_dtype b);

LM_API float lm_half_to_float(uint16_t h);
LM_API uint16_t lm_float_to_half(float f); /* to nearest even */
static inline float lm_bf16_to_float(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)h << 16};
  return v.f;
}
static inline uint16_t lm_float_to_bf16(float f) { /* to nearest even; NaN stays NaN */
  union {
    float f;
    uint32_t u;
  } v = {f};
  if (f != f) return (uint16_t)(v.u >> 16 | 0x40);
  return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

#endif
