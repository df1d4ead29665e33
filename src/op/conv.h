/* The sizes of one convolution, the same for its three passes. */
#ifndef LM_OP_CONV_H
#define LM_OP_CONV_H

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

#endif
