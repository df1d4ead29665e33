/* Depthwise convolutions of float32, channels-last: each channel by a kernel of its own. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"

/* Pixels side by side that look at the same taps; steps and offsets in elements. */
typedef struct lm_depthwise_pixels {
  int64_t channels, pixels, taps;
  const int64_t *offset;      /* of each tap, from `from` on */
  const float *const *weight; /* [channels] of each tap */
  const float *from;
  int64_t from_step;
  float *to;
  int64_t to_step;
  const float *bias; /* [channels], or NULL */
} lm_depthwise_pixels;

struct lm_depthwise_loops {
  /* to = the sums of taps times weights, plus bias. */
  void (*forward)(const lm_depthwise_pixels *p);
  /* weight of each tap, which is written, += its pixels times those of `to`, the gradient. */
  void (*weight)(const lm_depthwise_pixels *p);
};

LM_ISA_DECLARE(struct lm_depthwise_loops, lm_depthwise_loops);
