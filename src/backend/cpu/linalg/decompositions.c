/* Computes eigenvalues of symmetric matrices, singular values, pseudoinverses and least squares by LAPACK. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"
#include "base/message.h"

typedef struct parts_job {
  lm_dtype dtype;
  size_t item;
  int m, n, min_mn, lwork, liwork;
  const lm_tensor *a;             /* column-major; overwritten */
  const lm_tensor *r, *s, *u, *v; /* results; NULL: not requested */
  const char *jobz, *uplo;
  const lm_tensor *atol, *rtol;
  bool hermitian;
  int driver, nrhs;
  double rcond;
  const lm_tensor *b, *residuals, *rank;
} parts_job;

static int at_least_1(int n) { return n > 1 ? n : 1; }

/* Defines a function that returns the largest magnitude of n numbers, or NaN if one is not finite. */
#define LARGEST(T)                                     \
  static double largest_##T(const T *a, int64_t n) {   \
    enum { LANES = 8 };                                \
    T most[LANES] = {0}, check[LANES] = {0};           \
    int64_t i = 0;                                     \
    for (; i + LANES <= n; i += LANES) {               \
      for (int l = 0; l < LANES; l++) {                \
        const T x = a[i + l], size = x < 0 ? -x : x;   \
        most[l] = size > most[l] ? size : most[l];     \
        check[l] += x * 0;                             \
      }                                                \
    }                                                  \
    for (; i < n; i++) {                               \
      most[0] = fmax(most[0], fabs((double)a[i]));     \
      check[0] += a[i] * 0;                            \
    }                                                  \
    for (int l = 1; l < LANES; l++) {                  \
      most[0] = most[l] > most[0] ? most[l] : most[0]; \
      check[0] += check[l];                            \
    }                                                  \
    return (double)most[0] + (double)check[0];         \
  }
LARGEST(float)
LARGEST(double)

static double largest_of(const parts_job *j, const void *a, int64_t n) {
  return j->dtype == LM_F64 ? largest_double(a, n) : largest_float(a, n);
}
static bool is_finite(const parts_job *j, const void *a, int64_t n) { return isfinite(largest_of(j, a, n)); }

static lm_status too_large(const lm_tensor *x) {
  return lm_fail_value(lm_op_running(), "A", "small enough for LAPACK's workspace of at most 2^31 elements",
                       lm_shape_of(x));
}

typedef struct lapack_job {
  lm_matrix_fn *one;
  const void *job;
} lapack_job;

/* Runs one matrix without OpenMP threads: an OpenBLAS built with OpenMP would have its own ones for each of ours. */
static int one_by_lapack(const void *job, int64_t i, char *work) {
  const lapack_job *l = job;
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  int info = l->one(l->job, i, work);
  omp_set_num_threads(threads);
  return info;
}

static lm_status each_by_lapack(int64_t count, double flops, size_t scratch, lm_matrix_fn *one, const void *job,
                                lm_bad_matrix *bad) {
  int buffers = 2 * lm_matrix_threads(count, flops); /* some routines hold one buffer while they ask for another */
  NEED(lm_openblas_enter(buffers));
  lm_status status = lm_each_matrix(count, flops, scratch, one_by_lapack, &(lapack_job){one, job}, bad);
  lm_openblas_leave(buffers);
  return status;
}

/* Sets `to` to the first columns of the identity, m numbers each. */
static void put_identity(lm_dtype dtype, void *to, int m, int columns) {
  memset(to, 0, lm_dtype_size(dtype) * (size_t)m * (size_t)columns);
  for (int i = 0; i < m && i < columns; i++) lm_scalar_put(dtype, to, (int64_t)i * (m + 1), 1);
}

/* ---- eigenvalues */

/* Runs the steps of LAPACK's syevd, except the last one, which takes the vectors of the tridiagonal matrix to those of
 * a [n, n]: that is ours, on all threads. work: as many elements as syevd needs at least, 1 + 6 n + 2 n^2. */
