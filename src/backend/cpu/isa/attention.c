#include "backend/cpu/isa/attention.h"

#include "backend/cpu/isa/functions.h"

enum { LANES = 64, DRAWN = 256 };

/* Returns e^x of an x that is 0 or below except for rounding: lm_expf without the code for larger ones, and 0 if the
 * result is below the smallest normal number. */
LM_INLINE float lm_power_F32(float x) {
  const float least = -87.3f;
  float in = x < least ? least : x; /* NaN stays */
  int32_t exponent;
  float p = lm_exp_rest(in, &exponent);
  union {
    uint32_t bits;
    float value;
  } scale = {(uint32_t)(exponent + 127) << 23};
  return x < least ? 0 : p * scale.value;
}
LM_INLINE double lm_power_F64(double x) { return exp(x); }
#define POWER LM_FN(lm_power)

/* Returns how many columns the causal mask lets row r see. */
static int64_t seen_by(const lm_score_block *b, int64_t r) {
  int64_t n = b->causal + r;
  return n < 0 ? 0 : n < b->cols ? n : b->cols;
}

static const int32_t *drawn_bits(const lm_score_block *b, int64_t r, int64_t first, int64_t n, int32_t *scratch) {
  return lm_drawn_bits(b->drop->draw, b->position + r * b->position_row + first, n, scratch);
}

#define LM_TEMPLATE "backend/cpu/isa/templates/attention.inc"
#include "backend/cpu/isa/templates/each_real.inc"
