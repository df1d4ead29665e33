/* What backends say of matrices that cannot be factorized: everywhere in the same words. LM_E_ARG. */
#pragma once

#include "tensor/tensor.h"

/* What went wrong first in a batch. */
typedef struct lm_bad_matrix {
  int info;   /* LAPACK's, or: */
  int64_t at; /* -1: nothing did, which is no error */
} lm_bad_matrix;
enum { LM_NOT_FINITE = -1000 }; /* in place of info */

/* "x", or for a batch "matrix [2, 1] of x" (from 1). */
LM_API const char *lm_matrix_words(const char *arg, const lm_tensor *x, int64_t at);
LM_API lm_status lm_matrix_singular(const char *arg, const lm_tensor *x, lm_bad_matrix bad);
LM_API lm_status lm_matrix_not_positive(const char *arg, const lm_tensor *x, lm_bad_matrix bad);
/* what: "the factorization". */
LM_API lm_status lm_matrix_not_converged(const char *what, const char *arg, const lm_tensor *x, lm_bad_matrix bad);
