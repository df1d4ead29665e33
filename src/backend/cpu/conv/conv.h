/* Declares the CPU's kernels for convolutions, among which conv.c chooses. All take channels-last images, x [n, h, w,
 * c] and y [n, oh, ow, k] in memory, and weights w [k, c / groups, kh, kw], dense. */
#pragma once

#include "backend/cpu/epilogue.h"
#include "op/nn/conv.h"
#include "tensor/prepack.h"

typedef struct lm_conv_job {
  lm_conv_pass pass;
  lm_conv_shape shape;
  lm_dtype dtype;
  void *x, *w, *y;         /* the one that `pass` computes is written, the others are read */
  const lm_tensor *weight; /* w's tensor, for forms that are kept */
  const void *bias;        /* [k] or NULL; forward only */
  lm_epilogue end;         /* epilogue of y as [n oh ow, k], if `finishes` */
  bool finishes;           /* true if the kernel must end with lm_epilogue_run for each of its results; forward only */
  bool x_planar; /* true if x is [n, c, h, w] in memory, which products and depthwise convolutions read in place */
} lm_conv_job;

static inline lm_status lm_conv_finish_all(const lm_conv_job *job) {
  return lm_epilogue_run_all(&job->end, job->shape.n * job->shape.oh * job->shape.ow);
}

/* Returns true for float32, 3 x 3 kernels and stride 1 (winograd.c). */
bool lm_wino_is_supported(const lm_conv_job *job);
/* Returns true if Winograd is faster than direct convolution. */
bool lm_wino_is_faster(const lm_conv_job *job);
lm_status lm_wino_conv(const lm_conv_job *job);

/* Convolve by product_1x1.c, float32 and float64: 1 x 1 kernels without a stride, and kernels as large as planar
 * images, which lm_product_takes_window finds. */
bool lm_product_takes_window(const lm_conv_job *job);
bool lm_product_takes(const lm_conv_job *job);
lm_status lm_product_conv(const lm_conv_job *job);

/* Convolve by depthwise.c, float32 with as many groups as channels in and out. */
bool lm_depthwise_takes(const lm_conv_job *job);
lm_status lm_depthwise_conv(const lm_conv_job *job);

/* Convolve by scattered.c, float32 and float64: the gradient of x whose channels fill vectors badly. */
bool lm_scattered_takes(const lm_conv_job *job);
lm_status lm_scattered_conv(const lm_conv_job *job);

/* Convolves by direct.c, float32 and float64 of any sizes. */
lm_status lm_direct_conv(const lm_conv_job *job);
