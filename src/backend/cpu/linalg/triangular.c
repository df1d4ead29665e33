/* Cholesky factors, and solutions by a triangle. */
#include <string.h>

#include "backend/cpu/linalg/recursive.h"

typedef struct triangle_job {
  lm_dtype dtype;
  int n, k;
  const lm_tensor *a, *b;
  const char *uplo;
  lm_triangle triangle;
} triangle_job;

static int cholesky_one(const void *job, int64_t i, char *work) {
  const triangle_job *j = job;
  char *a = lm_matrix_at(j->a, i);
  size_t item = lm_dtype_size(j->dtype), row = item * (size_t)j->n;
  int info = 0;
  (void)work;
  LM_CALL(j->dtype, potrf, j->uplo, &j->n, a, &j->n, &info, 1);
  for (int r = 0; r < j->n; r++) { /* the other triangle; what is "U" to LAPACK is the lower one of rows */
    if (*j->uplo == 'U')
      memset(a + row * (size_t)r + item * (size_t)(r + 1), 0, row - item * (size_t)(r + 1));
    else
      memset(a + row * (size_t)r, 0, item * (size_t)r);
  }
  return info;
}

lm_status lm_cpu_cholesky(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_cholesky_args *a = args;
  lm_bad_matrix bad;
  double n = (double)a->x->size[a->x->ndim - 1];
  triangle_job j = {.dtype = (lm_dtype)a->x->dtype, .n = (int)n, .a = out[0], .uplo = a->upper ? "L" : "U"};
  TRY(lm_cpu_copy(a->x, out[0]));
  TRY(lm_each_matrix(lm_matrix_count(a->x), 0.33 * n * n * n, 0, cholesky_one, &j, &bad));
  status = lm_matrix_not_positive("x", a->x, bad);
done:
  return status;
}

static int triangular_one(const void *job, int64_t i, char *work) {
  const triangle_job *j = job;
  (void)work;
  lm_status status =
      lm_solve_triangle(&j->triangle, j->n, j->k, lm_matrix_at(j->a, i), j->n, lm_matrix_at(j->b, i), j->n);
  return status == LM_OK ? 0 : LM_FAILED;
}

/* A is row-major, so LAPACK sees its transposed and is asked to take that one's. Without `left` X is row-major too:
 * X A = B is A^T X^T = B^T. */
lm_status lm_cpu_linalg_solve_triangular(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_solve_triangular_args *a = args;
  lm_tensor *A = NULL, *X = out[0];
  lm_bad_matrix bad;
  double n = (double)a->A->size[a->A->ndim - 1];
  TRY(lm_row_major(a->A, &A));
  TRY(lm_cpu_copy(a->B, X));
  triangle_job j = {.dtype = (lm_dtype)A->dtype, .n = (int)n, .a = A, .b = X};
  j.triangle = (lm_triangle){j.dtype, !a->upper, a->left, a->unitriangular};
  j.k = (int)X->size[a->left ? X->ndim - 1 : X->ndim - 2];
  TRY(lm_each_matrix(lm_matrix_count(X), n * n * j.k, 0, triangular_one, &j, &bad));
  if (bad.at >= 0) status = lm_fail(LM_E_OOM, "linalg_solve_triangular: a product of matrices failed");
done:
  lm_release(A);
  return status;
}
