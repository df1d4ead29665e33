/* Strided operands as strided_walk.cuh's kernels go through them. For C and CUDA. */
#ifndef LM_KERNELS_WALK_H
#define LM_KERNELS_WALK_H

#include <stdint.h>

#include "dtypes.h"

enum { LM_WALK_DIMS = 8, LM_WALK_OPERANDS = 5 };

/* Dim 0 is the innermost; at least one dim. Operand 0 is the result. */
typedef struct lm_walk_layout {
  int ndim, operands;
  int64_t size[LM_WALK_DIMS];
  void *data[LM_WALK_OPERANDS]; /* NULL: a number known on the host */
  int dtype[LM_WALK_OPERANDS];
  int64_t stride[LM_WALK_OPERANDS][LM_WALK_DIMS]; /* in elements; 0 where broadcast */
} lm_walk_layout;

#endif
