/* Loops of LU and Cholesky factors and of solutions by a triangle, for blocks that stay in the nearest cache. Matrices
 * are row-major, float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

enum { LM_LEAF = 32 }; /* columns of a panel and rows of a triangle, at most */
enum { LM_TINY = 8 };  /* up to that many rows preparations cost more than the work, those for whole vectors too */

typedef struct lm_trsm_job {
  lm_dtype dtype;
  bool upper, transposed, ones; /* which triangle of a; whether it is transposed; with ones on its diagonal */
} lm_trsm_job;

struct lm_trsm_loops {
  /* P L U in place of a [m, n]; info as LAPACK's getrf. room: m + 64 / sizeof(REAL) numbers for each column. */
  int (*lu)(int m, int n, void *a, int lda, int *pivots, void *scratch);
  /* x with op(a) x = b in place of b [n, k]. */
  void (*solve)(const lm_trsm_job *t, int n, int k, const void *a, int lda, void *b, int ldb);
  /* U with U^T U = a in place of the upper triangle of a [n, n], of which (i, j) is a[i * row + j * column]; info as
   * LAPACK's potrf. */
  int (*cholesky)(int n, void *a, int row, int column);
  /* The inverse in place of a dense a [n, n], n up to LM_TINY; info as of lu. */
  int (*invert_tiny)(int n, void *a);
  /* Column c of each of `rows` rows of n numbers becomes what column from[c] was. room: n numbers. */
  void (*permute)(int rows, int n, const int *from, void *a, int lda, void *scratch);
};

LM_ISA_DECLARE(struct lm_trsm_loops, lm_triangles_F32);
LM_ISA_DECLARE(struct lm_trsm_loops, lm_triangles_F64);

static inline const struct lm_trsm_loops *lm_trsm_loops_of(lm_dtype dtype) {
  return dtype == LM_F64 ? LM_ISA_PICK(lm_triangles_F64) : LM_ISA_PICK(lm_triangles_F32);
}
