/* Pools on CUDA. A plane is one image with all its channels interleaved (channels-last, c = C), or one channel of one
 * image (contiguous, c = 1): either way [H, W, c] in memory. All functions enqueue on the stream and return a
 * cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bad_values.h"
#include "c_linkage.h"

/* An axis: `out` windows over an input of `in` positions. Sliding: `kernel` positions each, `dilation` apart, the first
 * at -padding; in + 3 * padding + stride + kernel * dilation is below 2^31. Adaptive (kernel 0): `out` windows share
 * the input evenly. divisor: a mean divides by it (times the other axis's), not by its positions; or 0. */
typedef struct lm_pooling_line {
  int32_t in, out;
  int32_t kernel, stride, padding, dilation, divisor;
} lm_pooling_line;

typedef struct lm_pooling_job {
  int dtype;
  int64_t planes;
  int32_t c;
  lm_pooling_line y, x;
  bool count_padding; /* avg: a window divides by its positions in the padded input */
  const void *src;    /* forward: the input, [planes, y.in, x.in, c]; backward: the gradient, in out's sizes */
  void *dst;
  int64_t *indices; /* max: [planes, y.out, x.out, c], indices in H * W, from 1; or NULL */
  uint8_t *taps;    /* max: instead, indices in the window, row by row from 0; forward both may be NULL */
  lm_bad bad;       /* max_back: reports an index outside the plane */
  int bad_kind;
} lm_pooling_job;

/* A plane's elements, of the input or of the output, must be fewer than this. */
#define LM_POOLING_PLANE_MAX ((int64_t)1 << 31)

LM_C int lm_pooling_max(const lm_pooling_job *job, void *stream);
/* Gathers gradients by the windows' geometry: each position sums the windows that contain it. */
LM_C int lm_pooling_max_back(const lm_pooling_job *job, void *stream);
/* Adds each window's gradient at its index, a thread for each channel; does not read the windows' geometry (kernel,
 * stride, …). sums: [planes, y.in, x.in, c] of float for 16-bit dtypes, else NULL. */
LM_C int lm_pooling_max_scatter(const lm_pooling_job *job, float *sums, void *stream);
LM_C int lm_pooling_avg(const lm_pooling_job *job, void *stream);
LM_C int lm_pooling_avg_back(const lm_pooling_job *job, void *stream);
