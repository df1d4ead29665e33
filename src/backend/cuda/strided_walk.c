#include "backend/cuda/strided_walk.h"

#include <string.h>

#include "copy.h"

enum { PIECE = INT32_MAX }; /* kernels count elements in 31 bits */

lm_walk_layout lm_cuda_walk(const lm_tensor *result) {
  lm_walk_layout l = {.ndim = result->ndim};
  for (int d = 0; d < result->ndim; d++) l.size[d] = result->size[d];
  lm_cuda_walk_add(&l, result, result->stride);
  return l;
}

int lm_cuda_walk_add(lm_walk_layout *l, const lm_tensor *t, const int64_t *stride) {
  int k = l->operands++;
  l->data[k] = t->data;
  l->dtype[k] = t->dtype;
  for (int d = 0; d < l->ndim; d++) l->stride[k][d] = stride[d];
  return k;
}

int64_t lm_cuda_walk_numel(const lm_walk_layout *l) {
  int64_t n = 1;
  for (int d = 0; d < l->ndim; d++) n *= l->size[d];
  return n;
}

/* ---- dims */

static void swap_dims(lm_walk_layout *l, int a, int b) {
  int64_t size = l->size[a];
  l->size[a] = l->size[b], l->size[b] = size;
  for (int k = 0; k < l->operands; k++) {
    int64_t stride = l->stride[k][a];
    l->stride[k][a] = l->stride[k][b], l->stride[k][b] = stride;
  }
}

static void drop_dim(lm_walk_layout *l, int dim) {
  for (int d = dim; d + 1 < l->ndim; d++) swap_dims(l, d, d + 1);
  l->ndim--;
}

/* Dim 0 is the innermost by now. */
static void merge(lm_walk_layout *l) {
  for (int d = l->ndim - 1; d >= 0; d--) {
    if (l->size[d] == 1) drop_dim(l, d);
  }
  for (int d = l->ndim - 1; d > 0; d--) {
    bool merges = true;
    for (int k = 0; k < l->operands; k++) merges &= l->stride[k][d] == l->stride[k][d - 1] * l->size[d - 1];
    if (!merges) continue;
    l->size[d - 1] *= l->size[d];
    drop_dim(l, d);
  }
  if (l->ndim > 0) return;
  l->ndim = 1, l->size[0] = 1; /* one element: a run of one */
  for (int k = 0; k < l->operands; k++) l->stride[k][0] = 1;
}

void lm_cuda_walk_order(lm_walk_layout *l, int order) {
  for (int a = 0, b = l->ndim - 1; a < b; a++, b--) swap_dims(l, a, b);
  if (order == LM_BY_MEMORY) {
    for (int d = 1; d < l->ndim; d++) {
      for (int at = d; at > 0 && l->stride[0][at] < l->stride[0][at - 1]; at--) swap_dims(l, at, at - 1);
    }
  }
  merge(l);
}

/* ---- operands that run across */

int lm_cuda_walk_across(const lm_walk_layout *l, int k) {
  enum {
    LEAST = 16,
    WORTH = 1 << 15
  }; /* below, tiles stay empty; below that many elements, reading as it comes is fine */
  if (!l->data[k] || l->stride[k][0] < 2 || l->size[0] < LEAST || lm_cuda_walk_numel(l) < WORTH) return 0;
  for (int d = 1; d < l->ndim; d++) {
    if (l->stride[k][d] == 1 && l->size[d] >= LEAST) return d;
  }
  return 0;
}

