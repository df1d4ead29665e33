/* Creates and fills tensors; random.c creates random ones. */
#include <float.h>

#include "base/message.h"
#include "op/check.h"

static lm_dtype dtype_or(lm_dtype asked, lm_dtype otherwise) { return asked == LM_NO_DTYPE ? otherwise : asked; }
static lm_device device_or(lm_device asked, lm_device otherwise) { return asked == LM_NO_DEVICE ? otherwise : asked; }

lm_status lm_new_tensor(lm_op_id op, const lm_ints *size, const lm_tensor *like, lm_dtype dtype, lm_device device,
                        lm_tensor **out) {
  if (like) { return lm_tensor_empty_like(like, dtype_or(dtype, like->dtype), device_or(device, like->device), out); }
  lm_status status = lm_tensor_empty(dtype_or(dtype, lm_default_dtype()), device_or(device, lm_default_device()),
                                     size->n < 0 ? 0 : size->n, size->v, LM_CONTIGUOUS, out);
  return status == LM_E_ARG ? lm_fail_in(status, lm_ops[op].name) : status;
}

/* Sets every element of x to a one-element tensor's value; the kernel reads it on the CPU or on x's device. */
static lm_status fill_with_tensor(lm_op_id op, lm_tensor *x, lm_tensor *value) {
  LM_OWNED *here = NULL;
  NEED(lm_check_fits(lm_ops[op].name, x->dtype, value));
  if (x->numel == 0) return LM_OK;
  if (LM_DEVICE_KIND(value->device) != LM_CPU && value->device != x->device) {
    NEED(lm_tensor_empty(value->dtype, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, &here));
    NEED(lm_copy(value, here));
  }
  lm_fill__args args = {.x = x, .value = here ? here : value};
  return lm_dispatch(LM_OP_fill_, x->device, &args, &x);
}

lm_status lm_fill_number(lm_tensor *x, double number) {
  LM_OWNED *value = NULL;
  NEED(lm_tensor_number(number, &value));
  return fill_with_tensor(LM_OP_fill_, x, value);
}

static lm_status check_value(lm_op_id op, const lm_tensor *value) {
  if (value->ndim == 0) return LM_OK;
  return lm_fail_value(lm_ops[op].name, "value", "a number or a 0-d tensor", lm_text("shape %s", lm_shape_of(value)));
}

/* ---- filling in place */

lm_status lm_op_fill_(const lm_fill__args *a, lm_tensor **out) {
  NEED(check_value(LM_OP_fill_, a->value));
  NEED(fill_with_tensor(LM_OP_fill_, a->x, a->value));
  *out = lm_retain(a->x);
  return LM_OK;
}

lm_status lm_op_zero_(const lm_zero__args *a, lm_tensor **out) {
  NEED(lm_fill_number(a->x, 0));
  *out = lm_retain(a->x);
  return LM_OK;
}

/* ---- tensors of a size */

lm_status lm_op_empty(const lm_empty_args *a, lm_tensor **out) {
  if (a->memory_format != LM_CHANNELS_LAST) {
    return lm_new_tensor(LM_OP_empty, &a->size, NULL, a->dtype, a->device, out);
  }
  if (a->size.n != 4) {
    return lm_fail_value("empty", "size", "4 sizes for channels_last",
                         lm_shape_text(a->size.n < 0 ? 0 : a->size.n, a->size.v));
  }
  lm_status status = lm_tensor_empty(dtype_or(a->dtype, lm_default_dtype()), device_or(a->device, lm_default_device()),
                                     4, a->size.v, LM_CHANNELS_LAST, out);
  return status == LM_E_ARG ? lm_fail_in(status, "empty") : status;
}

lm_status lm_op_empty_like(const lm_empty_like_args *a, lm_tensor **out) {
  return lm_new_tensor(LM_OP_empty_like, NULL, a->x, a->dtype, a->device, out);
}

/* Creates a filled tensor. Without a dtype, a Lua number gets the default dtype (as in lm.tensor), a tensor its own. */
lm_status lm_op_new_filled(lm_op_id op, const lm_new_filled_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL;
  lm_dtype dtype = a->dtype;
  if (a->value) NEED(check_value(op, a->value));
  if (a->value && !a->value->number && !a->like) dtype = dtype_or(dtype, a->value->dtype);
  NEED(lm_new_tensor(op, &a->size, a->like, dtype, a->device, &x));
  NEED(a->value ? fill_with_tensor(op, x, a->value) : lm_fill_number(x, a->number));
  *out = lm_tensor_take(&x);
  return LM_OK;
}

/* ---- sequences */

static bool integral(double v) { return v == floor(v) && fabs(v) <= 9007199254740992.0; }

