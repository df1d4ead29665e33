#include "op/check.h"

#include "base/message.h"
#include "op/operand_checks.h"
#include "op/run.h"

_Thread_local lm_running lm_now_running = {NULL, -1, false};
const char *lm_op_running(void) { return lm_now_running.name; }
int lm_op_running_id(void) { return lm_now_running.op; }

lm_status lm_check_same_device(lm_op_id op, int n, lm_tensor *const *t) {
  const lm_tensor *first = NULL;
  for (int i = 0; i < n; i++) {
    if (!t[i] || t[i]->number || (t[i]->ndim == 0 && t[i]->device == LM_DEVICE(LM_CPU, 0))) continue;
    if (!first) {
      first = t[i];
    } else if (t[i]->device != first->device) {
      return lm_fail(LM_E_DEVICE, "%s: device mismatch: tensors are on %s and %s; move one with :to(\"%s\")",
                     lm_ops[op].name, lm_device_name(first->device), lm_device_name(t[i]->device),
                     lm_device_name(first->device));
    }
  }
  return LM_OK;
}

lm_status lm_check_ndim(lm_op_id op, const char *arg, const lm_tensor *t, int ndim) {
  if (t->ndim == ndim) return LM_OK;
  return lm_fail_value(lm_ops[op].name, arg, lm_text("%d-d", ndim), lm_text("shape %s", lm_shape_of(t)));
}

lm_status lm_check_float(lm_op_id op, const char *arg, const lm_tensor *t) {
  if (lm_dtype_is_float(t->dtype)) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, arg, "floating point", lm_dtype_name(t->dtype)),
                   "convert it with :float()");
}

lm_status lm_check_real(lm_op_id op, const char *name, const lm_tensor *t) {
  if (t->dtype == LM_F32 || t->dtype == LM_F64) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, name, "float32 or float64", lm_dtype_name(t->dtype)),
                   "convert it with :float()");
}

lm_status lm_check_not_bool(lm_op_id op, const char *name, const lm_tensor *t) {
  if (t->dtype != LM_BOOL) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, name, "a number dtype", "bool"), "convert it with :to(\"uint8\")");
}

lm_status lm_check_float_or_int(lm_op_id op, const char *name, const lm_tensor *t) {
  return t->dtype == LM_BOOL ? lm_check_float(op, name, t) : LM_OK;
}

lm_status lm_check_float_or_int64(lm_op_id op, const char *name, const lm_tensor *t) {
  return t->dtype == LM_I64 ? LM_OK : lm_check_float(op, name, t);
}

lm_status lm_check_dtype(lm_op_id op, const char *name, const lm_tensor *t, lm_dtype dtype) {
  if (t->dtype == dtype) return LM_OK;
  return lm_fail_dtype(lm_ops[op].name, name, lm_dtype_name(dtype), lm_dtype_name(t->dtype));
}

lm_status lm_check_dtypes(lm_op_id op, const char *first, const lm_tensor *a, const char *second, const lm_tensor *b) {
  if (a->dtype == b->dtype) return LM_OK;
  return lm_fail_dtypes(lm_ops[op].name, first, lm_dtype_name(a->dtype), second, lm_dtype_name(b->dtype));
}

lm_status lm_check_like(lm_op_id op, const char *name, const lm_tensor *t, const char *of, const lm_tensor *x) {
  if (t->dtype == x->dtype && lm_same_shape(t, x)) return LM_OK;
  return lm_fail_value(lm_ops[op].name, name, lm_text("%s %s as %s", lm_dtype_name(x->dtype), lm_shape_of(x), of),
                       lm_text("%s %s", lm_dtype_name(t->dtype), lm_shape_of(t)));
}

lm_status lm_check_stat(lm_op_id op, const char *name, const lm_tensor *t, const char *of, const lm_tensor *x,
                        bool own) {
  const lm_dtype stat = lm_stat_dtype(x);
  if (t->dtype == stat || (own && t->dtype == x->dtype)) return LM_OK;
  return lm_fail_dtype(lm_ops[op].name, name,
                       lm_text("%s for %s of %s", lm_dtype_name(stat), of, lm_dtype_name(x->dtype)),
                       lm_dtype_name(t->dtype));
}

