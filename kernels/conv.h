/* Computes convolutions that cuDNN has no engine for, as the definition's plain sums. */
#pragma once

#include "c_linkage.h"
#include "conv_shape.h"

/* Tensors of any strides, in elements. */
typedef struct lm_conv_sums {
  int dtype; /* dtype of all tensors; floating-point */
  lm_conv_shape shape;
  void *x, *weight, *y;
  int64_t x_stride[4], w_stride[4], y_stride[4];
  const void *bias; /* [k], or NULL; forward only */
  int64_t bias_stride;
} lm_conv_sums;
/* Writes the tensor that the pass computes. */
LM_C int lm_k_conv(lm_conv_pass pass, const lm_conv_sums *job, void *stream);