static int eigh_by_steps(const parts_job *j, char *a, void *values, char *work, int *iwork) {
  const int n = j->n, after = n - 1, rest = 1 + 4 * n + n * n;
  int info = 0;
  char *e = work, *tau = e + j->item * (size_t)n, *z = tau + j->item * (size_t)n;
  char *more = z + j->item * (size_t)n * (size_t)n;
  LM_CALL(j->dtype, sytrd, "L", &n, a, &n, values, e, tau, more, &rest, &info, 1);
  if (info != 0) return info;
  LM_CALL(j->dtype, stedc, "I", &n, values, e, z, &n, more, &rest, iwork, &j->liwork, &info, 1);
  if (info != 0) return info;
  lm_status status = lm_reflect_rows(j->dtype, after, n, a + j->item, tau, n, z + j->item, more);
  memcpy(a, z, j->item * (size_t)n * (size_t)n);
  return status == LM_OK ? 0 : lm_matrix_failed(status);
}

/* Returns true if syevd would scale a matrix of such numbers first. */
static bool is_scaled(const parts_job *j, double largest) {
  const double limit = j->dtype == LM_F64 ? 1e140 : 1e15;
  return largest > limit || (largest < 1 / limit && largest > 0);
}

static int eigh_one(const void *job, int64_t i, char *work) {
  const parts_job *j = job;
  int info = 0, *iwork = (int *)work;
  void *a = lm_matrix_at(j->a, i);
  enum { BY_STEPS = 128 };
  const double largest = largest_of(j, a, (int64_t)j->n * j->n);
  if (!isfinite(largest)) return LM_NOT_FINITE;
  if (j->n >= BY_STEPS && *j->jobz == 'V' && *j->uplo == 'L' && !is_scaled(j, largest))
    return eigh_by_steps(j, a, lm_vector_at(j->s, i), work + 4 * (size_t)j->liwork, iwork);
  LM_CALL(j->dtype, syevd, j->jobz, j->uplo, &j->n, a, &j->n, lm_vector_at(j->s, i), work + 4 * (size_t)j->liwork,
          &j->lwork, iwork, &j->liwork, &info, 1, 1);
  return info;
}

/* Computes eigenvalues and, with jobz "V", the vectors, which replace `matrices`. */
static lm_status eigh(const lm_tensor *x, const lm_tensor *matrices, const char *jobz, int triangle,
                      const lm_tensor *values) {
  lm_status status;
  lm_bad_matrix bad;
  lm_scalar answer;
  int info;
  parts_job j = {.dtype = x->dtype,
                 .item = lm_dtype_size(x->dtype),
                 .n = (int)x->size[x->ndim - 1],
                 .a = matrices,
                 .s = values,
                 .jobz = jobz,
                 .uplo = triangle == 0 ? "L" : "U",
                 .lwork = -1,
                 .liwork = -1};
  NEED(lm_openblas_load());
  LM_CALL(j.dtype, syevd, jobz, j.uplo, &j.n, NULL, &j.n, NULL, &answer, &j.lwork, &j.liwork, &j.liwork, &info, 1, 1);
  j.liwork = (5 * j.n + 4) / 2 * 2;
  j.lwork = lm_work_size(j.dtype, &answer);
  if (j.lwork < 0) return too_large(x);
  TRY(each_by_lapack(lm_matrix_count(x), 9.0 * j.n * j.n * j.n, 4 * (size_t)j.liwork + j.item * (size_t)j.lwork,
                     eigh_one, &j, &bad));
  status = lm_matrix_not_converged("the computation of eigenvalues", "A", x, bad);
done:
  return status;
}

lm_status lm_cpu_linalg_eigh(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_eigh_args *a = args;
  TRY(lm_cpu_copy(a->A, out[1]));
  status = eigh(a->A, out[1], "V", a->UPLO, out[0]);
done:
  return status;
}

lm_status lm_cpu_linalg_eigvalsh(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_eigvalsh_args *a = args;
  lm_tensor *copy = NULL;
  TRY(lm_column_major(a->A, &copy));
  status = eigh(a->A, copy, "N", a->UPLO, out[0]);
done:
  lm_release(copy);
  return status;
}

/* ---- singular values */