lm_status lm_cuda_turn(const lm_walk_layout *l, int dim, void *stream) {
  lm_status status = LM_OK;
  if (lm_cuda_walk_numel(l) <= PIECE) return LAUNCH("copy", lm_copy_turned(l, dim, stream));
  int widest = 1;
  for (int d = 1; d < l->ndim; d++) {
    if (l->size[d] > l->size[widest]) widest = d;
  }
  if (l->size[widest] < 2) widest = 0;
  int64_t bytes = (int64_t)lm_dtype_size((lm_dtype)l->dtype[0]);
  lm_walk_layout half[2] = {*l, *l};
  half[0].size[widest] = l->size[widest] / 2;
  half[1].size[widest] -= half[0].size[widest];
  for (int k = 0; k < 2; k++) {
    half[1].data[k] = (char *)l->data[k] + half[0].size[widest] * l->stride[k][widest] * bytes;
  }
  for (int i = 0; i < 2; i++) TRY(lm_cuda_turn(&half[i], dim, stream));
done:
  return status;
}

/* Operand k into `scratch`, dense in the order of the walk; dims along which it is broadcast stay so. */
static lm_status straighten(lm_walk_layout *l, int k, void *scratch, void *stream) {
  lm_walk_layout turn = {.operands = 2, .data = {scratch, l->data[k]}, .dtype = {l->dtype[k], l->dtype[k]}};
  int64_t next = 1;
  int along = 0;
  for (int d = 0; d < l->ndim; d++) {
    if (l->stride[k][d] == 0) continue;
    if (l->stride[k][d] == 1) along = turn.ndim;
    turn.size[turn.ndim] = l->size[d];
    turn.stride[0][turn.ndim] = next;
    turn.stride[1][turn.ndim++] = l->stride[k][d];
    l->stride[k][d] = next;
    next *= l->size[d];
  }
  l->data[k] = scratch;
  return lm_cuda_turn(&turn, along, stream);
}

static size_t straight_bytes(const lm_walk_layout *l, int k) {
  size_t bytes = lm_dtype_size((lm_dtype)l->dtype[k]);
  for (int d = 0; d < l->ndim; d++) bytes *= l->stride[k][d] ? (size_t)l->size[d] : 1;
  return bytes;
}

/* ---- launching */

static lm_status launch_pieces(const char *name, lm_point_launcher *launcher, const lm_point_launch *launch,
                               void *stream) {
  lm_status status = LM_OK;
  const lm_walk_layout *l = &launch->at;
  int64_t n = lm_cuda_walk_numel(l);
  if (n <= PIECE) return LAUNCH(name, launcher(launch, stream));
  int outer = l->ndim - 1;
  int64_t first = l->size[outer] / 2;
  if (first >= 64) first -= first % 64; /* the rest stays aligned */
  lm_point_launch half[2] = {*launch, *launch};
  half[0].at.size[outer] = first;
  half[1].at.size[outer] -= first;
  half[1].first += n / l->size[outer] * first;
  for (int k = 0; k < l->operands; k++) {
    if (!l->data[k]) continue;
    int64_t bytes = (int64_t)lm_dtype_size((lm_dtype)l->dtype[k]);
    half[1].at.data[k] = (char *)l->data[k] + first * l->stride[k][outer] * bytes;
  }
  for (int i = 0; i < 2; i++) {
    merge(&half[i].at);
    TRY(launch_pieces(name, launcher, &half[i], stream));
  }
done:
  return status;
}

lm_status lm_cuda_point_launch(const char *name, lm_point_launcher *launcher, lm_point_launch *launch, lm_device device,
                               void *stream) {
  lm_status status = LM_OK;
  lm_walk_layout *l = &launch->at;
  void *scratch[LM_WALK_OPERANDS] = {NULL};
  size_t bytes[LM_WALK_OPERANDS] = {0};
  bool straightened = false;
  for (int k = 1; k < l->operands; k++) {
    if (!lm_cuda_walk_across(l, k)) continue;
    bytes[k] = straight_bytes(l, k);
    TRY(lm_cuda_scratch(device, bytes[k], &scratch[k]));
    TRY(straighten(l, k, scratch[k], stream));
    straightened = true;
  }
  if (straightened) merge(l);
  TRY(launch_pieces(name, launcher, launch, stream));
done:
  for (int k = 1; k < l->operands; k++) {
    if (scratch[k]) lm_cuda_scratch_done(device, scratch[k], bytes[k]);
  }
  return status;
}
