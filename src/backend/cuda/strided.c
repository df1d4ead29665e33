#include "backend/cuda/strided.h"

#include <string.h>

#include "copy.h"
#include "merged_dims.h"

_Static_assert((int)LM_STRIDED_OPERANDS == (int)LM_DIMS_SIDES && (int)LM_STRIDED_DIMS == (int)LM_DIMS_MAX,
               "merged_dims.h");

enum { PIECE = INT32_MAX }; /* kernels count elements in 31 bits */

lm_strided_layout lm_cuda_strided(const lm_tensor *result) {
  lm_strided_layout l = {.ndim = result->ndim};
  for (int d = 0; d < result->ndim; d++) l.size[d] = result->size[d];
  lm_cuda_strided_add(&l, result, result->stride);
  return l;
}

int lm_cuda_strided_add(lm_strided_layout *l, const lm_tensor *t, const int64_t *stride) {
  int k = l->operands++;
  l->data[k] = t->data;
  l->dtype[k] = t->dtype;
  for (int d = 0; d < l->ndim; d++) l->stride[k][d] = stride[d];
  return k;
}

int64_t lm_cuda_strided_numel(const lm_strided_layout *l) {
  int64_t n = 1;
  for (int d = 0; d < l->ndim; d++) n *= l->size[d];
  return n;
}

/* ---- dims */

static void reverse_numbers(int n, int64_t *v) {
  for (int a = 0, b = n - 1; a < b; a++, b--) {
    int64_t first = v[a];
    v[a] = v[b], v[b] = first;
  }
}

static void reverse_dims(lm_strided_layout *l) {
  reverse_numbers(l->ndim, l->size);
  for (int k = 0; k < l->operands; k++) reverse_numbers(l->ndim, l->stride[k]);
}

/* Orders and merges the dims by lm_dims_of, which has the innermost last, and reverses them: launches have it first. */
void lm_cuda_strided_order(lm_strided_layout *l, int order) {
  const int64_t *stride[LM_STRIDED_OPERANDS];
  for (int k = 0; k < l->operands; k++) stride[k] = l->stride[k];
  lm_dims dims = lm_dims_of(l->ndim, l->size, NULL, l->operands, stride, order == LM_BY_MEMORY);
  if (dims.ndim == 0) { /* one element: a run of one */
    dims.ndim = 1, dims.size[0] = 1;
    for (int k = 0; k < l->operands; k++) dims.stride[k][0] = 1;
  }
  l->ndim = dims.ndim;
  memcpy(l->size, dims.size, sizeof l->size);
  memcpy(l->stride, dims.stride, sizeof l->stride);
  reverse_dims(l);
}

/* Merges neighboring dims that are evenly spaced in all operands, without changing their order. */
static void merge_dims(lm_strided_layout *l) {
  reverse_dims(l);
  lm_cuda_strided_order(l, LM_ROW_MAJOR);
}

/* ---- transposed operands */

int lm_cuda_strided_across(const lm_strided_layout *l, int k) {
  enum {
    MIN_BYTES = 16,
    WORTH = 1 << 15
  }; /* for shorter dims, tiles stay mostly empty; for fewer than WORTH elements, strided reads are fast enough */
  if (!l->data[k] || l->stride[k][0] < 2 || l->size[0] < MIN_BYTES || lm_cuda_strided_numel(l) < WORTH) return 0;
  for (int d = 1; d < l->ndim; d++) {
    if (l->stride[k][d] == 1 && l->size[d] >= MIN_BYTES) return d;
  }
  return 0;
}

