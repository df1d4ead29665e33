/* Pads with a value, or with mirrored, replicated or circular entries of the input. */
#include "autograd/composite.h"

#include "autograd/expr.h"
#include "autograd/formulas.h"
#include "op/check.h"
#include "op_entries.h"

enum { MIN_LARGE = 1 << 18, MIN_LONG = 1536 }; /* smallest number of elements of a large tensor, and of a long row */

/* Returns the source index for each position from -before to n + after - 1 in a dim of size n; both count from 0. */
static lm_tensor *entries(lm_expr *e, int64_t n, int64_t before, int64_t after, int mode, lm_device device) {
  lm_tensor *position = lm_e_arange(e, (double)-before, (double)(n + after), 1, LM_I64, device);
  lm_tensor *last = lm_e_number(e, (double)(n - 1));
  if (mode == LM_PAD_REPLICATE) return lm_e_clamp(e, position, lm_e_number(e, 0), last);
  if (mode == LM_PAD_CIRCULAR) { /* negative padding crops first; the rest repeats */
    lm_tensor *cut = lm_e_number(e, (double)(before < 0 ? -before : 0));
    lm_tensor *left = lm_e_number(e, (double)lm_pad_left(n, before, after));
    return lm_e_add(e, lm_e_remainder(e, lm_e_sub(e, position, cut, 1), left), cut, 1);
  }
  /* mirrored at 0, and at n - 1 */
  return lm_e_sub(e, last, lm_e_abs(e, lm_e_sub(e, last, lm_e_abs(e, position), 1)), 1);
}

static lm_tensor *fill_pad(lm_expr *e, lm_tensor *t, lm_tensor *value) {
  return value ? lm_e_fill_(e, t, value) : lm_e_zero_(e, t);
}

/* Fills y's borders. */
static void fill_sides(lm_expr *e, lm_tensor *y, const lm_pad_args *a) {
  for (int i = 0; i < a->pad.n && y; i++) {
    int d = a->x->ndim - 1 - i / 2;
    int64_t n = lm_min(a->pad.v[i], y->size[d]);
    if (n > 0) fill_pad(e, lm_e_narrow(e, y, d, i % 2 == 0 ? 1 : y->size[d] - n + 1, n), a->value);
  }
}

/* Pads x with the value; negative padding crops x. */
static lm_tensor *pad_by_value(lm_expr *e, const lm_pad_args *a) {
  lm_tensor *t = a->x;
  lm_ints size = lm_f_size_of(t);
  bool more = false;
  for (int i = 0; i < a->pad.n; i++) {
    int d = t->ndim - 1 - i / 2;
    size.v[d] += a->pad.v[i];
    more = more || a->pad.v[i] > 0;
  }
  for (int i = 0; i < a->pad.n && t; i += 2) {
    int d = a->x->ndim - 1 - i / 2;
    int64_t before = a->pad.v[i], after = a->pad.v[i + 1], cut = before < 0 ? -before : 0;
    if (before < 0 || after < 0) t = lm_e_narrow(e, t, d, cut + 1, a->x->size[d] - cut + (after < 0 ? after : 0));
  }
  if (!more) return lm_e_clone(e, t, LM_PRESERVE);
  bool interleaved = lm_is_channels_last(a->x) && !lm_is_contiguous(a->x);
  lm_tensor *y = lm_e_empty(e, size, a->x->dtype, a->x->device, interleaved ? LM_CHANNELS_LAST : LM_CONTIGUOUS);
  const bool large = y && LM_DEVICE_KIND(y->device) == LM_CPU && t && t->numel > lm_max(MIN_LARGE, y->numel / 2);
  const bool columns = a->pad.v[0] > 0 || a->pad.v[1] > 0; /* sides of short rows take as long as filling y */
  const bool sides = large && (!columns || y->size[y->ndim - 1] > MIN_LONG);
  lm_tensor *inner = sides ? y : fill_pad(e, y, a->value);
  if (sides) fill_sides(e, y, a);
  for (int i = 0; i < a->pad.n && inner && t; i += 2) {
    int d = a->x->ndim - 1 - i / 2;
    int64_t before = a->pad.v[i];
    inner = lm_e_narrow(e, inner, d, (before > 0 ? before : 0) + 1, t->size[d]);
  }
  lm_e_copy_(e, inner, t, false);
  return y;
}

