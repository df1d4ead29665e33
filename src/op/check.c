#include "op/check.h"

lm_status lm_check_same_device(lm_op_id op, int n, lm_tensor *const *t) {
  const lm_tensor *first = NULL;
  for (int i = 0; i < n; i++) {
    if (!t[i] || t[i]->number || (t[i]->ndim == 0 && t[i]->device == LM_DEVICE(LM_CPU, 0))) continue;
    if (!first) {
      first = t[i];
    } else if (t[i]->device != first->device) {
      return lm_fail(LM_E_DEVICE, "%s: tensors on %s and %s; bring them to one device with :to(\"%s\")",
                     lm_ops[op].name, lm_device_name(first->device), lm_device_name(t[i]->device),
                     lm_device_name(first->device));
    }
  }
  return LM_OK;
}

lm_status lm_check_ndim(lm_op_id op, const char *arg, const lm_tensor *t, int ndim) {
  if (t->ndim == ndim) return LM_OK;
  return lm_fail(LM_E_SHAPE, "%s: %s has to have %d dim%s, got %s", lm_ops[op].name, arg, ndim, ndim == 1 ? "" : "s",
                 lm_shape_of(t));
}

lm_status lm_check_float(lm_op_id op, const char *arg, const lm_tensor *t) {
  if (lm_dtype_is_float(t->dtype)) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: %s has to be floating, got %s; use :float()", lm_ops[op].name, arg,
                 lm_dtype_name(t->dtype));
}

lm_status lm_check_index(lm_op_id op, const char *arg, const lm_tensor *t) {
  if (t->dtype == LM_U8) {
    return lm_fail(
        LM_E_DTYPE,
        "%s: %s of uint8 could be meant as a mask, as PyTorch takes it; :bool() makes it one, :long() places",
        lm_ops[op].name, arg);
  }
  if (lm_dtype_is_int((lm_dtype)t->dtype)) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: %s has to be int64 or another integer dtype, got %s; use :long()", lm_ops[op].name,
                 arg, lm_dtype_name(t->dtype));
}

lm_status lm_check_writable(lm_op_id op, const lm_tensor *t) {
  if (!lm_overlaps_itself(t)) return LM_OK;
  return lm_fail(LM_E_ARG,
                 "%s: cannot write in place to %s: some of its elements share memory (expanded); :clone() it first",
                 lm_ops[op].name, lm_shape_of(t));
}

lm_status lm_dims(lm_op_id op, const lm_ints *dims, int ndim, lm_ints *out) {
  bool wanted[LM_MAX_DIMS] = {false};
  for (int i = 0; i < dims->n; i++) {
    int d;
    lm_status status = lm_dim(lm_ops[op].name, dims->v[i], ndim, &d);
    if (status != LM_OK) return status;
    if (wanted[d]) return lm_fail(LM_E_ARG, "%s: dim %d is given twice", lm_ops[op].name, d + 1);
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
  if (isnan(number)) number = NAN; /* without a sign */
  if (lm_dtype_is_float(dtype)) {
    return lm_fail(LM_E_ARG, "%s: %s must be at most %.14g in magnitude for %s, got %.14g", name, arg,
                   lm_dtype_largest(dtype), lm_dtype_name(dtype), number);
  }
  lm_dtype_integers(dtype, &low, &high);
  return lm_fail(LM_E_ARG, "%s: %s must be from %lld to %lld for %s, got %.14g", name, arg, (long long)low,
                 (long long)high, lm_dtype_name(dtype), number);
}

lm_status lm_check_fits(const char *name, lm_dtype dtype, const lm_tensor *value) {
  double number;
  if (!value->number) return LM_OK;
  lm_status status = lm_tensor_item_f64((lm_tensor *)value, &number);
  return status == LM_OK ? lm_check_number(name, "value", dtype, number) : status;
}

lm_status lm_lines_of(lm_tensor *x, lm_dtype dtype, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *converted = NULL;
  if (dtype != LM_NO_DTYPE && dtype != (lm_dtype)x->dtype) {
    TRY(lm_op_to_copy(&(lm_to_copy_args){.x = x, .dtype = dtype, .device = x->device, .memory_format = LM_PRESERVE},
                      &converted));
    x = converted;
  }
  if (x->ndim == 0) {
    TRY(lm_op_unsqueeze(&(lm_unsqueeze_args){.x = x, .dim = 0}, out));
  } else {
    *out = lm_retain(x);
  }
done:
  lm_release(converted);
  return status;
}
