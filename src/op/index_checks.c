#include "op/index_checks.h"

#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "op/input_layout.h"

lm_status lm_index_int64(lm_op_id op, const char *arg, lm_tensor *t, lm_tensor **out) {
  if (!lm_dtype_is_int(t->dtype))
    return lm_remedy(lm_fail_dtype(lm_ops[op].name, arg, "int64 or another integer dtype", lm_dtype_name(t->dtype)),
                     "convert it with :long()");
  if (t->dtype == LM_I64) return lm_to_private_copy(t, out);
  LM_OWNED *fresh = NULL;
  NEED(lm_tensor_empty(LM_I64, t->device, t->ndim, t->size, LM_CONTIGUOUS, &fresh));
  NEED(lm_copy(t, fresh));
  *out = lm_tensor_take(&fresh);
  return LM_OK;
}

lm_status lm_fail_bad_label(lm_op_id op, const char *arg, const lm_tensor *t, int64_t position, int64_t label,
                            int64_t classes) {
  const char *name = lm_ops[op].name;
  char where[LM_MAX_DIMS * 24] = "";
  int64_t at[LM_MAX_DIMS];
  for (int d = t->ndim - 1; d >= 0; d--) at[d] = position % t->size[d] + 1, position /= t->size[d];
  for (int d = 0, n = 0; d < t->ndim; d++)
    n += snprintf(where + n, sizeof where - (size_t)n, "%s%lld", d ? ", " : "", (long long)at[d]);
  return lm_fail(LM_E_INDEX, "%s: label %lld at %s[%s] is out of range for %lld classes (labels start at 1)", name,
                 (long long)label, arg, where, (long long)classes);
}

/* ---- errors found on a device after the call returned */

lm_status lm_fail_bad_value(int kind, int op, int64_t position, int64_t value, int64_t limit) {
  /* The error is reported by a later call, so the name of this one precedes the message. */
  const char *name = lm_text(LM_EARLIER_CALL "%s", op >= 0 && op < LM_OP_COUNT ? lm_ops[op].name : "a kernel");
  if (kind == LM_BAD_DIVISION) return lm_fail_division(name);
  if (kind == LM_BAD_PIVOT)
    return lm_fail_int(name, lm_text("pivots[%lld]", (long long)position), lm_text("from 1 to %lld", (long long)limit),
                       value);
  bool from_end = op == LM_OP_index_get || op == LM_OP_index_put_;
  bool is_target = op == LM_OP_nll_loss || op == LM_OP_nll_loss_backward;
  return lm_fail_bad_index(name, is_target || kind == LM_BAD_LABEL ? "label" : "index", value, position, limit,
                           from_end);
}

lm_status lm_fail_bad_index(const char *op, const char *what, int64_t value, int64_t position, int64_t limit,
                            bool from_end) {
  bool is_label = strcmp(what, "label") == 0;
  return lm_fail(LM_E_INDEX, "%s: %s %lld at position %lld is out of range for %lld %s (%s start at 1%s)", op, what,
                 (long long)value, (long long)position, (long long)limit, is_label ? "classes" : "entries",
                 is_label ? "labels" : "indices", from_end ? ", or count from -1 at the end" : "");
}
