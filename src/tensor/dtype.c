#include "tensor/dtype.h"

#include <string.h>

#include "base/nearest.h"

size_t lm_dtype_size(lm_dtype dtype) {
  static const uint8_t bytes[LM_DTYPE_COUNT] = {
#define X(id, name, type, bytes) bytes,
      LM_DTYPES(X)
#undef X
  };
  return bytes[dtype];
}

static const char *const names[] = {
#define X(id, name, type, bytes) name,
    LM_DTYPES(X)
#undef X
        "float",
    "double",
    "half",
    "long",
    "int", /* PyTorch's aliases */
};
enum { NAMES = sizeof names / sizeof *names };
static const lm_dtype alias_of[NAMES - LM_DTYPE_COUNT] = {LM_F32, LM_F64, LM_F16, LM_I64, LM_I32};

const char *lm_dtype_name(lm_dtype dtype) { return dtype >= 0 && dtype < LM_DTYPE_COUNT ? names[dtype] : "no dtype"; }

lm_status lm_dtype_parse(const char *name, lm_dtype *out) {
  for (int i = 0; i < NAMES; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *out = i < LM_DTYPE_COUNT ? (lm_dtype)i : alias_of[i - LM_DTYPE_COUNT];
    return LM_OK;
  }
  const char *nearest = lm_nearest(name, NAMES, names);
  if (nearest) return lm_fail(LM_E_DTYPE, "dtype: '%s' is not known; did you mean '%s'?", lm_brief(name, 60), nearest);
  return lm_fail(LM_E_DTYPE,
                 "dtype: '%s' is not known; there are float32, float64, float16, bfloat16, int64, int32, uint8, bool",
                 lm_brief(name, 60));
}

/* The order of the ids is the order of promotion, but for the two 16-bit floats, neither of which
 * holds the other. */
lm_dtype lm_dtype_promote(lm_dtype a, lm_dtype b) {
  if ((a == LM_F16 && b == LM_BF16) || (a == LM_BF16 && b == LM_F16)) return LM_F32;
  return a > b ? a : b;
}

typedef union bits {
  float f;
  uint32_t u;
} bits;

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
float lm_half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  bits v;
  if (rest >= 0x7c00) { /* infinity, NaN */
    v.u = 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    v.u = (rest << 13) + ((127 - 15) << 23);
  } else { /* below 2^-14: a multiple of 2^-24 */
    v.f = (float)rest * 0x1p-24f;
  }
  v.u |= sign;
  return v.f;
}

uint16_t lm_float_to_half(float f) {
  bits v = {f};
  uint16_t sign = (uint16_t)(v.u >> 16 & 0x8000);
  v.u &= 0x7fffffff;
  if (v.u > 0x7f800000) return sign | 0x7e00 | (uint16_t)(v.u >> 13 & 0x1ff);
  if (v.u >= 0x477ff000) return sign | 0x7c00; /* 65520 and above round to infinity */
  if (v.u < 0x38800000) {                      /* below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits */
    v.f += 0.5f;
    return sign | (uint16_t)(v.u - 0x3f000000);
  }
  uint32_t odd = v.u >> 13 & 1;
  return sign | (uint16_t)((v.u - ((127 - 15) << 23) + 0xfff + odd) >> 13);
}
