/* Describes a convolution in any of its three passes: forward, gradient for x, gradient for the weight. */
#pragma once

#include "conv_shape.h"
#include "op/op.h"

/* A call of any of the three ops' kernels, in one form. */
typedef struct lm_conv_call {
  lm_conv_pass pass;
  lm_conv_shape shape;
  lm_tensor *t[3];  /* x, weight, y: `pass` writes one and reads the others */
  lm_tensor *bias;  /* [k], or NULL; forward only */
  lm_tensor *other; /* added to y, or NULL; forward only */
  int activation;   /* a value of lm_activation */
  float low, high;  /* limits of y, if `finishes` */
  bool finishes;    /* true if `other` is added, the activation applied or y limited */
} lm_conv_call;

/* Converts the arguments, which are checked, and the outputs of the kernel of conv2d, conv2d_with_epilogue,
 * conv2d_input or conv2d_weight. */
LM_API lm_conv_call lm_conv_call_of(lm_op_id op, const void *args, lm_tensor *const *out);
/* Runs the forward or input pass for integers, by copies and matrix products. */
lm_status lm_conv_integers(const lm_conv_call *call);
/* Returns the index in t of the tensor that the pass computes. */
static inline int lm_conv_result(lm_conv_pass pass) {
  return pass == LM_CONV_FORWARD ? 2 : pass == LM_CONV_INPUT ? 0 : 1;
}
