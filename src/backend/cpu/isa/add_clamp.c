#include "backend/cpu/isa/add_clamp.h"

#include "backend/cpu/isa/elem.h"

LM_INLINE float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

static void add_and_clamp(float *y, const float *other, int64_t n, float low, float high) {
  if (other) {
    for (int64_t i = 0; i < n; i++) y[i] = clamp(y[i] + other[i], low, high);
  } else {
    for (int64_t i = 0; i < n; i++) y[i] = clamp(y[i], low, high);
  }
}

const struct lm_add_clamp_loops LM_ISA_NAME(lm_add_clamp_loops) = {.run = add_and_clamp};
