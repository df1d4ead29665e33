/* A nest of loops over the elements of strided tensors ("sides") that share their sizes. The caller lists the dims,
 * slowest first; those that lie evenly on every side become one. Plain C; merged_dims.cuh is the device's part. */
#ifndef LM_KERNELS_NEST_H
#define LM_KERNELS_NEST_H

#include <stdint.h>

enum { LM_NEST_DIMS = 8, LM_NEST_SIDES = 3 };

typedef struct lm_nest {
  int ndim;
  int64_t size[LM_NEST_DIMS];
  int64_t stride[LM_NEST_SIDES][LM_NEST_DIMS]; /* what a side is not used for stays 0 */
} lm_nest;

/* At most LM_NEST_DIMS calls. */
static inline void lm_nest_dim(lm_nest *nest, int64_t size, int64_t a, int64_t b, int64_t c) {
  int64_t stride[LM_NEST_SIDES] = {a, b, c};
  int last = nest->ndim - 1, even = nest->ndim > 0;
  if (size == 1) return;
  for (int s = 0; even && s < LM_NEST_SIDES; s++) even = nest->stride[s][last] == size * stride[s];
  if (!even) {
    last = nest->ndim++;
    nest->size[last] = 1;
  }
  nest->size[last] *= size;
  for (int s = 0; s < LM_NEST_SIDES; s++) nest->stride[s][last] = stride[s];
}

static inline int64_t lm_nest_count(const lm_nest *nest) {
  int64_t count = 1;
  for (int d = 0; d < nest->ndim; d++) count *= nest->size[d];
  return count;
}

#endif
