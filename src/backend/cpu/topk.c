/* topk: a heap of the k best seen so far, for each line along dim.
 *
 * Every dtype is compared by a 64-bit key that grows with the value: NaN is the largest, -0 equals 0. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "merged_dims.h"

typedef struct entry {
  uint64_t key;
  int64_t place; /* in the line, from 0 */
} entry;

/* IEEE bits in the order of the values: flip all bits of negatives, the sign of the rest. */
static inline uint64_t key_of_double(double v) {
  union {
    double d;
    uint64_t u;
  } bits = {v + 0.0}; /* -0 becomes 0 */
  if (v != v) return UINT64_MAX;
  return bits.u >> 63 ? ~bits.u : bits.u | UINT64_C(1) << 63;
}
static inline uint64_t key_of_int(int64_t v) { return (uint64_t)v ^ UINT64_C(1) << 63; }

static uint64_t key_at(lm_dtype dtype, const char *line, int64_t i) {
  return lm_dtype_is_float(dtype) ? key_of_double(lm_real_at(dtype, line, i))
                                  : key_of_int(lm_integer_at(dtype, line, i));
}

/* Of equal keys the earlier place is better, so that the result is one and stable. */
static inline bool is_worse(entry a, entry b) { return a.key < b.key || (a.key == b.key && a.place > b.place); }

/* heap[0] is the worst of the n kept. Put e at `hole` or below. */
static void sift_down(entry *heap, int64_t n, int64_t hole, entry e) {
  for (;;) {
    int64_t child = 2 * hole + 1;
    if (child >= n) break;
    if (child + 1 < n && is_worse(heap[child + 1], heap[child])) child++;
    if (!is_worse(heap[child], e)) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = e;
}

/* The k best of a line, best first. */
static void best_of(lm_dtype dtype, const char *line, int64_t n, int64_t stride, uint64_t flip, int64_t k,
                    entry *heap) {
  for (int64_t i = 0; i < k; i++) heap[i] = (entry){key_at(dtype, line, i * stride) ^ flip, i};
  for (int64_t i = k / 2 - 1; i >= 0; i--) sift_down(heap, k, i, heap[i]);
  for (int64_t i = k; i < n; i++) {
    entry e = {key_at(dtype, line, i * stride) ^ flip, i};
    if (is_worse(heap[0], e)) sift_down(heap, k, 0, e);
  }
  for (int64_t left = k - 1; left > 0; left--) { /* the worst goes to the end */
    entry worst = heap[0];
    sift_down(heap, left, 0, heap[left]);
    heap[left] = worst;
  }
}

lm_status lm_cpu_topk(const void *args, lm_tensor *const *out) {
  const lm_topk_args *a = args;
  const lm_tensor *x = a->x;
  lm_tensor *values = out[0], *places = out[1];
  int dim = (int)a->dim;
  lm_dtype dtype = (lm_dtype)x->dtype;
  size_t item = lm_dtype_size(dtype);
  int64_t n = x->size[dim], lines = values->numel / a->k;
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) others[d] = d != dim;
  lm_dims dims = lm_dims_of(x->ndim, values->size, others, 2, (const int64_t *[]){x->stride, values->stride}, false);
  uint64_t flip = a->largest ? 0 : UINT64_MAX;
  int threads = lm_cpu_share(2.0 * (double)lines * (double)n);
  if (threads > lines) threads = (int)lines;
  entry *heaps = lm_malloc(sizeof *heaps * (size_t)a->k * (size_t)threads);
  if (!heaps) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    entry *heap = heaps + a->k * t;
    for (int64_t line = t; line < lines; line += threads) {
      int64_t from = lm_dims_at(&dims, 0, line), to = lm_dims_at(&dims, 1, line);
      const char *first = x->data + (size_t)from * item;
      best_of(dtype, first, n, x->stride[dim], flip, a->k, heap);
      for (int64_t i = 0; i < a->k; i++) {
        int64_t place = to + i * values->stride[dim];
        memcpy(values->data + (size_t)place * item, first + (size_t)(heap[i].place * x->stride[dim]) * item, item);
        ((int64_t *)places->data)[place] = heap[i].place + 1;
      }
    }
  }
  lm_free(heaps);
  return LM_OK;
}