static int svd_one(const void *job, int64_t i, char *work) {
  const parts_job *j = job;
  int info = 0, ld = at_least_1(j->m), ldu = at_least_1(j->m), ldv = 1, *iwork = (int *)work;
  void *a = lm_matrix_at(j->a, i), *u = NULL, *v = NULL;
  if (!is_finite(j, a, (int64_t)j->m * j->n)) return LM_NOT_FINITE;
  if (j->u) {
    u = lm_matrix_at(j->u, i);
    v = lm_matrix_at(j->v, i);
    ldv = at_least_1((int)j->v->size[j->v->ndim - 2]);
  }
  if (j->min_mn == 0) {
    put_identity(j->dtype, u, j->m, (int)j->u->size[j->u->ndim - 1]);
    put_identity(j->dtype, v, (int)j->v->size[j->v->ndim - 2], j->n);
    return 0;
  }
  LM_CALL(j->dtype, gesdd, j->jobz, &j->m, &j->n, a, &ld, lm_vector_at(j->s, i), u, &ldu, v, &ldv,
          work + 4 * (size_t)j->liwork, &j->lwork, iwork, &info, 1);
  return info;
}

static lm_status prepare_svd(parts_job *j, const lm_tensor *x, const char *jobz) {
  NEED(lm_openblas_load());
  int info, ld, ldv;
  lm_scalar answer = lm_scalar_of(x->dtype, 1);
  j->dtype = x->dtype;
  j->item = lm_dtype_size(j->dtype);
  j->m = (int)x->size[x->ndim - 2];
  j->n = (int)x->size[x->ndim - 1];
  j->min_mn = j->m < j->n ? j->m : j->n;
  j->jobz = jobz;
  j->lwork = -1;
  j->liwork = 8 * at_least_1(j->min_mn);
  ld = at_least_1(j->m);
  ldv = at_least_1(*jobz == 'A' ? j->n : j->min_mn);
  if (j->min_mn > 0)
    LM_CALL(j->dtype, gesdd, jobz, &j->m, &j->n, NULL, &ld, NULL, NULL, &ld, NULL, &ldv, &answer, &j->lwork, &info,
            &info, 1);
  j->lwork = lm_work_size(j->dtype, &answer);
  return j->lwork < 0 ? too_large(x) : LM_OK;
}

static double svd_flops(const parts_job *j) {
  return 8.0 * j->m * j->n * j->min_mn + 10.0 * j->min_mn * j->min_mn * j->min_mn;
}
static size_t svd_scratch(const parts_job *j) { return 4 * (size_t)j->liwork + j->item * (size_t)j->lwork; }

static lm_status svd(const lm_tensor *x, const char *jobz, const lm_tensor *u, const lm_tensor *s, const lm_tensor *v) {
  lm_status status;
  lm_tensor *copy = NULL;
  lm_bad_matrix bad;
  parts_job j = {.s = s, .u = u, .v = v};
  TRY(prepare_svd(&j, x, jobz));
  TRY(lm_column_major(x, &copy));
  j.a = copy;
  TRY(each_by_lapack(lm_matrix_count(x), svd_flops(&j), svd_scratch(&j), svd_one, &j, &bad));
  status = lm_matrix_not_converged("the computation of singular values", "A", x, bad);
done:
  lm_release(copy);
  return status;
}

lm_status lm_cpu_linalg_svd(const void *args, lm_tensor *const *out) {
  const lm_linalg_svd_args *a = args;
  return svd(a->A, a->full_matrices ? "A" : "S", out[0], out[1], out[2]);
}

lm_status lm_cpu_linalg_svdvals(const void *args, lm_tensor *const *out) {
  return svd(((const lm_linalg_svdvals_args *)args)->A, "N", NULL, out[0], NULL);
}

/* ---- the pseudoinverse: V diag(1 / s) U^T with s of 0 left out */

