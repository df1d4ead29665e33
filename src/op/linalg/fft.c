/* Fourier transforms: checks, and results. */
#include <string.h>

#include "base/message.h"
#include "op/check.h"
#include "op/input_layout.h"

static lm_status check_lines(lm_op_id op, const lm_tensor *x, bool pairs, int64_t dim) {
  const char *name = lm_ops[op].name;
  if (x->dtype != LM_F32 && x->dtype != LM_F64)
    return lm_remedy(lm_fail_dtype(name, "x", "float32 or float64", lm_dtype_name(x->dtype)),
                     "convert it with :float()");
  if (x->ndim < 1 + pairs || (pairs && x->size[x->ndim - 1] != 2))
    return lm_fail_shape(name, "x", pairs ? "[..., n, 2], real and imaginary parts" : "[..., n]", lm_shape_of(x));
  if (dim < 0 || dim > x->ndim - 1 - pairs)
    return lm_fail_int(name, "dim", lm_text("a dim of the transformed x of shape %s", lm_shape_of(x)),
                       dim < 0 ? dim - x->ndim : dim + 1);
  if (x->size[dim] < 1)
    return lm_fail_value(name, lm_text("dim %lld of x", (long long)dim + 1), "non-empty", lm_shape_of(x));
  return LM_OK;
}

static lm_status compute(lm_op_id op, const lm_tensor *x, const void *args, int ndim, const int64_t *size,
                         lm_tensor **out) {
  lm_status status;
  lm_tensor *y = NULL;
  TRY(lm_tensor_empty(x->dtype, x->device, ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel) TRY(lm_dispatch_or_host(op, x->device, args, &y));
  *out = y;
  y = NULL;
done:
  lm_release(y);
  return status;
}

lm_status lm_op_fft_c2c(const lm_fft_c2c_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t dim = a->dim == LM_NO_DIM ? a->x->ndim - 2 : a->dim < 0 ? a->dim + a->x->ndim : a->dim;
  TRY(check_lines(LM_OP_fft_c2c, a->x, true, dim));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  lm_fft_c2c_args args = {.x = x, .inverse = a->inverse, .scale = a->scale, .dim = dim};
  status = compute(LM_OP_fft_c2c, x, &args, x->ndim, x->size, out);
done:
  lm_release(x);
  return status;
}

lm_status lm_op_fft_r2c(const lm_fft_r2c_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_lines(LM_OP_fft_r2c, a->x, false, a->x->ndim - 1));
  if (a->x->ndim == LM_MAX_DIMS) {
    status = lm_fail_int("fft_r2c", "the number of dims of x", lm_text("less than %d", LM_MAX_DIMS), a->x->ndim);
    goto done;
  }
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  memcpy(size, x->size, sizeof size);
  size[x->ndim - 1] = x->size[x->ndim - 1] / 2 + 1;
  size[x->ndim] = 2;
  lm_fft_r2c_args args = {.x = x, .scale = a->scale, .inner = a->inner};
  status = compute(LM_OP_fft_r2c, x, &args, x->ndim + 1, size, out);
done:
  lm_release(x);
  return status;
}

/* Devices other than the CPU take both steps themselves. */
lm_status lm_op_fft_r2c_2d(const lm_fft_r2c_2d_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL, *half = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_lines(LM_OP_fft_r2c_2d, a->x, false, a->x->ndim - 1));
  if (a->x->ndim < 2 || a->x->ndim == LM_MAX_DIMS || a->x->size[a->x->ndim - 2] < 1) {
    status =
        lm_fail_shape("fft_r2c_2d", "x", lm_text("[..., m, n] of at most %d dims", LM_MAX_DIMS - 1), lm_shape_of(a->x));
    goto done;
  }
  if (LM_DEVICE_KIND(a->x->device) != LM_CPU) {
    TRY(lm_op_fft_r2c(&(lm_fft_r2c_args){.x = a->x, .scale = a->scale, .inner = 1}, &half));
    status = lm_op_fft_c2c(&(lm_fft_c2c_args){.x = half, .scale = 1, .dim = half->ndim - 3}, out);
    goto done;
  }
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  memcpy(size, x->size, sizeof size);
  size[x->ndim - 1] = x->size[x->ndim - 1] / 2 + 1;
  size[x->ndim] = 2;
  lm_fft_r2c_2d_args args = {.x = x, .scale = a->scale};
  status = compute(LM_OP_fft_r2c_2d, x, &args, x->ndim + 1, size, out);
