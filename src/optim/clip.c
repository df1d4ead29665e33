/* Limiting the gradients' total norm. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "op/check.h"
#include "op/order.h"
#include "optim/optim.h"

static const char name[] = "clip_grad_norm_";

static lm_status check(int n, lm_tensor *const *grads, double max_norm, double p) {
  if (!(p > 0)) return lm_fail(LM_E_ARG, "%s: norm_type is %g; it has to be above 0, or math.huge", name, p);
  if (!(max_norm >= 0)) return lm_fail(LM_E_ARG, "%s: max_norm is %g; it has to be 0 or more", name, max_norm);
  for (int i = 0; i < n; i++) {
    if (!lm_dtype_is_float((lm_dtype)grads[i]->dtype))
      return lm_fail(LM_E_DTYPE, "%s: gradient %d is %s; a floating dtype is wanted", name, i + 1,
                     lm_dtype_name((lm_dtype)grads[i]->dtype));
    if (lm_overlaps_itself(grads[i]))
      return lm_fail(LM_E_ARG, "%s: elements of gradient %d, of sizes %s, share memory and cannot be scaled", name,
                     i + 1, lm_shape_of(grads[i]));
    const lm_backend *backend = lm_backend_of(grads[i]->device);
    if (!backend) return lm_fail_in(LM_E_MISSING, name);
    if (!backend->norms || !backend->point)
      return lm_fail(LM_E_MISSING, "%s: there is no kernel for %s yet", name, lm_device_name(grads[i]->device));
  }
  return LM_OK;
}

/* The sum of |x|^p, or the largest |x|, over all; `dense`: room for n. */
static lm_status gather(int n, lm_tensor *const *grads, double p, lm_tensor **dense, double *out) {
  lm_status status = LM_OK;
  lm_stream *s;
  *out = 0;
  for (int i = 0; i < n; i++) {
    if (lm_is_dense(grads[i])) {
      dense[i] = lm_retain(grads[i]);
    } else {
      TRY(lm_tensor_empty_like(grads[i], (lm_dtype)grads[i]->dtype, grads[i]->device, &dense[i]));
      TRY(lm_copy(grads[i], dense[i]));
    }
  }
  for (int begin = 0, end; begin < n; begin = end) {
    double part;
    for (end = begin + 1; end < n && grads[end]->device == grads[begin]->device;) end++;
    TRY(lm_order_begin(grads[begin]->device, &s));
    for (int i = begin; s && i < end; i++) TRY(lm_order_read(s, dense[i]));
    TRY(lm_order_end(s, lm_backend_of(grads[begin]->device)->norms(end - begin, dense + begin, p, &part)));
    if (!isinf(p)) {
      *out += part;
    } else if (part > *out || isnan(part)) {
      *out = part;
    }
  }
done:
  return status;
}

/* Straight to the kernel, which allocates nothing: either all gradients are scaled or none. */
static lm_status scale(lm_tensor *grad, lm_tensor *factor) {
  lm_point job = {.kernel = LM_OP_mul,
                  .compute = grad->dtype == LM_F64 ? LM_F64 : LM_F32,
                  .nin = 2,
                  .in = {grad, factor},
                  .out = grad};
  memcpy(job.in_stride[0], grad->stride, sizeof grad->stride);
  const lm_backend *backend = lm_backend_of(grad->device);
  lm_status status = lm_is_ordered(grad->device) ? lm_ordered_point(backend, &job) : backend->point(&job);
  if (status == LM_OK) lm_bump(grad, LM_OP_mul);
  return status;
}

lm_status lm_clip_grad_norm(int n, lm_tensor *const *grads, double max_norm, double p, double *total) {
  lm_status status = LM_OK;
  lm_tensor **dense = NULL, *factor = NULL;
  *total = 0;
  if (n == 0) return LM_OK;
  lm_running before = lm_run_begin(name, -1);
  TRY(check(n, grads, max_norm, p));
  dense = lm_calloc((size_t)n, sizeof *dense);
  if (!dense) {
    status = LM_E_OOM;
    goto done;
  }
  TRY(gather(n, grads, p, dense, total));
  if (!isinf(p)) *total = p == 2 ? sqrt(*total) : p == 1 ? *total : pow(*total, 1 / p);
  double coefficient = max_norm / (*total + 1e-6); /* PyTorch's */
  if (coefficient >= 1) goto done;                 /* NaN goes on and shows in the gradients */
  TRY(lm_tensor_number(coefficient, &factor));
  for (int i = 0; i < n; i++)
    if (grads[i]->numel > 0) TRY(scale(grads[i], factor));
done:
  for (int i = 0; dense && i < n; i++) lm_release(dense[i]);
  lm_free(dense);
  lm_release(factor);
  lm_run_end(before);
  return status;
}
