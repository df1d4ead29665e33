/* Computes Cholesky factors, and solutions by triangular matrices. */
#include <string.h>

#include "backend/cpu/linalg/recursive.h"
#include "backend/cpu/matmul/gemm.h"
#include "op_args_linalg.h"

typedef struct triangle_job {
  int n, k;
  const lm_tensor *a, *b;
  lm_trsm_job triangle; /* the triangle that is computed (Cholesky) or read */
} triangle_job;

static int cholesky_one(const void *job, int64_t i, char *work) {
  const triangle_job *j = job;
  lm_dtype dtype = j->triangle.dtype;
  char *a = lm_matrix_at(j->a, i);
  bool upper = j->triangle.upper;
  size_t item = lm_dtype_size(dtype), row = item * (size_t)j->n;
  int info = 0;
  lm_status status = LM_OK;
  (void)work;
  if (j->n <= LM_LEAF)
    info = lm_trsm_loops_of(dtype)->cholesky(j->n, a, upper ? j->n : 1, upper ? 1 : j->n);
  else
    status = lm_factor_cholesky(dtype, j->n, a, j->n, &info);
  for (int r = 0; r < j->n; r++) { /* clears the other triangle */
    if (upper)
      memset(a + row * (size_t)r, 0, item * (size_t)r);
    else
      memset(a + row * (size_t)r + item * (size_t)(r + 1), 0, row - item * (size_t)(r + 1));
  }
  return status == LM_OK ? info : lm_matrix_failed(status);
}

/* Computes U of large matrices; L is its transpose, whose memory is column-major. */
lm_status lm_cpu_cholesky(const lm_cholesky_args *a, lm_tensor *const *out) {
  lm_bad_matrix bad;
  LM_OWNED *transposed = NULL;
  double n = (double)a->x->size[a->x->ndim - 1];
  bool turn = !a->upper && n > LM_LEAF;
  NEED(turn ? lm_column_major(a->x, &transposed) : lm_cpu_copy(a->x, out[0]));
  triangle_job j = {
      .n = (int)n, .a = turn ? transposed : out[0], .triangle = {.dtype = a->x->dtype, .upper = a->upper || turn}};
  NEED(lm_each_matrix(lm_matrix_count(a->x), 0.33 * n * n * n, 0, cholesky_one, &j, &bad));
  NEED(lm_matrix_fail_not_positive("x", a->x, bad));
  return turn ? lm_cpu_copy(transposed, out[0]) : LM_OK;
}

static int triangular_one(const void *job, int64_t i, char *work) {
  const triangle_job *j = job;
  (void)work;
  lm_status status = lm_trsm_solve(&j->triangle, j->n, j->k, lm_matrix_at(j->a, i), j->n, lm_matrix_at(j->b, i), j->k);
  return status == LM_OK ? 0 : lm_matrix_failed(status);
}

/* Returns true if x's memory is that of its transpose, row-major. */
static bool is_column_major(const lm_tensor *x) {
  lm_tensor t = *x;
  int r = x->ndim - 2, c = x->ndim - 1;
  t.size[r] = x->size[c], t.size[c] = x->size[r];
  t.stride[r] = x->stride[c], t.stride[c] = x->stride[r];
  return lm_is_contiguous(&t);
}

/* Solves A X = B for X. Without `left` X is column-major, and X A = B in memory A^T X^T = B^T. */
lm_status lm_cpu_linalg_solve_triangular(const lm_linalg_solve_triangular_args *a, lm_tensor *const *out) {
  LM_OWNED *A = NULL;
  lm_tensor *X = out[0];
  lm_bad_matrix bad;
  double n = (double)a->A->size[a->A->ndim - 1];
  bool other = is_column_major(a->A);
  if (other)
    A = lm_retain((lm_tensor *)a->A);
  else
    NEED(lm_row_major(a->A, &A));
  NEED(lm_cpu_copy(a->B, X));
  triangle_job j = {.n = (int)n, .a = A, .b = X};
  j.triangle = (lm_trsm_job){A->dtype, a->upper != other, a->left == other, a->unitriangular};
  j.k = (int)X->size[a->left ? X->ndim - 1 : X->ndim - 2];
  return lm_each_matrix(lm_matrix_count(X), n * n * j.k, 0, triangular_one, &j, &bad);
}
