/* Formulas over tensors: lm_e_mul(e, g, y). What the formulas of entries become, and what composites in C, and
 * functions that entries call, are written in.
 *
 * Each op is a function lm_e_<op> (op_calls.h) that takes its arguments in its order. Results belong to the expression
 * and go with lm_expr_end. Errors stick: after one, every op returns NULL and does nothing. NULL where an op needs a
 * tensor returns NULL too, an undefined (zero) value. */
#pragma once

#include "op_calls.h"

struct lm_expr {
  lm_status status;
  int n;
  size_t capacity;
  lm_tensor **owned;
  lm_tensor *last[LM_MAX_OUTS]; /* all results of the latest op, borrowed */
  lm_tensor *first_owned[24];
};

void lm_expr_begin(lm_expr *e);
/* Releases everything. */
void lm_expr_end(lm_expr *e);
/* Hands over a new reference to `result` and ends e. LM_E_STATE if it is undefined. */
lm_status lm_expr_finish(lm_expr *e, lm_tensor *result, lm_tensor **out);
/* The same for n results; nils: bit i: the i-th may be NULL. */
lm_status lm_expr_results(lm_expr *e, int n, unsigned nils, lm_tensor *const *result, lm_tensor **out);
/* t, which is yours, becomes the expression's. */
lm_tensor *lm_e_own(lm_expr *e, lm_tensor *t);
/* Records the status of a call that is no op; true if it went well. */
bool lm_e_ok(lm_expr *e, lm_status status);
/* The op on its argument struct. */
lm_tensor *lm_e_run(lm_expr *e, lm_op_id op, const void *args);
/* The same for the last op of a form, which may be asked for in place. */
lm_tensor *lm_e_run_form(lm_expr *e, lm_op_id op, const void *args, bool in_place);
/* A number as a tensor. */
lm_tensor *lm_e_number(lm_expr *e, double value);

/* Whether an entry of a list is undefined. */
static inline bool lm_e_lacks_one(lm_list list) {
  for (int i = 0; i < list.n; i++) {
    if (!list.v[i]) return true;
  }
  return false;
}

/* Entry i of sizes or dims, from 1, or negative from the end; 0 where there is none. */
static inline int64_t lm_e_entry(lm_ints v, int64_t i) {
  if (i < 0) i += v.n + 1;
  return i < 1 || i > v.n ? 0 : v.v[i - 1];
}
