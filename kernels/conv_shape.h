/* Describes the sizes of a convolution, for every device. */
#pragma once

#include <stdint.h>

/* x: [n, c, h, w], weight: [k, c / groups, kh, kw], y: [n, k, oh, ow]. Pairs are (vertical, horizontal). */
typedef struct lm_conv_shape {
  int64_t n, c, h, w;
  int64_t k, kh, kw;
  int64_t oh, ow;
  int64_t stride[2], padding[2], dilation[2], groups;
} lm_conv_shape;

typedef enum lm_conv_pass {
  LM_CONV_FORWARD, /* computes y = x * w + bias */
  LM_CONV_INPUT,   /* computes x's gradient from y's and w */
  LM_CONV_WEIGHT,  /* computes w's gradient from y's and x */
} lm_conv_pass;
