#include "autograd/expr.h"

#include <string.h>

#include "autograd/node.h"
#include "base/mem.h"

void lm_expr_begin(lm_expr *e) {
  e->status = LM_OK;
  e->n = 0;
  e->capacity = sizeof e->first_owned / sizeof *e->first_owned;
  e->owned = e->first_owned;
  memset(e->last, 0, sizeof e->last);
}

void lm_expr_end(lm_expr *e) {
  for (int i = 0; i < e->n; i++) lm_release(e->owned[i]);
  if (e->owned != e->first_owned) lm_free(e->owned);
  e->n = 0;
  e->owned = e->first_owned;
}

lm_status lm_expr_results(lm_expr *e, int n, unsigned nils, lm_tensor *const *result, lm_tensor **out) {
  lm_status status = e->status;
  for (int i = 0; i < n && status == LM_OK; i++) {
    if (!result[i] && !(nils >> i & 1)) status = lm_fail(LM_E_STATE, "a formula must have a result, got none");
  }
  for (int i = 0; i < n && status == LM_OK; i++) out[i] = result[i] ? lm_retain(result[i]) : NULL;
  lm_expr_end(e);
  return status;
}

lm_status lm_expr_finish(lm_expr *e, lm_tensor *result, lm_tensor **out) {
  return lm_expr_results(e, 1, 0, &result, out);
}

bool lm_e_ok(lm_expr *e, lm_status status) {
  if (e->status == LM_OK) e->status = status;
  return status == LM_OK;
}

lm_tensor *lm_e_own(lm_expr *e, lm_tensor *t) {
  if (!t) return NULL;
  if (!lm_list_grow_from(e->first_owned, &e->owned, &e->capacity, (size_t)e->n + 1, sizeof *e->owned)) {
    lm_release(t);
    e->status = LM_E_OOM;
    return NULL;
  }
  e->owned[e->n++] = t;
  return t;
}

lm_tensor *lm_e_number(lm_expr *e, double value) {
  lm_tensor *number = NULL;
  return lm_e_ok(e, lm_tensor_number(value, &number)) ? lm_e_own(e, number) : NULL;
}

lm_tensor *lm_e_run_form(lm_expr *e, lm_op_id id, const void *args, bool in_place) {
  lm_tensor *out = NULL;
  if (!in_place) return lm_e_run(e, id, args);
  return e->status == LM_OK && lm_e_ok(e, lm_call_inplace(id, args, &out)) ? lm_e_own(e, out) : NULL;
}

lm_tensor *lm_e_run(lm_expr *e, lm_op_id id, const void *args) {
  lm_tensor *out[LM_MAX_OUTS] = {NULL};
  if (e->status != LM_OK || !lm_e_ok(e, lm_call(id, args, out))) return NULL;
  bool owned_all = true;
  for (int i = 0; i < lm_ops[id].outs; i++) {
    e->last[i] = out[i];
    owned_all = (lm_e_own(e, out[i]) || !out[i]) && owned_all;
  }
  return owned_all ? out[0] : NULL;
}
