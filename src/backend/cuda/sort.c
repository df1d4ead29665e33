/* Computes topk, the k-th and the medians of lines, indices in sorted rows, randperm. */
#include "sort.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/sort_pairs.h"
#include "base/message.h"
#include "tensor/generator.h"

/* ---- topk */

enum { LONG_LINE = 1 << 18, FEW_LINES = 32 };         /* a block for each would leave most of the device idle */
static const int64_t SORT_AT_ONCE = INT64_C(1) << 26; /* elements; each takes 16 or 24 bytes of scratch, and CUB's */

/* Sorts some lines at a time by key, then stably by line, and takes the first k elements of each; with `kth` sorts one
 * line at a time, and takes its k-th element alone. */
static lm_status sort_lines(lm_cuda_frame *f, const lm_topk *t, bool kth) {
  lm_pairs by_key, by_line;
  void *stream = f->stream;
  int key_bytes = lm_topk_key_bytes(t->dtype);
  int64_t lines = lm_dims_numel(&t->lines), most = t->n < SORT_AT_ONCE && !kth ? SORT_AT_ONCE / t->n : 1;
  if (most > lines) most = lines;
  NEED(lm_pairs_take(f, most * t->n, key_bytes, &by_key));
  if (most > 1) NEED(lm_pairs_take(f, most * t->n, sizeof(uint32_t), &by_line));
  for (int64_t first = 0; first < lines; first += most) {
    int64_t count = lines - first < most ? lines - first : most, n = count * t->n;
    by_key.n = n;
    NEED(LAUNCH("keys", lm_topk_keys(stream, t, first, count, by_key.keys, by_key.order)));
    NEED(lm_pairs_sort(f, &by_key, 8 * key_bytes));
    if (kth) {
      NEED(LAUNCH("take", lm_kth_take(stream, t, first, by_key.sorted_keys, by_key.sorted)));
    } else if (count == 1) {
      NEED(LAUNCH("take", lm_topk_take(stream, t, first, count, by_key.sorted)));
    } else {
      by_line.n = n;
      NEED(LAUNCH("owners", lm_topk_owners(stream, t->n, n, by_key.sorted, by_line.keys)));
      by_line.order = by_key.sorted;
      NEED(lm_pairs_sort(f, &by_line, lm_bits_of((uint64_t)count - 1)));
      NEED(LAUNCH("take", lm_topk_take(stream, t, first, count, by_line.sorted)));
    }
  }
  return LM_OK;
}

static lm_topk describe_topk(const lm_tensor *x, int64_t dim, int64_t k, bool largest, lm_tensor *const *out) {
  lm_topk t = {.dtype = x->dtype,
               .largest = largest,
               .n = x->size[dim],
               .k = k,
               .x_stride = x->stride[dim],
               .out_stride = out[0]->stride[dim],
               .x = x->data,
               .values = out[0]->data,
               .indices = (int64_t *)out[1]->data};
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) others[d] = d != dim;
  t.lines = lm_dims_of(x->ndim, x->size, others, 2, (const int64_t *[]){x->stride, out[0]->stride}, false);
  return t;
}

static bool has_few_long_lines(const lm_topk *t) { return t->n > LONG_LINE && lm_dims_numel(&t->lines) < FEW_LINES; }

lm_status lm_cuda_topk(const lm_topk_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_topk t = describe_topk(a->x, a->dim, a->k, a->largest, out);
  bool fits = t.n <= INT32_MAX && lm_dims_numel(&t.lines) <= INT32_MAX;
  if (t.k <= LM_TOPK_BLOCK && !has_few_long_lines(&t) && fits) return LAUNCH("select", lm_topk_lines(f->stream, &t));
  return sort_lines(f, &t, false);
}

/* ---- the k-th of each line */

lm_status lm_cuda_kth_along(const lm_kth_along_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_topk t = describe_topk(a->x, a->dim, a->k, false, out);
  int64_t lines = lm_dims_numel(&t.lines);
  if (t.n > INT32_MAX) return lm_fail_int(lm_op_running(), "the size of dim", "at most 2^31 - 1 on CUDA", t.n);
  if (lines > INT32_MAX) return lm_fail_int(lm_op_running(), "the number of lines", "at most 2^31 - 1 on CUDA", lines);
  if (has_few_long_lines(&t)) return sort_lines(f, &t, true);
  return LAUNCH("select", lm_kth_lines(f->stream, &t));
}

lm_status lm_cuda_searchsorted(const lm_searchsorted_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *rows = a->sorted_sequence;
  int64_t each = rows->ndim == 1 ? -1 : a->x->size[a->x->ndim - 1];
  return LAUNCH("search", lm_search_sorted(f->stream, rows->dtype, rows->data, rows->size[rows->ndim - 1], a->x->data,
                                           out[0]->numel, each, a->right, (int64_t *)out[0]->data));
}

/* ---- randperm */

/* Draws the same permutation as the CPU from the same seed and offset (kernels/sort.cu explains how). */
lm_status lm_cuda_randperm(const lm_randperm_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *y = out[0], *order = y;
  lm_pairs pairs;
  void *block;
  if (a->n == 0) return LM_OK;
  NEED(lm_pairs_take(f, a->n, sizeof(uint32_t), &pairs));
  NEED(lm_cuda_take(f, 2 * sizeof(uint32_t) * (size_t)a->n, &block));
  uint32_t *links = block;
  if (y->dtype != LM_I64 || !lm_is_contiguous(y)) NEED(lm_cuda_take_tensor(f, LM_I64, 1, &a->n, &order));
  lm_draw draw = lm_generator_take(a->generator, y->device, ((uint64_t)a->n + 1) / 2);
  NEED(LAUNCH("draw", lm_randperm_targets(f->stream, a->n, draw.seed, draw.offset, lm_generator_extra(), pairs.keys,
                                          pairs.order)));
  NEED(lm_pairs_sort(f, &pairs, lm_bits_of((uint64_t)a->n - 1)));
  NEED(LAUNCH("chase", lm_randperm_chase(f->stream, a->n, pairs.keys, pairs.sorted_keys, pairs.sorted, links,
                                         links + a->n, (int64_t *)order->data)));
  return order != y ? lm_cuda_copy(order, y) : LM_OK;
}
