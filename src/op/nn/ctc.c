/* Connectionist temporal classification: checks; the recursions are the backends'. */
#include "base/message.h"
#include "op/index_checks.h"
#include "op/input_layout.h"

static lm_status check_lengths(lm_op_id op, const char *arg, const lm_tensor *t, int64_t n) {
  if (t->dtype == LM_I64 && t->ndim == 1 && t->size[0] == n) return LM_OK;
  return lm_fail_value(lm_ops[op].name, arg, lm_text("int64 [%lld]", (long long)n),
                       lm_text("%s %s", lm_dtype_name(t->dtype), lm_shape_of(t)));
}

static lm_status check(lm_op_id op, const lm_tensor *x, const lm_tensor *target, const lm_tensor *starts,
                       const lm_tensor *input_lengths, const lm_tensor *target_lengths, int64_t blank) {
  const char *name = lm_ops[op].name;
  lm_status status;
  if (x->ndim != 3 || x->size[0] < 1 || x->size[1] < 1 || x->size[2] < 1)
    return lm_fail_shape(name, "x", "[T, N, C] without an empty dim", lm_shape_of(x));
  if (x->dtype != LM_F32 && x->dtype != LM_F64)
    return lm_remedy(lm_fail_dtype(name, "x", "float32 or float64", lm_dtype_name(x->dtype)),
                     "convert it with :float()");
  if (target->dtype != LM_I64 || target->ndim != 1)
    return lm_fail_value(name, "target", "1-d int64",
                         lm_text("%s %s", lm_dtype_name(target->dtype), lm_shape_of(target)));
  if (blank < 1 || blank > x->size[2])
    return lm_fail_int(name, "blank", lm_text("a class from 1 to %lld", (long long)x->size[2]), blank);
  TRY(check_lengths(op, "starts", starts, x->size[1]));
  TRY(check_lengths(op, "input_lengths", input_lengths, x->size[1]));
  TRY(check_lengths(op, "target_lengths", target_lengths, x->size[1]));
  TRY(lm_check_same_device(op, 5,
                           (lm_tensor *[]){(lm_tensor *)x, (lm_tensor *)target, (lm_tensor *)starts,
                                           (lm_tensor *)input_lengths, (lm_tensor *)target_lengths}));
done:
  return status;
}

/* Each *t[i] becomes a contiguous tensor of its own, or NULL from the first failure on; targets and lengths, which are
 * checked and then used, private ones. */
static lm_status take_contiguous(int n, lm_tensor **const *t) {
  lm_status status = LM_OK;
  for (int i = 0; i < n; i++) {
    lm_tensor *own = NULL;
    if (status == LM_OK) {
      status = (*t[i])->dtype == LM_I64 ? lm_to_private_copy(*t[i], &own) : lm_to_layout(*t[i], LM_CONTIGUOUS, &own);
    }
    *t[i] = own;
  }
  return status;
}

lm_status lm_op_ctc_nll(const lm_ctc_nll_args *a, lm_tensor **out) {
  enum { OPERANDS = 5 };
  const lm_op_id op = LM_OP_ctc_nll;
  lm_ctc_nll_args run = *a;
  lm_tensor **const operands[OPERANDS] = {&run.x, &run.target, &run.starts, &run.input_lengths, &run.target_lengths};
  lm_tensor *y = NULL, *alpha = NULL;
  lm_status status = check(op, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank);
  if (status != LM_OK) return status;
  if (a->longest < 0 || a->longest > INT32_MAX / 4)
    return lm_fail_int("ctc_nll", "longest", "from 0 to 2^29 - 1", a->longest);
  TRY(take_contiguous(OPERANDS, operands));
  const int64_t size[3] = {run.x->size[1], run.x->size[0], 2 * a->longest + 1};
  TRY(lm_tensor_empty(run.x->dtype, run.x->device, 1, size, LM_CONTIGUOUS, &y));
  TRY(lm_tensor_empty(run.x->dtype, run.x->device, 3, size, LM_CONTIGUOUS, &alpha));
  if (y->numel > 0) TRY(lm_dispatch(op, run.x->device, &run, (lm_tensor *[]){y, alpha}));
  out[0] = lm_retain(y);
  out[1] = lm_retain(alpha);
done:
  for (int i = 0; i < OPERANDS; i++) lm_release(*operands[i]);
  lm_release(y);
  lm_release(alpha);
  return status;
}

lm_status lm_op_ctc_nll_backward(const lm_ctc_nll_backward_args *a, lm_tensor **out) {
  enum { OPERANDS = 8 };
  const lm_op_id op = LM_OP_ctc_nll_backward;
  lm_ctc_nll_backward_args run = *a;
  lm_tensor **const operands[OPERANDS] = {
      &run.x, &run.target, &run.starts, &run.input_lengths, &run.target_lengths, &run.grad, &run.loss, &run.log_alpha};
  lm_tensor *dx = NULL;
  lm_status status = check(op, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank);
  if (status == LM_OK) status = lm_check_same_device(op, 4, (lm_tensor *[]){a->x, a->grad, a->loss, a->log_alpha});
  if (status != LM_OK) return status;
  int64_t samples = a->x->size[1];
  const lm_tensor *alpha = a->log_alpha;
  if (alpha->ndim != 3 || alpha->size[0] != samples || alpha->size[1] != a->x->size[0] || alpha->size[2] % 2 == 0 ||
      a->grad->ndim != 1 || a->grad->size[0] != samples || a->loss->ndim != 1 || a->loss->size[0] != samples ||
      alpha->dtype != a->x->dtype || a->grad->dtype != a->x->dtype || a->loss->dtype != a->x->dtype)
    return lm_fail_value("ctc_nll_backward", "grad, loss and log_alpha", lm_text("those of x of %s", lm_shape_of(a->x)),
                         lm_text("%s, %s and %s", lm_shape_of(a->grad), lm_shape_of(a->loss), lm_shape_of(alpha)));
  TRY(take_contiguous(OPERANDS, operands));
  TRY(lm_tensor_empty(run.x->dtype, run.x->device, 3, run.x->size, LM_CONTIGUOUS, &dx));
  if (dx->numel > 0) TRY(lm_dispatch(op, run.x->device, &run, &dx));
  *out = dx;
  dx = NULL;
done:
  for (int i = 0; i < OPERANDS; i++) lm_release(*operands[i]);
  lm_release(dx);
  return status;
}