lm_status lm_cuda_transpose(const lm_strided_layout *l, int dim, void *stream) {
  if (lm_cuda_strided_numel(l) <= PIECE) return LAUNCH("copy", lm_copy_transposed(l, dim, stream));
  int widest = 1;
  for (int d = 1; d < l->ndim; d++) {
    if (l->size[d] > l->size[widest]) widest = d;
  }
  if (l->size[widest] < 2) widest = 0;
  int64_t bytes = (int64_t)lm_dtype_size((lm_dtype)l->dtype[0]);
  lm_strided_layout half[2] = {*l, *l};
  half[0].size[widest] = l->size[widest] / 2;
  half[1].size[widest] -= half[0].size[widest];
  for (int k = 0; k < 2; k++) {
    half[1].data[k] = (char *)l->data[k] + half[0].size[widest] * l->stride[k][widest] * bytes;
  }
  for (int i = 0; i < 2; i++) NEED(lm_cuda_transpose(&half[i], dim, stream));
  return LM_OK;
}

/* Copies operand k to `scratch`, dense in the walk's order; its broadcast dims stay broadcast. */
static lm_status copy_densely(lm_strided_layout *l, int k, void *scratch, void *stream) {
  lm_strided_layout transpose = {.operands = 2, .data = {scratch, l->data[k]}, .dtype = {l->dtype[k], l->dtype[k]}};
  int64_t next = 1;
  int along = 0;
  for (int d = 0; d < l->ndim; d++) {
    if (l->stride[k][d] == 0) continue;
    if (l->stride[k][d] == 1) along = transpose.ndim;
    transpose.size[transpose.ndim] = l->size[d];
    transpose.stride[0][transpose.ndim] = next;
    transpose.stride[1][transpose.ndim++] = l->stride[k][d];
    l->stride[k][d] = next;
    next *= l->size[d];
  }
  l->data[k] = scratch;
  return lm_cuda_transpose(&transpose, along, stream);
}

static size_t straight_bytes(const lm_strided_layout *l, int k) {
  size_t bytes = lm_dtype_size((lm_dtype)l->dtype[k]);
  for (int d = 0; d < l->ndim; d++) bytes *= l->stride[k][d] ? (size_t)l->size[d] : 1;
  return bytes;
}

/* ---- launching */

static lm_status launch_pieces(const char *name, lm_pointwise_launcher *launcher, const lm_pointwise_launch *launch,
                               void *stream) {
  const lm_strided_layout *l = &launch->at;
  int64_t n = lm_cuda_strided_numel(l);
  if (n <= PIECE) return LAUNCH(name, launcher(launch, stream));
  int outer = l->ndim - 1;
  int64_t first = l->size[outer] / 2;
  if (first >= 64) first -= first % 64; /* a multiple of 64, so that the rest stays aligned */
  lm_pointwise_launch half[2] = {*launch, *launch};
  half[0].at.size[outer] = first;
  half[1].at.size[outer] -= first;
  half[1].first += n / l->size[outer] * first;
  for (int k = 0; k < l->operands; k++) {
    if (!l->data[k]) continue;
    int64_t bytes = (int64_t)lm_dtype_size((lm_dtype)l->dtype[k]);
    half[1].at.data[k] = (char *)l->data[k] + first * l->stride[k][outer] * bytes;
  }
  for (int i = 0; i < 2; i++) {
    merge_dims(&half[i].at);
    NEED(launch_pieces(name, launcher, &half[i], stream));
  }
  return LM_OK;
}

lm_status lm_cuda_pointwise_launch(const char *name, lm_pointwise_launcher *launcher, lm_pointwise_launch *launch,
                                   lm_device device, void *stream) {
  lm_status status = LM_OK;
  lm_strided_layout *l = &launch->at;
  lm_cuda_memory scratch[LM_STRIDED_OPERANDS] = {{0}};
  bool straightened = false;
  for (int k = 1; k < l->operands; k++) {
    if (!lm_cuda_strided_across(l, k)) continue;
    TRY(lm_cuda_scratch(device, straight_bytes(l, k), &scratch[k]));
    TRY(copy_densely(l, k, scratch[k].p, stream));
    straightened = true;
  }
  if (straightened) merge_dims(l);
  TRY(launch_pieces(name, launcher, launch, stream));
done:
  for (int k = 1; k < l->operands; k++) {
    if (scratch[k].p) lm_cuda_scratch_done(&scratch[k]);
  }
  return status;
}
