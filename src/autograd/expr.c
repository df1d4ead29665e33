#include "autograd/expr.h"

#include <string.h>

#include "autograd/node.h"
#include "base/mem.h"

void lm_expr_begin(lm_expr *e) {
  e->status = LM_OK;
  e->n = 0;
  e->room = (int)(sizeof e->first_owned / sizeof *e->first_owned);
  e->owned = e->first_owned;
  memset(e->last, 0, sizeof e->last);
}

void lm_expr_end(lm_expr *e) {
  for (int i = 0; i < e->n; i++) lm_release(e->owned[i]);
  if (e->owned != e->first_owned) lm_free(e->owned);
  e->n = 0;
  e->owned = e->first_owned;
}

lm_status lm_expr_results(lm_expr *e, int n, lm_tensor *const *result, lm_tensor **out) {
  lm_status status = e->status;
  for (int i = 0; i < n && status == LM_OK; i++) {
    if (!result[i]) status = lm_fail(LM_E_STATE, "a formula gave no value");
  }
  for (int i = 0; i < n && status == LM_OK; i++) out[i] = lm_retain(result[i]);
  lm_expr_end(e);
  return status;
}

lm_status lm_expr_finish(lm_expr *e, lm_tensor *result, lm_tensor **out) { return lm_expr_results(e, 1, &result, out); }

bool lm_e_ok(lm_expr *e, lm_status status) {
  if (e->status == LM_OK) e->status = status;
  return status == LM_OK;
}

lm_tensor *lm_e_own(lm_expr *e, lm_tensor *t) {
  if (!t) return NULL;
  if (e->n == e->room) {
    lm_tensor **more = lm_malloc(sizeof *more * (size_t)e->room * 2);
    if (!more) {
      lm_release(t);
      e->status = LM_E_OOM;
      return NULL;
    }
    memcpy(more, e->owned, sizeof *more * (size_t)e->n);
    if (e->owned != e->first_owned) lm_free(e->owned);
    e->owned = more;
    e->room *= 2;
  }
  e->owned[e->n++] = t;
  return t;
}

static double number_of(const lm_e_value *v) { return v->kind == LM_E_NUMBER ? v->number : 0; }

static lm_ints ints_of(const lm_e_value *v) {
  if (v->kind == LM_E_INTS) return v->ints;
  return (lm_ints){.n = 1, .v = {(int64_t)number_of(v)}};
}

/* Tensor arguments, numbers made into tensors. False if a required one is undefined. */
static bool put_tensor(lm_expr *e, lm_arg_kind kind, const lm_e_value *v, lm_tensor **field) {
  *field = v->kind == LM_E_NUMBER ? lm_e_number(e, v->number) : v->kind == LM_E_TENSOR ? v->tensor : NULL;
  return *field || kind == LM_ARG_T_OPT || kind == LM_ARG_S_OPT;
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
  bool kept = true;
  for (int i = 0; i < lm_ops[id].outs; i++) {
    e->last[i] = out[i];
    kept = (lm_e_own(e, out[i]) || !out[i]) && kept;
  }
  return kept ? out[0] : NULL;
}

lm_tensor *lm_e_call(lm_expr *e, lm_op_id id, int n, const lm_e_value *v) {
  if (e->status != LM_OK) return NULL;
  const lm_op *op = &lm_ops[id];
  lm_args_room args;
  lm_op_defaults(id, &args);
  for (int i = 0; i < n && i < op->nargs; i++) {
    const lm_arg *arg = &op->arg[i];
    void *field = (char *)&args + arg->offset;
    switch (arg->kind) {
      case LM_ARG_T:
      case LM_ARG_T_OPT:
      case LM_ARG_S_OPT:
      case LM_ARG_S:
        if (!put_tensor(e, arg->kind, &v[i], field)) return NULL;
        break;
      case LM_ARG_TL:
      case LM_ARG_TL_HOLES: *(lm_list *)field = v[i].list; break;
      case LM_ARG_F:
      case LM_ARG_F_REQ: *(double *)field = number_of(&v[i]); break;
      case LM_ARG_I:
      case LM_ARG_I_REQ:
      case LM_ARG_I_OPT:
      case LM_ARG_DIM:
      case LM_ARG_DIM_OPT: *(int64_t *)field = (int64_t)number_of(&v[i]); break;
      case LM_ARG_B: *(bool *)field = number_of(&v[i]) != 0; break;
      case LM_ARG_I2:
      case LM_ARG_PAD2:
        for (int j = 0; j < 2; j++) {
          ((int64_t *)field)[j] = v[i].kind == LM_E_PAIR ? v[i].pair[j] : (int64_t)number_of(&v[i]);
        }
        break;
      case LM_ARG_DIMS_OPT:
      case LM_ARG_SIZE:
      case LM_ARG_SIZE_OPT: *(lm_ints *)field = ints_of(&v[i]); break;
      case LM_ARG_DTYPE: *(lm_dtype *)field = (lm_dtype)number_of(&v[i]); break;
      case LM_ARG_DEVICE: *(lm_device *)field = (lm_device)number_of(&v[i]); break;
      case LM_ARG_E: *(int *)field = (int)number_of(&v[i]); break;
    }
  }
  return lm_e_run(e, id, &args);
}
