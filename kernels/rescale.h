/* Multiplies many tensors by a number, in few launches. Enqueues on the stream and returns a cudaError_t. */
#pragma once

#include <stdint.h>

#include "c_linkage.h"

/* Sizes of tables of tensors of one pair of dtypes, which are kernel arguments, at most 4 KB. Elements are divided into
 * chunks, one for each block: tensor i has chunks first[i] to first[i + 1] - 1. */
enum {
  LM_RESCALE_TENSORS = 128,
  LM_RESCALE_CHUNK = 16384, /* elements of a block's chunk */
};

typedef struct lm_rescale_table {
  int n;
  uint32_t first[LM_RESCALE_TENSORS + 1];
  double factor;
  float *found; /* becomes 1 if a value is infinite or NaN; may be NULL */
  int64_t numel[LM_RESCALE_TENSORS];
  const void *from[LM_RESCALE_TENSORS];
  void *to[LM_RESCALE_TENSORS];
} lm_rescale_table;

LM_C int lm_rescale_run(int from_dtype, int to_dtype, const lm_rescale_table *table, void *stream);
