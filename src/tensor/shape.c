/* Implements broadcasting, dim normalization and tests of memory layout. */
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

bool lm_same_shape(const lm_tensor *a, const lm_tensor *b) {
  if (a->ndim != b->ndim) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->size[d] != b->size[d]) return false;
  return true;
}

bool lm_is_contiguous(const lm_tensor *t) {
  int64_t expected = 1;
  if (t->numel == 0) return true;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (t->size[d] == 1) continue;
    if (t->stride[d] != expected) return false;
    expected *= t->size[d];
  }
  return true;
}

bool lm_is_channels_last(const lm_tensor *t) {
  static const int8_t innermost_first[4] = {1, 3, 2, 0};
  int64_t expected = 1;
  if (t->ndim != 4) return false;
  if (t->numel == 0) return true;
  for (int i = 0; i < 4; i++) {
    int d = innermost_first[i];
    if (t->size[d] == 1) continue;
    if (t->stride[d] != expected) return false;
    expected *= t->size[d];
  }
  return true;
}

bool lm_is_dense(const lm_tensor *t) {
  if (lm_is_contiguous(t)) return true;
  unsigned open = 0; /* dims not yet visited */
  for (int d = 0; d < t->ndim; d++)
    if (t->size[d] != 1) open |= 1u << d;
  /* Each step finds the dim whose stride is the span of the dims found so far. */
  for (int64_t span = 1; open;) {
    int next = -1;
    for (int d = 0; d < t->ndim && next < 0; d++)
      if ((open >> d & 1) && t->stride[d] == span) next = d;
    if (next < 0) return false;
    open &= ~(1u << next);
    span *= t->size[next];
  }
  return true;
}

bool lm_has_strides(const lm_tensor *t, const int64_t *stride) {
  for (int d = 0; d < t->ndim; d++)
    if (t->size[d] != 1 && t->stride[d] != stride[d]) return false;
  return true;
}

bool lm_same_layout(const lm_tensor *a, const lm_tensor *b) {
  if (lm_is_contiguous(a)) return lm_is_contiguous(b);
  return lm_has_strides(a, b->stride) && lm_is_dense(a);
}

bool lm_overlaps_itself(const lm_tensor *t) {
  int64_t reach = 0, size[LM_MAX_DIMS], stride[LM_MAX_DIMS]; /* last offset of the dims so far; dims sorted by stride */
  int n = 0;
  if (t->numel == 0) return false;
  for (int d = t->ndim - 1; d >= 0; d--) {
    int at = n;
    if (t->size[d] == 1) continue;
    for (; at > 0 && stride[at - 1] > t->stride[d]; at--) stride[at] = stride[at - 1], size[at] = size[at - 1];
    stride[at] = t->stride[d];
    size[at] = t->size[d];
    n++;
  }
  for (int i = 0; i < n; i++) {
    if (stride[i] <= reach) return true;
    reach += (size[i] - 1) * stride[i];
  }
  return false;
}

lm_status lm_broadcast(const char *op, int na, const int64_t *a, int nb, const int64_t *b, int *n, int64_t *out) {
  int ndim = na > nb ? na : nb;
  for (int i = 1; i <= ndim; i++) { /* i counts from the last dim */
    int64_t sa = i <= na ? a[na - i] : 1, sb = i <= nb ? b[nb - i] : 1;
    if (sa != sb && sa != 1 && sb != 1)
      return lm_fail(LM_E_SHAPE, "%s: shapes %s and %s must broadcast, got sizes %lld and %lld in dim -%d", op,
                     lm_shape_text(na, a), lm_shape_text(nb, b), (long long)sa, (long long)sb, i);
    out[ndim - i] = sa == 1 ? sb : sa;
  }
  *n = ndim;
  return LM_OK;
}

lm_status lm_dim(const char *op, int64_t dim, int ndim, int *out) {
  int64_t range = ndim > 0 ? ndim : 1, d = dim < 0 ? dim + range : dim;
  if (d >= 0 && d < range) {
    *out = (int)d;
    return LM_OK;
  }
  long long given = dim < 0 ? dim : dim + 1;
  if (ndim == 0) return lm_fail(LM_E_INDEX, "%s: dim %lld is out of range for a 0-d tensor (1 or -1)", op, given);
  return lm_fail(LM_E_INDEX, "%s: dim %lld is out of range for a tensor of %d dim%s (1 to %d, or -1 to -%d)", op, given,
                 ndim, ndim == 1 ? "" : "s", ndim, ndim);
}

const char *lm_shape_text(int ndim, const int64_t *size) {
  enum { RING = 8, BYTES = 192 };
  static _Thread_local char ring[RING][BYTES];
  static _Thread_local unsigned turn;
  char *text = ring[turn++ % RING];
  int at = snprintf(text, BYTES, "[");
  for (int d = 0; d < ndim; d++) {
    int n = snprintf(text + at, (size_t)(BYTES - at), d ? ", %lld" : "%lld", (long long)size[d]);
    if (at + n > BYTES - 6) { /* no room left for ", ...]": too many dims */
      snprintf(text + at, (size_t)(BYTES - at), "...");
      at = (int)strlen(text);
      break;
    }
    at += n;
  }
  snprintf(text + at, (size_t)(BYTES - at), "]");
  return text;
}
