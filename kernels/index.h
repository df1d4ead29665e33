/* Gathers, scatters and sums by index tensors: int64, contiguous, counted from 1. Indices out of range are reported
 * (bad_values.h): a gather reads 0 for them, and writes to them are skipped.
 *
 * Functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bad_values.h"
#include "c_linkage.h"
#include "merged_dims.h"

/* Index tensors of equal sizes, which together name an entry: the sum over k of (index[k] - 1) * step[k]. */
typedef struct lm_index_list {
  int n;
  bool negative; /* -1 is the last entry */
  int kind;      /* kind of report: op/backend.h's LM_BAD_INDEX or LM_BAD_LABEL */
  const int64_t *index[LM_DIMS_MAX];
  int64_t entries[LM_DIMS_MAX], step[LM_DIMS_MAX];
} lm_index_list;

/* Writes out, dense, in units of 1 to 16 bytes: unit u of the dims is read from x at side 0 plus the entry that the
 * indices at side 1 name. Strides and steps of x are in units. */
LM_C int lm_index_pick(void *stream, int unit, const lm_dims *dims, const lm_index_list *index_list, const void *x,
                       void *out, lm_bad bad);

/* Ways to combine a destination's element with a source's. */
enum { LM_INTO_SUM, LM_INTO_PROD, LM_INTO_MAX = 3, LM_INTO_MIN, LM_INTO_REPLACE };

/* Sets sums[side 0 + entry] += src[side 2], or as `how` says, for the index at side 1; in any order, by atomics. sums:
 * int32 for an src of bool, uint8 and int32, float32 for halves, else src's own. */
LM_C int lm_index_scatter(void *stream, int dtype, int how, const lm_dims *dims, const lm_index_list *index_list,
                          void *sums, const void *src, lm_bad bad);

/* Sets x[side 0 + entry] = src[side 2]; of equal positions any one wins. Elements have `width` bytes. */
LM_C int lm_index_write(void *stream, int width, const lm_dims *dims, const lm_index_list *index_list, void *x,
                        const void *src, lm_bad bad);

/* Sets out to x where column - row <= diagonal (upper: >=), else 0: n elements of `width` bytes in matrices; x may be
 * out. */
LM_C int lm_index_triangle(void *stream, int width, int64_t n, int64_t rows, int64_t columns, int64_t diagonal,
                           bool upper, const void *x, void *out);

/* Sets entry i's key, and order[i] = i. Keys are 4 or 8 bytes; `none` for an index that is bad or equals `skipped`. */
LM_C int lm_index_keys(void *stream, const lm_index_list *index_list, int64_t n, int64_t skipped, uint64_t none,
                       int key_bytes, void *keys, uint32_t *order, lm_bad bad);

/* Entries sorted by their keys, equal keys by their index. */
typedef struct lm_sorted {
  int64_t n;
  int key_bytes;
  const void *keys;
  const uint32_t *order;
  uint64_t none; /* entries with this key or above are dropped */
} lm_sorted;

/* A source of entries: entry p is the row of `columns` elements at src + p * from + side 1. It belongs to dst + side 0
 * + the offset of its key, a row-major number of `size`, by `stride`. */
typedef struct lm_rows {
  int dtype, unit; /* unit: bytes of an element, for lm_index_put; sums use dtype */
  lm_dims columns;
  int nkey;
  int64_t size[LM_DIMS_MAX], stride[LM_DIMS_MAX];
  int64_t from;
  void *dst;
  const void *src;
} lm_rows;

/* Writes the last entry of each row of dst to that row; rows without entries stay. */
LM_C int lm_index_put(void *stream, const lm_rows *rows, const lm_sorted *entries);

/* Adds to each row of dst the sum of its entries, in their order, with the same bits every time. Tiles of entries are
 * summed separately; a sum that may continue in a neighbor is an entry of the next level, until one tile is left. */
LM_C int lm_index_sum(void *stream, const lm_rows *rows, const lm_sorted *entries, void *scratch);
/* Returns the bytes of scratch for lm_index_sum. */
LM_C size_t lm_index_sum_scratch(const lm_rows *rows, int64_t n);

LM_C int lm_index_clear(void *stream, void *p, size_t bytes);

/* Sets the ones of out [n, classes], int64 zeros. */
LM_C int lm_index_one_hot(void *stream, const lm_index_list *labels, int64_t n, int64_t *out, lm_bad bad);

/* Converts row-major positions from 1 of elements of a tensor of `size` to rows of indices from 1: out [n, ndim]. */
LM_C int lm_index_unravel(void *stream, int64_t n, const int64_t *positions, int ndim, const int64_t *size,
                          int64_t *out);
