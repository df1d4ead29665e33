/* Describes reductions: each result is a fold over the elements of x along the reduced dims. Plain C; the caller
 * chooses the geometry (src/backend/cuda/reduce_plan.c), reduce.cuh is the device's part. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "c_linkage.h"
#include "merged_dims.h"
#include "reduce_kinds.h"
#include "tensor_table.h"

/* The last step of a result: what a fold's value is converted to. */
typedef enum lm_reduce_finish {
  LM_FINISH_NONE,
  LM_FINISH_MEAN,     /* / count */
  LM_FINISH_VARIANCE, /* / max(count - correction, 0) */
  LM_FINISH_ROOT,     /* the square root; LM_REDUCE_POWER takes the pth itself */
  LM_FINISH_ALL       /* == count */
} lm_reduce_finish;

enum {
  LM_REDUCE_BLOCK = 256,        /* threads */
  LM_REDUCE_STATE = 24,         /* bytes of an unfinished fold, at most */
  LM_REDUCE_MAX_PARTS = 65535,  /* most parts of a result */
  LM_REDUCE_MAX_PIECE = 1 << 30 /* most elements of a piece of a run */
};

typedef struct lm_reduce_job {
  lm_reduce_kind kind;
  lm_reduce_finish finish;
  double p, correction;
  int64_t count; /* elements in each result */
  int x_dtype, out_dtype;
  const void *x;
  void *out;         /* NULL if only indices are requested */
  int64_t *position; /* indices of the results' elements, from 1, in the layout of out */

  lm_dims results; /* sides: x, out; at least one element */
  lm_dims reduced; /* side: x; its last dim is the run */

  /* Rows: `lanes` threads share a run, and `groups` of them take runs in turn; together they are at most a warp, or a
   * block. Runs are cut into pieces; a part is `each` pieces of a result. Columns (cols): a block has `lanes` columns
   * of threads, each for `pack` neighboring results, and `groups` rows of threads, which take reduced elements in turn;
   * a part is `each` elements. lanes and groups are powers of two. If parts > 1, a second launch joins the parts. */
  bool cols;
  int lanes, groups, parts, pack; /* pack: columns of a thread */
  int64_t each, piece, cuts;      /* cuts: pieces in a run */
} lm_reduce_job;

/* Returns the neighbors loaded at once from a column-wise x with elements of `bytes`: 16 bytes, and at most 4. */
static inline int lm_reduce_pack(size_t bytes) { return bytes == 8 ? 2 : 4; }

/* Run a reduction and return a cudaError_t. partial: parts * results of LM_REDUCE_STATE bytes if parts > 1. */
LM_C int lm_reduce_run(const lm_reduce_job *job, void *partial, void *stream);
/* Partial sums from[i], [parts, columns], and their sums to[i], [columns]. Tensor i has blocks first[i] to first[i + 1]
 * - 1, each for LM_WARP columns. */
typedef struct lm_parts_table {
  int n;
  uint32_t first[LM_TABLE_TENSORS + 1];
  int32_t parts[LM_TABLE_TENSORS], columns[LM_TABLE_TENSORS];
  const void *from[LM_TABLE_TENSORS];
  void *to[LM_TABLE_TENSORS];
} lm_parts_table;
/* Adds up partial sums of float32, float64 (both to floats) or int64 (to int64), in one launch. */
LM_C int lm_sum_parts(int from_dtype, int to_dtype, const lm_parts_table *table, void *stream);
/* Find extremes' indices (LM_REDUCE_ARGMAX, LM_REDUCE_ARGMIN) along one reduced dim. */
LM_C int lm_reduce_indices(const lm_reduce_job *job, void *partial, void *stream);
