/* The device's part of merged_dims.h: from an element's number to its offset on each side. */
#ifndef LM_KERNELS_NEST_CUH
#define LM_KERNELS_NEST_CUH

#include "launch.cuh"
#include "merged_dims.h"

/* Nests of fewer elements than this go without 64-bit divisions (WIDE = false). */
static const int64_t LM_NARROW = (int64_t)1 << 31;

/* The divider for lm_split; sizes that need WIDE get none. */
static inline lm_divider lm_split_divider(int64_t size) {
  return lm_divider_make(size > 0 && size < LM_NARROW ? (uint32_t)size : 1);
}

/* n / size; *rest = n % size. */
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
struct lm_nest_loops {
  int ndim; /* at least 1 */
  lm_divider divider[LM_NEST_DIMS];
  int64_t size[LM_NEST_DIMS];
  int64_t stride[SIDES][LM_NEST_DIMS];
};

template <int SIDES>
static inline lm_nest_loops<SIDES> lm_nest_loops_of(const lm_nest *nest) {
  lm_nest_loops<SIDES> loops = {};
  loops.ndim = nest->ndim > 0 ? nest->ndim : 1;
  loops.size[0] = 1;
  for (int d = 0; d < nest->ndim; d++) {
    loops.size[d] = nest->size[d];
    loops.divider[d] = lm_split_divider(nest->size[d]);
    for (int s = 0; s < SIDES; s++) loops.stride[s][d] = nest->stride[s][d];
  }
  return loops;
}

/* Adds to offset[s] that of element u on side s. */
template <bool WIDE, int SIDES>
LM_DEVICE void lm_nest_to(const lm_nest_loops<SIDES> &loops, int64_t u, int64_t *offset) {
  for (int d = loops.ndim - 1; d > 0; d--) {
    int64_t place;
    u = lm_split<WIDE>(u, loops.size[d], loops.divider[d], &place);
    LM_UNROLL
    for (int s = 0; s < SIDES; s++) offset[s] += place * loops.stride[s][d];
  }
  LM_UNROLL
  for (int s = 0; s < SIDES; s++) offset[s] += u * loops.stride[s][0];
}

#endif
