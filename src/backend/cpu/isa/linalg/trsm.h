/* Declares loops of LU and Cholesky factors and of triangular solutions, for blocks that stay in the L1 cache. Matrices
 * are row-major, float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_LEAF = 32 }; /* columns of a panel and rows of a triangle, at most */
enum { LM_TINY = 8 };  /* most rows for which preparations cost more than the work, those for whole vectors too */

typedef struct lm_trsm_job {
  lm_dtype dtype;
  bool upper, transposed, ones; /* true for a's upper triangle; if it is transposed; for ones on its diagonal */
} lm_trsm_job;

struct lm_trsm_loops {
  /* Factors a [m, n] in place into P L U; returns getrf's info. scratch: m + 64 / sizeof(REAL) numbers a column. */
  int (*lu)(int m, int n, void *a, int lda, int *pivots, void *scratch);
  /* Solves op(a) x = b in place of b [n, k]. */
  void (*solve)(const lm_trsm_job *t, int n, int k, const void *a, int lda, void *b, int ldb);
  /* Computes U with U^T U = a in place of the upper triangle of a [n, n], whose element (i, j) is a[i * row + j *
   * column]; returns potrf's info. */
  int (*cholesky)(int n, void *a, int row, int column);
  /* Inverts a dense a [n, n], n up to LM_TINY, in place; returns info as lu does. */
  int (*invert_tiny)(int n, void *a);
  /* Permutes columns in each of `rows` rows of n numbers: column c becomes column from[c]. scratch: n numbers. */
  void (*permute)(int rows, int n, const int *from, void *a, int lda, void *scratch);
};

LM_ISA_DECLARE_REAL(struct lm_trsm_loops, lm_trsm_loops)
