/* Finds the op that makes NaN: checks gradients after each node, which knows the script's line of its call. */
#include <stdio.h>

#include "autograd/gradients.h"
#include "op/check.h"
#include "op_entries.h"

static lm_status find_nan(lm_tensor *t, bool *out) {
  LM_OWNED *each = NULL, *any = NULL, *here = NULL;
  NEED(lm_op_run(LM_OP_isnan, &(lm_isnan_args){.x = t}, &each));
  NEED(lm_op_run(LM_OP_any, &(lm_any_args){.x = each, .dim = {.n = -1}}, &any));
  NEED(lm_tensor_empty(LM_BOOL, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, &here));
  NEED(lm_copy(any, here));
  *out = *(const bool *)here->data;
  return LM_OK;
}

lm_status lm_anomaly_check(const lm_node *n, lm_tensor *const *g, lm_tensor *const *gin) {
  bool is_nan = false;
  int k = 0;
  for (; k < n->nedge && !is_nan; k++)
    if (gin[k] && lm_dtype_is_float(gin[k]->dtype)) NEED(find_nan(gin[k], &is_nan));
  if (!is_nan) return LM_OK;
  bool was_nan = false;
  for (int s = 0; s < n->nout && !was_nan; s++)
    if (g[s]) NEED(find_nan(g[s], &was_nan));
  const char *name = lm_node_name(n), *at = n->line ? n->line : "an unknown line";
  if (was_nan) return lm_fail(LM_E_STATE, "backward: the gradient of the output of %s, called at %s, is NaN", name, at);
  return lm_fail(LM_E_STATE, "backward: the gradient of input %d of %s, called at %s, is NaN", k, name, at);
}

lm_status lm_anomaly_words(const lm_node *n, lm_status status) {
  char text[900];
  if (!n->line || status == LM_E_LUA || status == LM_E_OOM) return status;
  snprintf(text, sizeof text, "%s", lm_error());
  return lm_fail(status, "%s; %s was called at %s", text, lm_node_name(n), n->line);
}
