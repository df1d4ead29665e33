#include "tensor/dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/nearest_word.h"
#include "half_float.h"

typedef struct dtype_facts {
  const char *name;
  size_t bytes;
  int64_t low, high;
} dtype_facts;

static const dtype_facts facts[LM_DTYPE_COUNT] = {
#define X(id, name, type, low, high, ...) {name, sizeof(type), low, high},
    LM_DTYPES(X)
#undef X
};

static const char *const names[] = {
#define X(id, name, ...) name,
    LM_DTYPES(X)
#undef X
        "float",
    "double",
    "half",
    "long",
    "int",
    "short", /* PyTorch's aliases */
};
enum { NAMES = sizeof names / sizeof *names };
static const lm_dtype alias_of[NAMES - LM_DTYPE_COUNT] = {LM_F32, LM_F64, LM_F16, LM_I64, LM_I32, LM_I16};

size_t lm_dtype_size(lm_dtype dtype) { return facts[dtype].bytes; }
const char *lm_dtype_name(lm_dtype dtype) { return dtype >= 0 && dtype < LM_DTYPE_COUNT ? names[dtype] : "no dtype"; }

bool lm_dtype_holds(lm_dtype dtype, int64_t low, int64_t high) {
  return facts[dtype].low <= low && high <= facts[dtype].high;
}
void lm_dtype_integers(lm_dtype dtype, int64_t *low, int64_t *high) {
  *low = facts[dtype].low, *high = facts[dtype].high;
}

double lm_dtype_largest(lm_dtype dtype) {
  switch ((int)dtype) {
    case LM_F16: return 65504;
    case LM_BF16: return 0x1.fep127;
    case LM_F32: return FLT_MAX;
    case LM_F64: return DBL_MAX;
    default: return 0;
  }
}

bool lm_dtype_has(lm_dtype dtype, double number) {
  if (dtype == LM_BOOL) return true;
  if (lm_dtype_is_float(dtype)) return !isfinite(number) || fabs(number) <= lm_dtype_largest(dtype);
  double low = (double)facts[dtype].low, high = (double)facts[dtype].high;
  if (facts[dtype].low == 0) low = -high;
  return dtype == LM_I64 ? number >= low && number < 0x1p63 : trunc(number) >= low && trunc(number) <= high;
}

lm_status lm_dtype_parse(const char *name, lm_dtype *out) {
  for (int i = 0; i < NAMES; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *out = i < LM_DTYPE_COUNT ? (lm_dtype)i : alias_of[i - LM_DTYPE_COUNT];
    return LM_OK;
  }
  const char *nearest = lm_nearest(name, NAMES, names);
  if (nearest) return lm_fail(LM_E_DTYPE, "unknown dtype '%s'; did you mean '%s'?", lm_ellipsize(name, 60), nearest);
  char all[200] = "";
  for (int d = 0; d < LM_DTYPE_COUNT; d++) strcat(strcat(all, d ? ", " : ""), names[d]);
  return lm_fail(LM_E_DTYPE, "unknown dtype '%s'; dtypes are %s", lm_ellipsize(name, 60), all);
}

/* Compares dtypes: floating ones are numbered in order of promotion, except that neither 16-bit one holds the other. So
 * are integers, except where one is signed and the other has the larger maximum. */
lm_dtype lm_dtype_promote(lm_dtype a, lm_dtype b) {
  if ((a == LM_F16 && b == LM_BF16) || (a == LM_BF16 && b == LM_F16)) return LM_F32;
  lm_dtype most = a > b ? a : b, least = a > b ? b : a;
  while (!lm_dtype_is_float(most) && !lm_dtype_holds(most, facts[least].low, facts[least].high)) most++;
  return most;
}

float lm_half_to_float(uint16_t h) { return lm_from_half(h); }
uint16_t lm_float_to_half(float f) { return lm_to_half(f); }
