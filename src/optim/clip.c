/* Clips gradients: scales them by their total norm, or clamps each element. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "device/recorder.h"
#include "op/check.h"
#include "op/stream_order.h"
#include "optim/optim.h"

/* Checks tensors to measure or, if `written`, to write; messages call them `noun`: "gradient" or "tensor". */
static lm_status check(const char *name, const char *noun, int n, lm_tensor *const *list, bool written) {
  for (int i = 0; i < n; i++) {
    if (!lm_dtype_is_float(list[i]->dtype))
      return lm_fail_dtype(name, lm_text("%s %d", noun, i + 1), "floating point", lm_dtype_name(list[i]->dtype));
    if (written && lm_overlaps_itself(list[i]))
      return lm_fail_overlap(name, lm_text("%s %d", noun, i + 1), lm_shape_of(list[i]));
    const lm_backend *backend = lm_backend_of(list[i]->device);
    if (!backend) return lm_fail_in(LM_E_MISSING, name);
    if (!backend->norms || !backend->pointwise) return lm_fail_missing(name, lm_device_name(list[i]->device));
  }
  return LM_OK;
}

/* Replaces *t by a copy on `device` in `dtype`, unless it is there already; releases the old *t. */
static lm_status bring(lm_tensor **t, lm_device device, lm_dtype dtype) {
  lm_status status = LM_OK;
  lm_tensor *there = NULL;
  if ((*t)->device == device && (*t)->dtype == dtype) return LM_OK;
  TRY(lm_tensor_empty(dtype, device, 0, NULL, LM_CONTIGUOUS, &there));
  TRY(lm_copy(*t, there));
  lm_release(*t);
  *t = lm_retain(there);
done:
  lm_release(there);
  return status;
}

/* Replaces *x by op(*x, other) and releases the old *x; other is NULL for an op of one argument. */
static lm_status apply(lm_op_id op, lm_tensor **x, lm_tensor *other, const double *numbers) {
  lm_tensor *result = NULL, *in[] = {*x, other};
  NEED(lm_pointwise_run(op, other ? 2 : 1, in, numbers, NULL, &result));
  lm_release(*x);
  *x = result;
  return LM_OK;
}

/* Computes the sum of |x|^p, or the largest |x|, over all, on the first device; `dense`: room for n tensors. */
static lm_status gather(int n, lm_tensor *const *grads, double p, lm_tensor **dense, lm_tensor **total) {
  static const double alpha = 1;
  lm_status status = LM_OK;
  lm_stream *s;
  lm_tensor *part = NULL;
  for (int i = 0; i < n; i++) TRY(lm_optim_layout(grads[i], NULL, &dense[i]));
  for (int begin = 0, end; begin < n; begin = end) {
    lm_device device = grads[begin]->device;
    for (end = begin + 1; end < n && grads[end]->device == device;) end++;
    TRY(lm_tensor_empty(LM_F64, device, 0, NULL, LM_CONTIGUOUS, &part));
    TRY(lm_stream_order_begin(device, &s));
    for (int i = begin; s && i < end; i++) TRY(lm_stream_order_read(s, dense[i]));
    TRY(lm_stream_order_write(s, part));
    TRY(lm_stream_order_end(s, lm_backend_of(device)->norms(end - begin, dense + begin, p, part)));
    TRY(bring(&part, grads[0]->device, LM_F64));
    if (*total) {
      TRY(apply(isinf(p) ? LM_OP_maximum : LM_OP_add, total, part, &alpha));
      lm_release(part);
    } else {
      *total = part;
    }
    part = NULL;
  }
done:
  lm_release(part);
  return status;
}

/* Replaces the sum of |x|^p by the norm. */
static lm_status root(double p, lm_tensor **total) {
  lm_status status = LM_OK;
  lm_tensor *power = NULL;
  TRY(lm_tensor_number(1 / p, &power));
  if (p == 2) TRY(apply(LM_OP_sqrt, total, NULL, NULL));
  if (p != 2 && p != 1 && !isinf(p)) TRY(apply(LM_OP_pow, total, power, NULL));
done:
  lm_release(power);
  return status;
}

/* Replaces the norm *factor, releasing it, by PyTorch's factor to at most max_norm; NaN stays NaN. */
static lm_status to_factor(double max_norm, lm_tensor **factor) {
  static const double alpha = 1, limits[] = {-INFINITY, 1};
  lm_status status = LM_OK;
  lm_tensor *least = NULL, *most = NULL, *quotient = NULL;
  TRY(lm_tensor_number(1e-6, &least));
  TRY(lm_tensor_number(max_norm, &most));
  TRY(apply(LM_OP_add, factor, least, &alpha));
  lm_tensor *in[] = {most, *factor};
  TRY(lm_pointwise_run(LM_OP_div, 2, in, NULL, NULL, &quotient));
  lm_release(*factor);
  *factor = lm_retain(quotient);
  TRY(apply(LM_OP_clamp_range, factor, NULL, limits));
done:
  lm_release(least);
  lm_release(most);
  lm_release(quotient);
  return status;
}

static lm_dtype compute_of(const lm_tensor *grad) { return grad->dtype == LM_F64 ? LM_F64 : LM_F32; }