done:
  lm_release(x);
  lm_release(half);
  return status;
}

/* Whether x [..., lines, n, 2] lies in memory as a dense [..., n, lines, 2], which kernels read as well. */
static bool is_transposed(const lm_tensor *x) {
  lm_tensor t = *x;
  int lines = x->ndim - 3, entries = x->ndim - 2;
  if (lines < 0) return false;
  t.size[lines] = x->size[entries], t.size[entries] = x->size[lines];
  t.stride[lines] = x->stride[entries], t.stride[entries] = x->stride[lines];
  return lm_is_contiguous(&t);
}

lm_status lm_op_fft_c2r(const lm_fft_c2r_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL;
  int64_t size[LM_MAX_DIMS];
  TRY(check_lines(LM_OP_fft_c2r, a->x, true, a->x->ndim - 2));
  int last = a->x->ndim - 2;
  if (a->n < 1 || a->x->size[last] != a->n / 2 + 1) {
    status = lm_fail_shape("fft_c2r", "x",
                           lm_text("[..., %lld, 2] for n = %lld", (long long)(a->n / 2 + 1), (long long)a->n),
                           lm_shape_of(a->x));
    goto done;
  }
  if (is_transposed(a->x))
    x = lm_retain(a->x);
  else
    TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  memcpy(size, x->size, sizeof size);
  size[last] = a->n;
  lm_fft_c2r_args args = {.x = x, .n = a->n, .scale = a->scale, .inner = a->inner};
  status = compute(LM_OP_fft_c2r, x, &args, last + 1, size, out);
done:
  lm_release(x);
  return status;
}

/* Of stft_lines and overlap_add: t [batch, ...] of ndim dims beside a window [n]. */
static lm_status check_frames(lm_op_id op, const char *arg, const lm_tensor *t, int ndim, const lm_tensor *window,
                              int64_t hop) {
  const char *name = lm_ops[op].name;
  if ((t->dtype != LM_F32 && t->dtype != LM_F64) || window->dtype != t->dtype)
    return lm_fail_dtype(name, lm_text("%s and window", arg), "both float32 or both float64",
                         lm_text("%s and %s", lm_dtype_name(t->dtype), lm_dtype_name(window->dtype)));
  if (t->ndim != ndim || window->ndim != 1 || window->numel < 1)
    return lm_fail(LM_E_SHAPE, "%s: expected %s and window to have shapes %s and [n], got %s and %s", name, arg,
                   ndim == 2 ? "[batch, samples]" : "[batch, frames, n]", lm_shape_of(t), lm_shape_of(window));
  if (hop < 1) return lm_fail_int(name, "hop", "at least 1", hop);
  return lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)t, (lm_tensor *)window});
}

lm_status lm_op_stft_lines(const lm_stft_lines_args *a, lm_tensor **out) {
  lm_status status;
  lm_stft_lines_args args = *a;
  lm_tensor *x = NULL, *window = NULL;
  int64_t n;
  TRY(check_frames(LM_OP_stft_lines, "x", a->x, 2, a->window, a->hop));
  n = a->window->numel;
  if (a->x->size[1] < n) {
    status = lm_fail_shape("stft_lines", "x",
                           lm_text("[batch, samples] with at least the window's %lld samples", (long long)n),
                           lm_shape_of(a->x));
    goto done;
  }
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(lm_to_layout(a->window, LM_CONTIGUOUS, &window));
  args.x = x;
  args.window = window;
  status =
      compute(LM_OP_stft_lines, x, &args, 4, (int64_t[]){x->size[0], (x->size[1] - n) / a->hop + 1, n / 2 + 1, 2}, out);
done:
  lm_release(x);
  lm_release(window);
  return status;
}

