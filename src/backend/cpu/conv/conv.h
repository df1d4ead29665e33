/* The ways the CPU has to compute a convolution. conv.c chooses; all take channels-last images,
 * x [n, h, w, c] and y [n, oh, ow, k] in memory, and weights w [k, c / groups, kh, kw], dense. */
#pragma once

#include "op/nn/conv.h"

typedef struct lm_conv_job {
  lm_conv_pass pass;
  lm_conv_shape shape;
  lm_dtype dtype;
  lm_device device; /* whose allocator returns scratch memory */
  void *x, *w, *y;  /* the one that `pass` computes is written, the others are read */
  const void *bias; /* [k] or NULL; forward only */
  bool x_planar;    /* x is [n, c, h, w] in memory, which products and depthwise convolutions read as it lies */
} lm_conv_job;

/* winograd.c: float32, 3 x 3 kernels, stride 1. */
bool lm_wino_is_supported(const lm_conv_job *job);
/* Worth it: faster than direct convolution. */
bool lm_wino_is_faster(const lm_conv_job *job);
lm_status lm_wino_conv(const lm_conv_job *job);

/* product_1x1.c: float32 and float64; 1 x 1 kernels without a stride, and kernels as large as planar images, which
 * lm_product_takes_window finds. */
bool lm_product_takes_window(const lm_conv_job *job);
bool lm_product_takes(const lm_conv_job *job);
lm_status lm_product_conv(const lm_conv_job *job);

/* depthwise.c: float32, as many groups as channels in and out. */
bool lm_depthwise_takes(const lm_conv_job *job);
lm_status lm_depthwise_conv(const lm_conv_job *job);

/* scattered.c: float32 and float64, the gradient of x where its channels fill vectors badly. */
bool lm_scattered_takes(const lm_conv_job *job);
lm_status lm_scattered_conv(const lm_conv_job *job);

/* direct.c: float32 and float64, any sizes. */
lm_status lm_direct_conv(const lm_conv_job *job);
