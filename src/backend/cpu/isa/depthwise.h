/* Declares loops for depthwise convolutions of float32, channels-last: each channel has its own kernel. Convolutions in
 * groups of few channels have a row of taps for each channel of a group. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"

/* Adjacent pixels that read `rows` rows of `taps` each. Steps and offsets are in elements. */
typedef struct lm_depthwise_pixels {
  int64_t channels, pixels, rows, taps;
  int64_t group; /* channels of a group, a power of two up to `width`; channel c of row r reads channel c ^ r % group */
  /* Columns of the image: that of the first pixel's first tap, their number, those from one tap to the next. */
  int64_t left, width, tap_columns;
  const int64_t *offset;         /* offset of each row's first tap from `from` */
  float *const *weight;          /* [channels] weights of each row's first tap */
  int64_t tap_step, weight_step; /* from one tap of a row to the next; between their weights */
  const float *from;
  int64_t from_step;
  float *to;
  int64_t to_step;
  const float *bias; /* [channels], or NULL */
  /* Memory to prefetch for the line below: from `next` elements after `from` on, next_lines lines, next_step apart,
   * `stride` pixels for each one here, next_pixel apart; and next_to after `to`; 0: none. */
  int64_t next, next_lines, next_step, stride, next_pixel, next_to;
} lm_depthwise_pixels;

struct lm_depthwise_loops {
  int64_t width; /* channels of a register */
  /* Computes to = the sums of taps times weights, plus bias; without taps whose columns are outside the image. */
  void (*forward)(const lm_depthwise_pixels *p);
  /* Adds to each tap's weight its pixels times those of `to`, the gradient; all columns must be inside the image. */
  void (*weight)(const lm_depthwise_pixels *p);
};

LM_ISA_DECLARE(struct lm_depthwise_loops, lm_depthwise_loops);
