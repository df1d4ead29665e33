#include "autograd/composite.h"

#include <string.h>

#include "base/mem.h"

#include "autograd/expr.h"

/* ---- shapes */

static lm_ints size_of(const lm_tensor *t) {
  lm_ints s = {.n = t->ndim};
  memcpy(s.v, t->size, sizeof s.v);
  return s;
}

/* The sizes asked for, -1 replaced by what is left. */
static lm_status resolve(const lm_tensor *x, const lm_ints *asked, lm_ints *out) {
  int64_t known = 1;
  int open = -1;
  *out = *asked;
  if (out->n < 0) out->n = 0;
  for (int d = 0; d < out->n; d++) {
    if (out->v[d] == -1 && open < 0) {
      open = d;
    } else if (out->v[d] < 0 || __builtin_mul_overflow(known, out->v[d], &known)) {
      return lm_fail(LM_E_ARG, "reshape: sizes %s: one of them may be -1, the others count elements",
                     lm_shape_text(asked->n, asked->v));
    }
  }
  if (open >= 0 && known > 0) out->v[open] = x->numel / known;
  if (open >= 0 ? known == 0 || x->numel % known != 0 : known != x->numel) {
    return lm_fail(LM_E_SHAPE, "reshape: %s has %lld elements, which do not fit %s", lm_shape_of(x),
                   (long long)x->numel, lm_shape_text(out->n, asked->v));
  }
  return LM_OK;
}

lm_status lm_composite_reshape(const lm_reshape_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_view_args view_args = {.x = a->x};
  TRY(resolve(a->x, &a->size, &view_args.size));
  status = lm_call(LM_OP_view, &view_args, out);
  if (status == LM_E_SHAPE) { /* the strides do not allow it */
    lm_expr whole, *e = &whole;
    lm_expr_begin(e);
    return lm_expr_finish(e, lm_e_view(e, lm_e_clone(e, a->x, LM_CONTIGUOUS), view_args.size), out);
  }
done:
  return status;
}

lm_status lm_composite_flatten(const lm_flatten_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  int first, last;
  lm_reshape_args args = {.x = a->x};
  TRY(lm_dim("flatten", a->start_dim == LM_NO_DIM ? 0 : a->start_dim, a->x->ndim, &first));
  TRY(lm_dim("flatten", a->end_dim == LM_NO_DIM ? -1 : a->end_dim, a->x->ndim, &last));
  if (first > last) { return lm_fail(LM_E_ARG, "flatten: start_dim %d comes after end_dim %d", first + 1, last + 1); }
  for (int d = 0; d < a->x->ndim; d++) {
    if (d <= first || d > last) {
      args.size.v[args.size.n++] = a->x->size[d];
    } else {
      args.size.v[args.size.n - 1] *= a->x->size[d];
    }
  }
  if (a->x->ndim == 0) args.size = (lm_ints){1, {1}};
  TRY(lm_call(LM_OP_reshape, &args, out));
done:
  return status;
}

lm_status lm_composite_contiguous(const lm_contiguous_args *a, lm_tensor **out) {
  bool is_so = a->memory_format == LM_PRESERVE || (a->memory_format == LM_CONTIGUOUS && lm_is_contiguous(a->x)) ||
               (a->memory_format == LM_CHANNELS_LAST && lm_is_channels_last(a->x));
  if (is_so) {
    *out = lm_retain(a->x);
    return LM_OK;
  }
  if (a->memory_format == LM_CHANNELS_LAST && a->x->ndim != 4) {
    return lm_fail(LM_E_SHAPE, "contiguous: channels_last wants 4 dims, got %s", lm_shape_of(a->x));
  }
  return lm_call(LM_OP_clone, &(lm_clone_args){a->x, a->memory_format}, out);
}

lm_status lm_composite_stack(const lm_stack_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_list list = {0, NULL};
  int dim;
  if (a->tensors.n == 0) return lm_fail(LM_E_ARG, "stack: no tensors");
  const lm_tensor *first = a->tensors.v[0];
  TRY(lm_dim("stack", a->dim == LM_NO_DIM ? 0 : a->dim, first->ndim + 1, &dim));
  list.v = lm_malloc(sizeof *list.v * (size_t)a->tensors.n);
  if (!list.v) return LM_E_OOM;
  for (; list.n < a->tensors.n; list.n++) {
    lm_tensor *t = a->tensors.v[list.n];
    if (!lm_same_shape(t, first)) {
      status = lm_fail(LM_E_SHAPE, "stack: tensor %d is %s, the first %s; all have to be the same size", list.n + 1,
                       lm_shape_of(t), lm_shape_of(first));
      goto done;
    }
    TRY(lm_call(LM_OP_unsqueeze, &(lm_unsqueeze_args){t, dim}, &list.v[list.n]));
  }
  TRY(lm_call(LM_OP_cat, &(lm_cat_args){list, dim}, out));
done:
  for (int i = 0; i < list.n; i++) lm_release(list.v[i]);
  lm_free(list.v);
  return status;
}

