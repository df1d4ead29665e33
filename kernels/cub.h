/* Sorts and selects on the device, by CUB. Each function is called twice: with temp NULL it sets *bytes to the size of
 * temp, then it enqueues. Both return a cudaError_t. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "c_linkage.h"

#define LM_CUB_API LM_C __attribute__((visibility("default"))) /* a library loaded before may override it */

/* Sorts n < 2^32 pairs by the low `bits` of unsigned keys of 4 or 8 bytes, ascending; equal keys keep their order. */
LM_CUB_API int lm_cub_sort_pairs(void *stream, void *temp, size_t *bytes, int key_bytes, const void *keys,
                                 void *sorted_keys, const uint32_t *values, uint32_t *sorted_values, int64_t n,
                                 int bits);

/* Writes the indices, from 1, of the nonzero among n bytes, in order, and their number to *count (device memory). */
LM_CUB_API int lm_cub_indices(void *stream, void *temp, size_t *bytes, const uint8_t *flags, int64_t n,
                              int64_t *indices, int64_t *count);
