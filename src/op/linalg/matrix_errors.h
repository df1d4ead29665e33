/* Counts matrices, and returns LM_E_ARG errors of one wording for those that cannot be factorized, for backends. */
#pragma once

#include "tensor/tensor.h"

static inline int64_t lm_matrix_count(const lm_tensor *x) {
  int64_t n = 1;
  for (int d = 0; d < x->ndim - 2; d++) n *= x->size[d];
  return n;
}

/* The first failure in a batch. */
typedef struct lm_bad_matrix {
  int info;   /* LAPACK's info, or LM_NOT_FINITE */
  int64_t at; /* index of the matrix in the batch; -1: no failure */
} lm_bad_matrix;
enum { LM_NOT_FINITE = -1000 }; /* value of `info` for entries that are infinite or NaN */

/* Returns "x", or for a batch "matrix [2, 1] of x" (from 1). */
const char *lm_matrix_words(const char *arg, const lm_tensor *x, int64_t at);
LM_API lm_status lm_matrix_singular(const char *arg, const lm_tensor *x, lm_bad_matrix bad);
LM_API lm_status lm_matrix_fail_not_positive(const char *arg, const lm_tensor *x, lm_bad_matrix bad);
/* Returns the error; the message begins with `what`, such as "the factorization". */
LM_API lm_status lm_matrix_fail_not_converged(const char *what, const char *arg, const lm_tensor *x, lm_bad_matrix bad);
