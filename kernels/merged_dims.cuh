/* Computes an element's offset on each side of merged_dims.h's loops, on the device. */
#pragma once

#include "launch.cuh"
#include "merged_dims.h"

/* Loops over fewer elements than this need no 64-bit divisions (WIDE = false). */
static const int64_t LM_NARROW = (int64_t)1 << 31;

/* Returns the divider for lm_split; a size that needs WIDE gets one by 1, unused. */
static inline lm_divider lm_split_divider(int64_t size) {
  return lm_divider_make(size > 0 && size < LM_NARROW ? (uint32_t)size : 1);
}

/* Returns n / size; *rest = n % size. */
template <bool WIDE>
LM_DEVICE int64_t lm_split(int64_t n, int64_t size, lm_divider divider, int64_t *rest) {
  if (WIDE) {
    int64_t quotient = n / size;
    *rest = n - quotient * size;
    return quotient;
  }
  uint32_t narrow, quotient = lm_divide_rest((uint32_t)n, divider, &narrow);
  *rest = narrow;
  return quotient;
}

template <int SIDES>
struct lm_dims_loops {
  int ndim; /* at least 1 */
  lm_divider divider[LM_DIMS_MAX];
  int64_t size[LM_DIMS_MAX];
  int64_t stride[SIDES][LM_DIMS_MAX];
};

template <int SIDES>
static inline lm_dims_loops<SIDES> lm_dims_loops_of(const lm_dims *dims) {
  lm_dims_loops<SIDES> loops = {};
  loops.ndim = dims->ndim > 0 ? dims->ndim : 1;
  loops.size[0] = 1;
  for (int d = 0; d < dims->ndim; d++) {
    loops.size[d] = dims->size[d];
    loops.divider[d] = lm_split_divider(dims->size[d]);
    for (int s = 0; s < SIDES; s++) loops.stride[s][d] = dims->stride[s][d];
  }
  return loops;
}

/* Adds the offset of element u on side s to offset[s], for each side. */
template <bool WIDE, int SIDES>
LM_DEVICE void lm_dims_offset(const lm_dims_loops<SIDES> &loops, int64_t u, int64_t *offset) {
  for (int d = loops.ndim - 1; d > 0; d--) {
    int64_t position;
    u = lm_split<WIDE>(u, loops.size[d], loops.divider[d], &position);
    LM_UNROLL
    for (int s = 0; s < SIDES; s++) offset[s] += position * loops.stride[s][d];
  }
  LM_UNROLL
  for (int s = 0; s < SIDES; s++) offset[s] += u * loops.stride[s][0];
}
