/* Computes topk, the k-th of each line, indices in sorted rows, and randperm. Functions enqueue on the stream and
 * return a cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "c_linkage.h"
#include "merged_dims.h"

/* The best k of n elements, for each line: the largest or the smallest first, NaN as the largest, equal ones in the
 * order of their indices. */
typedef struct lm_topk {
  int dtype;
  bool largest;
  lm_dims lines; /* lines' first elements: side 0 in x, side 1 in values and indices */
  int64_t n, k;
  int64_t x_stride, out_stride; /* distances between elements of a line */
  const void *x;
  void *values;
  int64_t *indices; /* from 1 */
} lm_topk;

enum { LM_TOPK_BLOCK = 2048 }; /* the largest k of lm_topk_lines */

/* Returns 4 or 8, the bytes of a key. Keys are unsigned numbers, smaller for better elements. */
LM_C int lm_topk_key_bytes(int dtype);
/* Computes topk, a block for each line. n < 2^31. */
LM_C int lm_topk_lines(void *stream, const lm_topk *t);
/* Begins topk by sorting, for lines first .. first + count - 1, count * n < 2^32: sets the keys of their elements, and
 * order to 0, 1, ... over all of them. */
LM_C int lm_topk_keys(void *stream, const lm_topk *t, int64_t first, int64_t count, void *keys, uint32_t *order);
/* Sets owners[i] to order[i] / n, the line of that element. */
LM_C int lm_topk_owners(void *stream, int64_t n, int64_t elements, const uint32_t *order, uint32_t *owners);
/* Writes the results of lines first .. first + count - 1; `order` lists their elements by line, then by key. */
LM_C int lm_topk_take(void *stream, const lm_topk *t, int64_t first, int64_t count, const uint32_t *order);

enum { LM_KTH_MEDIAN = 0, LM_KTH_NAN_MEDIAN = -1 }; /* for k */

/* Computes the k-th smallest of each line, n < 2^31: k from 1, or the median (NaN if there is one), or that of elements
 * that are not NaN. values and indices have one element for each line. */
LM_C int lm_kth_lines(void *stream, const lm_topk *t);
/* Computes the k-th of one line whose keys are sorted; `order` has the elements' indices in that order. */
LM_C int lm_kth_take(void *stream, const lm_topk *t, int64_t line, const void *keys, const uint32_t *order);

/* Sets for each of `count` values 1 + the number of its row's n ascending numbers below it, or with `right` not above
 * it. Rows of `each` values; each < 0: one row for all. Float, double or int64, contiguous. */
LM_C int lm_search_sorted(void *stream, int dtype, const void *rows, int64_t n, const void *values, int64_t count,
                          int64_t each, bool right, int64_t *out);

/* Draws the targets of Fisher and Yates's exchanges of i with target[i], which run all at once (philox.h: 64-bit
 * results of `seed` from block `offset`, plus *extra if that is not NULL), n < 2^32. */
LM_C int lm_randperm_targets(void *stream, int64_t n, uint64_t seed, uint64_t offset, const uint64_t *extra,
                             uint32_t *target, uint32_t *step);
/* Computes the permutation of 1 to n from targets and steps sorted by target. earlier, into: scratch for n each. */
LM_C int lm_randperm_chase(void *stream, int64_t n, const uint32_t *target, const uint32_t *sorted_target,
                           const uint32_t *sorted_step, uint32_t *earlier, uint32_t *into, int64_t *out);
