/* Computes convolutions that cuDNN has no engine for, as the definition's plain sums. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* x [n, c, h, w], weight [k, c / groups, kh, kw], y [n, k, oh, ow] with any strides, in elements. Pairs are (vertical,
 * horizontal). */
typedef struct lm_conv_sums {
  int dtype; /* dtype of all tensors; floating-point */
  int64_t n, c, h, w, k, kh, kw, oh, ow, groups;
  int64_t stride[2], padding[2], dilation[2];
  void *x, *weight, *y;
  int64_t x_stride[4], w_stride[4], y_stride[4];
  const void *bias; /* [k], or NULL; forward only */
  int64_t bias_stride;
} lm_conv_sums;
LM_C int lm_k_conv_forward(const lm_conv_sums *job, void *stream); /* writes y */
LM_C int lm_k_conv_input(const lm_conv_sums *job, void *stream);   /* writes x */
LM_C int lm_k_conv_weight(const lm_conv_sums *job, void *stream);  /* writes weight */
