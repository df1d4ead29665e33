/* Prepares operands of the four matrix products for backends. */
#pragma once

#include "op_args_products.h"

/* Sets `stride` to input's strides along y's dims, 0 where input broadcasts. */
LM_API void lm_product_spread(const lm_product_args *p, const lm_tensor *y, int64_t *stride);

/* The last two dims of a tensor as a matrix for BLAS, with the batch dim of a 3-d tensor before them. */
typedef struct lm_matrix {
  const lm_tensor *t; /* the tensor itself, or `copy` */
  lm_tensor *copy;
  int64_t rows, columns, ld, step;
  bool transposed;
} lm_matrix;

/* Describes t as a matrix; copies it unless dtype and strides suit BLAS. The caller releases m->copy, NULL if none. */
LM_API lm_status lm_matrix_describe(const lm_tensor *t, lm_dtype dtype, lm_matrix *m);
/* Sets y to gelu_tanh of `before` or, unless grad is NULL, to its gradient there; y may be grad. */
LM_API lm_status lm_product_gelu(lm_tensor *grad, const lm_tensor *before, lm_tensor *y);
/* Adds `part`, a product, to y. */
LM_API lm_status lm_product_add(lm_tensor *part, lm_tensor *y);
/* Returns in *out the sums of mm_with_sums with the summed dim, which reductions keep. */
LM_API lm_status lm_product_sums(bool of_other, lm_tensor *sums, lm_tensor **out);
