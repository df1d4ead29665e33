#include "backend/cpu/isa/attention.h"

#include "backend/cpu/isa/functions.h"

enum { LANES = 64 };
#define SIMD _Pragma("omp simd")

/* e^x of an x that is 0 or below but for rounding: lm_expf without what larger ones need, and 0 where the result is
 * below the smallest normal number. */
LM_INLINE float lm_power_F32(float x) {
  const float least = -87.3f;
  float in = x < least ? least : x; /* NaN stays */
  float n = rintf(in * 1.44269504088896341f);
  float r = in - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  union {
    uint32_t bits;
    float value;
  } scale = {(uint32_t)((int32_t)n + 127) << 23};
  return x < least ? 0 : p * scale.value;
}
LM_INLINE double lm_power_F64(double x) { return exp(x); }
#define POWER LM_FN(lm_power)

#define LM_E F32
#include "backend/cpu/isa/templates/attention.inc"
#undef LM_E
#define LM_E F64
#include "backend/cpu/isa/templates/attention.inc"
