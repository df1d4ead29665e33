/* Clips gradients: scales them by their total norm, or clamps each element. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "op/check.h"
#include "op/stream_order.h"
#include "op_entries.h"
#include "optim/optim.h"
#include "optim/optim_scope.h"

/* Checks tensors to measure or, if `written`, to write; messages call them `noun`: "gradient" or "tensor". */
static lm_status check_clip_tensors(const char *name, const char *noun, int n, lm_tensor *const *list, bool written) {
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
static lm_status move_scalar(lm_tensor **t, lm_device device, lm_dtype dtype) {
  LM_OWNED *there = NULL;
  if ((*t)->device == device && (*t)->dtype == dtype) return LM_OK;
  NEED(lm_tensor_empty(dtype, device, 0, NULL, LM_CONTIGUOUS, &there));
  NEED(lm_copy(*t, there));
  lm_release(*t);
  *t = lm_retain(there);
  return LM_OK;
}

/* Replaces *x by op(*x, other) and releases the old *x; other is NULL for an op of one argument. */
static lm_status replace_by_op(lm_op_id op, lm_tensor **x, lm_tensor *other, const double *numbers) {
  lm_tensor *result = NULL, *in[] = {*x, other};
  NEED(lm_pointwise_run(op, other ? 2 : 1, in, numbers, NULL, &result));
  lm_release(*x);
  *x = result;
  return LM_OK;
}

/* Computes the sum of |x|^p, or the largest |x|, over all, on the first device; `dense`: room for n tensors. */
static lm_status sum_powers(int n, lm_tensor *const *grads, double p, lm_tensor **dense, lm_tensor **total) {
  static const double alpha = 1;
  lm_stream *s;
  LM_OWNED *part = NULL;
  for (int i = 0; i < n; i++) NEED(lm_optim_layout(grads[i], NULL, grads[i]->dtype, &dense[i]));
  for (int begin = 0, end; begin < n; begin = end) {
    lm_device device = grads[begin]->device;
    for (end = begin + 1; end < n && grads[end]->device == device;) end++;
    NEED(lm_tensor_empty(LM_F64, device, 0, NULL, LM_CONTIGUOUS, &part));
    NEED(lm_stream_order_begin(device, &s));
    for (int i = begin; s && i < end; i++) NEED(lm_stream_order_read(s, dense[i]));
    NEED(lm_stream_order_write(s, part));
    NEED(lm_stream_order_end(s, lm_backend_of(device)->norms(end - begin, dense + begin, p, part)));
    NEED(move_scalar(&part, grads[0]->device, LM_F64));
    if (*total) {
      NEED(replace_by_op(isinf(p) ? LM_OP_maximum : LM_OP_add, total, part, &alpha));
      lm_release(part);
    } else {
      *total = part;
    }
    part = NULL;
  }
  return LM_OK;
}

/* Replaces the sum of |x|^p by the norm. */
static lm_status take_root(double p, lm_tensor **total) {
  LM_OWNED *power = NULL;
  NEED(lm_tensor_number(1 / p, &power));
  if (p == 2) NEED(replace_by_op(LM_OP_sqrt, total, NULL, NULL));
  if (p != 2 && p != 1 && !isinf(p)) NEED(replace_by_op(LM_OP_pow, total, power, NULL));
  return LM_OK;
}

/* Replaces the norm *factor, releasing it, by PyTorch's factor to at most max_norm; NaN stays NaN. */
static lm_status to_factor(double max_norm, lm_tensor **factor) {
  static const double alpha = 1, limits[] = {-INFINITY, 1};
  LM_OWNED *least = NULL, *most = NULL, *quotient = NULL;
  NEED(lm_tensor_number(1e-6, &least));
  NEED(lm_tensor_number(max_norm, &most));
  NEED(replace_by_op(LM_OP_add, factor, least, &alpha));
  lm_tensor *in[] = {most, *factor};
  NEED(lm_pointwise_run(LM_OP_div, 2, in, NULL, NULL, &quotient));
  lm_release(*factor);
  *factor = lm_retain(quotient);
  return replace_by_op(LM_OP_clamp_range, factor, NULL, limits);
}

static lm_dtype compute_of(const lm_tensor *grad) { return grad->dtype == LM_F64 ? LM_F64 : LM_F32; }

/* Sets grad to op(grad, factor) by a direct kernel call, which allocates nothing: all gradients change or none. */
static lm_status scale_gradient(lm_op_id op, lm_tensor *grad, lm_tensor *factor, const double *numbers) {
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
  LM_OWNED *norm = NULL;
  *total = NULL;
  if (!(p > 0)) return lm_fail_number(name, "norm_type", "above 0, or math.huge", p);
  if (n == 0) {
    NEED(lm_tensor_empty(LM_F64, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, total));
    *(double *)(*total)->data = 0;
    return LM_OK;
  }
  LM_OPTIM_SCOPE(name, list[0]->device);
  NEED(check_clip_tensors(name, of_grads ? "gradient" : "tensor", n, list, of_grads));
  LM_OWNED_LIST dense = {n, lm_calloc((size_t)n, sizeof *dense.v)};
  if (!dense.v) return LM_E_OOM;
  NEED(sum_powers(n, list, p, dense.v, &norm));
  NEED(take_root(p, &norm));
  *total = lm_tensor_take(&norm);
  return LM_OK;
}

lm_status lm_clip_with_norm(int n, lm_tensor *const *grads, double max_norm, lm_tensor *total) {
  static const char name[] = "clip_grads_with_norm_";
  if (!(max_norm >= 0)) return lm_fail_number(name, "max_norm", "at least 0", max_norm);
  if (total->ndim != 0 || !lm_dtype_is_float(total->dtype))
    return lm_fail_value(name, "total_norm", "a 0-d floating tensor",
                         lm_text("%s %s", lm_dtype_name(total->dtype), lm_shape_of(total)));
  if (n == 0) return LM_OK;
  LM_OPTIM_SCOPE(name, grads[0]->device);
  NEED(check_clip_tensors(name, "gradient", n, grads, true));
  LM_OWNED_LIST factor = {n, lm_calloc((size_t)n, sizeof *factor.v)};
  if (!factor.v) return LM_E_OOM;
  LM_OWNED *first = lm_retain(total);
  NEED(move_scalar(&first, grads[0]->device, LM_F64));
  NEED(to_factor(max_norm, &first));
  if (!lm_is_ordered(first->device)) { /* the host can read it */
    double value = *(double *)first->data;
    if (value >= 1) return LM_OK;
    lm_release(first);
    first = NULL;
    NEED(lm_tensor_number(value, &first));
  }
  for (int i = 0; i < n; i++) {
    lm_dtype dtype = compute_of(grads[i]);
    if (i > 0 && grads[i]->device == grads[i - 1]->device && dtype == compute_of(grads[i - 1])) {
      factor.v[i] = lm_retain(factor.v[i - 1]);
    } else {
      factor.v[i] = lm_retain(first);
      if (!first->number) NEED(move_scalar(&factor.v[i], grads[i]->device, dtype));
    }
  }
  for (int i = 0; i < n; i++)
    if (grads[i]->numel > 0) NEED(scale_gradient(LM_OP_mul, grads[i], factor.v[i], NULL));
  return LM_OK;
}

lm_status lm_clip_value(int n, lm_tensor *const *grads, double most) {
  static const char name[] = "clip_grad_value_";
  const double limits[] = {-most, most};
  if (!(most >= 0)) return lm_fail_number(name, "clip_value", "at least 0", most);
  LM_OPTIM_SCOPE(name, n > 0 ? grads[0]->device : LM_NO_DEVICE);
  NEED(check_clip_tensors(name, "gradient", n, grads, true));
  for (int i = 0; i < n; i++)
    if (grads[i]->numel > 0) NEED(scale_gradient(LM_OP_clamp_range, grads[i], NULL, limits));
  return LM_OK;
}
