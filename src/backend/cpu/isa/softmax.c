#include "backend/cpu/isa/softmax.h"

#include "backend/cpu/isa/functions.h"

enum { LANES = 64, SOME = 16, BLOCK = 4096 };
#define IS_COMPUTE_F32 1 /* memory has the type of the arithmetic */
#define IS_COMPUTE_F64 1
#define IS_COMPUTE_BF16 0
#define LM_WIDE(name) LM_OF(name)

/* Returns e^x of an x that is not above 0, or NaN: lm_expf without the code for larger numbers, and with half the
 * instructions of its scaling. 2^64 keeps the exponent's bits those of a normal number. */
static inline float negative_expf(float x) {
  int32_t exponent;
  float p = lm_exp_rest(x < -104.0f ? -104.0f : x, &exponent);
  union {
    uint32_t bits;
    float value;
  } power = {(uint32_t)(exponent + 64 + 127) << 23};
  return p * power.value * 0x1p-64f;
}
#define NEGATIVE_EXP LM_OF(NEGATIVE_EXP)
#define NEGATIVE_EXP_F32 negative_expf
#define NEGATIVE_EXP_F64 exp

static int block_at(int64_t i, int64_t n) { return n - i < BLOCK ? (int)(n - i) : BLOCK; }

#define LM_TEMPLATE "backend/cpu/isa/templates/softmax.inc"
#include "backend/cpu/isa/templates/each_real.inc"
#undef LM_OF
#define LM_OF(name) name##_F32
#define LM_E BF16
#include LM_TEMPLATE
