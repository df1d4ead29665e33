/* What the four matrix products have in common, for backends. */
#pragma once

#include "op/op.h"

/* input's strides along y's dims, 0 where it broadcasts. */
LM_API void lm_product_spread(const lm_product_args *p, const lm_tensor *y, int64_t *stride);

/* The last two dims of a tensor as a matrix that BLAS takes, with the batch dim of a 3-d one before them. */
typedef struct lm_matrix {
  const lm_tensor *t; /* the tensor itself, or `copy`, which is yours to release */
  lm_tensor *copy;
  int64_t rows, columns, ld, step;
  bool transposed;
} lm_matrix;

/* Without a copy where one of the two dims is contiguous, the other does not overlap and the dtype is right. */
LM_API lm_status lm_matrix_of(const lm_tensor *t, lm_dtype dtype, lm_matrix *m);
