/* Computes Cholesky factors, and solutions by triangular matrices, by LAPACK and BLAS. What these see in row-major
 * memory is the transpose. */
#include <string.h>

#include "backend/cpu/linalg/lapack.h"

typedef struct cholesky_job {
  int n;
  const lm_tensor *a;
  bool upper;
} cholesky_job;

static int cholesky_one(const void *job, int64_t i, char *work) {
  const cholesky_job *j = job;
  lm_dtype dtype = j->a->dtype;
  char *a = lm_matrix_at(j->a, i);
  size_t item = lm_dtype_size(dtype), row = item * (size_t)j->n;
  int info = 0;
  (void)work;
  if (j->n > 0) LM_CALL(dtype, potrf, j->upper ? "L" : "U", &j->n, a, &j->n, &info, 1);
  for (int r = 0; r < j->n; r++) { /* clears the other triangle; OpenBLAS lets NaN pass */
    if (info == 0 && !(lm_real_at(dtype, a, (int64_t)r * (j->n + 1)) > 0)) info = r + 1;
    if (j->upper)
      memset(a + row * (size_t)r, 0, item * (size_t)r);
    else
      memset(a + row * (size_t)r + item * (size_t)(r + 1), 0, row - item * (size_t)(r + 1));
  }
  return info;
}

lm_status lm_cpu_cholesky(const void *args, lm_tensor *const *out) {
  const lm_cholesky_args *a = args;
  lm_bad_matrix bad;
  const double n = (double)a->x->size[a->x->ndim - 1];
  const cholesky_job j = {(int)n, out[0], a->upper};
  NEED(lm_cpu_copy(a->x, out[0]));
  NEED(lm_each_by_lapack(lm_matrix_count(a->x), 0.33 * n * n * n, 0, cholesky_one, &j, &bad));
  return lm_matrix_not_positive("x", a->x, bad);
}

/* Solves x op(a) = b in place of b [k, n], column-major, in chunks of rows that are the same for any number of
 * threads. */
typedef struct triangle_job {
  int n, k;
  int64_t chunks; /* chunks of a matrix */
  const lm_tensor *a, *b;
  const char *uplo, *trans, *diag;
} triangle_job;

enum { CHUNK = 128 };

static int triangular_one(const void *job, int64_t i, char *work) {
  const triangle_job *j = job;
  const lm_scalar one = lm_scalar_of(j->a->dtype, 1);
  const int first = (int)(i % j->chunks) * CHUNK, rows = lm_min(j->k - first, CHUNK);
  char *b = lm_matrix_at(j->b, i / j->chunks);
  (void)work;
  if (j->n > 0 && rows > 0)
    LM_CALL(j->a->dtype, trsm, "R", j->uplo, j->trans, j->diag, &rows, &j->n, &one, lm_matrix_at(j->a, i / j->chunks),
            &j->n, b + lm_dtype_size(j->a->dtype) * (size_t)first, &j->k, 1, 1, 1, 1);
  return 0;
}

/* Returns true if x's memory is that of its transpose, row-major. */
static bool is_column_major(const lm_tensor *x) {
  lm_tensor t = *x;
  int r = x->ndim - 2, c = x->ndim - 1;
  t.size[r] = x->size[c], t.size[c] = x->size[r];
  t.stride[r] = x->stride[c], t.stride[c] = x->stride[r];
  return lm_is_contiguous(&t);
}

/* Solves A X = B as X^T A^T = B^T, of a row-major X, and X A = B, of a column-major one. */
lm_status lm_cpu_linalg_solve_triangular(const void *args, lm_tensor *const *out) {
  const lm_linalg_solve_triangular_args *a = args;
  LM_OWNED *A = NULL;
  lm_tensor *X = out[0];
  lm_bad_matrix bad;
  const bool columns = is_column_major(a->A);
  if (columns)
    A = lm_retain((lm_tensor *)a->A);
  else
    NEED(lm_row_major(a->A, &A));
  NEED(lm_cpu_copy(a->B, X));
  triangle_job j = {.n = (int)A->size[A->ndim - 1],
                    .k = (int)X->size[a->left ? X->ndim - 1 : X->ndim - 2],
                    .a = A,
                    .b = X,
                    .uplo = a->upper == columns ? "U" : "L",
                    .trans = a->left == columns ? "T" : "N",
                    .diag = a->unitriangular ? "U" : "N"};
  j.chunks = lm_ceil_div(j.k, CHUNK);
  return lm_each_by_lapack(lm_matrix_count(X) * j.chunks, (double)j.n * j.n * lm_min(j.k, CHUNK), 0, triangular_one, &j,
                           &bad);
}
