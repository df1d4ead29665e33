/* Declares the last step of a convolution that is joined with the layers after it. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"

struct lm_add_clamp_loops {
  /* Computes y = min(high, max(low, y + other)) for n elements; other may be NULL. A NaN stays NaN. */
  void (*run)(float *y, const float *other, int64_t n, float low, float high);
};

LM_ISA_DECLARE(struct lm_add_clamp_loops, lm_add_clamp_loops);
