/* Negative log-likelihood: x [C], [N, C] or [N, C, d1, ...] against classes [], [N] or [N, d1, ...]. */

#include "base/message.h"
#include "op/index_checks.h"
#include "op/input_layout.h"

/* Sizes of the target for an x of that size. */
static lm_status target_sizes(lm_op_id op, int ndim, const int64_t *size, lm_ints *out) {
  if (ndim < 1) return lm_fail_shape(lm_ops[op].name, "x", "[C], [N, C] or [N, C, ...]", lm_shape_text(ndim, size));
  *out = (lm_ints){.n = ndim - 1};
  for (int d = 0; d < ndim - 1; d++) out->v[d] = size[d ? d + 1 : 0];
  return LM_OK;
}

static lm_status check_target(lm_op_id op, const char *arg, const lm_tensor *t, int ndim, const int64_t *size,
                              const lm_ints *want) {
  bool fits = t->ndim == want->n;
  for (int d = 0; fits && d < want->n; d++) fits = t->size[d] == want->v[d];
  if (fits) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, arg,
                       lm_text("%s for x of %s", lm_shape_text(want->n, want->v), lm_shape_text(ndim, size)),
                       lm_shape_of(t));
}

static lm_status check_weight(lm_op_id op, const lm_tensor *weight, lm_dtype dtype, int64_t classes) {
  if (!weight) return LM_OK;
  if (weight->ndim != 1 || weight->size[0] != classes)
    return lm_fail_shape(lm_ops[op].name, "weight", lm_text("[%lld], one for each class", (long long)classes),
                         lm_shape_of(weight));
  if (weight->dtype != dtype && !(weight->dtype == LM_F32 && dtype != LM_F64))
    return lm_fail_dtypes(lm_ops[op].name, "weight", lm_dtype_name(weight->dtype), "x", lm_dtype_name(dtype));
  return LM_OK;
}

/* x as [N, C, S], whatever its layout if the dims after C can be walked as one, else of a copy. */
static lm_status flattened(lm_tensor *x, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *merged = NULL;
  bool walks = true;
  for (int d = 2; d + 1 < x->ndim; d++) walks = walks && x->stride[d] == x->stride[d + 1] * x->size[d + 1];
  if (walks) {
    merged = lm_retain(x);
  } else {
    TRY(lm_to_layout(x, LM_PRESERVE, &merged));
  }
  int64_t size[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
  size[0] = x->ndim > 1 ? x->size[0] : 1;
  stride[0] = x->ndim > 1 ? merged->stride[0] : 0;
  size[1] = x->size[x->ndim > 1];
  stride[1] = merged->stride[x->ndim > 1];
  for (int d = 2; d < x->ndim; d++) size[2] *= x->size[d];
  stride[2] = x->ndim > 2 ? merged->stride[x->ndim - 1] : 0;
  TRY(lm_tensor_view(merged, 3, size, stride, 0, out));
done:
  lm_release(merged);
  return status;
}

lm_status lm_op_nll_loss(const lm_nll_loss_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_nll_loss;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *target = NULL, *weight = NULL, *y = NULL, *total = NULL;
  lm_ints sizes;
  TRY(lm_check_float(op, "x", a->x));
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){a->x, a->target, a->weight}));
  TRY(target_sizes(op, a->x->ndim, a->x->size, &sizes));
  TRY(check_target(op, "target", a->target, a->x->ndim, a->x->size, &sizes));
  TRY(check_weight(op, a->weight, a->x->dtype, a->x->size[a->x->ndim > 1]));
  TRY(lm_index_int64(op, "target", a->target, &target));
  TRY(flattened(a->x, &x));
  if (a->weight) TRY(lm_to_layout(a->weight, LM_CONTIGUOUS, &weight));
  TRY(lm_tensor_empty(x->dtype, x->device, a->reduction == LM_NONE ? sizes.n : 0, sizes.v, LM_CONTIGUOUS, &y));
  TRY(lm_tensor_empty(x->dtype == LM_F64 ? LM_F64 : LM_F32, x->device, 0, NULL, LM_CONTIGUOUS, &total));
  lm_nll_loss_args job = *a;
  job.x = x, job.target = target, job.weight = weight;
  TRY(lm_dispatch(op, x->device, &job, (lm_tensor *[]){y, total}));
  out[0] = lm_retain(y);
  out[1] = lm_retain(total);
done:
  lm_release(x);
  lm_release(target);
  lm_release(weight);
  lm_release(y);
  lm_release(total);
  return status;
}

lm_status lm_op_nll_loss_backward(const lm_nll_loss_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_nll_loss_backward;
  lm_status status = LM_OK;
  lm_tensor *grad = NULL, *target = NULL, *weight = NULL, *dx = NULL, *flat = NULL;
  const lm_ints *size = &a->size;
  lm_ints sizes, scalar = {.n = 0};
  TRY(lm_check_float(op, "grad", a->grad));
  TRY(lm_check_float(op, "total", a->total));
  TRY(lm_check_same_device(op, 4, (lm_tensor *[]){a->grad, a->target, a->weight, a->total}));
  TRY(target_sizes(op, size->n, size->v, &sizes));
  TRY(check_target(op, "target", a->target, size->n, size->v, &sizes));
  TRY(check_target(op, "grad", a->grad, size->n, size->v, a->reduction == LM_NONE ? &sizes : &scalar));
  TRY(check_target(op, "total", a->total, size->n, size->v, &scalar));
  TRY(check_weight(op, a->weight, a->grad->dtype, size->v[size->n > 1]));
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &grad));
  TRY(lm_index_int64(op, "target", a->target, &target));
  if (a->weight) TRY(lm_to_layout(a->weight, LM_CONTIGUOUS, &weight));
  TRY(lm_tensor_empty(grad->dtype, grad->device, size->n, size->v, lm_gradient_format(size), &dx));
  TRY(flattened(dx, &flat));
  lm_nll_loss_backward_args job = *a;
  job.grad = grad, job.target = target, job.weight = weight;
  TRY(lm_dispatch(op, grad->device, &job, &flat));
  out[0] = lm_retain(dx);
done:
  lm_release(grad);
  lm_release(target);
  lm_release(weight);
  lm_release(dx);
  lm_release(flat);
  return status;
}
