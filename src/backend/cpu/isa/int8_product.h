/* Products with rows of int8, each of which has a scale. */
#ifndef LM_CPU_ISA_INT8_PRODUCT_H
#define LM_CPU_ISA_INT8_PRODUCT_H

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_INT8_ROWS = 4 }; /* of x that `products` takes at a time */

struct lm_int8_loops {
  /* y[i * y_row + j] = scale[j] * (row i of x times row j of weight) + bias[j], for up to LM_INT8_ROWS rows of x and
   * `outs` of weight, of k numbers each; bias may be NULL. */
  void (*products)(int rows, int64_t outs, int64_t k, const float *x, const int8_t *weight, const float *scale,
                   const float *bias, float *y, int64_t y_row);
  /* Row j of out = scale[j] * row j of weight. */
  void (*expand)(int64_t outs, int64_t k, const int8_t *weight, const float *scale, float *out);
};

LM_ISA_DECLARE(struct lm_int8_loops, lm_int8_loops);

#endif
