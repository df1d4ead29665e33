/* Pads by a tensor's own elements (reflect, replicate, circular). The kernel gets contiguous, non-empty tensors. */
#include "base/message.h"
#include "op/frame.h"

int64_t lm_pad_left(int64_t n, int64_t before, int64_t after) {
  return n + (before < 0 ? before : 0) + (after < 0 ? after : 0);
}

lm_pads lm_pads_of(const lm_ints *v) {
  lm_pads pads = {.n = v->n};
  for (int i = 0; i < v->n; i++) pads.v[i] = v->v[i];
  return pads;
}

lm_ints lm_ints_of(const lm_pads *pads) {
  lm_ints v = {.n = pads->n};
  for (int i = 0; i < pads->n && i < LM_MAX_DIMS; i++) v.v[i] = pads->v[i];
  return v;
}

/* Returns the largest padding a mode allows on a side of a dim of n, of which `left` remain after cropping. */
static int64_t largest_padding(int mode, int64_t n, int64_t left) {
  if (mode == LM_PAD_REFLECT) return n - 1;
  return mode == LM_PAD_CIRCULAR ? left : mode == LM_PAD_CONSTANT || n > 0 ? INT64_MAX : 0;
}

/* Checks the value: a number or 0-d tensor that x's dtype can represent. */
static lm_status check_value(const lm_pad_args *a) {
  lm_dtype dtype = a->x->dtype;
  double number = 0;
  int64_t low, high;
  if (!a->value) return LM_OK;
  if (a->value->ndim > 0)
    return lm_fail_value("pad", "value", "a number or a 0-d tensor", lm_text("shape %s", lm_shape_of(a->value)));
  if (a->mode == LM_PAD_CONSTANT && !a->value->number) return LM_OK;
  NEED(lm_tensor_item_f64(a->value, &number));
  if (a->mode != LM_PAD_CONSTANT && number != 0) {
    return lm_fail_number("pad", "value", lm_text("left out for mode \"%s\"", lm_names_pad_mode[a->mode]), number);
  }
  NEED(lm_check_fits("pad", dtype, a->value));
  lm_dtype_integers(dtype, &low, &high);
  if (number < 0 && low == 0 && !lm_dtype_is_float(dtype) && dtype != LM_BOOL) { /* other ops wrap the value around */
    return lm_fail_number("pad", "value", lm_text("from 0 to %lld for %s", (long long)high, lm_dtype_name(dtype)),
                          number);
  }
  return LM_OK;
}

/* Checks pad, which lists before and after the last dim, then the one before it, … */
lm_status lm_check_pad(const lm_pad_args *a) {
  const lm_tensor *t = a->x;
  const char *mode = lm_names_pad_mode[a->mode];
  if (a->pad.n % 2 != 0 || a->pad.n > 2 * t->ndim) {
    return lm_fail_int("pad", "the number of entries of pad",
                       lm_text("even and at most %d for x of shape %s", 2 * t->ndim, lm_shape_of(t)), a->pad.n);
  }
  if (a->mode != LM_PAD_CONSTANT && a->pad.n > LM_MAX_DIMS) {
    return lm_fail_int("pad", "the number of entries of pad", lm_text("at most %d for mode \"%s\"", LM_MAX_DIMS, mode),
                       a->pad.n);
  }
  NEED(check_value(a));
  for (int i = 0; i < a->pad.n; i += 2) {
    int d = t->ndim - 1 - i / 2;
    int64_t n = t->size[d], before = a->pad.v[i], after = a->pad.v[i + 1], size;
    bool fits = before >= -n && after >= -n && lm_pad_left(n, before, after) >= 0;
    if (!fits || __builtin_add_overflow(n, before, &size) || __builtin_add_overflow(size, after, &size)) {
      return lm_fail(LM_E_SHAPE, "pad: padding %lld before and %lld after leaves dim %d of %s no size",
                     (long long)before, (long long)after, d + 1, lm_shape_of(t));
    }
    int64_t max_padding = largest_padding(a->mode, n, lm_pad_left(n, before, after));
    if (before > max_padding || after > max_padding) {
      return lm_fail_int("pad", "padding",
                         lm_text("at most %lld a side for mode \"%s\" in dim %d of %s", (long long)max_padding, mode,
                                 d + 1, lm_shape_of(t)),
                         before > after ? before : after);
    }
  }
  return LM_OK;
}

lm_status lm_op_pad_around(const lm_pad_around_args *a, lm_tensor **out) {
  lm_pad_around_args run = *a;
  lm_ints size = lm_sizes_between(a->x->ndim, a->x->size, 0, 0);
  LM_FRAME(f, LM_OP_pad_around);
  if (a->mode == LM_PAD_CONSTANT)
    return lm_fail_value("pad_around", "mode", "\"reflect\", \"replicate\" or \"circular\"", "\"constant\"");
  NEED(lm_check_pad(&(lm_pad_args){.x = a->x, .pad = lm_pads_of(&a->pad), .mode = a->mode}));
  if (a->pad.n == 0) {
    NEED(lm_op_clone(&(lm_clone_args){.x = a->x}, &f.result[0]));
    return lm_frame_end(&f, out);
  }
  for (int i = 0; i < a->pad.n; i++) size.v[size.n - 1 - i / 2] += a->pad.v[i];
  NEED(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(lm_frame_dispatch_or_host(&f, run.x->device, &run));
  return lm_frame_end(&f, out);
}
