/* Declares loops for depthwise convolutions of float32, channels-last: each channel has its own kernel. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"

/* Adjacent pixels that read the same taps: `rows` rows of `taps` each. Steps and offsets are in elements. */
typedef struct lm_depthwise_pixels {
  int64_t channels, pixels, rows, taps;
  const int64_t *offset;         /* offset of each row's first tap from `from` */
  float *const *weight;          /* [channels] weights of each row's first tap */
  int64_t tap_step, weight_step; /* from one tap of a row to the next; between their weights */
  const float *from;
  int64_t from_step;
  float *to;
  int64_t to_step;
  const float *bias; /* [channels], or NULL */
  /* Memory to prefetch for the line below: from `next` elements after `from` on, next_lines lines, next_step apart,
   * `stride` pixels for each one here, next_pixel apart; and next_to after `to`. */
  int64_t next, next_lines, next_step, stride, next_pixel, next_to;
} lm_depthwise_pixels;

struct lm_depthwise_loops {
  /* Computes to = the sums of taps times weights, plus bias. */
  void (*forward)(const lm_depthwise_pixels *p);
  /* Adds to each tap's weight its pixels times those of `to`, the gradient. */
  void (*weight)(const lm_depthwise_pixels *p);
};

LM_ISA_DECLARE(struct lm_depthwise_loops, lm_depthwise_loops);
