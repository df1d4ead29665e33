/* gather_weighted and its two gradients: checks, and operands made contiguous. */
#include "op/nn/gather_weighted.h"

#include "base/message.h"
#include "op/input_layout.h"

lm_gather_weighted_call lm_gather_weighted_call_of(lm_op_id op, const void *args, lm_tensor *const *out) {
  lm_gather_weighted_call s = {0};
  const lm_tensor *indices;
  if (op == LM_OP_gather_weighted) {
    const lm_gather_weighted_args *a = args;
    s.x = a->x, s.y = out[0], s.weight = a->weight, indices = a->indices;
  } else if (op == LM_OP_gather_weighted_input) {
    const lm_gather_weighted_input_args *a = args;
    s.x = out[0], s.y = a->grad, s.weight = a->weight, indices = a->indices;
  } else {
    const lm_gather_weighted_weight_args *a = args;
    s.x = a->x, s.y = a->grad, s.weight = out[0], indices = a->indices;
  }
  s.n = s.x->size[0], s.c = s.x->size[1], s.m = s.x->size[2], s.i = s.x->size[3];
  s.j = indices->size[1], s.p = indices->size[2];
  s.indices = (const int64_t *)indices->data;
  s.indices_step = indices->size[0] > 1 ? s.j * s.p : 0;
  s.weight_step = s.weight && s.weight->size[0] > 1 ? s.j * s.p : 0;
  return s;
}

static lm_status check_four(lm_op_id op, const char *arg, int ndim, const int64_t *size) {
  if (ndim == 4 && size[0] >= 0 && size[1] >= 0 && size[3] >= 0 && size[2] >= 0 && size[2] <= INT32_MAX) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, arg, "[n, c, points, i] with fewer than 2^31 points",
                       lm_shape_text(ndim, size));
}

/* indices, and weight beside t, whose dtype it is weighted in. n: how many there may be instead of one. */
static lm_status check_tables(lm_op_id op, const lm_tensor *t, const lm_tensor *indices, const lm_tensor *weight,
                              int64_t n) {
  const char *name = lm_ops[op].name;
  if (indices->dtype != LM_I64 || indices->ndim != 3 || (indices->size[0] != 1 && indices->size[0] != n))
    return lm_fail_value(name, "indices", lm_text("int64 [1 or %lld, j, p]", (long long)n),
                         lm_text("%s %s", lm_dtype_name(indices->dtype), lm_shape_of(indices)));
  if (!weight) return LM_OK;
  if (weight->ndim != 3 || (weight->size[0] != 1 && weight->size[0] != n) || weight->size[1] != indices->size[1] ||
      weight->size[2] != indices->size[2])
    return lm_fail_shapes(name, "weight", lm_shape_of(weight), "indices", lm_shape_of(indices));
  lm_dtype wanted = t->dtype == LM_F64 ? LM_F64 : LM_F32;
  if (weight->dtype != wanted)
    return lm_fail_dtype(name, "weight", lm_text("%s for x of %s", lm_dtype_name(wanted), lm_dtype_name(t->dtype)),
                         lm_dtype_name(weight->dtype));
  return LM_OK;
}

/* y [n, c, p, i] of an x of that size. */
static lm_status check_grad(lm_op_id op, const lm_tensor *grad, const lm_tensor *indices, const int64_t *x) {
  const int64_t size[4] = {x[0], x[1], indices->size[2], x[3]};
  bool fits = grad->ndim == 4;
  for (int d = 0; fits && d < 4; d++) fits = grad->size[d] == size[d];
  if (fits) return LM_OK;
  return lm_fail_shape(lm_ops[op].name, "grad", lm_shape_text(4, size), lm_shape_of(grad));
}

/* A fresh result, zeros where an operand is empty. */
static lm_status new_result(lm_dtype dtype, lm_device device, const int64_t *size, int ndim, bool empty,
                            lm_tensor **out) {
  lm_status status = lm_tensor_empty(dtype, device, ndim, size, LM_CONTIGUOUS, out);
  if (status != LM_OK || !empty || (*out)->numel == 0) return status;
  lm_tensor *filled;
  status = lm_op_zero_(&(lm_zero__args){.x = *out}, &filled);
  if (status == LM_OK) lm_release(filled);
  return status;
}

