/* Finds the rows or columns of a convolution's kernel that reach a pixel, and the pixels that they read. */
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
