#include "op/index_checks.h"

#include <stdio.h>
#include <string.h>

#include "op/input_layout.h"

lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out) {
  if (!lm_dtype_is_int((lm_dtype)t->dtype))
    return lm_fail(LM_E_DTYPE, "%s: %s has to be int64 or another integer dtype, is %s; convert it with :long()",
                   lm_ops[op].name, arg, lm_dtype_name(t->dtype));
  if (t->dtype == LM_I64) return lm_laid_out_private(t, out);
  lm_tensor *fresh = NULL;
  lm_status status = lm_tensor_empty(LM_I64, t->device, t->ndim, t->size, LM_CONTIGUOUS, &fresh);
  if (status == LM_OK) status = lm_copy(t, fresh);
  if (status == LM_OK) {
    *out = fresh;
  } else {
    lm_release(fresh);
  }
  return status;
}

lm_status lm_bad_label(lm_op_id op, const char *arg, const lm_tensor *t, int64_t place, int64_t label,
                       int64_t classes) {
  const char *name = lm_ops[op].name;
  char where[LM_MAX_DIMS * 24] = "";
  int64_t at[LM_MAX_DIMS];
  for (int d = t->ndim - 1; d >= 0; d--) at[d] = place % t->size[d] + 1, place /= t->size[d];
  for (int d = 0, n = 0; d < t->ndim; d++)
    n += snprintf(where + n, sizeof where - (size_t)n, "%s%lld", d ? ", " : "", (long long)at[d]);
  if (label == 0)
    return lm_fail(LM_E_INDEX, "%s: a label of 0 at %s[%s]: labels count from 1, here up to %lld", name, arg, where,
                   (long long)classes);
  return lm_fail(LM_E_INDEX, "%s: a label of %lld at %s[%s]: labels go from 1 to %lld here", name, (long long)label,
                 arg, where, (long long)classes);
}

/* ---- found on a device after the call had returned */

lm_status lm_bad_value(int kind, int op, int64_t position, int64_t value, int64_t limit) {
  const char *name = op >= 0 && op < LM_OP_COUNT ? lm_ops[op].name : "a kernel";
  if (kind == LM_BAD_DIVISION) return lm_fail(LM_E_ARG, "%s: integer division by zero", name);
  if (kind == LM_BAD_PIVOT)
    return lm_fail(LM_E_ARG, "%s: pivot %lld is %lld; pivots are rows, 1 to %lld", name, (long long)position,
                   (long long)value, (long long)limit);
  if (op == LM_OP_nll_loss || op == LM_OP_nll_loss_backward)
    return lm_fail(LM_E_INDEX, "%s: a label of %lld at position %lld of target: labels %s%lld", name, (long long)value,
                   (long long)position, value == 0 ? "count from 1, here up to " : "go from 1 to ", (long long)limit);
  bool from_end = op == LM_OP_index_get || op == LM_OP_index_put_;
  return lm_bad_index(name, kind == LM_BAD_LABEL ? "label" : "index", value, position, limit, from_end);
}

lm_status lm_bad_index(const char *op, const char *what, int64_t value, int64_t position, int64_t limit,
                       bool from_end) {
  const char *hint = value != 0                   ? from_end ? ", or negative from the end" : ""
                     : strcmp(what, "label") == 0 ? ": labels count from 1"
                                                  : ": indices count from 1";
  return lm_fail(LM_E_INDEX, "%s: %s %lld at position %lld is not in 1 to %lld%s", op, what, (long long)value,
                 (long long)position, (long long)limit, hint);
}
