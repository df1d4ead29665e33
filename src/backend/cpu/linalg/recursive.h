/* Large matrices, one at a time; small ones go to LAPACK as they are. Column-major. */
#ifndef LM_CPU_RECURSIVE_H
#define LM_CPU_RECURSIVE_H

#include "backend/cpu/linalg/lapack.h"

/* P L U in place of a [m, n]; info as LAPACK's getrf. */
lm_status lm_factor_lu(lm_dtype dtype, int m, int n, void *a, int lda, int *pivots, int *info);

typedef struct lm_triangle {
  lm_dtype dtype;
  bool upper, turned, ones; /* which triangle of a; whether it is transposed; with ones on its diagonal */
} lm_triangle;
/* x with op(a) x = b in place of b [n, k]. */
lm_status lm_solve_triangle(const lm_triangle *t, int n, int k, const void *a, int lda, void *b, int ldb);

#endif
