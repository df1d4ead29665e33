/* Computes singular value decompositions, and products of column-major matrices. */
#pragma once

#include "backend/cuda/linalg/matrices.h"

/* Begins a call like lm_solver_open; LM_E_MISSING for matrices without entries. */
lm_status lm_solver_open_for(lm_cuda_frame *f, const lm_tensor *x, int64_t count, lm_solver_call *c);

/* The decomposition of a [..., m, n], dense and column-major, which is destroyed: s [count, least], U [count, m, least
 * or m] and V [count, n, least or n], column-major, which may be square unrequested. Matrices that are not finite count
 * as 0 and are flagged. */
typedef struct lm_svd_parts {
  lm_tensor *u, *s, *v;
} lm_svd_parts;
lm_status lm_svd_run(const lm_solver_call *c, lm_tensor *a, bool vectors, bool whole, lm_svd_parts *out);

/* A product y = alpha a b + beta y of the first columns of dense, column-major matrices: the result is [m, n], k the
 * inner size; ta, tb: that operand is transposed. */
typedef struct lm_columns_job {
  const lm_tensor *a, *b, *y;
  int m, n, k;
  bool ta, tb;
  double alpha, beta;
} lm_columns_job;
lm_status lm_columns_product(const lm_solver_call *c, const lm_columns_job *job);