/* Sets grad to op(grad, factor) by a direct kernel call, which allocates nothing: all gradients change or none. */
static lm_status change(lm_op_id op, lm_tensor *grad, lm_tensor *factor, const double *numbers) {
  lm_pointwise job = {.kernel = op, .compute = compute_of(grad), .in = {grad, factor}, .out = grad};
  job.nin = factor ? 2 : 1;
  memcpy(job.in_stride[0], grad->stride, sizeof grad->stride);
  if (numbers) memcpy(job.number, numbers, 2 * sizeof *numbers);
  const lm_backend *backend = lm_backend_of(grad->device);
  lm_status status = lm_is_ordered(grad->device) ? lm_ordered_pointwise(backend, &job) : backend->pointwise(&job);
  if (status == LM_OK) lm_bump(grad, op == LM_OP_clamp_range ? LM_OP_clamp : op); /* the op's name for users */
  return status;
}

lm_status lm_total_norm(int n, lm_tensor *const *list, bool of_grads, double p, lm_tensor **total) {
  const char *name = of_grads ? "clip_grad_norm_" : "get_total_norm";
  lm_status status = LM_OK;
  lm_tensor **dense = NULL;
  *total = NULL;
  if (!(p > 0)) return lm_fail_number(name, "norm_type", "above 0, or math.huge", p);
  if (n == 0) {
    status = lm_tensor_empty(LM_F64, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, total);
    if (status == LM_OK) *(double *)(*total)->data = 0;
    return status;
  }
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_OPTIMIZER, name, list[0]->device);
  lm_running before = lm_run_begin(name, -1);
  TRY(check(name, of_grads ? "gradient" : "tensor", n, list, of_grads));
  dense = lm_calloc((size_t)n, sizeof *dense);
  if (!dense) TRY(LM_E_OOM);
  TRY(gather(n, list, p, dense, total));
  TRY(root(p, total));
done:
  for (int i = 0; dense && i < n; i++) lm_release(dense[i]);
  lm_free(dense);
  if (status != LM_OK) {
    lm_release(*total);
    *total = NULL;
  }
  lm_run_end(before);
  if (traced) lm_span_end(&span);
  return status;
}

lm_status lm_clip_with_norm(int n, lm_tensor *const *grads, double max_norm, lm_tensor *total) {
  static const char name[] = "clip_grads_with_norm_";
  lm_status status = LM_OK;
  lm_tensor **factor = NULL, *first = NULL;
  if (!(max_norm >= 0)) return lm_fail_number(name, "max_norm", "at least 0", max_norm);
  if (total->ndim != 0 || !lm_dtype_is_float(total->dtype))
    return lm_fail_value(name, "total_norm", "a 0-d floating tensor",
                         lm_text("%s %s", lm_dtype_name(total->dtype), lm_shape_of(total)));
  if (n == 0) return LM_OK;
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_OPTIMIZER, name, grads[0]->device);
  lm_running before = lm_run_begin(name, -1);
  TRY(check(name, "gradient", n, grads, true));
  factor = lm_calloc((size_t)n, sizeof *factor);
  if (!factor) TRY(LM_E_OOM);
  first = lm_retain(total);
  TRY(bring(&first, grads[0]->device, LM_F64));
  TRY(to_factor(max_norm, &first));
  if (!lm_is_ordered(first->device)) { /* the host can read it */
    double value = *(double *)first->data;
    if (value >= 1) goto done;
    lm_release(first);
    first = NULL;
    TRY(lm_tensor_number(value, &first));
  }
  for (int i = 0; i < n; i++) {
    lm_dtype dtype = compute_of(grads[i]);
    if (i > 0 && grads[i]->device == grads[i - 1]->device && dtype == compute_of(grads[i - 1])) {
      factor[i] = lm_retain(factor[i - 1]);
    } else {
      factor[i] = lm_retain(first);
      if (!first->number) TRY(bring(&factor[i], grads[i]->device, dtype));
    }
  }
  for (int i = 0; i < n; i++)
    if (grads[i]->numel > 0) TRY(change(LM_OP_mul, grads[i], factor[i], NULL));
done:
  for (int i = 0; factor && i < n; i++) lm_release(factor[i]);
  lm_free(factor);
  lm_release(first);
  lm_run_end(before);
  if (traced) lm_span_end(&span);
  return status;
}

lm_status lm_clip_value(int n, lm_tensor *const *grads, double most) {
  static const char name[] = "clip_grad_value_";
  const double limits[] = {-most, most};
  lm_status status = LM_OK;
  if (!(most >= 0)) return lm_fail_number(name, "clip_value", "at least 0", most);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_OPTIMIZER, name, n > 0 ? grads[0]->device : LM_NO_DEVICE);
  lm_running before = lm_run_begin(name, -1);
  TRY(check(name, "gradient", n, grads, true));
  for (int i = 0; i < n; i++)
    if (grads[i]->numel > 0) TRY(change(LM_OP_clamp_range, grads[i], NULL, limits));
done:
  lm_run_end(before);
  if (traced) lm_span_end(&span);
  return status;
}
