/* Joins many tensors in one launch. Their descriptions are the kernel's arguments, at most 4 KB; longer lists take
 * several launches. Functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"
#include "merged_dims.h"

enum { LM_CAT_BLOCKS = 96, LM_CAT_PARTS = 32 }; /* the most inputs of a launch */

/* An input with the layout of its part of the result: [outer, run] beside [outer, total], in units of 1 to 16 bytes. */
typedef struct lm_cat_block {
  const void *from;
  int64_t run, start; /* start: offset of its part in a row of the result */
} lm_cat_block;

LM_C int lm_cat_blocks(void *stream, int unit, int64_t outer, int64_t total, int n, const lm_cat_block *blocks,
                       void *to);

/* An input of any strides and dtype. */
typedef struct lm_cat_part {
  const void *from;
  void *to; /* address of the input's first element in the result */
  int dtype;
  int64_t size;                /* size of the dim along which inputs are joined */
  int64_t stride[LM_DIMS_MAX]; /* strides in the order of lm_cat_shape's dims */
} lm_cat_part;

typedef struct lm_cat_shape {
  int ndim, dim, dtype; /* dims in the order of the result's memory, slowest first; dim: the joined one */
  int64_t size[LM_DIMS_MAX], stride[LM_DIMS_MAX]; /* the result's; size[dim] is ignored */
} lm_cat_shape;

LM_C int lm_cat_parts(void *stream, const lm_cat_shape *shape, int n, const lm_cat_part *parts);
