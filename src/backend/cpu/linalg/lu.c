/* By LU: inverses, determinants, solutions. Without pivots for the caller, the transposed matrix does as well. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linalg/recursive.h"

typedef struct lu_job {
  lm_dtype dtype;
  int m, n, k;         /* k columns of right sides */
  const lm_tensor *lu; /* where the factors go: dense */
  const lm_tensor *pivots, *b;
  bool check, turned;
  const lm_tensor *det, *sign;
} lu_job;

static int at_least_1(int64_t n) { return n > 1 ? (int)n : 1; }

static lm_status singular(const char *arg, const lm_tensor *x, lm_bad_matrix bad) {
  if (bad.at >= 0 && bad.info == LM_FAILED)
    return lm_fail(LM_E_OOM, "%s: a product of matrices failed", lm_op_running());
  return lm_matrix_singular(arg, x, bad);
}

/* A copy that LAPACK sees transposed. */
static lm_status turned_copy(const lm_tensor *x, lm_tensor **out) {
  lm_status status = lm_tensor_empty((lm_dtype)x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, out);
  return status == LM_OK && x->numel ? lm_cpu_copy(x, *out) : status;
}

static int factor(const lu_job *j, int64_t i, int *pivots) {
  int info = 0;
  lm_status status = lm_factor_lu(j->dtype, j->m, j->n, lm_matrix_at(j->lu, i), at_least_1(j->m), pivots, &info);
  return status == LM_OK ? info : LM_FAILED;
}

static int det_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int *pivots = (int *)work;
  double det = 1, sign = 1, log_of = 0;
  if (j->n > 0) factor(j, i, pivots); /* a zero on the diagonal is a determinant of 0 */
  const void *lu = lm_matrix_at(j->lu, i);
  for (int d = 0; d < j->n; d++) {
    double u = lm_scalar_at(j->dtype, lu, (int64_t)d * (j->n + 1));
    if (pivots[d] != d + 1) det = -det, sign = -sign;
    det *= u;
    if (!j->sign) continue;
    sign *= u > 0 ? 1 : u < 0 ? -1 : u;
    log_of += log(fabs(u));
  }
  lm_scalar_put(j->dtype, j->det->data, i, j->sign ? log_of : det);
  if (j->sign) lm_scalar_put(j->dtype, j->sign->data, i, sign);
  return 0;
}

static lm_status determinants(const lm_tensor *x, const lm_tensor *sign, const lm_tensor *det) {
  lm_status status;
  lm_tensor *copy = NULL;
  lm_bad_matrix bad;
  int n = (int)x->size[x->ndim - 1];
  TRY(turned_copy(x, &copy)); /* which has the same determinant */
  lu_job j = {.dtype = (lm_dtype)x->dtype, .m = n, .n = n, .lu = copy, .det = det, .sign = sign};
  TRY(lm_each_matrix(lm_matrix_count(x), 0.67 * n * n * n, sizeof(int) * (size_t)n, det_one, &j, &bad));
done:
  lm_release(copy);
  return status;
}

lm_status lm_cpu_det(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_det_args *)args)->x, NULL, out[0]);
}

lm_status lm_cpu_slogdet(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_slogdet_args *)args)->x, out[0], out[1]);
}

static int factor_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  (void)work;
  int info = factor(j, i, lm_vector_at(j->pivots, i));
  return j->check ? info : 0;
}

lm_status lm_cpu_linalg_lu_factor(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_lu_factor_args *a = args;
  const lm_tensor *x = a->A;
  lm_bad_matrix bad;
  lu_job j = {.dtype = (lm_dtype)x->dtype,
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .lu = out[0],
              .pivots = out[1],
              .check = a->check};
  TRY(lm_cpu_copy(x, out[0]));
  TRY(lm_each_matrix(lm_matrix_count(x), 0.67 * j.m * j.n * j.n, 0, factor_one, &j, &bad));
  status = singular("A", x, bad);
done:
  return status;
}

static int solve_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int info = 0, ld = at_least_1(j->n), *pivots = j->pivots ? lm_vector_at(j->pivots, i) : (int *)work;
  if (!j->pivots) info = factor(j, i, pivots);
  if (info != 0 || j->k == 0) return info;
  void *lu = lm_matrix_at(j->lu, i), *b = lm_matrix_at(j->b, i);
  lm_triangle lower = {.dtype = j->dtype, .turned = j->turned, .ones = true}, upper = lower;
  upper.upper = true;
  upper.ones = false;
  int first = 1, step = j->turned ? -1 : 1;
  lm_status status = LM_OK;
  if (!j->turned) LM_CALL(j->dtype, laswp, &j->k, b, &ld, &first, &j->n, pivots, &step);
  status = lm_solve_triangle(j->turned ? &upper : &lower, j->n, j->k, lu, ld, b, ld);
  if (status == LM_OK) status = lm_solve_triangle(j->turned ? &lower : &upper, j->n, j->k, lu, ld, b, ld);
  if (j->turned) LM_CALL(j->dtype, laswp, &j->k, b, &ld, &first, &j->n, pivots, &step);
  return status == LM_OK ? 0 : LM_FAILED;
}

/* Of column-major factors (or the matrix): X in the memory of `out`, column-major with `left`, else row-major, so that
 * LAPACK sees the transposed equation. */
