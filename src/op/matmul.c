/* Matrix products: checks and output sizes. The slot of linear gets x [rows, in] and an output [rows, out]. */
#include "base/message.h"
#include "op/check.h"

static lm_status check_operands(lm_op_id op, const char *first, lm_tensor *a, const char *second, lm_tensor *b) {
  lm_status status;
  const char *name = lm_ops[op].name;
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){a, b}));
  if (a->dtype != b->dtype)
    status = lm_fail_dtypes(name, first, lm_dtype_name(a->dtype), second, lm_dtype_name(b->dtype));
  else if (a->dtype == LM_BOOL)
    status = lm_remedy(lm_fail_dtype(name, first, "a number dtype", "bool"), "convert it with :float() or :int()");
done:
  return status;
}

/* x: [n, k], other: [k, m]; with a batch dimension in front for bmm. */
static lm_status check_product(lm_op_id op, lm_tensor *x, lm_tensor *other, int ndim) {
  lm_status status;
  TRY(lm_check_ndim(op, "x", x, ndim));
  TRY(lm_check_ndim(op, "other", other, ndim));
  if (ndim == 3 && x->size[0] != other->size[0])
    status =
        lm_fail(LM_E_SHAPE, "%s: batch sizes of x and other must match, got %lld and %lld in %s and %s",
                lm_ops[op].name, (long long)x->size[0], (long long)other->size[0], lm_shape_of(x), lm_shape_of(other));
  else if (x->size[ndim - 1] != other->size[ndim - 2])
    status = lm_fail(LM_E_SHAPE, "%s: inner sizes of x and other must match, got %lld and %lld in %s and %s",
                     lm_ops[op].name, (long long)x->size[ndim - 1], (long long)other->size[ndim - 2], lm_shape_of(x),
                     lm_shape_of(other));
  else
    status = check_operands(op, "x", x, "other", other);
done:
  return status;
}

/* Allocates y and fills it by the device's kernel. */
static lm_status compute(lm_op_id op, const void *args, const lm_tensor *like, int ndim, const int64_t *size,
                         lm_tensor **out) {
  lm_status status;
  lm_tensor *y = NULL;
  TRY(lm_tensor_empty(like->dtype, like->device, ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel) TRY(lm_dispatch(op, y->device, args, &y));
  out[0] = y;
  y = NULL;
done:
  lm_release(y);
  return status;
}

lm_status lm_op_mm(const lm_mm_args *a, lm_tensor **out) {
  lm_status status;
  TRY(check_product(LM_OP_mm, a->x, a->other, 2));
  status = compute(LM_OP_mm, a, a->x, 2, (int64_t[]){a->x->size[0], a->other->size[1]}, out);
done:
  return status;
}

lm_status lm_op_bmm(const lm_bmm_args *a, lm_tensor **out) {
  lm_status status;
  TRY(check_product(LM_OP_bmm, a->x, a->other, 3));
  status = compute(LM_OP_bmm, a, a->x, 3, (int64_t[]){a->x->size[0], a->x->size[1], a->other->size[2]}, out);
done:
  return status;
}

lm_status lm_op_addmm(const lm_addmm_args *a, lm_tensor **out) {
  lm_status status;
  TRY(check_product(LM_OP_addmm, a->x, a->other, 2));
  TRY(check_operands(LM_OP_addmm, "x", a->x, "input", a->input));
  int64_t size[2] = {a->x->size[0], a->other->size[1]};
  const lm_tensor *in = a->input;
  bool fits = in->ndim <= 2;
  for (int i = 1; fits && i <= in->ndim; i++) {
    int64_t have = in->size[in->ndim - i];
    fits = have == 1 || have == size[2 - i];
  }
  if (!fits) {
    status = lm_fail(LM_E_SHAPE, "addmm: input of shape %s does not broadcast to the product's shape %s",
                     lm_shape_of(in), lm_shape_text(2, size));
    goto done;
  }
  lm_addmm_args job = *a;
  lm_dtype dtype = a->x->dtype;
  if (!lm_dtype_is_float(dtype)) { /* PyTorch's integers cut these off */
    job.alpha = trunc(a->alpha);
    job.beta = trunc(a->beta);
    TRY(lm_check_number("addmm", "alpha", dtype, job.alpha));
    TRY(lm_check_number("addmm", "beta", dtype, job.beta));
  }
  status = compute(LM_OP_addmm, &job, a->x, 2, size, out);
done:
  return status;
}

/* x [..., in] as [rows, in]: a view, or one of a copy where the leading dims do not lie evenly. */
static lm_status as_rows(lm_tensor *x, lm_tensor **out) {
  lm_status status = LM_OK;
  int last = x->ndim - 1;
  lm_tensor *copy = NULL;
  int64_t rows = 1, step = x->size[last];
  bool even = true;
  for (int i = last - 1; i >= 0; i--) {
    if (x->size[i] == 1) continue;
    if (rows == 1) step = x->stride[i];
    even = even && x->stride[i] == step * rows;
    rows *= x->size[i];
  }
  if (!even) {
    TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &copy));
    TRY(lm_copy(x, copy));
    x = copy;
    step = x->size[last];
  }
  TRY(lm_tensor_view(x, 2, (int64_t[]){rows, x->size[last]}, (int64_t[]){step, x->stride[last]}, 0, out));
done:
  lm_release(copy);
  return status;
}

lm_status lm_op_linear(const lm_linear_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *x = NULL, *y = NULL, *rows = NULL;
  TRY(lm_check_ndim(LM_OP_linear, "weight", a->weight, 2));
  TRY(check_operands(LM_OP_linear, "x", a->x, "weight", a->weight));
  int last = a->x->ndim - 1;
  if (last < 0 || a->x->size[last] != a->weight->size[1]) {
    status = lm_fail_shape("linear", "x",
                           lm_text("[*, %lld] for weight of %s", (long long)a->weight->size[1], lm_shape_of(a->weight)),
                           lm_shape_of(a->x));
    goto done;
  }
  if (a->bias) {
    TRY(check_operands(LM_OP_linear, "x", a->x, "bias", a->bias));
    if (a->bias->ndim != 1 || a->bias->size[0] != a->weight->size[0]) {
      status = lm_fail_shape("linear", "bias",
                             lm_text("[%lld] for weight of %s", (long long)a->weight->size[0], lm_shape_of(a->weight)),
                             lm_shape_of(a->bias));
      goto done;
    }
  }
  int64_t size[LM_MAX_DIMS], columns = a->weight->size[0];
  for (int i = 0; i < last; i++) size[i] = a->x->size[i];
  size[last] = columns;
  if (a->x->ndim == 2) {
    status = compute(LM_OP_linear, a, a->x, 2, size, out);
    goto done;
  }
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, a->x->ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel) {
    TRY(as_rows(a->x, &x));
    TRY(lm_tensor_view(y, 2, (int64_t[]){x->size[0], columns}, (int64_t[]){columns, 1}, 0, &rows));
    lm_linear_args flat = *a;
    flat.x = x;
    TRY(lm_dispatch(LM_OP_linear, y->device, &flat, &rows));
  }
  *out = lm_retain(y);
done:
  lm_release(rows);
  lm_release(x);
  lm_release(y);
  return status;
}
