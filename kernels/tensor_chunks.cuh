/* Finds tensors in tables whose elements are divided into chunks, one for each block. */
#pragma once

#include "launch.cuh"

/* Returns the one of n entries that has this chunk: the last whose first chunk, first(i), is not after it. */
template <class F>
LM_DEVICE int lm_owner_of(int n, uint32_t chunk, F first) {
  int low = 0, high = n - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (first(middle) <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Returns the tensor of a table that has this block's chunk. */
template <class Table>
LM_DEVICE int lm_tensor_of(const Table &table) {
  return lm_owner_of(table.n, blockIdx.x, [&](int i) { return table.first[i]; });
}
