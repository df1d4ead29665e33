/* Declares pooling loops. A plane is one image with all its channels interleaved (channels-last, c = C), or one channel
 * of one image (contiguous, c = 1): either way [H, W, c] in memory. */
#pragma once

#include "backend/cpu/isa.h"
#include "base/parallel.h"
#include "tensor/dtype.h"

/* Windows along one axis. Window o covers the positions begin[o], begin[o] + step, … below end[o] and
 * divides by count[o] (times the other axis's); position i is in the windows first[i] .. last[i] - 1. */
typedef struct lm_pooling_axis {
  int64_t in, out, step;
  int32_t *begin, *end, *count; /* [out] */
  int32_t *first, *last;        /* [in], for avg_back alone */
} lm_pooling_axis;

typedef struct lm_pooling_work {
  lm_pooling_axis y, x;
  int64_t planes, c;
  const void *src;     /* forward: [planes, y.in, x.in, c]; backward: the gradient, out sizes */
  void *dst;           /* forward: [planes, y.out, x.out, c]; backward: in sizes */
  int64_t *indices;    /* max: [planes, y.out, x.out, c], in the plane, from 1; NULL: not stored (c = 1, floating) */
  int64_t blocks;      /* max_back: number of units that channels are split into */
  const void *relu_of; /* avg, avg_back: the image, if its ReLU is pooled, else NULL */
  _Atomic int64_t bad; /* max_back: number of bad indices found */
} lm_pooling_work;

/* Run units of a work: rows of the destination, counted over all planes (max, avg, avg_back), or plane * blocks + block
 * (max_back). lm_scratch: for max_back of half types, a float for each position of a plane's block of channels; for
 * others 16 bytes for each position of a row of the image, or window, whichever are more. */
struct lm_pooling_loops { /* loops by dtype; NULL: none */
  lm_parallel_fn *max[LM_DTYPE_COUNT], *max_back[LM_DTYPE_COUNT], *avg[LM_DTYPE_COUNT], *avg_back[LM_DTYPE_COUNT];
};
LM_ISA_DECLARE(struct lm_pooling_loops, lm_pooling_loops);
