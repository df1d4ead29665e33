/* Factors large matrices, and solves with them, one at a time, by halves: most of the work becomes products of
 * matrices, which run on all threads. Row-major. */
#pragma once

#include "backend/cpu/isa/linalg/trsm.h"
#include "backend/cpu/linalg/lapack.h"

/* Returns the bytes of scratch for lm_factor_lu. */
size_t lm_lu_scratch(lm_dtype dtype, int m, int n);
/* Factors a [m, n] in place into P L U; info as LAPACK's getrf. */
lm_status lm_factor_lu(lm_dtype dtype, int m, int n, void *a, int lda, int *pivots, void *scratch, int *info);
/* Exchanges rows as pivots[first] to pivots[end - 1] say, or with `back` in the other order. */
void lm_swap_rows(lm_dtype dtype, int columns, void *a, int lda, const int *pivots, int first, int end, bool back);

/* Solves op(a) x = b in place of b [n, k]. */
lm_status lm_trsm_solve(const lm_trsm_job *t, int n, int k, const void *a, int lda, void *b, int ldb);
/* Inverts the lower triangle, with ones on its diagonal, into x, which is all zeros. */
lm_status lm_invert_lower(lm_dtype dtype, int n, const void *a, int lda, void *x, int ldx);

/* Computes U with U^T U = a in place of the upper triangle of a [n, n]; info as LAPACK's potrf. */
lm_status lm_factor_cholesky(lm_dtype dtype, int n, void *a, int lda, int *info);
