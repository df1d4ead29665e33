/* Checks matrix products (matmul: autograd/composite_matmul.c). Kernels get linear's x as [rows, in], y [rows, out]. */
#include "base/message.h"
#include "op/operand_checks.h"

static lm_status check_operands(lm_op_id op, const char *first, lm_tensor *a, const char *second, lm_tensor *b) {
  NEED(lm_check_same_device(op, 2, (lm_tensor *[]){a, b}));
  NEED(lm_check_dtypes(op, first, a, second, b));
  if (a->dtype != LM_BOOL) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, first, "a number dtype", "bool"),
                   "convert it with :float() or :int()");
}

/* Checks x [n, k] and other [k, m], with a leading batch dim for bmm. */
static lm_status check_product(lm_op_id op, lm_tensor *x, lm_tensor *other, int ndim) {
  NEED(lm_check_ndim(op, "x", x, ndim));
  NEED(lm_check_ndim(op, "other", other, ndim));
  for (int of_batch = ndim == 3; of_batch >= 0; of_batch--) {
    int64_t n = x->size[of_batch ? 0 : ndim - 1], m = other->size[of_batch ? 0 : ndim - 2];
    if (n == m) continue;
    return lm_fail(LM_E_SHAPE, "%s: %s sizes of x and other must match, got %lld and %lld in %s and %s",
                   lm_ops[op].name, of_batch ? "batch" : "inner", (long long)n, (long long)m, lm_shape_of(x),
                   lm_shape_of(other));
  }
  return check_operands(op, "x", x, "other", other);
}

/* Checks that input broadcasts to the product's `ndim` sizes, and truncates alpha and beta for integers, as PyTorch
 * does. */
static lm_status check_added(lm_op_id op, lm_product_args *a, int ndim, const int64_t *size) {
  const char *name = lm_ops[op].name;
  NEED(check_operands(op, "x", a->x, "input", a->input));
  const lm_tensor *in = a->input;
  bool fits = in->ndim <= ndim;
  for (int i = 1; fits && i <= in->ndim; i++) {
    int64_t have = in->size[in->ndim - i];
    fits = have == 1 || have == size[ndim - i];
  }
  if (!fits) {
    return lm_fail(LM_E_SHAPE, "%s: input of shape %s does not broadcast to the product's shape %s", name,
                   lm_shape_of(in), lm_shape_text(ndim, size));
  }
  lm_dtype dtype = a->x->dtype;
  if (!lm_dtype_is_float(dtype)) {
    a->alpha = trunc(a->alpha);
    a->beta = trunc(a->beta);
    NEED(lm_check_number(name, "alpha", dtype, a->alpha));
    NEED(lm_check_number(name, "beta", dtype, a->beta));
  }
  return LM_OK;
}

/* Sets *out to x [..., in] as [rows, in]: a view, of a copy if no single stride spans the leading dims. */
static lm_status as_rows(lm_tensor *x, lm_tensor **out) {
  int last = x->ndim - 1;
  LM_OWNED *copy = NULL;
  int64_t rows = 1, step = x->size[last];
  bool even = true;
  for (int i = last - 1; i >= 0; i--) {
    if (x->size[i] == 1) continue;
    if (rows == 1) step = x->stride[i];
    even = even && x->stride[i] == step * rows;
    rows *= x->size[i];
  }
  if (!even) {
    NEED(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &copy));
    NEED(lm_copy(x, copy));
    x = copy;
    step = x->size[last];
  }
  return lm_tensor_view(x, 2, (int64_t[]){rows, x->size[last]}, (int64_t[]){step, x->stride[last]}, 0, out);
}

static lm_status check_linear(lm_tensor *x, lm_tensor *weight, lm_tensor *bias) {
  NEED(lm_check_ndim(LM_OP_linear, "weight", weight, 2));
  NEED(check_operands(LM_OP_linear, "x", x, "weight", weight));
  if (x->ndim == 0 || x->size[x->ndim - 1] != weight->size[1]) {
    return lm_fail_shape("linear", "x",
                         lm_text("[*, %lld] for weight of %s", (long long)weight->size[1], lm_shape_of(weight)),
                         lm_shape_of(x));
  }
  if (!bias) return LM_OK;
  NEED(check_operands(LM_OP_linear, "x", x, "bias", bias));
  if (bias->ndim == 1 && bias->size[0] == weight->size[0]) return LM_OK;
  return lm_fail_shape("linear", "bias",
                       lm_text("[%lld] for weight of %s", (long long)weight->size[0], lm_shape_of(weight)),
                       lm_shape_of(bias));
}

lm_status lm_op_product(lm_op_id op, const lm_product_args *a, lm_tensor **out) {
  lm_product_args args = *a;
  LM_OWNED *x = NULL, *y = NULL, *rows = NULL;
  const int last = a->x->ndim - 1;
  int64_t size[LM_MAX_DIMS];
  if (op == LM_OP_linear) {
    NEED(check_linear(a->x, a->other, a->input));
    args.beta = a->input ? 1 : 0;
  } else {
    NEED(check_product(op, a->x, a->other, op == LM_OP_bmm || op == LM_OP_baddbmm ? 3 : 2));
  }
  for (int d = 0; d < last; d++) size[d] = a->x->size[d];
  size[last] = a->transposed ? a->other->size[0] : a->other->size[last];
  if (op == LM_OP_addmm || op == LM_OP_baddbmm) NEED(check_added(op, &args, last + 1, size));
  const lm_dtype dtype = a->input || LM_DEVICE_KIND(a->x->device) == LM_CPU ? a->x->dtype : lm_widened(a->x->dtype);
  NEED(lm_tensor_empty(dtype, a->x->device, a->x->ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel && a->transposed && last != 1) {
    NEED(as_rows(a->x, &x));
    NEED(lm_tensor_view(y, 2, (int64_t[]){x->size[0], size[last]}, (int64_t[]){size[last], 1}, 0, &rows));
    args.x = x;
  }
  if (y->numel) NEED(lm_dispatch(LM_OP_product, y->device, &args, rows ? &rows : &y));
  *out = lm_retain(y);
  return LM_OK;
}
