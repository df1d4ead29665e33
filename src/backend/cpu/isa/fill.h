/* Random numbers into tiles, and dropout: elements first .. first + n - 1 of a draw, counted as kernels/philox.h says.
 */
#pragma once

#include "backend/cpu/isa.h"
#include "backend/cpu/isa/dropping.h"
#include "op/op.h"
#include "tensor/generator.h"

typedef struct lm_random {
  lm_draw draw;
  double a, b;      /* an op's numbers: from, to; mean, standard deviation; p; … */
  int64_t from, to; /* of integers */
  uint32_t keep;    /* uniform_f32: the bits of each word that the result's dtype holds exactly */
} lm_random;

typedef struct lm_cosines {
  double step, a0, a1, a2;
} lm_cosines;

typedef struct lm_sequence {
  double start, step, stop;
  int64_t steps; /* linspace counts its second half from the end, so that stop is met exactly */
} lm_sequence;

struct lm_fill_loops { /* context: lm_random; first: a multiple of 4 */
  /* Floats of a distribution; doubles for float64, and of geometric; int64_t of integers. */
  void (*f32[LM_DISTRIBUTIONS])(const void *context, int64_t first, int n, void *tile);
  void (*wide[LM_DISTRIBUTIONS])(const void *context, int64_t first, int n, void *tile);
  void (*bits)(const void *context, int64_t first, int n, void *tile); /* uint64_t, random */
  /* a0 - a1 cos(k step) + a2 cos(2 k step) of place k, from 0; context: lm_cosines; doubles. */
  void (*cosines)(const void *context, int64_t first, int n, void *tile);
  /* start + k step of place k, from 0; context: lm_sequence; doubles or int64_t. linspace: doubles. */
  void (*arange_f64)(const void *context, int64_t first, int n, void *tile);
  void (*arange_i64)(const void *context, int64_t first, int n, void *tile);
  void (*linspace)(const void *context, int64_t first, int n, void *tile);
  /* Elements from .. to - 1 of a draw: keep[i] is whether it is kept (keep: or NULL), y[i] is x[i] * scale or 0. By the
   * dtype of x and y. */
  void (*dropout[LM_DTYPE_COUNT])(const void *x, void *y, uint8_t *keep, int64_t from, int64_t to,
                                  const lm_dropping *d);
};

LM_ISA_DECLARE(struct lm_fill_loops, lm_fill_loops);
