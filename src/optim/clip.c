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

/* *t, which is given up, becomes its copy there; or stays, if it is so already. */
static lm_status bring(lm_tensor **t, lm_device device, lm_dtype dtype) {
  lm_status status = LM_OK;
  lm_tensor *there = NULL;
  if ((*t)->device == device && (*t)->dtype == (int8_t)dtype) return LM_OK;
  TRY(lm_tensor_empty(dtype, device, 0, NULL, LM_CONTIGUOUS, &there));
  TRY(lm_copy(*t, there));
  lm_release(*t);
  *t = lm_retain(there);
done:
  lm_release(there);
  return status;
}

/* *x, which is given up, becomes op(*x, other); other NULL: an op of one argument. */
static lm_status apply(lm_op_id op, lm_tensor **x, lm_tensor *other, const double *numbers) {
  lm_status status = LM_OK;
  lm_tensor *result = NULL, *in[] = {*x, other};
  TRY(lm_point_run(op, other ? 2 : 1, in, numbers, NULL, &result));
  lm_release(*x);
  *x = result;
done:
  return status;
}

/* The sum of |x|^p, or the largest |x|, over all, on the first one's device; `dense`: room for n. */
static lm_status gather(int n, lm_tensor *const *grads, double p, lm_tensor **dense, lm_tensor **total) {
  static const double alpha = 1;
  lm_status status = LM_OK;
  lm_stream *s;
  lm_tensor *part = NULL;
  for (int i = 0; i < n; i++) {
    if (lm_is_dense(grads[i])) {
      dense[i] = lm_retain(grads[i]);
    } else {
      TRY(lm_tensor_empty_like(grads[i], (lm_dtype)grads[i]->dtype, grads[i]->device, &dense[i]));
      TRY(lm_copy(grads[i], dense[i]));
    }
  }
  for (int begin = 0, end; begin < n; begin = end) {
    lm_device device = grads[begin]->device;
    for (end = begin + 1; end < n && grads[end]->device == device;) end++;
    TRY(lm_tensor_empty(LM_F64, device, 0, NULL, LM_CONTIGUOUS, &part));
    TRY(lm_order_begin(device, &s));
    for (int i = begin; s && i < end; i++) TRY(lm_order_read(s, dense[i]));
    TRY(lm_order_write(s, part));
    TRY(lm_order_end(s, lm_backend_of(device)->norms(end - begin, dense + begin, p, part)));
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

/* Of the sum of |x|^p: the norm, and what scales it to at most max_norm, as PyTorch has it. NaN goes on. */
static lm_status finish(double max_norm, double p, lm_tensor **total, lm_tensor **factor) {
  static const double alpha = 1, limits[] = {-INFINITY, 1};
  lm_status status = LM_OK;
  lm_tensor *power = NULL, *least = NULL, *most = NULL;
  TRY(lm_tensor_number(1 / p, &power));
  TRY(lm_tensor_number(1e-6, &least));
  TRY(lm_tensor_number(max_norm, &most));
  if (p == 2) TRY(apply(LM_OP_sqrt, total, NULL, NULL));
  if (p != 2 && p != 1 && !isinf(p)) TRY(apply(LM_OP_pow, total, power, NULL));
  lm_tensor *in[] = {most, lm_retain(*total)};
  status = apply(LM_OP_add, &in[1], least, &alpha);
  if (status == LM_OK) status = lm_point_run(LM_OP_div, 2, in, NULL, NULL, factor);
  lm_release(in[1]);
  if (status == LM_OK) TRY(apply(LM_OP_clamp_range, factor, NULL, limits));
done:
  lm_release(power);
  lm_release(least);
  lm_release(most);
  return status;
}

static lm_dtype compute_of(const lm_tensor *grad) { return grad->dtype == LM_F64 ? LM_F64 : LM_F32; }

/* Straight to the kernel, which allocates nothing: either all gradients are scaled or none. */
static lm_status scale(lm_tensor *grad, lm_tensor *factor) {
  lm_point job = {.kernel = LM_OP_mul, .compute = compute_of(grad), .nin = 2, .in = {grad, factor}, .out = grad};
  memcpy(job.in_stride[0], grad->stride, sizeof grad->stride);
  const lm_backend *backend = lm_backend_of(grad->device);
  lm_status status = lm_is_ordered(grad->device) ? lm_ordered_point(backend, &job) : backend->point(&job);
  if (status == LM_OK) lm_bump(grad, LM_OP_mul);
  return status;
}

lm_status lm_clip_grad_norm(int n, lm_tensor *const *grads, double max_norm, double p, lm_tensor **total) {
  lm_status status = LM_OK;
  lm_tensor **dense = NULL, **factor, *first = NULL;
  *total = NULL;
  if (n == 0) {
    status = lm_tensor_empty(LM_F64, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, total);
    if (status == LM_OK) *(double *)(*total)->data = 0;
    return status;
  }
  lm_running before = lm_run_begin(name, -1);
  TRY(check(n, grads, max_norm, p));
  dense = lm_calloc(2 * (size_t)n, sizeof *dense);
  if (!dense) {
    status = LM_E_OOM;
    goto done;
  }
  factor = dense + n;
  TRY(gather(n, grads, p, dense, total));
  TRY(finish(max_norm, p, total, &first));
  if (!lm_is_ordered(first->device)) { /* the host knows it */
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
    if (grads[i]->numel > 0) TRY(scale(grads[i], factor[i]));
done:
  for (int i = 0; dense && i < 2 * n; i++) lm_release(dense[i]);
  lm_free(dense);
  lm_release(first);
  if (status != LM_OK) {
    lm_release(*total);
    *total = NULL;
  }
  lm_run_end(before);
  return status;
}
