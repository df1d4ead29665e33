/* Describes strided operands for strided.cuh's kernels. For C and CUDA. */
#pragma once

#include <stdint.h>

#include "dtypes.h"

enum { LM_STRIDED_DIMS = 8, LM_STRIDED_OPERANDS = 5 };

/* Sizes and strides of operands. Dim 0 is the innermost; at least one dim. Operand 0 is the result. */
typedef struct lm_strided_layout {
  int ndim, operands;
  int64_t size[LM_STRIDED_DIMS];
  void *data[LM_STRIDED_OPERANDS]; /* NULL: a number known on the host */
  int dtype[LM_STRIDED_OPERANDS];
  int64_t stride[LM_STRIDED_OPERANDS][LM_STRIDED_DIMS]; /* strides in elements; 0 where broadcast */
} lm_strided_layout;
