/* Lines of scatter and its kin. */
#pragma once

#include "backend/cpu/isa.h"
#include "op/backend.h"

/* n elements: element i of src (its step `from`) goes to (index i (step) - 1) * to + i * along of dst. */
typedef struct lm_scatter_line {
  int64_t n, to, along, step, from;
} lm_scatter_line;
typedef void (*lm_scatter_loop)(const lm_scatter_line *l, void *dst, const int64_t *index, const void *src);

struct lm_scatter_loops {
  /* Sums and the like, by dtype of src: dst is of it, or float for half types. */
  lm_scatter_loop fold[LM_FOLD_REPLACE][LM_DTYPE_COUNT];
  lm_scatter_loop put[9]; /* by bytes of an element: 1, 2, 4, 8 */
};
LM_ISA_DECLARE(struct lm_scatter_loops, lm_scatter_loops);

/* Bag k sums the rows [d] of weight that index names from offsets[k] on, up to offsets[k + 1] or n; all from 1. */
typedef struct lm_embedding_bag_job {
  const void *weight, *each; /* each: a factor for each of index, or NULL */
  const int64_t *index, *offsets;
  int64_t bags, n, d, skipped; /* skipped: an index that is left out, or 0 */
  bool means;
  void *out, *counts; /* [bags, d]; how many rows, at least 1: float, or double beside double */
} lm_embedding_bag_job;
struct lm_embedding_bag_loops {
  void (*sums[LM_DTYPE_COUNT])(const lm_embedding_bag_job *job, int64_t from,
                               int64_t to); /* of floating dtypes; of these bags */
};
LM_ISA_DECLARE(struct lm_embedding_bag_loops, lm_embedding_bag_loops);