/* Runs arange(stop) and arange(start, stop, step); int64 if all three are integral, as in PyTorch. */
lm_status lm_op_arange(const lm_arange_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL;
  lm_arange_args args = *a;
  if (isnan(a->stop)) {
    args.start = 0;
    args.stop = a->start;
  }
  const double three[] = {args.start, args.stop, args.step};
  static const char *const names[] = {"start", "stop", "step"};
  for (int i = 0; i < 3; i++)
    if (!isfinite(three[i])) return lm_fail_number("arange", names[i], "finite", three[i]);
  if (args.step == 0) return lm_fail_number("arange", "step", "non-zero", 0);
  double length = ceil((args.stop - args.start) / args.step);
  if (length < 0) {
    return lm_fail_number(
        "arange", "step",
        lm_text("%s from %g to %g", args.stop > args.start ? "positive" : "negative", args.start, args.stop),
        args.step);
  }
  if (length > 1e15)
    return lm_fail_number("arange",
                          lm_text("the number of elements from %g to %g by %g", args.start, args.stop, args.step),
                          "at most 1e15", length);
  bool whole = integral(args.start) && integral(args.stop) && integral(args.step);
  args.dtype = dtype_or(a->dtype, whole ? LM_I64 : lm_default_dtype());
  args.device = device_or(a->device, lm_default_device());
  if (args.dtype == LM_BOOL) return lm_fail_dtype("arange", "dtype", "an integer or floating dtype", "bool");
  int64_t n = (int64_t)length;
  NEED(lm_tensor_empty(args.dtype, args.device, 1, &n, LM_CONTIGUOUS, &x));
  NEED(n ? lm_dispatch(LM_OP_arange, args.device, &args, &x) : LM_OK);
  *out = lm_tensor_take(&x);
  return LM_OK;
}

lm_status lm_op_linspace(const lm_linspace_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL;
  lm_linspace_args args = *a;
  if (a->steps < 0) return lm_fail_int("linspace", "steps", "at least 0", a->steps);
  args.dtype = dtype_or(a->dtype, lm_default_dtype());
  args.device = device_or(a->device, lm_default_device());
  if (args.dtype == LM_BOOL) return lm_fail_dtype("linspace", "dtype", "an integer or floating dtype", "bool");
  for (int i = 0; i < 2; i++) {
    double end = i ? a->stop : a->start;
    if (lm_dtype_has(args.dtype, end)) continue;
    return lm_fail_number("linspace", i ? "stop" : "start",
                          lm_text("within the range of %s", lm_dtype_name(args.dtype)), end);
  }
  NEED(lm_tensor_empty(args.dtype, args.device, 1, &a->steps, LM_CONTIGUOUS, &x));
  NEED(a->steps ? lm_dispatch(LM_OP_linspace, args.device, &args, &x) : LM_OK);
  *out = lm_tensor_take(&x);
  return LM_OK;
}

lm_status lm_op_cosine_window(const lm_cosine_window_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL;
  lm_cosine_window_args args = *a;
  if (a->n < 0) return lm_fail_int("cosine_window", "n", "at least 0", a->n);
  args.dtype = dtype_or(a->dtype, lm_default_dtype());
  args.device = device_or(a->device, lm_default_device());
  if (!lm_dtype_is_float(args.dtype)) {
    return lm_fail_dtype("cosine_window", "dtype", "floating point", lm_dtype_name(args.dtype));
  }
  NEED(lm_tensor_empty(args.dtype, args.device, 1, &a->n, LM_CONTIGUOUS, &x));
  NEED(a->n ? lm_dispatch_or_host(LM_OP_cosine_window, args.device, &args, &x) : LM_OK);
  *out = lm_tensor_take(&x);
  return LM_OK;
}

lm_status lm_op_eye(const lm_eye_args *a, lm_tensor **out) {
  LM_OWNED *x = NULL, *diagonal = NULL;
  lm_ints size = {2, {a->n, a->m == LM_NO_INT ? a->n : a->m}};
  if (a->n < 0 || size.v[1] < 0) {
    return lm_fail_int("eye", a->n < 0 ? "n" : "m", "at least 0", a->n < 0 ? a->n : size.v[1]);
  }
  NEED(lm_new_tensor(LM_OP_eye, &size, NULL, a->dtype, a->device, &x));
  int64_t length = size.v[0] < size.v[1] ? size.v[0] : size.v[1], stride = size.v[1] + 1;
  NEED(lm_tensor_view(x, 1, &length, &stride, 0, &diagonal));
  NEED(lm_fill_number(x, 0));
  NEED(lm_fill_number(diagonal, 1));
  *out = lm_tensor_take(&x);
  return LM_OK;
}