lm_status lm_op_gather_weighted(const lm_gather_weighted_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_gather_weighted;
  lm_status status;
  lm_gather_weighted_args run = {0};
  lm_tensor *y = NULL;
  TRY(lm_check_float(op, "x", a->x));
  TRY(check_four(op, "x", a->x->ndim, a->x->size));
  TRY(lm_check_same_device(op, a->weight ? 3 : 2, (lm_tensor *[]){a->x, a->indices, a->weight}));
  TRY(check_tables(op, a->x, a->indices, a->weight, a->x->size[0]));
  bool empty = a->x->numel == 0 || a->indices->numel == 0;
  const int64_t size[4] = {a->x->size[0], a->x->size[1], a->indices->size[2], a->x->size[3]};
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &run.x));
  TRY(lm_to_private_copy(a->indices, &run.indices));
  if (a->weight) TRY(lm_to_layout(a->weight, LM_CONTIGUOUS, &run.weight));
  TRY(new_result(a->x->dtype, a->x->device, size, 4, empty, &y));
  if (!empty && y->numel > 0) TRY(lm_dispatch(op, y->device, &run, &y));
  *out = y;
  y = NULL;
done:
  lm_release(run.x);
  lm_release(run.indices);
  lm_release(run.weight);
  lm_release(y);
  return status;
}

lm_status lm_op_gather_weighted_input(const lm_gather_weighted_input_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_gather_weighted_input;
  lm_status status;
  lm_gather_weighted_input_args run = {.size = a->size};
  lm_tensor *dx = NULL;
  TRY(lm_check_float(op, "grad", a->grad));
  TRY(check_four(op, "size", a->size.n, a->size.v));
  TRY(lm_check_same_device(op, a->weight ? 3 : 2, (lm_tensor *[]){a->grad, a->indices, a->weight}));
  TRY(check_tables(op, a->grad, a->indices, a->weight, a->size.v[0]));
  TRY(check_grad(op, a->grad, a->indices, a->size.v));
  bool empty = a->grad->numel == 0 || a->indices->numel == 0;
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &run.grad));
  TRY(lm_to_private_copy(a->indices, &run.indices));
  if (a->weight) TRY(lm_to_layout(a->weight, LM_CONTIGUOUS, &run.weight));
  TRY(new_result(a->grad->dtype, a->grad->device, a->size.v, 4, empty, &dx));
  if (!empty && dx->numel > 0) TRY(lm_dispatch(op, dx->device, &run, &dx));
  *out = dx;
  dx = NULL;
done:
  lm_release(run.grad);
  lm_release(run.indices);
  lm_release(run.weight);
  lm_release(dx);
  return status;
}

lm_status lm_op_gather_weighted_weight(const lm_gather_weighted_weight_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_gather_weighted_weight;
  lm_status status;
  lm_gather_weighted_weight_args run = {0};
  lm_tensor *dw = NULL;
  TRY(lm_check_float(op, "x", a->x));
  TRY(check_four(op, "x", a->x->ndim, a->x->size));
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){a->x, a->grad, a->indices}));
  TRY(check_tables(op, a->x, a->indices, NULL, a->x->size[0]));
  TRY(check_grad(op, a->grad, a->indices, a->x->size));
  if (a->grad->dtype != a->x->dtype) {
    status = lm_fail_dtypes("gather_weighted_weight", "grad", lm_dtype_name(a->grad->dtype), "x",
                            lm_dtype_name(a->x->dtype));
    goto done;
  }
  bool empty = a->x->numel == 0 || a->indices->numel == 0;
  const int64_t size[3] = {a->x->size[0], a->indices->size[1], a->indices->size[2]};
  TRY(lm_to_layout(a->grad, LM_CONTIGUOUS, &run.grad));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &run.x));
  TRY(lm_to_private_copy(a->indices, &run.indices));
  TRY(new_result(a->x->dtype == LM_F64 ? LM_F64 : LM_F32, a->x->device, size, 3, empty, &dw));
  if (!empty && dw->numel > 0) TRY(lm_dispatch(op, dw->device, &run, &dw));
  *out = dw;
  dw = NULL;
done:
  lm_release(run.grad);
  lm_release(run.x);
  lm_release(run.indices);
  lm_release(dw);
  return status;
}