static int pinv_one(const void *job, int64_t i, char *work) {
  const parts_job *j = job;
  size_t k = (size_t)j->min_mn;
  char *u = work + svd_scratch(j) / 8 * 8 + 8, *v = u + j->item * (size_t)j->m * k, *s = v + j->item * k * (size_t)j->n;
  char *a = lm_matrix_at(j->a, i);
  int info = 0;
  for (int c = 1; j->hermitian && c < j->n; c++) { /* only the lower triangle counts */
    for (int r = 0; r < c; r++)
      lm_scalar_put(j->dtype, a, r + (int64_t)c * j->n, lm_scalar_at(j->dtype, a, c + (int64_t)r * j->n));
  }
  if (!is_finite(j, a, (int64_t)j->m * j->n)) return LM_NOT_FINITE;
  LM_CALL(j->dtype, gesdd, "S", &j->m, &j->n, a, &j->m, s, u, &j->m, v, &j->min_mn, work + 4 * (size_t)j->liwork,
          &j->lwork, (int *)work, &info, 1);
  double precision = j->dtype == LM_F64 ? 0x1p-52 : 0x1p-23;
  double atol = j->atol ? ((const double *)j->atol->data)[i] : 0;
  double rtol = j->rtol ? ((const double *)j->rtol->data)[i] : atol > 0 ? 0 : precision * (j->m > j->n ? j->m : j->n);
  double cutoff = rtol * lm_scalar_at(j->dtype, s, 0);
  if (atol > cutoff) cutoff = atol;
  for (int c = 0; c < j->min_mn; c++) {
    double value = lm_scalar_at(j->dtype, s, c), factor = value > cutoff ? 1 / value : 0;
    for (int r = 0; r < j->m; r++) {
      int64_t at = r + (int64_t)c * j->m;
      lm_scalar_put(j->dtype, u, at, lm_scalar_at(j->dtype, u, at) * factor);
    }
  }
  const lm_cpu_gemm_job product = {.dtype = j->dtype,
                                   .device = j->r->device,
                                   .batch = 1,
                                   .m = j->m,
                                   .n = j->n,
                                   .k = j->min_mn,
                                   .ta = true,
                                   .tb = true,
                                   .alpha = 1,
                                   .a = u,
                                   .lda = j->m,
                                   .b = v,
                                   .ldb = j->min_mn,
                                   .c = lm_matrix_at(j->r, i),
                                   .ldc = j->n,
                                   .alone = true};
  lm_status status = lm_cpu_gemm(&product);
  return status == LM_OK ? info : lm_matrix_failed(status);
}

lm_status lm_cpu_linalg_pinv(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_pinv_args *a = args;
  lm_tensor *copy = NULL;
  lm_bad_matrix bad;
  parts_job j = {.r = out[0], .atol = a->atol, .rtol = a->rtol, .hermitian = a->hermitian};
  TRY(prepare_svd(&j, a->A, "S"));
  TRY(lm_column_major(a->A, &copy));
  j.a = copy;
  TRY(each_by_lapack(lm_matrix_count(copy), svd_flops(&j),
                     svd_scratch(&j) + 64 + j.item * (size_t)j.min_mn * (size_t)(j.m + j.n + 1), pinv_one, &j, &bad));
  status = lm_matrix_not_converged("the computation of singular values", "A", a->A, bad);
done:
  lm_release(copy);
  return status;
}

/* ---- least squares */

static int call_driver(const parts_job *j, void *a, int ldb, void *b, void *s, int *iwork, int *rank, void *work) {
  int info = 0, ld = at_least_1(j->m);
  lm_scalar rcond = lm_scalar_of(j->dtype, j->rcond);
  switch (j->driver) {
    case LM_GELS:
      LM_CALL(j->dtype, gels, "N", &j->m, &j->n, &j->nrhs, a, &ld, b, &ldb, work, &j->lwork, &info, 1);
      break;
    case LM_GELSD:
      LM_CALL(j->dtype, gelsd, &j->m, &j->n, &j->nrhs, a, &ld, b, &ldb, s, &rcond, rank, work, &j->lwork, iwork, &info);
      break;
    case LM_GELSS:
      LM_CALL(j->dtype, gelss, &j->m, &j->n, &j->nrhs, a, &ld, b, &ldb, s, &rcond, rank, work, &j->lwork, &info);
      break;
    default:
      if (a) memset(iwork, 0, sizeof(int) * (size_t)j->n); /* no column must come first */
      LM_CALL(j->dtype, gelsy, &j->m, &j->n, &j->nrhs, a, &ld, b, &ldb, iwork, &rcond, rank, work, &j->lwork, &info);
  }
  return info;
}

static int rows_of_b(const parts_job *j) { return at_least_1(j->m > j->n ? j->m : j->n); }

