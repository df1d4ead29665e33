/* Fills tensors with sequences and random numbers, and draws dropout's masks. Functions return a cudaError_t. For C and
 * CUDA. */
#pragma once

#include "c_linkage.h"
#include "philox.h"
#include "strided.h"

enum {
  LM_ARANGE,
  LM_ARANGE_WHOLE,
  LM_LINSPACE,
  LM_UNIFORM,
  LM_NORMAL,
  LM_LOG_NORMAL,
  LM_EXPONENTIAL,
  LM_CAUCHY,
  LM_GEOMETRIC,
  LM_BERNOULLI,
  LM_INTEGERS
};

typedef struct lm_fill_source {
  int kind;
  lm_blocks_drawn draw;
  /* arange: start, step; linspace: start, step, stop; other ops: their numbers, as from and to, or mean and
   * deviation */
  double a, b, stop;
  int64_t from, to; /* arange of whole numbers: start, step; integers: from, to; linspace: unused, steps */
  uint32_t keep;    /* mask of each word's bits for float results; uniform numbers take those exact in the dtype */
} lm_fill_source;

/* Writes elements first, first + 1, … of the source to operand 0, whose dims are row-major; `first` is a multiple of 4;
 * fewer than 2^31 elements. Numbers are doubles for float64, else floats. */
LM_C int lm_fill_from(const lm_fill_source *source, const lm_strided_layout *at, int64_t first, void *stream);

/* Sets keep[i] to 1 if the upper 24 bits of word i reach `threshold`, else 0, and y[i] to x[i] * scale or 0.
 * Contiguous, n elements; dtype: that of x and y. */
LM_C int lm_dropout_mask(int dtype, const void *x, void *y, uint8_t *keep, int64_t n, lm_blocks_drawn draw,
                         uint32_t threshold, double scale, void *stream);