static lm_status solve(const char *arg, const lm_tensor *A, const lm_tensor *pivots, const lm_tensor *B, bool left,
                       bool adjoint, lm_tensor *out) {
  lm_status status;
  lm_tensor *lu = NULL, *row = NULL;
  lm_bad_matrix bad;
  bool turned = left == adjoint, by_turned = turned && !pivots; /* factors of one's own may be those of A^T */
  TRY(by_turned ? turned_copy(A, &lu) : lm_column_major(A, &lu));
  if (pivots && (pivots->dtype != LM_I32 || !lm_is_contiguous(pivots))) {
    TRY(lm_tensor_empty(LM_I32, pivots->device, pivots->ndim, pivots->size, LM_CONTIGUOUS, &row));
    TRY(lm_cpu_copy(pivots, row));
    pivots = row;
  }
  TRY(lm_cpu_copy(B, out));
  int n = (int)A->size[A->ndim - 1];
  lu_job j = {.dtype = (lm_dtype)A->dtype, .m = n, .n = n, .lu = lu, .pivots = pivots, .b = out};
  j.k = (int)out->size[left ? out->ndim - 1 : out->ndim - 2];
  j.turned = turned && !by_turned;
  TRY(lm_each_matrix(lm_matrix_count(out), (double)n * n * (n + 2.0 * j.k), sizeof(int) * (size_t)n, solve_one, &j,
                     &bad));
  status = singular(arg, A, bad);
done:
  lm_release(lu);
  lm_release(row);
  return status;
}

/* By LU, with the identity on the right side, in the memory of the result. */
lm_status lm_cpu_inverse(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_tensor *x = ((const lm_inverse_args *)args)->x;
  int64_t n = x->size[x->ndim - 1];
  lm_tensor *identity = NULL;
  TRY(lm_tensor_empty((lm_dtype)x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &identity));
  memset(identity->data, 0, lm_nbytes(identity));
  for (int64_t i = 0; i < lm_matrix_count(x); i++)
    for (int64_t d = 0; d < n; d++) lm_scalar_put((lm_dtype)x->dtype, lm_matrix_at(identity, i), d * (n + 1), 1);
  status = solve("x", x, NULL, identity, false, false, out[0]); /* X A = I: row-major, as the result is */
done:
  lm_release(identity);
  return status;
}

lm_status lm_cpu_linalg_solve(const void *args, lm_tensor *const *out) {
  const lm_linalg_solve_args *a = args;
  return solve("A", a->A, NULL, a->B, a->left, false, out[0]);
}

/* Pivots may come from anywhere: each has to name a row at or below its own. */
static lm_status check_pivots(const lm_tensor *pivots, int64_t rows) {
  lm_status status = LM_OK;
  lm_tensor *dense = NULL;
  TRY(lm_tensor_empty(LM_I32, pivots->device, pivots->ndim, pivots->size, LM_CONTIGUOUS, &dense));
  TRY(lm_cpu_copy(pivots, dense));
  const int32_t *p = (const int32_t *)dense->data;
  int64_t n = pivots->size[pivots->ndim - 1];
  for (int64_t i = 0; i < dense->numel && status == LM_OK; i++) {
    if (p[i] < 1 || p[i] > rows) status = lm_bad_value(LM_BAD_PIVOT, lm_op_running_id(), i % n + 1, p[i], rows);
  }
done:
  lm_release(dense);
  return status;
}

lm_status lm_cpu_linalg_lu_solve(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_lu_solve_args *a = args;
  TRY(check_pivots(a->pivots, a->LU->size[a->LU->ndim - 1]));
  status = solve("LU", a->LU, a->pivots, a->B, a->left, a->adjoint, out[0]);
done:
  return status;
}

/* P^T is what the exchanges make of the identity, and its row-major memory P's column-major one. */
lm_status lm_cpu_lu_pivots_to_matrix(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_lu_pivots_to_matrix_args *a = args;
  lm_tensor *pivots = NULL;
  lm_dtype dtype = (lm_dtype)out[0]->dtype;
  int m = (int)out[0]->size[out[0]->ndim - 1], k = (int)a->pivots->size[a->pivots->ndim - 1];
  TRY(check_pivots(a->pivots, m));
  TRY(lm_tensor_empty(LM_I32, out[0]->device, a->pivots->ndim, a->pivots->size, LM_CONTIGUOUS, &pivots));
  if (pivots->numel) TRY(lm_cpu_copy(a->pivots, pivots));
  memset(out[0]->data, 0, lm_nbytes(out[0]));
  for (int64_t i = 0; i < lm_matrix_count(out[0]); i++) {
    void *p = lm_matrix_at(out[0], i);
    const int *its = lm_vector_at(pivots, i);
    for (int d = 0; d < m; d++) lm_scalar_put(dtype, p, (int64_t)d * (m + 1), 1);
    for (int d = k - 1; d >= 0; d--) { /* P = S1 S2 …: rows exchanged from the last pivot on */
      for (int c = 0; c < m && its[d] - 1 != d; c++) {
        int64_t one = (int64_t)d * m + c, other = (int64_t)(its[d] - 1) * m + c;
        double kept = lm_scalar_at(dtype, p, one);
        lm_scalar_put(dtype, p, one, lm_scalar_at(dtype, p, other));
        lm_scalar_put(dtype, p, other, kept);
      }
    }
  }
done:
  lm_release(pivots);
  return status;
}
