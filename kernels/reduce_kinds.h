/* Lists the reductions and the softmaxes. For C and CUDA. */
#pragma once

#include <math.h>

/* Integers have SUM, PRODUCT, NONZERO, MAX, MIN, ARGMAX and ARGMIN. In extremes NaN wins; of equal elements the
 * first. */
typedef enum lm_reduce_kind {
  LM_REDUCE_SUM,
  LM_REDUCE_PRODUCT,
  LM_REDUCE_NUMBERS, /* the sum of elements that are not NaN */
  LM_REDUCE_ABS,
  LM_REDUCE_SQUARE,
  LM_REDUCE_POWER, /* |x|^p */
  LM_REDUCE_NONZERO,
  LM_REDUCE_MAX,
  LM_REDUCE_MIN,
  LM_REDUCE_ABS_MAX,
  LM_REDUCE_ABS_MIN,
  LM_REDUCE_DEVIATION, /* the sum of (x - mean)^2 */
  LM_REDUCE_LOGSUMEXP,
  LM_REDUCE_EXP, /* the sum of e^(x - c), for the CPU's logsumexp */
  LM_REDUCE_ARGMAX,
  LM_REDUCE_ARGMIN,
  LM_REDUCE_KINDS
} lm_reduce_kind;

/* Returns the fold whose value, or its pth root for SQUARE and POWER, is the p-norm. */
static inline lm_reduce_kind lm_reduce_norm_kind(double p) {
  return p == 0           ? LM_REDUCE_NONZERO
         : p == 1         ? LM_REDUCE_ABS
         : p == 2         ? LM_REDUCE_SQUARE
         : p == INFINITY  ? LM_REDUCE_ABS_MAX
         : p == -INFINITY ? LM_REDUCE_ABS_MIN
                          : LM_REDUCE_POWER;
}

typedef enum lm_softmax_kind {
  LM_SOFTMAX,
  LM_LOG_SOFTMAX,
  LM_SOFTMAX_BACKWARD, /* x is the gradient, y softmax's result */
  LM_LOG_SOFTMAX_BACKWARD,
  LM_SOFTMAX_KINDS
} lm_softmax_kind;