lm_status lm_op_overlap_add(const lm_overlap_add_args *a, lm_tensor **out) {
  lm_status status;
  lm_overlap_add_args args = *a;
  lm_tensor *frames = NULL, *window = NULL;
  int64_t n, count;
  TRY(check_frames(LM_OP_overlap_add, "frames", a->frames, 3, a->window, a->hop));
  n = a->window->numel;
  count = a->frames->size[1];
  if (a->frames->size[2] != n || a->length < n || (a->length - n) / a->hop + 1 != count) {
    status = lm_fail(LM_E_SHAPE, "overlap_add: frames of %s and window of %s must make up %lld samples with hop %lld",
                     lm_shape_of(a->frames), lm_shape_of(a->window), (long long)a->length, (long long)a->hop);
    goto done;
  }
  TRY(lm_to_layout(a->frames, LM_CONTIGUOUS, &frames));
  TRY(lm_to_layout(a->window, LM_CONTIGUOUS, &window));
  args.frames = frames;
  args.window = window;
  status = compute(LM_OP_overlap_add, frames, &args, 2, (int64_t[]){frames->size[0], a->length}, out);
done:
  lm_release(frames);
  lm_release(window);
  return status;
}

/* x in a dtype, dense, to be repeated over the leading dims of `size`, or expanded to it where that is not all. */
static lm_status repeatable(lm_tensor *x, lm_dtype dtype, int ndim, const int64_t *size, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *same = NULL, *wide = NULL;
  if (x->dtype == dtype) {
    same = lm_retain(x);
  } else {
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = x, .dtype = dtype, .device = x->device}, &same));
  }
  int first = 0;
  while (first < x->ndim && x->size[first] == 1) first++;
  if (memcmp(x->size + first, size + ndim - x->ndim + first, sizeof *size * (size_t)(x->ndim - first)) == 0) {
    TRY(lm_to_layout(same, LM_CONTIGUOUS, out));
  } else {
    lm_ints all = {.n = ndim};
    memcpy(all.v, size, sizeof *size * (size_t)ndim);
    TRY(lm_op_expand(&(lm_expand_args){.x = same, .size = all}, &wide));
    TRY(lm_to_layout(wide, LM_CONTIGUOUS, out));
  }
done:
  lm_release(same);
  lm_release(wide);
  return status;
}

lm_status lm_op_fft_multiply(const lm_fft_multiply_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *in[2] = {a->x, a->other}, *ready[2] = {NULL};
  static const char *const names[] = {"x", "other"};
  lm_dtype dtype = LM_F32;
  int ndim;
  int64_t size[LM_MAX_DIMS];
  TRY(lm_check_same_device(LM_OP_fft_multiply, 2, in));
  for (int k = 0; k < 2; k++) {
    if (in[k]->dtype != LM_F32 && in[k]->dtype != LM_F64) {
      TRY(lm_remedy(lm_fail_dtype("fft_multiply", names[k], "float32 or float64", lm_dtype_name(in[k]->dtype)),
                    "convert it with :float()"));
    }
    if (in[k]->dtype == LM_F64) dtype = LM_F64;
  }
  TRY(lm_broadcast("fft_multiply", in[0]->ndim, in[0]->size, in[1]->ndim, in[1]->size, &ndim, size));
  for (int k = 0; k < 2; k++) TRY(repeatable(in[k], dtype, ndim, size, &ready[k]));
  lm_fft_multiply_args job = {.x = ready[0], .other = ready[1], .conjugate = a->conjugate};
  status = compute(LM_OP_fft_multiply, ready[0], &job, ndim, size, out);
done:
  for (int k = 0; k < 2; k++) lm_release(ready[k]);
  return status;
}