lm_status lm_composite_sum_to_size(const lm_sum_to_size_args *a, lm_tensor **out) {
  const lm_tensor *x = a->x;
  int more = x->ndim - a->size.n;
  lm_ints dims = {.n = 0};
  bool fits = more >= 0 && a->size.n >= 0;
  for (int d = 0; fits && d < x->ndim; d++) {
    if (d < more) {
      dims.v[dims.n++] = d;
    } else if (a->size.v[d - more] != x->size[d]) {
      fits = a->size.v[d - more] == 1;
      dims.v[dims.n++] = d;
    }
  }
  if (!fits) {
    return lm_fail(LM_E_SHAPE, "sum_to_size: %s does not come from broadcasting %s", lm_shape_of(x),
                   lm_shape_text(a->size.n < 0 ? 0 : a->size.n, a->size.v));
  }
  if (dims.n == 0) {
    *out = lm_retain(a->x);
    return LM_OK;
  }
  lm_expr whole, *e = &whole;
  lm_expr_begin(e);
  bool keepdim = dims.n > more; /* else no view is needed, which would hold on to its base */
  lm_tensor *summed = lm_e_sum(e, a->x, dims, keepdim, LM_NO_DTYPE);
  return lm_expr_finish(e, more > 0 && keepdim ? lm_e_reshape(e, summed, a->size) : summed, out);
}

/* ---- padding */

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
  lm_ints size = size_of(t);
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

