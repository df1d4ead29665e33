#include "backend/cpu/index/indices.h"

typedef struct index_check {
  const int64_t *index;
  int64_t high;
  bool may_be_negative;
  _Atomic bool beyond, negative;
} index_check;

static void check_some(void *ctx, int64_t first, int64_t last) {
  index_check *c = ctx;
  const int64_t *index = c->index;
  const uint64_t high = (uint64_t)c->high;
  uint64_t beyond = 0, below = 0; /* nonzero top bits if some v is 0 or above high; if some is < 0 */
  if (c->may_be_negative) {
#pragma omp simd reduction(| : beyond, below)
    for (int64_t i = first; i < last; i++) {
      uint64_t sign = index[i] < 0 ? UINT64_MAX : 0, v = ((uint64_t)index[i] ^ sign) - sign;
      below |= sign;
      beyond |= (v - 1) | (high - v);
    }
  } else {
#pragma omp simd reduction(| : beyond)
    for (int64_t i = first; i < last; i++) beyond |= ((uint64_t)index[i] - 1) | (high - (uint64_t)index[i]);
  }
  if (beyond >> 63) atomic_store_explicit(&c->beyond, true, memory_order_relaxed);
  if (below) atomic_store_explicit(&c->negative, true, memory_order_relaxed);
}

lm_status lm_cpu_check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool *negative) {
  index_check check = {.index = index, .high = high, .may_be_negative = negative != NULL};
  lm_parallel(n, (double)n, 0, check_some, &check);
  if (negative) *negative = check.negative;
  if (!check.beyond) return LM_OK;
  for (int64_t i = 0; i < n; i++) {
    uint64_t v = negative && index[i] < 0 ? 0 - (uint64_t)index[i] : (uint64_t)index[i];
    if (v - 1 < (uint64_t)high) continue;
    return lm_fail_bad_index(op, what, index[i], i + 1, high, negative != NULL);
  }
  return LM_OK;
}

lm_status lm_cpu_check_index(const char *op, const lm_tensor *index, int64_t high) {
  int64_t n = 1;
  for (int d = 0; d < index->ndim; d++) n *= index->stride[d] == 0 && index->size[d] > 0 ? 1 : index->size[d];
  return lm_cpu_check_indices(op, "index", n, (const int64_t *)index->data, high, NULL);
}

typedef struct tuples_job {
  const lm_tensor *x;
  const lm_list *indices;
  int64_t *position;
} tuples_job;

static void find_positions(void *ctx, int64_t first, int64_t last) {
  const tuples_job *j = ctx;
  for (int k = 0; k < j->indices->n; k++) {
    const int64_t *index = (const int64_t *)j->indices->v[k]->data;
    int64_t stride = j->x->stride[k], size = j->x->size[k], *position = j->position;
    for (int64_t i = first; i < last; i++) {
      position[i] = (k ? position[i] : 1) + (index[i] - 1 + (size + 1) * (index[i] < 0)) * stride;
    }
  }
}

lm_status lm_tuples_open(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, lm_index_tuples *t) {
  bool negative = false, any_negative = false;
  *t = (lm_index_tuples){(const int64_t *)indices->v[0]->data, n, x->stride[0], x->size[0], x->stride[0], {0}};
  for (int k = 0; k < indices->n; k++) {
    NEED(lm_cpu_check_indices(op, "index", n, (const int64_t *)indices->v[k]->data, x->size[k], &negative));
    any_negative |= negative;
  }
  if (indices->n == 1 && !any_negative) return LM_OK;
  t->step = t->entries = 1;
  for (int k = 0; k < indices->n; k++) {
    t->entries += (x->size[k] - 1) * x->stride[k];
    if (x->size[k] > 1 && x->stride[k] < t->apart) t->apart = x->stride[k];
  }
  t->own.bytes = (size_t)n * sizeof *t->position;
  NEED(lm_workspace_take(&t->own));
  t->position = t->own.data;
  return lm_parallel(n, (double)n * indices->n, 0, find_positions, &(tuples_job){x, indices, t->own.data});
}