/* Returns the source index for each position of the flattened padded dims; size: sizes before padding; from 1. */
static lm_tensor *plane_indices(lm_expr *e, const lm_ints *size, const lm_ints *pad, int mode, lm_device device) {
  lm_tensor *indices = lm_e_arange(e, 1, 2, 1, LM_I64, device);
  int64_t step = 1;
  for (int i = 0; i < pad->n; i += 2) { /* indices: flattened over the dims done so far, the last dim innermost */
    int d = size->n - 1 - i / 2;
    lm_tensor *from = entries(e, size->v[d], pad->v[i], pad->v[i + 1], mode, device);
    from = lm_e_unsqueeze(e, lm_e_mul(e, from, lm_e_number(e, (double)step)), 1);
    indices = lm_e_reshape(e, lm_e_add(e, from, indices, 1), (lm_ints){.n = 1, .v = {-1}});
    step *= size->v[d];
  }
  return indices;
}

/* Returns size with its last `dims` flattened into one. */
static lm_ints as_planes(lm_ints size, int dims) {
  int64_t plane = 1;
  for (int d = size.n - dims; d < size.n; d++) plane *= size.v[d];
  size.n += 1 - dims;
  size.v[size.n - 1] = plane;
  return size;
}

/* Gathers once over the flattened padded dims, for tensors of several such planes. */
static lm_tensor *pad_planes(lm_expr *e, const lm_pad_args *a) {
  lm_ints size = lm_f_size_of(a->x), flat = as_planes(size, a->pad.n / 2), pad = lm_ints_of(&a->pad);
  lm_tensor *indices = plane_indices(e, &size, &pad, a->mode, a->x->device);
  for (int i = 0; i < a->pad.n; i++) size.v[size.n - 1 - i / 2] += a->pad.v[i];
  return lm_e_reshape(e, lm_e_index_select(e, lm_e_reshape(e, a->x, flat), flat.n - 1, indices), size);
}

lm_tensor *lm_f_padded_grad(lm_expr *e, lm_tensor *g, lm_ints size, lm_ints pad, int mode) {
  if (!g) return NULL;
  if (g->numel == 0) return lm_f_zeros_of(e, g, size);
  lm_ints flat = as_planes(size, pad.n / 2), padded = as_planes(lm_f_size_of(g), pad.n / 2);
  lm_tensor *indices = plane_indices(e, &size, &pad, mode, g->device);
  g = lm_e_index_add(e, lm_f_zero_for(e, g, flat), flat.n - 1, indices, lm_e_reshape(e, g, padded), 1);
  return lm_e_reshape(e, g, size);
}

lm_status lm_composite_pad(const lm_pad_args *a, lm_tensor **out) {
  lm_expr whole, *e = &whole;
  NEED(lm_check_pad(a));
  lm_expr_begin(e);
  if (a->mode == LM_PAD_CONSTANT) return lm_expr_finish(e, pad_by_value(e, a), out);
  if (LM_DEVICE_KIND(a->x->device) == LM_CPU && lm_is_contiguous(a->x) && a->pad.n > 0)
    return lm_expr_finish(e, lm_e_pad_around(e, a->x, lm_ints_of(&a->pad), a->mode), out);
  int64_t plane = 1;
  for (int i = 0; i < a->pad.n; i += 2) plane *= a->x->size[a->x->ndim - 1 - i / 2];
  if (a->pad.n > 2 && lm_is_contiguous(a->x) && plane > 0 && a->x->numel >= 8 * plane)
    return lm_expr_finish(e, pad_planes(e, a), out);
  lm_tensor *y = a->x;
  for (int i = 0; i < a->pad.n; i += 2) {
    int d = a->x->ndim - 1 - i / 2;
    int64_t before = a->pad.v[i], after = a->pad.v[i + 1];
    if (before == 0 && after == 0) continue;
    lm_tensor *from = entries(e, a->x->size[d], before, after, a->mode, a->x->device);
    y = lm_e_index_select(e, y, d, lm_e_add(e, from, lm_e_number(e, 1), 1));
  }
  return lm_expr_finish(e, y == a->x ? lm_e_clone(e, y, LM_PRESERVE) : y, out);
}