lm_status lm_composite_pad(const lm_pad_args *a, lm_tensor **out) {
  lm_expr whole, *e = &whole;
  lm_status status = check_pad(a);
  if (status != LM_OK) return status;
  lm_expr_begin(e);
  if (a->mode == LM_PAD_CONSTANT) return lm_expr_finish(e, pad_by_value(e, a), out);
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

/* ---- unpooling */

/* H and W of the result: of the smallest image that is pooled to t, or what output_size says. */
static lm_status unpooled_size(const lm_max_unpool2d_args *a, int64_t out[2]) {
  const lm_tensor *t = a->x;
  bool is_image = t->ndim == 3 || t->ndim == 4;
  if (!is_image)
    return lm_fail(LM_E_SHAPE, "max_unpool2d: x has to be [N, C, H, W] or [C, H, W], is %s", lm_shape_of(t));
  if (a->indices->dtype != LM_I64 || !lm_same_shape(a->indices, t)) {
    return lm_fail(LM_E_SHAPE, "max_unpool2d: indices have to be int64 %s as x, are %s %s", lm_shape_of(t),
                   lm_dtype_name((lm_dtype)a->indices->dtype), lm_shape_of(a->indices));
  }
  if (a->kernel_size[0] == -1) return lm_fail(LM_E_ARG, "max_unpool2d: kernel_size is missing");
  const int64_t *stride = a->stride[0] == -1 ? a->kernel_size : a->stride, *asked = NULL;
  if (a->output_size.n >= 0) {
    if (a->output_size.n != 2 && a->output_size.n != t->ndim) {
      return lm_fail(LM_E_ARG, "max_unpool2d: output_size is H and W, or all %d sizes, got %d", t->ndim,
                     a->output_size.n);
    }
    asked = a->output_size.v + a->output_size.n - 2;
  }
  for (int i = 0; i < 2; i++) {
    int64_t k = a->kernel_size[i], p = a->padding[i];
    if (t->size[t->ndim - 2 + i] > INT32_MAX)
      return lm_fail(LM_E_SHAPE, "max_unpool2d: x of %s is too large", lm_shape_of(t));
    if (k < 1 || k > INT32_MAX || stride[i] < 1 || stride[i] > INT32_MAX || p < 0 || p > INT32_MAX) {
      return lm_fail(LM_E_ARG, "max_unpool2d: a window of %lld with stride %lld and padding %lld", (long long)k,
                     (long long)stride[i], (long long)p);
    }
    out[i] = (t->size[t->ndim - 2 + i] - 1) * stride[i] - 2 * p + k;
    if (asked && (asked[i] <= out[i] - stride[i] || asked[i] >= out[i] + stride[i])) {
      return lm_fail(LM_E_SHAPE, "max_unpool2d: output_size %s: dim %d has to be between %lld and %lld",
                     lm_shape_text(a->output_size.n, a->output_size.v), t->ndim - 1 + i,
                     (long long)(out[i] - stride[i] + 1), (long long)(out[i] + stride[i] - 1));
    }
    if (asked) out[i] = asked[i];
    if (out[i] < 1) return lm_fail(LM_E_SHAPE, "max_unpool2d: nothing is pooled to %s by that", lm_shape_of(t));
  }
  if (out[0] > INT32_MAX / out[1]) {
    return lm_fail(LM_E_SHAPE, "max_unpool2d: planes of %lld x %lld are too large: at most 2^31 - 1 places each",
                   (long long)out[0], (long long)out[1]);
  }
  return LM_OK;
}

lm_status lm_composite_max_unpool2d(const lm_max_unpool2d_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_expr whole, *e = &whole;
  int64_t hw[2];
  TRY(unpooled_size(a, hw));
  lm_ints size = size_of(a->x), rows = {2, {1, 1}}, flat = {2, {1, 1}};
  for (int d = 0; d < size.n - 2; d++) rows.v[0] *= size.v[d];
  rows.v[1] = size.v[size.n - 2] * size.v[size.n - 1];
  flat.v[0] = rows.v[0];
  flat.v[1] = hw[0] * hw[1];
  size.v[size.n - 2] = hw[0];
  size.v[size.n - 1] = hw[1];
  lm_expr_begin(e);
  lm_tensor *planes = lm_e_arange(e, 1, (double)rows.v[0] + 1, 1, LM_I64, a->x->device);
  lm_tensor *place[] = {lm_e_unsqueeze(e, planes, 1), lm_e_reshape(e, a->indices, rows)};
  lm_tensor *y = lm_e_zeros(e, flat, a->x->dtype, a->x->device);
  if (e->status == LM_OK) y = lm_e_index_put(e, y, (lm_list){2, place}, lm_e_reshape(e, a->x, rows), false);
  return lm_expr_finish(e, lm_e_reshape(e, y, size), out);
done:
  return status;
}

/* ---- matmul */

static lm_status bad_matmul(const lm_tensor *x, const lm_tensor *other, int64_t n, int64_t m) {
  return lm_fail(LM_E_SHAPE, "matmul: %s times %s: the sizes to be summed over differ, %lld and %lld", lm_shape_of(x),
                 lm_shape_of(other), (long long)n, (long long)m);
}

/* x [..., n, k], other [k, m]: one product over all rows of x. */
static lm_tensor *folded(lm_expr *e, lm_tensor *x, lm_tensor *other) {
  lm_ints size = size_of(x), rows = {2, {1, x->size[x->ndim - 1]}};
  for (int d = 0; d < x->ndim - 1; d++) rows.v[0] *= x->size[d];
  size.v[size.n - 1] = other->size[1];
  return lm_e_reshape(e, lm_e_mm(e, x->ndim == 2 ? x : lm_e_reshape(e, x, rows), other), size);
}

/* t [..., n, k] with its leading dims broadcast to `batch`, as [b, n, k]. */
static lm_tensor *batched(lm_expr *e, lm_tensor *t, int nbatch, const int64_t *batch) {
  lm_ints wide = {.n = nbatch + 2}, flat = {3, {1, t->size[t->ndim - 2], t->size[t->ndim - 1]}};
  for (int d = 0; d < nbatch; d++) {
    wide.v[d] = batch[d];
    flat.v[0] *= batch[d];
  }
  wide.v[nbatch] = flat.v[1];
  wide.v[nbatch + 1] = flat.v[2];
  return lm_e_reshape(e, lm_e_expand(e, t, wide), flat);
}

lm_status lm_composite_matmul(const lm_matmul_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = a->x, *other = a->other, *result;
  lm_expr whole, *e = &whole;
  lm_ints size = {.n = 0};
  int64_t batch[LM_MAX_DIMS];
  int nbatch;
  if (x->ndim == 0 || other->ndim == 0) {
    return lm_fail(LM_E_SHAPE, "matmul: %s times %s: both need a dim; use * for numbers", lm_shape_of(x),
                   lm_shape_of(other));
  }
  int64_t k = x->size[x->ndim - 1], k2 = other->size[other->ndim > 1 ? other->ndim - 2 : 0];
  if (k != k2) return bad_matmul(x, other, k, k2);

  lm_expr_begin(e);
  if (x->ndim == 1) x = lm_e_unsqueeze(e, x, 0);             /* a row */
  if (other->ndim == 1) other = lm_e_unsqueeze(e, other, 1); /* a column */
  TRY(e->status);
  if (x->ndim == 2 && other->ndim == 2) {
    result = lm_e_mm(e, x, other);
  } else if (other->ndim == 2) {
    result = folded(e, x, other);
  } else {
    TRY(lm_broadcast("matmul", x->ndim - 2, x->size, other->ndim - 2, other->size, &nbatch, batch));
    result = lm_e_bmm(e, batched(e, x, nbatch, batch), batched(e, other, nbatch, batch));
    lm_ints all = {.n = nbatch + 2};
    memcpy(all.v, batch, sizeof *batch * (size_t)nbatch);
    all.v[nbatch] = x->size[x->ndim - 2];
    all.v[nbatch + 1] = other->size[other->ndim - 1];
    if (nbatch != 1) result = lm_e_reshape(e, result, all);
  }
  TRY(e->status);
  if (a->x->ndim > 1 && a->other->ndim > 1) return lm_expr_finish(e, result, out);
  for (int d = 0; d < result->ndim; d++) { /* the row's or column's dim goes */
    bool added = (a->x->ndim == 1 && d == result->ndim - 2) || (a->other->ndim == 1 && d == result->ndim - 1);
    if (!added) size.v[size.n++] = result->size[d];
  }
  return lm_expr_finish(e, lm_e_reshape(e, result, size), out);
done:
  lm_expr_end(e);
  return status;
}
