#include "backend/cpu/index/indices.h"

#include "device/alloc.h"

lm_status lm_cpu_check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool *negative) {
  uint64_t beyond = 0, below = 0; /* the top bit says it, of v - 1 or of high - v: loops of these vectorize */
  int threads = lm_cpu_share((double)n);
  if (negative) {
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) reduction(| : beyond, below)
    for (int64_t i = 0; i < n; i++) {
      uint64_t sign = index[i] < 0 ? UINT64_MAX : 0, v = ((uint64_t)index[i] ^ sign) - sign;
      below |= sign;
      beyond |= (v - 1) | ((uint64_t)high - v);
    }
    *negative = below != 0;
  } else {
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) reduction(| : beyond)
    for (int64_t i = 0; i < n; i++) beyond |= ((uint64_t)index[i] - 1) | ((uint64_t)high - (uint64_t)index[i]);
  }
  if (beyond >> 63 == 0) return LM_OK;
  for (int64_t i = 0; i < n; i++) {
    uint64_t v = negative && index[i] < 0 ? 0 - (uint64_t)index[i] : (uint64_t)index[i];
    if (v - 1 < (uint64_t)high) continue;
    return lm_bad_index(op, what, index[i], i + 1, high, negative != NULL);
  }
  return LM_OK;
}

lm_status lm_cpu_check_index(const char *op, const lm_tensor *index, int64_t high) {
  int64_t n = 1;
  for (int d = 0; d < index->ndim; d++) n *= index->stride[d] == 0 && index->size[d] > 0 ? 1 : index->size[d];
  return lm_cpu_check_indices(op, "index", n, (const int64_t *)index->data, high, NULL);
}

void lm_tuples_close(const lm_tensor *x, lm_index_tuples *t) {
  if (t->own) lm_device_free(x->device, t->own, (size_t)t->n * sizeof *t->position);
}

lm_status lm_tuples_open(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, lm_index_tuples *t) {
  lm_status status = LM_OK;
  bool negative = false, any_negative = false;
  *t = (lm_index_tuples){(const int64_t *)indices->v[0]->data, n, x->stride[0], x->size[0], x->stride[0], NULL};
  for (int k = 0; k < indices->n; k++) {
    TRY(lm_cpu_check_indices(op, "index", n, (const int64_t *)indices->v[k]->data, x->size[k], &negative));
    any_negative |= negative;
  }
  if (indices->n == 1 && !any_negative) return LM_OK;
  t->step = t->entries = 1;
  for (int k = 0; k < indices->n; k++) {
    t->entries += (x->size[k] - 1) * x->stride[k];
    if (x->size[k] > 1 && x->stride[k] < t->apart) t->apart = x->stride[k];
  }
  TRY(lm_device_alloc(x->device, (size_t)n * sizeof *t->position, &t->own));
  int64_t *position = t->own;
  t->position = position;
  int threads = lm_cpu_share((double)n * indices->n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; part++) {
    int64_t low = lm_cpu_share_begin(n, part, threads), high = lm_cpu_share_begin(n, part + 1, threads);
    for (int k = 0; k < indices->n; k++) {
      const int64_t *index = (const int64_t *)indices->v[k]->data;
      int64_t stride = x->stride[k], size = x->size[k];
      for (int64_t i = low; i < high; i++) {
        position[i] = (k ? position[i] : 1) + (index[i] - 1 + (size + 1) * (index[i] < 0)) * stride;
      }
    }
  }
done:
  return status;
}
