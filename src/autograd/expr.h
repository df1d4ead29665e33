/* Declares expressions over tensors: lm_e_mul(e, g, y). Generated gradient formulas, composites in C and functions that
 * entries call are written in them.
 *
 * Each op is a function lm_e_<op> (op_calls.h) that takes its arguments in its order. Results belong to the expression
 * and are released by lm_expr_end. Errors stick: after one, every op returns NULL and does nothing. NULL for a required
 * tensor means an undefined (zero) value, and the op returns NULL too. */
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
/* Releases all results. */
void lm_expr_end(lm_expr *e);
/* Returns in *out a new reference to `result` and ends e. LM_E_STATE if it is undefined. */
lm_status lm_expr_finish(lm_expr *e, lm_tensor *result, lm_tensor **out);
/* Ends e and returns new references to n results; bit i of nils: the i-th may be NULL. */
lm_status lm_expr_results(lm_expr *e, int n, unsigned nils, lm_tensor *const *result, lm_tensor **out);
/* Takes over the caller's reference to t; the expression releases it. */
lm_tensor *lm_e_own(lm_expr *e, lm_tensor *t);
/* Records the status of a call that is not an op; true if it succeeded. */
bool lm_e_ok(lm_expr *e, lm_status status);
/* Runs the op on its argument struct; returns its first result. */
lm_tensor *lm_e_run(lm_expr *e, lm_op_id op, const void *args);
/* Runs the last op of a composition's form, in place if requested; returns its first result. */
lm_tensor *lm_e_run_form(lm_expr *e, lm_op_id op, const void *args, bool in_place);
/* Returns a number as a tensor. */
lm_tensor *lm_e_number(lm_expr *e, double value);

/* Returns true if an entry of the list is undefined. */
static inline bool lm_e_lacks_one(lm_list list) {
  for (int i = 0; i < list.n; i++) {
    if (!list.v[i]) return true;
  }
  return false;
}

/* Returns entry i of sizes or dims, counted from 1, or negative from the end; 0 out of range. */
static inline int64_t lm_e_entry(lm_ints v, int64_t i) {
  if (i < 0) i += v.n + 1;
  return i < 1 || i > v.n ? 0 : v.v[i - 1];
}
