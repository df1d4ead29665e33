/* Sorts and selects by CUB, which no other file includes. For the host the same functions are plain loops (cub.h). */
#include "cub.h"

#ifdef LM_HOST_KERNELS

#include <algorithm>
#include <vector>

#include LM_HOST_KERNELS

template <class Key>
static int lm_sort_pairs(void *stream, const Key *keys, Key *sorted_keys, const uint32_t *values,
                         uint32_t *sorted_values, int64_t n, int bits) {
  return lm_fake_enqueue(stream, [=]() {
    Key mask = bits < (int)sizeof(Key) * 8 ? (Key)(((Key)1 << bits) - 1) : ~(Key)0;
    std::vector<int64_t> order((size_t)n);
    for (int64_t i = 0; i < n; i++) order[(size_t)i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [=](int64_t a, int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
    for (int64_t i = 0; i < n; i++) {
      sorted_keys[i] = keys[order[(size_t)i]];
      sorted_values[i] = values[order[(size_t)i]];
    }
  });
}

int lm_cub_indices(void *stream, void *temp, size_t *bytes, const uint8_t *flags, int64_t n, int64_t *indices,
                   int64_t *count) {
  *bytes = 1;
  if (!temp) return 0;
  return lm_fake_enqueue(stream, [=]() {
    *count = 0;
    for (int64_t i = 0; i < n; i++) {
      if (flags[i]) indices[(*count)++] = i + 1;
    }
  });
}

#else

#define CCCL_DISABLE_NVTX
#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

int lm_cub_indices(void *stream, void *temp, size_t *bytes, const uint8_t *flags, int64_t n, int64_t *indices,
                   int64_t *count) {
  return (int)cub::DeviceSelect::Flagged(temp, *bytes, thrust::counting_iterator<int64_t>(1), flags, indices, count, n,
                                         (cudaStream_t)stream);
}

#endif

int lm_cub_sort_pairs(void *stream, void *temp, size_t *bytes, int key_bytes, const void *keys, void *sorted_keys,
                      const uint32_t *values, uint32_t *sorted_values, int64_t n, int bits) {
#ifdef LM_HOST_KERNELS
  *bytes = 1;
  if (!temp) return 0;
  return key_bytes == 8
             ? lm_sort_pairs(stream, (const uint64_t *)keys, (uint64_t *)sorted_keys, values, sorted_values, n, bits)
             : lm_sort_pairs(stream, (const uint32_t *)keys, (uint32_t *)sorted_keys, values, sorted_values, n, bits);
#else
  return (int)(key_bytes == 8
                   ? cub::DeviceRadixSort::SortPairs(temp, *bytes, (const uint64_t *)keys, (uint64_t *)sorted_keys,
                                                     values, sorted_values, (uint32_t)n, 0, bits, (cudaStream_t)stream)
                   : cub::DeviceRadixSort::SortPairs(temp, *bytes, (const uint32_t *)keys, (uint32_t *)sorted_keys,
                                                     values, sorted_values, (uint32_t)n, 0, bits,
                                                     (cudaStream_t)stream));
#endif
}