static int lstsq_one(const void *job, int64_t i, char *work) {
  const parts_job *j = job;
  int info = 0, rank = j->min_mn, ldb = rows_of_b(j);
  char *b = work + 4 * (size_t)j->liwork, *s = b + j->item * (size_t)ldb * (size_t)j->nrhs;
  char *from = lm_matrix_at(j->b, i), *to = lm_matrix_at(j->r, i), *a = lm_matrix_at(j->a, i);
  memset(b, 0, j->item * (size_t)ldb * (size_t)j->nrhs);
  for (int c = 0; c < j->nrhs; c++)
    memcpy(b + j->item * (size_t)c * (size_t)ldb, from + j->item * (size_t)c * (size_t)j->m, j->item * (size_t)j->m);
  if (!is_finite(j, a, (int64_t)j->m * j->n) || !is_finite(j, from, (int64_t)j->m * j->nrhs)) return LM_NOT_FINITE;
  if (j->min_mn > 0)
    info = call_driver(j, a, ldb, b, s, (int *)work, &rank, s + j->item * (size_t)at_least_1(j->min_mn));
  for (int c = 0; c < j->nrhs; c++) {
    const char *column = b + j->item * (size_t)c * (size_t)ldb;
    if (j->min_mn > 0)
      memcpy(to + j->item * (size_t)c * (size_t)j->n, column, j->item * (size_t)j->n);
    else
      memset(to + j->item * (size_t)c * (size_t)j->n, 0, j->item * (size_t)j->n);
    double sum = 0;
    for (int r = j->n; r < j->m; r++) sum += pow(lm_scalar_at(j->dtype, column, r), 2);
    if (j->residuals) lm_scalar_put(j->dtype, lm_vector_at(j->residuals, i), c, sum);
  }
  if (j->rank) ((int64_t *)j->rank->data)[i] = rank;
  if (j->s && j->min_mn > 0) memcpy(lm_vector_at(j->s, i), s, j->item * (size_t)j->min_mn);
  return info;
}

lm_status lm_cpu_linalg_lstsq(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_lstsq_args *a = args;
  const lm_tensor *x = a->A;
  lm_tensor *copy = NULL, *b = NULL;
  lm_bad_matrix bad;
  lm_scalar answer = lm_scalar_of(x->dtype, 1);
  parts_job j = {.dtype = x->dtype,
                 .item = lm_dtype_size(x->dtype),
                 .m = (int)x->size[x->ndim - 2],
                 .n = (int)x->size[x->ndim - 1],
                 .driver = a->driver,
                 .nrhs = (int)a->B->size[a->B->ndim - 1],
                 .r = out[0],
                 .lwork = -1};
  int iwork[2] = {0}, rank;
  NEED(lm_openblas_load());
  j.min_mn = j.m < j.n ? j.m : j.n;
  j.rcond = a->rcond == a->rcond ? a->rcond : (j.dtype == LM_F64 ? 0x1p-52 : 0x1p-23) * (j.m > j.n ? j.m : j.n);
  if (out[1]->numel) j.residuals = out[1];
  if (out[2]->numel) j.rank = out[2];
  if (out[3]->numel) j.s = out[3];
  j.liwork = j.n;
  if (j.min_mn > 0) {
    call_driver(&j, NULL, rows_of_b(&j), NULL, NULL, iwork, &rank, &answer);
    if (iwork[0] > j.liwork) j.liwork = iwork[0];
  }
  j.liwork = (j.liwork + 16) / 2 * 2;
  j.lwork = lm_work_size(j.dtype, &answer);
  if (j.lwork < 0) return too_large(x);
  TRY(lm_column_major(x, &copy));
  TRY(lm_column_major(a->B, &b));
  j.a = copy;
  j.b = b;
  TRY(each_by_lapack(
      lm_matrix_count(out[0]), 4.0 * j.m * j.n * (j.min_mn + j.nrhs),
      4 * (size_t)j.liwork + j.item * ((size_t)rows_of_b(&j) * (size_t)j.nrhs + (size_t)j.min_mn + 2 + (size_t)j.lwork),
      lstsq_one, &j, &bad));
  status = lm_matrix_not_converged("the least squares", "A", x, bad);
done:
  lm_release(copy);
  lm_release(b);
  return status;
}
