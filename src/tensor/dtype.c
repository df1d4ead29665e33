#include "tensor/dtype.h"

#include <string.h>

#include "base/nearest_word.h"
#include "half_float.h"

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

float lm_half_to_float(uint16_t h) { return lm_from_half(h); }
uint16_t lm_float_to_half(float f) { return lm_to_half(f); }
