/* Declares loops over lines of scatter, and of embedding bags. */
#pragma once

#include "backend/cpu/isa.h"
#include "base/parallel.h"
#include "op_choices.h"
#include "tensor/dtype.h"

/* A line of n elements of src, `from` apart. Element i is combined with dst[(index[i * step] - 1) * to + i * along]. */
typedef struct lm_scatter_line {
  int64_t n, to, along, step, from;
} lm_scatter_line;
typedef void (*lm_scatter_loop)(const lm_scatter_line *l, void *dst, const int64_t *index, const void *src);

struct lm_scatter_loops {
  /* Sums and other folds, by src's dtype: dst has that dtype, or is float for half types. */
  lm_scatter_loop fold[LM_FOLD_REPLACE][LM_DTYPE_COUNT];
  lm_scatter_loop put[9]; /* loops for elements of 1, 2, 4 and 8 bytes */
};
LM_ISA_DECLARE(struct lm_scatter_loops, lm_scatter_loops);

/* Bag k sums the rows [d] of weight that index names, from offsets[k] up to offsets[k + 1] or n; all from 1. */
typedef struct lm_embedding_bag_job {
  const void *weight, *each; /* each: a factor for each index, or NULL */
  const int64_t *index, *offsets;
  int64_t bags, n, d, skipped; /* skipped: an index that is ignored, or 0 */
  bool means;
  void *out, *counts; /* [bags, d]; number of rows, at least 1: float, or double for double */
} lm_embedding_bag_job;
struct lm_embedding_bag_loops {
  lm_parallel_fn *sums[LM_DTYPE_COUNT]; /* run bags of a job; floating dtypes only */
};
LM_ISA_DECLARE(struct lm_embedding_bag_loops, lm_embedding_bag_loops);
