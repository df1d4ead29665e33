/* Maps elements to keys for sorting and selecting: unsigned numbers, of 8 bytes for int64 and float64 and else of 4,
 * that grow with the element; NaN is the largest, and -0 equals 0. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

struct lm_sort_loops {
  /* Makes keys of n elements, `stride` elements apart; flip, all ones or 0, reverses the order. */
  void (*keys[LM_DTYPE_COUNT])(const void *x, int64_t n, int64_t stride, uint64_t flip, void *keys);
  /* Writes the elements that have these keys, contiguous; for floats any zero and any NaN. */
  void (*values[LM_DTYPE_COUNT])(const void *keys, int64_t n, uint64_t flip, void *values);
  /* Returns the bits in which one of n keys differs from `first`. This and the next two: [1] is for keys of 8 bytes. */
  uint64_t (*differing[2])(const void *keys, int64_t n, uint64_t first);
  /* Returns the index, from `at` on, of a chunk of LM_SORT_CHUNK keys with one below the limit, or n; `at` is a
   * multiple of LM_SORT_CHUNK. */
  int64_t (*below[2])(const void *keys, int64_t at, int64_t n, uint64_t limit);
  /* Sets rank[i] to the number of keys below keys[i], for n <= LM_SORT_FEW; returns false if two are equal. */
  bool (*ranks[2])(const void *keys, int n, uint8_t *rank);
};
enum { LM_SORT_CHUNK = 32, LM_SORT_FEW = 64 };

LM_ISA_DECLARE(struct lm_sort_loops, lm_sort_loops);

static inline bool lm_sort_is_wide(lm_dtype dtype) { return dtype == LM_I64 || dtype == LM_F64; }
