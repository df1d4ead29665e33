/* Finds tensors in tables whose elements are divided into chunks, one for each block. */
#pragma once

#include "launch.cuh"

/* Returns the tensor that has this chunk. */
LM_DEVICE int lm_tensor_with(const uint32_t *first, int n, uint32_t chunk) {
  int low = 0, high = n - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (first[middle] <= chunk) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
