/* pad, by a number or by the input mirrored or repeated. */
#include "autograd/composite.h"

#include "autograd/expr.h"
#include "autograd/formulas.h"

/* Entries of a dim of n that negative pads leave. */
static int64_t left_of(int64_t n, int64_t before, int64_t after) {
  return n + (before < 0 ? before : 0) + (after < 0 ? after : 0);
}

/* Which entry of a dim of n lies at each place from -before to n + after - 1; both count from 0. */
static lm_tensor *entries(lm_expr *e, int64_t n, int64_t before, int64_t after, int mode, lm_device device) {
  lm_tensor *place = lm_e_arange(e, (double)-before, (double)(n + after), 1, LM_I64, device);
  lm_tensor *last = lm_e_number(e, (double)(n - 1));
  if (mode == LM_PAD_REPLICATE) return lm_e_clamp(e, place, lm_e_number(e, 0), last);
  if (mode == LM_PAD_CIRCULAR) { /* what is cut off is cut off first */
    lm_tensor *cut = lm_e_number(e, (double)(before < 0 ? -before : 0));
    lm_tensor *left = lm_e_number(e, (double)left_of(n, before, after));
    return lm_e_add(e, lm_e_remainder(e, lm_e_sub(e, place, cut, 1), left), cut, 1);
  }
  /* mirrored at 0, and at n - 1 */
  return lm_e_sub(e, last, lm_e_abs(e, lm_e_sub(e, last, lm_e_abs(e, place), 1)), 1);
}

/* How many more a mode gives on a side of a dim of n, of which `left` are not cut off. */
static int64_t reach(int mode, int64_t n, int64_t left) {
  if (mode == LM_PAD_REFLECT) return n - 1;
  return mode == LM_PAD_CIRCULAR ? left : mode == LM_PAD_CONSTANT || n > 0 ? INT64_MAX : 0;
}

/* pad: before and after the last dim, the one before it, … */
static lm_status check_pad(const lm_pad_args *a) {
  const lm_tensor *t = a->x;
  const char *mode = lm_names_pad_mode[a->mode];
  if (a->pad.n % 2 != 0 || a->pad.n > 2 * t->ndim) {
    return lm_fail(LM_E_ARG, "pad: %d numbers for x of %s: two for each dim expected, from the last on", a->pad.n,
                   lm_shape_of(t));
  }
  if (a->mode != LM_PAD_CONSTANT && a->value != 0) {
    return lm_fail(LM_E_ARG, "pad: value is for mode = \"constant\", and mode is \"%s\"", mode);
  }
  for (int i = 0; i < a->pad.n; i += 2) {
    int d = t->ndim - 1 - i / 2;
    int64_t n = t->size[d], before = a->pad.v[i], after = a->pad.v[i + 1], size;
    bool fits = before >= -n && after >= -n && left_of(n, before, after) >= 0;
    if (!fits || __builtin_add_overflow(n, before, &size) || __builtin_add_overflow(size, after, &size)) {
      return lm_fail(LM_E_SHAPE, "pad: %lld before and %lld after dim %d of %s leave no size", (long long)before,
                     (long long)after, d + 1, lm_shape_of(t));
    }
    int64_t most = reach(a->mode, n, left_of(n, before, after));
    if (before > most || after > most) {
      return lm_fail(LM_E_SHAPE, "pad: mode \"%s\" gives dim %d of %s at most %lld more on a side, not %lld", mode,
                     d + 1, lm_shape_of(t), (long long)most, (long long)(before > after ? before : after));
    }
  }
  return LM_OK;
}

/* The value everywhere, then x, or what is left of it, into its place. */
static lm_tensor *pad_by_value(lm_expr *e, const lm_pad_args *a) {
  lm_tensor *t = a->x;
  lm_ints size = lm_f_size_of(NULL, t);
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
  lm_tensor *inner = lm_e_fill_(e, y, lm_e_number(e, a->value));
  for (int i = 0; i < a->pad.n && inner && t; i += 2) {
    int d = a->x->ndim - 1 - i / 2;
    int64_t before = a->pad.v[i];
    inner = lm_e_narrow(e, inner, d, (before > 0 ? before : 0) + 1, t->size[d]);
  }
  lm_e_copy_(e, inner, t, false);
  return y;
}

/* One gather of the padded dims as one, for tensors of several such planes. */
static lm_tensor *pad_planes(lm_expr *e, const lm_pad_args *a) {
  int lead = a->x->ndim - a->pad.n / 2;
  lm_ints size = lm_f_size_of(NULL, a->x), flat = size;
  lm_tensor *places = lm_e_arange(e, 1, 2, 1, LM_I64, a->x->device);
  int64_t step = 1;
  for (int i = 0; i < a->pad.n; i += 2) { /* places: [what is done], the last dim innermost */
    int d = a->x->ndim - 1 - i / 2;
    lm_tensor *from = entries(e, size.v[d], a->pad.v[i], a->pad.v[i + 1], a->mode, a->x->device);
    from = lm_e_unsqueeze(e, lm_e_mul(e, from, lm_e_number(e, (double)step)), 1);
    places = lm_e_reshape(e, lm_e_add(e, from, places, 1), (lm_ints){.n = 1, .v = {-1}});
    step *= size.v[d];
    size.v[d] += a->pad.v[i] + a->pad.v[i + 1];
  }
  flat.n = lead + 1;
  flat.v[lead] = step;
  return lm_e_reshape(e, lm_e_index_select(e, lm_e_reshape(e, a->x, flat), lead, places), size);
}

lm_status lm_composite_pad(const lm_pad_args *a, lm_tensor **out) {
  lm_expr whole, *e = &whole;
  lm_status status = check_pad(a);
  if (status != LM_OK) return status;
  lm_expr_begin(e);
  if (a->mode == LM_PAD_CONSTANT) return lm_expr_finish(e, pad_by_value(e, a), out);
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
