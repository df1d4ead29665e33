/* Declares loops that fill tiles with random numbers and sequences, and dropout: elements first .. first + n - 1 of a
 * draw, counted as kernels/philox.h says. */
#pragma once

#include "backend/cpu/isa.h"
#include "backend/cpu/isa/dropout.h"
#include "op_choices.h"
#include "tensor/generator.h"

typedef struct lm_random {
  lm_draw draw;
  double a, b;      /* an op's numbers: from, to; mean, standard deviation; p; … */
  int64_t from, to; /* integers are drawn from [from, to) */
  uint32_t keep;    /* uniform_f32: mask of the bits of a word that the result's dtype holds exactly */
} lm_random;

typedef struct lm_cosines {
  double step, a0, a1, a2;
} lm_cosines;

typedef struct lm_sequence {
  double start, step, stop;
  int64_t steps; /* linspace counts its second half from the end, so that stop is met exactly */
} lm_sequence;

struct lm_fill_loops { /* context: lm_random; first: a multiple of 4 */
  /* Draw from a distribution: f32 floats; wide doubles (float64, geometric) or int64_t (integers). */
  void (*f32[LM_DISTRIBUTIONS])(const void *context, int64_t first, int n, void *tile);
  void (*wide[LM_DISTRIBUTIONS])(const void *context, int64_t first, int n, void *tile);
  void (*bits)(const void *context, int64_t first, int n, void *tile); /* random uint64_t */
  /* Computes a0 - a1 cos(k step) + a2 cos(2 k step) for index k, from 0, in double; context: lm_cosines. */
  void (*cosines)(const void *context, int64_t first, int n, void *tile);
  /* Compute start + k step for index k, from 0, in double or int64_t; linspace in double; context: lm_sequence. */
  void (*arange_f64)(const void *context, int64_t first, int n, void *tile);
  void (*arange_i64)(const void *context, int64_t first, int n, void *tile);
  void (*linspace)(const void *context, int64_t first, int n, void *tile);
  /* Applies dropout to elements from .. to - 1 of a draw: keep[i], unless keep is NULL, is 1 for kept ones, and y[i] is
   * x[i] * scale or 0. By the dtype of x and y. */
  void (*dropout[LM_DTYPE_COUNT])(const void *x, void *y, uint8_t *keep, int64_t from, int64_t to,
                                  const lm_dropout_params *d);
};

LM_ISA_DECLARE(struct lm_fill_loops, lm_fill_loops);
