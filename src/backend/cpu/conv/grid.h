/* Finds the pixels that a convolution reads for those that it writes. The gradient of x reads y's gradient and writes
 * x; the other passes read x, and write y or read its gradient. */
#pragma once

#include "backend/cpu/conv/conv.h"

/* Position i of a grid reads pixels first + i * (the grid's step) + t * step, by tap index + t * index_step. */
typedef struct lm_taps {
  int64_t first, step, count;
  int64_t index, index_step;
} lm_taps;

/* Returns the rows (0) or columns (1) of taps that grid `at` of x reaches, ordered by the pixels that they read. These
 * are all taps, except in the gradient of x: there they are `step` pixels of y and `index_step` taps apart. */
static inline lm_taps lm_taps_of(const lm_conv_job *job, int dim, int64_t at) {
  const lm_conv_shape *s = &job->shape;
  const int64_t size = dim == 0 ? s->kh : s->kw, stride = s->stride[dim], dilation = s->dilation[dim];
  lm_taps t = {-s->padding[dim], dilation, size, 0, 1};
  if (job->pass != LM_CONV_INPUT) return t;
  t.count = 0;
  for (int64_t i = size - 1; i >= 0; i--) {
    const int64_t y = at + s->padding[dim] - i * dilation;
    if (y % stride) continue;
    if (t.count == 0) t.first = y / stride, t.index = i;
    if (t.count == 1) t.step = y / stride - t.first, t.index_step = i - t.index;
    t.count++;
  }
  return t;
}

typedef struct lm_conv_images {
  char *data; /* [n, h, w, c] */
  int64_t h, w, c;
} lm_conv_images;

static inline lm_conv_images lm_conv_source(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  if (job->pass == LM_CONV_INPUT) return (lm_conv_images){job->y, s->oh, s->ow, s->k};
  return (lm_conv_images){job->x, s->h, s->w, s->c};
}
static inline lm_conv_images lm_conv_target(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  if (job->pass == LM_CONV_INPUT) return (lm_conv_images){job->x, s->h, s->w, s->c};
  return (lm_conv_images){job->y, s->oh, s->ow, s->k};
}

/* Positions [h, w] that read the same taps. (i, j) is the target's pixel first + step * (i, j), and its taps begin at
 * the source's pixel from_step * (i, j). */
typedef struct lm_conv_grid {
  int64_t h, w, first[2], step[2], from_step[2];
  lm_taps rows, columns;
} lm_conv_grid;

/* Sets how many grids there are, down and across: with a stride, the pixels of x in its gradient are in grids of one
 * remainder each. */
static inline void lm_conv_grids(const lm_conv_job *job, int64_t grids[2]) {
  const lm_conv_shape *s = &job->shape;
  grids[0] = job->pass == LM_CONV_INPUT ? lm_min(s->stride[0], s->h) : 1;
  grids[1] = job->pass == LM_CONV_INPUT ? lm_min(s->stride[1], s->w) : 1;
}

static inline lm_conv_grid lm_conv_grid_of(const lm_conv_job *job, int64_t i, int64_t j) {
  const lm_conv_shape *s = &job->shape;
  const int64_t *stride = s->stride;
  lm_conv_grid g = {.h = s->oh, .w = s->ow, .step = {1, 1}, .from_step = {stride[0], stride[1]}};
  if (job->pass == LM_CONV_INPUT)
    g = (lm_conv_grid){.h = lm_ceil_div(s->h - i, stride[0]),
                       .w = lm_ceil_div(s->w - j, stride[1]),
                       .first = {i, j},
                       .step = {stride[0], stride[1]},
                       .from_step = {1, 1}};
  g.rows = lm_taps_of(job, 0, i), g.columns = lm_taps_of(job, 1, j);
  return g;
}
