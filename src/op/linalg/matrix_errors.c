#include "op/linalg/matrix_errors.h"

#include <stdio.h>

#include "op/kernels.h"

const char *lm_matrix_words(const char *arg, const lm_tensor *x, int64_t at) {
  static _Thread_local char words[160];
  if (x->ndim == 2) return arg;
  int64_t position[LM_MAX_DIMS];
  for (int d = x->ndim - 3; d >= 0; d--) {
    position[d] = at % x->size[d] + 1;
    at /= x->size[d];
  }
  snprintf(words, sizeof words, "matrix %s of %s", lm_shape_text(x->ndim - 2, position), arg);
  return words;
}

lm_status lm_matrix_singular(const char *arg, const lm_tensor *x, lm_bad_matrix bad) {
  if (bad.at < 0) return LM_OK;
  return lm_fail(LM_E_ARG, "%s: %s is singular: entry %d of the diagonal of its factor U is 0", lm_op_running(),
                 lm_matrix_words(arg, x, bad.at), bad.info);
}

lm_status lm_matrix_fail_not_positive(const char *arg, const lm_tensor *x, lm_bad_matrix bad) {
  if (bad.at < 0) return LM_OK;
  return lm_fail(LM_E_ARG, "%s: %s is not positive definite: its leading minor of order %d is not positive",
                 lm_op_running(), lm_matrix_words(arg, x, bad.at), bad.info);
}

lm_status lm_matrix_fail_not_converged(const char *what, const char *arg, const lm_tensor *x, lm_bad_matrix bad) {
  if (bad.at < 0) return LM_OK;
  const char *words = lm_matrix_words(arg, x, bad.at);
  if (bad.info == LM_NOT_FINITE)
    return lm_fail(LM_E_ARG, "%s: %s must be finite, got infinite or NaN entries", lm_op_running(), words);
  return lm_fail(LM_E_ARG, "%s: %s of %s did not converge", lm_op_running(), what, words);
}
