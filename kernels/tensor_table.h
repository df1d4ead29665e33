/* Lists tensors for kernels over many of them at once. */
#pragma once

#include <stdint.h>

enum {
  LM_TABLE_TENSORS = 128,
  LM_TABLE_CHUNK = 16384, /* elements of a block's chunk */
};

/* Tensors of one dtype, or pairs of two dtypes, as a kernel's argument, at most 4 KB. Elements are divided into chunks,
 * one for each block: tensor i has chunks first[i] to first[i + 1] - 1. */
typedef struct lm_tensor_table {
  int n;
  uint32_t first[LM_TABLE_TENSORS + 1];
  int64_t numel[LM_TABLE_TENSORS];
  const void *from[LM_TABLE_TENSORS];
  void *to[LM_TABLE_TENSORS];
} lm_tensor_table;
