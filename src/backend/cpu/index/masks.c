/* Where masks are true: nonzero, the values there; and masks of indices: one_hot. */
#include <string.h>

#include "backend/cpu/index/indices.h"
#include "backend/cpu/nontemporal_copy.h"
#include "base/mem.h"

enum { TILE = 8192 }; /* bytes of a large result that are made before they go past the caches */

/* How many of n there are before each thread's part, to be freed, and then in all; NULL without memory. */
static int64_t *counts_before(const uint8_t *mask, int64_t n, int threads) {
  int64_t *before = lm_calloc((size_t)threads + 1, sizeof *before);
  if (!before) return NULL;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    enum { SOME = 128 }; /* whose count a byte holds */
    int64_t count = 0, end = lm_cpu_share_begin(n, t + 1, threads), i = lm_cpu_share_begin(n, t, threads);
    for (; i + SOME <= end; i += SOME) {
      uint8_t some = 0;
#pragma omp simd reduction(+ : some)
      for (int j = 0; j < SOME; j++) some += mask[i + j] != 0;
      count += some;
    }
    for (; i < end; i++) count += mask[i] != 0;
    before[t + 1] = count;
  }
  for (int t = 0; t < threads; t++) before[t + 1] += before[t];
  return before;
}

#define EIGHT_TRUE UINT64_C(0x0101010101010101)
/* Calls `take` of each place from i on that counts until there were `count`, k of them before it, without branches:
 * what is no such place is written over. Eight alike go at once, by `take_eight`. */
#define EACH_KEPT(mask, i, end, count, take, take_eight)          \
  for (int64_t k = 0; k < (count);) {                             \
    uint64_t eight = 2;                                           \
    if (i + 8 <= (end)) memcpy(&eight, (mask) + i, sizeof eight); \
    if (eight == 0) {                                             \
      i += 8;                                                     \
    } else if (eight == EIGHT_TRUE && k + 8 <= (count)) {         \
      take_eight;                                                 \
      i += 8, k += 8;                                             \
    } else {                                                      \
      for (int64_t j = 0; j < 8 && k < (count); j++, i++) {       \
        take;                                                     \
        k += (mask)[i] != 0;                                      \
      }                                                           \
    }                                                             \
  }

/* x: a contiguous bool mask, out [count, ndim]. Each thread counts its part, then writes from where
 * the parts before it end. */
lm_status lm_cpu_nonzero(const void *args, lm_tensor *const *out) {
  const lm_nonzero_args *a = args;
  const lm_tensor *x = a->x;
  const uint8_t *mask = (const uint8_t *)x->data;
  int ndim = x->ndim, threads = lm_cpu_share((double)x->numel);
  int64_t *before = counts_before(mask, x->numel, threads);
  if (!before) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t *row = (int64_t *)out[0]->data + before[t] * ndim, end = lm_cpu_share_begin(x->numel, t + 1, threads);
    int64_t begin = lm_cpu_share_begin(x->numel, t, threads), count = before[t + 1] - before[t];
    if (ndim == 1) {
      int64_t i = begin;
      EACH_KEPT(mask, i, end, count, row[k] = i + 1, for (int j = 0; j < 8; j++) row[k + j] = i + j + 1)
      continue;
    }
    for (int64_t i = begin; i < end; i++) {
      if (!mask[i]) continue;
      int64_t position = i;
      for (int d = ndim - 1; d >= 0; d--) {
        row[d] = position % x->size[d] + 1;
        position /= x->size[d];
      }
      row += ndim;
    }
  }
  lm_free(before);
  return LM_OK;
}

/* x and the mask contiguous, out [count]. */
lm_status lm_cpu_masked_values(const void *args, lm_tensor *const *out) {
  const lm_masked_values_args *a = args;
  const uint8_t *mask = (const uint8_t *)a->mask->data;
  int64_t n = a->x->numel;
  const size_t item = lm_dtype_size(a->x->dtype);
  const int64_t max_chunk = TILE / (int64_t)item;
  bool streams = lm_use_nontemporal(lm_nbytes(out[0]));
  int threads = lm_cpu_share((double)n);
  int64_t *before = counts_before(mask, n, threads);
  if (!before) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t i = lm_cpu_share_begin(n, t, threads), end = lm_cpu_share_begin(n, t + 1, threads);
    int64_t left = before[t + 1] - before[t];
    char tile[TILE];
    lm_nontemporal_writer w;
    lm_nontemporal_open(&w, out[0]->data + before[t] * (int64_t)item, streams);
    while (left > 0) { /* a tile's worth, or all */
      int64_t count = streams && left > max_chunk ? max_chunk : left;
      char *at = streams ? tile : w.to;
#define CASE(type)                                                                              \
  case sizeof(type): {                                                                          \
    const type *from = (const type *)a->x->data;                                                \
    type *to = (type *)at;                                                                      \
    EACH_KEPT(mask, i, end, count, to[k] = from[i], memcpy(to + k, from + i, 8 * sizeof(type))) \
    break;                                                                                      \
  }
      switch (item) {
        CASE(uint8_t)
        CASE(uint16_t)
        CASE(uint32_t)
        CASE(uint64_t)
      }
#undef CASE
      if (streams) lm_nontemporal_write(&w, tile, (size_t)count * item);
      left -= count;
    }
    lm_nontemporal_close(&w);
  }
  lm_free(before);
  return LM_OK;
}

lm_status lm_cpu_one_hot(const void *args, lm_tensor *const *out) {
  const lm_one_hot_args *a = args;
  int64_t n = a->x->numel, classes = a->num_classes, *result = (int64_t *)out[0]->data;
  const int64_t *label = (const int64_t *)a->x->data;
  lm_status status = lm_cpu_check_indices("one_hot", "label", n, label, classes, NULL);
  if (status != LM_OK) return status;
  memset(result, 0, (size_t)(n * classes) * sizeof *result);
  for (int64_t i = 0; i < n; i++) result[i * classes + label[i] - 1] = 1;
  return LM_OK;
}
