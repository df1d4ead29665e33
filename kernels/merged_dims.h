/* Loops over the elements of strided tensors ("sides") that share their sizes: dims from the slowest to the fastest,
 * with dims that are evenly spaced on every side merged. For C and CUDA; merged_dims.cuh is the device's part. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LM_DIMS_MAX = 8, LM_DIMS_SIDES = 5 };

typedef struct lm_dims {
  int ndim, sides;
  int64_t size[LM_DIMS_MAX];
  int64_t stride[LM_DIMS_SIDES][LM_DIMS_MAX]; /* [sides][ndim] */
} lm_dims;

/* Adds a dim, faster than those before it; stride: one for each side. At most LM_DIMS_MAX calls. */
static inline void lm_dims_push(lm_dims *dims, int64_t size, const int64_t *stride) {
  int last = dims->ndim - 1;
  bool even = last >= 0;
  if (size == 1) return;
  for (int s = 0; even && s < dims->sides; s++) even = dims->stride[s][last] == size * stride[s];
  if (!even) {
    last = dims->ndim++;
    dims->size[last] = 1;
  }
  dims->size[last] *= size;
  for (int s = 0; s < dims->sides; s++) dims->stride[s][last] = stride[s];
}

/* Sorts the dims from the largest stride to the smallest; of equal strides the first dim comes first. */
static inline void lm_dims_order(int ndim, const int64_t *stride, int *order) {
  for (int d = 0; d < ndim; d++) {
    int at = d;
    for (; at > 0 && stride[order[at - 1]] < stride[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
}

/* Sets dims to those of ndim dims that take[d] selects (NULL: all), in their order or, `sorted`, by decreasing stride
 * of side 0. stride: of each side; NULL: zeros. Writes only used entries: small ops cost about as much as this. */
static inline void lm_dims_set(lm_dims *dims, int ndim, const int64_t *size, const bool *take, int sides,
                               const int64_t *const *stride, bool sorted) {
  int order[LM_DIMS_MAX];
  dims->ndim = 0;
  dims->sides = sides;
  if (sorted) lm_dims_order(ndim, stride[0], order);
  for (int i = 0; i < ndim; i++) {
    int d = sorted ? order[i] : i;
    int64_t along[LM_DIMS_SIDES];
    if (size[d] == 1 || (take && !take[d])) continue;
    for (int s = 0; s < sides; s++) along[s] = stride[s] ? stride[s][d] : 0;
    lm_dims_push(dims, size[d], along);
  }
}

static inline lm_dims lm_dims_of(int ndim, const int64_t *size, const bool *take, int sides,
                                 const int64_t *const *stride, bool sorted) {
  lm_dims dims;
  lm_dims_set(&dims, ndim, size, take, sides, stride, sorted);
  return dims;
}

static inline int64_t lm_dims_numel(const lm_dims *dims) {
  int64_t count = 1;
  for (int d = 0; d < dims->ndim; d++) count *= dims->size[d];
  return count;
}

/* Returns the offset of element u, counted row-major, on a side: the sum over the dims of index * stride. */
static inline int64_t lm_dims_at(const lm_dims *dims, int side, int64_t u) {
  int64_t offset = 0;
  for (int d = dims->ndim - 1; d >= 0; d--) {
    offset += u % dims->size[d] * dims->stride[side][d];
    u /= dims->size[d];
  }
  return offset;
}

/* Removes the fastest dim and returns its size, with its strides in `stride`. Without dims: 1, and `alone` for each
 * stride. */
static inline int64_t lm_dims_pop(lm_dims *dims, int64_t *stride, int64_t alone) {
  int last = dims->ndim - 1;
  for (int s = 0; s < dims->sides; s++) stride[s] = last < 0 ? alone : dims->stride[s][last];
  if (last < 0) return 1;
  dims->ndim = last;
  return dims->size[last];
}