lm_status lm_check_elements(lm_op_id op, const lm_tensor *t) {
  if (t->numel <= INT32_MAX) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "the number of elements", "at most 2^31 - 1", t->numel);
}

lm_status lm_check_points(lm_op_id op, int64_t points) {
  if (points <= INT32_MAX) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "the number of points", "at most 2^31 - 1", points);
}

lm_status lm_check_odd(lm_op_id op, int64_t states) {
  if (states % 2 != 0) return LM_OK;
  return lm_fail_int(lm_ops[op].name, "the last size of log_alpha", "odd", states);
}

lm_status lm_check_index(lm_op_id op, const char *arg, const lm_tensor *t) {
  if (t->dtype == LM_U8) {
    return lm_remedy(
        lm_fail_dtype(lm_ops[op].name, arg, "int64 or another integer dtype", "uint8, which could be a mask"),
        "use :bool() for a mask, :long() for indices");
  }
  if (lm_dtype_is_int(t->dtype)) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, arg, "int64 or another integer dtype", lm_dtype_name(t->dtype)),
                   "convert it with :long()");
}

lm_status lm_check_writable(lm_op_id op, const lm_tensor *t) {
  if (!lm_overlaps_itself(t)) return LM_OK;
  return lm_fail_overlap(lm_ops[op].name, "a tensor", lm_shape_of(t));
}

lm_status lm_dims(lm_op_id op, const lm_ints *dims, int ndim, lm_ints *out) {
  bool wanted[LM_MAX_DIMS] = {false};
  for (int i = 0; i < dims->n; i++) {
    int d;
    NEED(lm_dim(lm_ops[op].name, dims->v[i], ndim, &d));
    if (wanted[d]) return lm_fail_repeated_dim(lm_ops[op].name, d + 1);
    wanted[d] = true;
  }
  lm_ints result = {.n = 0};
  for (int d = 0; d < ndim; d++) {
    if (dims->n <= 0 || wanted[d]) result.v[result.n++] = d;
  }
  *out = result;
  return LM_OK;
}

lm_status lm_check_number(const char *name, const char *arg, lm_dtype dtype, double number) {
  int64_t low, high;
  if (lm_dtype_has(dtype, number)) return LM_OK;
  if (isnan(number)) number = NAN; /* printed without a sign */
  if (lm_dtype_is_float(dtype)) {
    return lm_fail_number(
        name, arg, lm_text("at most %.14g in magnitude for %s", lm_dtype_largest(dtype), lm_dtype_name(dtype)), number);
  }
  lm_dtype_integers(dtype, &low, &high);
  return lm_fail_number(
      name, arg, lm_text("from %lld to %lld for %s", (long long)low, (long long)high, lm_dtype_name(dtype)), number);
}

lm_status lm_check_fits(const char *name, lm_dtype dtype, const lm_tensor *value) {
  double number;
  if (!value->number) return LM_OK;
  lm_tensor_watcher *watcher = lm_tensors_watched;
  if (lm_dtype_is_float(dtype) && dtype != LM_F16) lm_tensors_watched = NULL; /* a compiled step's other numbers fit */
  lm_status status = lm_tensor_item_f64((lm_tensor *)value, &number);
  lm_tensors_watched = watcher;
  return status == LM_OK ? lm_check_number(name, "value", dtype, number) : status;
}

void lm_drop_dims(lm_tensor *t, const lm_ints *dims) {
  bool dropped[LM_MAX_DIMS] = {false};
  for (int i = 0; i < dims->n; i++) dropped[dims->v[i]] = true;
  int ndim = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (dropped[d]) continue;
    t->size[ndim] = t->size[d];
    t->stride[ndim++] = t->stride[d];
  }
  t->ndim = (uint8_t)ndim;
}
