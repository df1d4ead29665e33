/* Picking and adding by index tensors: int64, contiguous, counted from 1. Indices out of range are reported
 * (bad_values.h); what they would read becomes 0, what they would write is left alone.
 *
 * Functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bad_values.h"
#include "merged_dims.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Index tensors of equal sizes, which together name an entry: the sum over k of (index[k] - 1) * step[k]. */
typedef struct lm_index_list {
  int n;
  bool negative; /* -1 is the last entry */
  int kind;      /* what is reported: op/backend.h's LM_BAD_INDEX or LM_BAD_LABEL */
  const int64_t *index[LM_DIMS_MAX];
  int64_t entries[LM_DIMS_MAX], step[LM_DIMS_MAX];
} lm_index_list;

/* out, dense, in units of 1 to 16 bytes: unit u of the dims is x's at side 0 plus the entry that the indices name at
 * side 1. Strides and steps of x are in units. */
int lm_index_pick(void *stream, int unit, const lm_dims *dims, const lm_index_list *index_list, const void *x,
                  void *out, lm_bad bad);

/* What becomes of an element and the one that comes to it. */
enum { LM_INTO_SUM, LM_INTO_PROD, LM_INTO_MAX = 3, LM_INTO_MIN, LM_INTO_REPLACE };

/* sums[side 0 + entry] += src[side 2], or `how` else, for one index at side 1; in any order, by atomics. sums: int32
 * for an src of bool, uint8 and int32, float32 for halves, else src's own. */
int lm_index_scatter(void *stream, int dtype, int how, const lm_dims *dims, const lm_index_list *index_list, void *sums,
                     const void *src, lm_bad bad);

/* x[side 0 + entry] = src[side 2]; of equal positions one. Elements have `width` bytes. */
int lm_index_write(void *stream, int width, const lm_dims *dims, const lm_index_list *index_list, void *x,
                   const void *src, lm_bad bad);

/* out = x where column - row <= diagonal (upper: >=), else 0, of n elements of `width` bytes in matrices; x may be out.
 */
int lm_index_triangle(void *stream, int width, int64_t n, int64_t rows, int64_t columns, int64_t diagonal, bool upper,
                      const void *x, void *out);

/* Entry i's key, and its place i. Keys are 4 or 8 bytes; `none` for an index that is bad or is `skipped`. */
int lm_index_keys(void *stream, const lm_index_list *index_list, int64_t n, int64_t skipped, uint64_t none,
                  int key_bytes, void *keys, uint32_t *order, lm_bad bad);

/* Entries in the order of their keys, equal keys in order of place. */
typedef struct lm_sorted {
  int64_t n;
  int key_bytes;
  const void *keys;
  const uint32_t *order;
  uint64_t none; /* this key and above go nowhere */
} lm_sorted;

/* Rows of `columns` elements: entry with place p reads src + p * from + side 1 and belongs to
 * dst + (its key, a row-major number of `size`, times `stride`) + side 0. */
typedef struct lm_rows {
  int dtype, unit; /* unit: bytes an element of lm_index_put has; sums go by dtype */
  lm_dims columns;
  int nkey;
  int64_t size[LM_DIMS_MAX], stride[LM_DIMS_MAX];
  int64_t from;
  void *dst;
  const void *src;
} lm_rows;

/* Each row of dst that has entries gets the last of them. */
int lm_index_put(void *stream, const lm_rows *rows, const lm_sorted *entries);

/* Each row of dst that has entries grows by their sum, in order. The same bits every time: tiles of entries are summed
 * each by itself, what may continue in a neighbor is left as two entries for the next level, until one tile is left. */
int lm_index_sum(void *stream, const lm_rows *rows, const lm_sorted *entries, void *scratch);
/* Bytes of scratch for that. */
size_t lm_index_sum_scratch(const lm_rows *rows, int64_t n);

int lm_index_clear(void *stream, void *p, size_t bytes);

/* out [n, classes] of int64 zeros gets its ones. */
int lm_index_one_hot(void *stream, const lm_index_list *labels, int64_t n, int64_t *out, lm_bad bad);

/* Row-major positions from 1 of elements of an x of that size to rows of indices from 1: out [n, ndim]. */
int lm_index_unravel(void *stream, int64_t n, const int64_t *positions, int ndim, const int64_t *size, int64_t *out);

#ifdef __cplusplus
}
#endif
