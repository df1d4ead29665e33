/* A convolution, whichever of its three passes it is. */
#pragma once

#include "op/op.h"

/* x: [n, c, h, w], weight: [k, c / groups, kh, kw], y: [n, k, oh, ow]. Pairs are (vertical, horizontal). */
typedef struct lm_conv_shape {
  int64_t n, c, h, w;
  int64_t k, kh, kw;
  int64_t oh, ow;
  int64_t stride[2], padding[2], dilation[2], groups;
} lm_conv_shape;

/* From the sizes of x (4 of them) and of the weight; checks every number against every other.
 * LM_E_ARG for a stride, padding, dilation or groups that makes no sense, LM_E_SHAPE for sizes that do not fit. */
LM_API lm_status lm_conv_shape_of(lm_op_id op, const int64_t *x, const int64_t *weight, const int64_t *stride,
                                  const int64_t *padding, const int64_t *dilation, int64_t groups, lm_conv_shape *out);

typedef enum lm_conv_pass {
  LM_CONV_FORWARD, /* y = x * w + bias */
  LM_CONV_INPUT,   /* x, from y (its gradient) and w */
  LM_CONV_WEIGHT,  /* w, from y (its gradient) and x */
} lm_conv_pass;

/* What the slots of the three ops are called with, alike for all. */
typedef struct lm_conv_call {
  lm_conv_pass pass;
  lm_conv_shape shape;
  lm_tensor *t[3]; /* x, weight, y: the one that `pass` computes is written, the others are read */
  lm_tensor *bias; /* [k], or NULL; forward only */
} lm_conv_call;

/* From the arguments and outputs of the slot of conv2d, conv2d_input or conv2d_weight. */
LM_API lm_status lm_conv_call_of(lm_op_id op, const void *args, lm_tensor *const *out, lm_conv_call *call);
/* The forward or the input pass of integers, by copies and products. */
lm_status lm_conv_integers(const lm_conv_call *call);
/* Which of t is computed. */
static inline int lm_conv_result(lm_conv_pass pass) {
  return pass == LM_CONV_FORWARD ? 2 : pass == LM_CONV_INPUT ? 0 : 1;
}
