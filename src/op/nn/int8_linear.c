/* linear by a weight of int8 with a scale for each row. The slot gets x [rows, in], scale, bias and an output [rows,
 * out] in float32, all contiguous. */
#include "base/message.h"
#include "op/input_layout.h"

static lm_status check(const lm_int8_linear_args *a) {
  const lm_op_id op = LM_OP_int8_linear;
  lm_status status = LM_OK;
  const lm_tensor *x = a->x, *weight = a->weight;
  TRY(lm_check_float(op, "x", x));
  TRY(lm_check_ndim(op, "weight", weight, 2));
  TRY(lm_check_float(op, "scale", a->scale));
  if (a->bias) TRY(lm_check_float(op, "bias", a->bias));
  TRY(lm_check_same_device(op, a->bias ? 4 : 3, (lm_tensor *[]){a->x, a->weight, a->scale, a->bias}));
  int64_t out = weight->size[0];
  if (weight->dtype != LM_I8) { TRY(lm_fail_dtype("int8_linear", "weight", "int8", lm_dtype_name(weight->dtype))); }
  if (x->ndim == 0 || x->size[x->ndim - 1] != weight->size[1]) {
    TRY(lm_fail_shape("int8_linear", "x",
                      lm_text("[*, %lld] for weight of %s", (long long)weight->size[1], lm_shape_of(weight)),
                      lm_shape_of(x)));
  }
  const lm_tensor *each[] = {a->scale, a->bias};
  for (int k = 0; k < 2; k++) {
    if (each[k] && (each[k]->ndim != 1 || each[k]->size[0] != out)) {
      TRY(lm_fail_shape("int8_linear", k ? "bias" : "scale",
                        lm_text("[%lld] for weight of %s", (long long)out, lm_shape_of(weight)), lm_shape_of(each[k])));
    }
  }
done:
  return status;
}

/* t in float32 and contiguous, a new reference. */
static lm_status readied(lm_tensor *t, lm_dtype dtype, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *same = NULL;
  TRY(lm_at_least_1d(t, dtype, &same));
  TRY(lm_to_layout(same, LM_CONTIGUOUS, out));
done:
  lm_release(same);
  return status;
}

lm_status lm_op_int8_linear(const lm_int8_linear_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *weight = NULL, *scale = NULL, *bias = NULL, *y = NULL, *rows = NULL, *results = NULL;
  TRY(check(a));
  int64_t size[LM_MAX_DIMS], in = a->weight->size[1], columns = a->weight->size[0], last = a->x->ndim - 1;
  memcpy(size, a->x->size, sizeof size);
  size[last] = columns;
  TRY(lm_tensor_empty(LM_F32, a->x->device, a->x->ndim, size, LM_CONTIGUOUS, &y));
  if (y->numel > 0) {
    int64_t n = y->numel / columns;
    TRY(readied(a->x, LM_F32, &x));
    TRY(readied(a->weight, LM_I8, &weight));
    TRY(readied(a->scale, LM_F32, &scale));
    if (a->bias) TRY(readied(a->bias, LM_F32, &bias));
    TRY(lm_tensor_view(x, 2, (int64_t[]){n, in}, (int64_t[]){in, 1}, 0, &rows));
    TRY(lm_tensor_view(y, 2, (int64_t[]){n, columns}, (int64_t[]){columns, 1}, 0, &results));
    lm_int8_linear_args job = {rows, weight, scale, bias};
    TRY(lm_dispatch_or_host(LM_OP_int8_linear, y->device, &job, &results));
  }
  TRY(lm_at_least_1d(y, a->x->dtype, out));
done:
  lm_release(x);
  lm_release(weight);
  lm_release(scale);
  lm_release(bias);
  lm_release(rows);
  lm_release(results);
  lm_release(y);
  return status;
}
