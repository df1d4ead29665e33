/* Computes eigenvalues of symmetric matrices, singular values, pseudoinverses and least squares by LAPACK. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"
#include "base/message.h"
#include "op_args_linalg.h"

/* A batch's matrices, column-major, which LAPACK overwrites; its workspace's number of elements and of ints. */
typedef struct batch {
  lm_dtype dtype;
  size_t item; /* bytes of a number */
  int m, n, min_mn;
  const lm_tensor *a;
  int numbers, ints;
} batch;

static batch batch_of(const lm_tensor *x) {
  batch b = {.dtype = x->dtype,
             .item = lm_dtype_size(x->dtype),
             .m = (int)x->size[x->ndim - 2],
             .n = (int)x->size[x->ndim - 1]};
  b.min_mn = lm_min(b.m, b.n);
  return b;
}

static int at_least_1(int n) { return lm_max(n, 1); }

/* Sets the workspace's numbers, which a routine wrote to `answer` as it does for lwork -1, and its ints. */
static lm_status set_workspace(batch *b, const lm_scalar *answer, int ints, const lm_tensor *x) {
  const double n = lm_real_at(b->dtype, answer, 0) * (1 + 1e-6) + 8; /* float32 may have rounded it down */
  if (n >= INT_MAX / 2)
    return lm_fail_value(lm_op_running(), "A", "small enough for LAPACK's workspace of at most 2^31 elements",
                         lm_shape_of(x));
  b->numbers = (int)n, b->ints = ints;
  return LM_OK;
}

/* Scratch memory for one matrix: LAPACK's workspace, and further parts that some algorithms need. */
typedef struct scratch {
  void *ints, *numbers, *u, *v, *s, *e, *tau;
} scratch;

/* Sets s's workspace; returns its bytes. */
static size_t lay_out(const batch *b, char *memory, scratch *s) {
  return lm_memory_divide(
      memory, 2,
      (lm_memory_part[]){{&s->ints, sizeof(int) * (size_t)b->ints}, {&s->numbers, b->item * (size_t)b->numbers}});
}

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

static double largest_of(const batch *b, const void *a, int64_t n) {
  return b->dtype == LM_F64 ? largest_double(a, n) : largest_float(a, n);
}
static bool is_finite(const batch *b, const void *a, int64_t n) { return isfinite(largest_of(b, a, n)); }

typedef struct lapack_job {
  lm_matrix_fn *one;
  const void *job;
} lapack_job;

/* Runs one matrix without OpenMP threads: an OpenBLAS built with OpenMP would have its own ones for each of ours. */
static int one_by_lapack(const void *job, int64_t i, char *work) {
  const lapack_job *l = job;
  int threads = lm_openblas.set_omp_threads(1);
  int info = l->one(l->job, i, work);
  lm_openblas.set_omp_threads(threads);
  return info;
}

/* Runs `one` for each matrix of x; fails if one does not converge, in words that say which computation: `what`. */
static lm_status each_by_lapack(const char *what, const lm_tensor *x, double flops, size_t bytes, lm_matrix_fn *one,
                                const void *job) {
  const int64_t count = lm_matrix_count(x);
  int buffers = 2 * lm_matrix_threads(count, flops); /* some routines hold one buffer while they ask for another */
  lm_bad_matrix bad;
  NEED(lm_openblas_enter(buffers));
  lm_status status = lm_each_matrix(count, flops, bytes, one_by_lapack, &(lapack_job){one, job}, &bad);
  lm_openblas_leave(buffers);
  return status == LM_OK ? lm_matrix_fail_not_converged(what, "A", x, bad) : status;
}

/* Sets `to` to the first columns of the identity, m numbers each. */
static void put_identity(lm_dtype dtype, void *to, int m, int columns) {
  memset(to, 0, lm_dtype_size(dtype) * (size_t)m * (size_t)columns);
  for (int i = 0; i < m && i < columns; i++) lm_scalar_put(dtype, to, (int64_t)i * (m + 1), 1);
}

/* ---- eigenvalues */

typedef struct eigh_job {
  batch b; /* the vectors replace the matrices */
  const lm_tensor *values;
  const char *jobz, *uplo; /* "V": vectors, "N": values alone; "L" or "U": the triangle that is read */
} eigh_job;

/* Return the numbers of workspace that sytrd and stedc need, and the bytes of all that eigh_by_steps needs. */
static int numbers_of_steps(int n) { return 1 + 4 * n + n * n; }
static size_t lay_out_steps(const batch *b, char *memory, scratch *s) {
  const size_t n = (size_t)b->n, column = b->item * n;
  return lm_memory_divide(memory, 5,
                          (lm_memory_part[]){{&s->ints, sizeof(int) * (size_t)b->ints},
                                             {&s->e, column},
                                             {&s->tau, column},
                                             {&s->v, column * n},
                                             {&s->numbers, b->item * (size_t)numbers_of_steps(b->n)}});
}

/* Runs the steps of LAPACK's syevd, except the last one, which takes the vectors of the tridiagonal matrix to those of
 * a [n, n]: that is ours, on all threads. */
static int eigh_by_steps(const eigh_job *j, char *a, void *values, char *work) {
  const batch *b = &j->b;
  const int n = b->n, after = n - 1, numbers = numbers_of_steps(n);
  int info = 0;
  scratch s;
  lay_out_steps(b, work, &s);
  LM_CALL(b->dtype, sytrd, "L", &n, a, &n, values, s.e, s.tau, s.numbers, &numbers, &info, 1);
  if (info != 0) return info;
  LM_CALL(b->dtype, stedc, "I", &n, values, s.e, s.v, &n, s.numbers, &numbers, s.ints, &b->ints, &info, 1);
  if (info != 0) return info;
  lm_status status = lm_reflect_rows(b->dtype, after, n, a + b->item, s.tau, n, (char *)s.v + b->item, s.numbers);
  memcpy(a, s.v, b->item * (size_t)n * (size_t)n);
  return status == LM_OK ? 0 : lm_matrix_failed(status);
}

/* Returns true if syevd would scale a matrix of such numbers first. */
static bool is_scaled(const batch *b, double largest) {
  const double limit = b->dtype == LM_F64 ? 1e140 : 1e15;
  return largest > limit || (largest < 1 / limit && largest > 0);
}

static int eigh_one(const void *job, int64_t i, char *work) {
  enum { BY_STEPS = 128 };
  const eigh_job *j = job;
  const batch *b = &j->b;
  int info = 0;
  scratch s;
  void *a = lm_matrix_at(b->a, i), *values = lm_vector_at(j->values, i);
  const double largest = largest_of(b, a, (int64_t)b->n * b->n);
  if (!isfinite(largest)) return LM_NOT_FINITE;
  if (b->n >= BY_STEPS && *j->jobz == 'V' && *j->uplo == 'L' && !is_scaled(b, largest))
    return eigh_by_steps(j, a, values, work);
  lay_out(b, work, &s);
  LM_CALL(b->dtype, syevd, j->jobz, j->uplo, &b->n, a, &b->n, values, s.numbers, &b->numbers, s.ints, &b->ints, &info,
          1, 1);
  return info;
}

/* Computes eigenvalues and, with jobz "V", the vectors, which replace `matrices`. */
static lm_status eigh_cpu(const lm_tensor *x, const lm_tensor *matrices, const char *jobz, int triangle,
                          const lm_tensor *values) {
  eigh_job j = {.b = batch_of(x), .values = values, .jobz = jobz, .uplo = triangle == 0 ? "L" : "U"};
  batch *b = &j.b;
  lm_scalar answer;
  scratch s;
  int info, ask = -1, ints = 5 * b->n + 3; /* LAPACK's documentation of syevd */
  NEED(lm_openblas_load());
  LM_CALL(b->dtype, syevd, jobz, j.uplo, &b->n, NULL, &b->n, NULL, &answer, &ask, &ints, &ask, &info, 1, 1);
  NEED(set_workspace(b, &answer, 5 * b->n + 3, x));
  b->a = matrices;
  const size_t bytes = lm_max(lay_out(b, NULL, &s), *jobz == 'V' ? lay_out_steps(b, NULL, &s) : 0);
  return each_by_lapack("the computation of eigenvalues", x, 9.0 * b->n * b->n * b->n, bytes, eigh_one, &j);
}

lm_status lm_cpu_linalg_eigh(const lm_linalg_eigh_args *a, lm_tensor *const *out) {
  NEED(lm_cpu_copy(a->A, out[1]));
  return eigh_cpu(a->A, out[1], "V", a->UPLO, out[0]);
}

lm_status lm_cpu_linalg_eigvalsh(const lm_linalg_eigvalsh_args *a, lm_tensor *const *out) {
  LM_OWNED *copy = NULL;
  NEED(lm_column_major(a->A, &copy));
  return eigh_cpu(a->A, copy, "N", a->UPLO, out[0]);
}

/* ---- singular values */

typedef struct svd_job {
  batch b;
  const char *jobz;           /* "A": all vectors, "S": min(m, n), "N": none */
  const lm_tensor *s, *u, *v; /* column-major; u and v: NULL without vectors */
} svd_job;

static int gesdd(const batch *b, const char *jobz, void *a, void *values, void *u, void *v, int ldv, const scratch *s) {
  int info = 0, ld = at_least_1(b->m);
  LM_CALL(b->dtype, gesdd, jobz, &b->m, &b->n, a, &ld, values, u, &ld, v, &ldv, s->numbers, &b->numbers, s->ints, &info,
          1);
  return info;
}

static int svd_one(const void *job, int64_t i, char *work) {
  const svd_job *j = job;
  const batch *b = &j->b;
  void *a = lm_matrix_at(b->a, i), *u = j->u ? lm_matrix_at(j->u, i) : NULL, *v = j->u ? lm_matrix_at(j->v, i) : NULL;
  const int rows = j->u ? (int)j->v->size[j->v->ndim - 2] : 0;
  scratch s;
  if (!is_finite(b, a, (int64_t)b->m * b->n)) return LM_NOT_FINITE;
  lay_out(b, work, &s);
  if (b->min_mn > 0) return gesdd(b, j->jobz, a, lm_vector_at(j->s, i), u, v, at_least_1(rows), &s);
  if (!u) return 0;
  put_identity(b->dtype, u, b->m, (int)j->u->size[j->u->ndim - 1]);
  put_identity(b->dtype, v, rows, b->n);
  return 0;
}

/* Sets *b to x's matrices, copied to *copy, with a workspace for jobz. */
static lm_status prepare_svd(batch *b, const lm_tensor *x, const char *jobz, lm_tensor **copy) {
  lm_scalar answer = lm_scalar_of(x->dtype, 1);
  scratch ask = {.numbers = &answer};
  NEED(lm_openblas_load());
  *b = batch_of(x);
  b->numbers = -1;
  if (b->min_mn > 0) gesdd(b, jobz, NULL, NULL, NULL, NULL, *jobz == 'A' ? b->n : b->min_mn, &ask);
  NEED(set_workspace(b, &answer, 8 * at_least_1(b->min_mn), x));
  NEED(lm_column_major(x, copy));
  b->a = *copy;
  return LM_OK;
}

static lm_status run_svd(const lm_tensor *x, const batch *b, size_t bytes, lm_matrix_fn *one, const void *job) {
  const double flops = 8.0 * b->m * b->n * b->min_mn + 10.0 * b->min_mn * b->min_mn * b->min_mn;
  return each_by_lapack("the computation of singular values", x, flops, bytes, one, job);
}

static lm_status svd_cpu(const lm_tensor *x, const char *jobz, const lm_tensor *u, const lm_tensor *s,
                         const lm_tensor *v) {
  LM_OWNED *copy = NULL;
  svd_job j = {.jobz = jobz, .s = s, .u = u, .v = v};
  NEED(prepare_svd(&j.b, x, jobz, &copy));
  return run_svd(x, &j.b, lay_out(&j.b, NULL, &(scratch){0}), svd_one, &j);
}

lm_status lm_cpu_linalg_svd(const lm_linalg_svd_args *a, lm_tensor *const *out) {
  return svd_cpu(a->A, a->full_matrices ? "A" : "S", out[0], out[1], out[2]);
}

lm_status lm_cpu_linalg_svdvals(const lm_linalg_svdvals_args *a, lm_tensor *const *out) {
  return svd_cpu(a->A, "N", NULL, out[0], NULL);
}

/* ---- the pseudoinverse: V diag(1 / s) U^T with s of 0 left out */

typedef struct pinv_job {
  batch b;
  const lm_tensor *result, *atol, *rtol; /* atol, rtol: one for each matrix, or NULL */
  bool hermitian;                        /* true if only the lower triangle counts */
} pinv_job;

static size_t lay_out_pinv(const batch *b, char *memory, scratch *s) {
  const size_t row = b->item * (size_t)b->min_mn;
  return lm_memory_divide(memory, 5,
                          (lm_memory_part[]){{&s->ints, sizeof(int) * (size_t)b->ints},
                                             {&s->numbers, b->item * (size_t)b->numbers},
                                             {&s->u, row * (size_t)b->m},
                                             {&s->v, row * (size_t)b->n},
                                             {&s->s, row}});
}

static double precision_of(lm_dtype dtype) { return dtype == LM_F64 ? 0x1p-52 : 0x1p-23; }

static int pinv_one(const void *job, int64_t i, char *work) {
  const pinv_job *j = job;
  const batch *b = &j->b;
  char *a = lm_matrix_at(b->a, i);
  scratch s;
  for (int c = 1; j->hermitian && c < b->n; c++)
    for (int r = 0; r < c; r++)
      lm_scalar_put(b->dtype, a, r + (int64_t)c * b->n, lm_real_at(b->dtype, a, c + (int64_t)r * b->n));
  if (!is_finite(b, a, (int64_t)b->m * b->n)) return LM_NOT_FINITE;
  lay_out_pinv(b, work, &s);
  int info = gesdd(b, "S", a, s.s, s.u, s.v, b->min_mn, &s);
  double atol = j->atol ? ((const double *)j->atol->data)[i] : 0;
  double rtol = j->rtol    ? ((const double *)j->rtol->data)[i]
                : atol > 0 ? 0
                           : precision_of(b->dtype) * lm_max(b->m, b->n);
  double cutoff = rtol * lm_real_at(b->dtype, s.s, 0);
  if (atol > cutoff) cutoff = atol;
  for (int c = 0; c < b->min_mn; c++) {
    double value = lm_real_at(b->dtype, s.s, c), factor = value > cutoff ? 1 / value : 0;
    for (int64_t at = (int64_t)c * b->m; at < (int64_t)(c + 1) * b->m; at++)
      lm_scalar_put(b->dtype, s.u, at, lm_real_at(b->dtype, s.u, at) * factor);
  }
  lm_cpu_gemm_job product =
      lm_cpu_gemm_job_of(b->dtype, b->m, b->n, b->min_mn, 1, lm_gemm_matrix_of(s.u, b->m, true),
                         lm_gemm_matrix_of(s.v, b->min_mn, true), 0, lm_matrix_at(j->result, i), b->n);
  product.alone = true;
  lm_status status = lm_cpu_gemm(&product);
  return status == LM_OK ? info : lm_matrix_failed(status);
}

lm_status lm_cpu_linalg_pinv(const lm_linalg_pinv_args *a, lm_tensor *const *out) {
  LM_OWNED *copy = NULL;
  pinv_job j = {.result = out[0], .atol = a->atol, .rtol = a->rtol, .hermitian = a->hermitian};
  NEED(prepare_svd(&j.b, a->A, "S", &copy));
  return run_svd(a->A, &j.b, lay_out_pinv(&j.b, NULL, &(scratch){0}), pinv_one, &j);
}

/* ---- least squares */

typedef struct lstsq_job {
  batch b;
  int driver, columns; /* columns of right sides */
  double rcond;
  const lm_tensor *right, *solution;     /* column-major */
  const lm_tensor *residuals, *rank, *s; /* results; NULL: not requested */
} lstsq_job;

static int rows_of_right(const batch *b) { return at_least_1(lm_max(b->m, b->n)); }

static size_t lay_out_lstsq(const lstsq_job *j, char *memory, scratch *s) {
  const batch *b = &j->b;
  const size_t right = (size_t)rows_of_right(b) * (size_t)j->columns;
  return lm_memory_divide(memory, 4,
                          (lm_memory_part[]){{&s->ints, sizeof(int) * (size_t)b->ints},
                                             {&s->numbers, b->item * (size_t)b->numbers},
                                             {&s->v, b->item * right},
                                             {&s->s, b->item * (size_t)b->min_mn}});
}

/* Solves with the right sides s->v, in their place. */
static int call_driver(const lstsq_job *j, void *a, const scratch *s, int *rank) {
  const batch *b = &j->b;
  int info = 0, ld = at_least_1(b->m), ldb = rows_of_right(b);
  lm_scalar rcond = lm_scalar_of(b->dtype, j->rcond);
  switch (j->driver) {
    case LM_GELS:
      LM_CALL(b->dtype, gels, "N", &b->m, &b->n, &j->columns, a, &ld, s->v, &ldb, s->numbers, &b->numbers, &info, 1);
      break;
    case LM_GELSD:
      LM_CALL(b->dtype, gelsd, &b->m, &b->n, &j->columns, a, &ld, s->v, &ldb, s->s, &rcond, rank, s->numbers,
              &b->numbers, s->ints, &info);
      break;
    case LM_GELSS:
      LM_CALL(b->dtype, gelss, &b->m, &b->n, &j->columns, a, &ld, s->v, &ldb, s->s, &rcond, rank, s->numbers,
              &b->numbers, &info);
      break;
    default:
      if (a) memset(s->ints, 0, sizeof(int) * (size_t)b->n); /* 0: LAPACK may exchange every column */
      LM_CALL(b->dtype, gelsy, &b->m, &b->n, &j->columns, a, &ld, s->v, &ldb, s->ints, &rcond, rank, s->numbers,
              &b->numbers, &info);
  }
  return info;
}

static int lstsq_one(const void *job, int64_t i, char *work) {
  const lstsq_job *j = job;
  const batch *b = &j->b;
  int info = 0, rank = b->min_mn;
  const size_t in = b->item * (size_t)b->m, out = b->item * (size_t)b->n, row = b->item * (size_t)rows_of_right(b);
  char *from = lm_matrix_at(j->right, i), *to = lm_matrix_at(j->solution, i), *a = lm_matrix_at(b->a, i);
  scratch s;
  lay_out_lstsq(j, work, &s);
  memset(s.v, 0, row * (size_t)j->columns);
  for (size_t c = 0; c < (size_t)j->columns; c++) memcpy((char *)s.v + c * row, from + c * in, in);
  if (!is_finite(b, a, (int64_t)b->m * b->n) || !is_finite(b, from, (int64_t)b->m * j->columns)) return LM_NOT_FINITE;
  if (b->min_mn > 0) info = call_driver(j, a, &s, &rank);
  for (int c = 0; c < j->columns; c++) {
    const char *column = (char *)s.v + (size_t)c * row;
    if (b->min_mn > 0)
      memcpy(to + (size_t)c * out, column, out);
    else
      memset(to + (size_t)c * out, 0, out);
    double sum = 0;
    for (int r = b->n; r < b->m; r++) sum += pow(lm_real_at(b->dtype, column, r), 2);
    if (j->residuals) lm_scalar_put(b->dtype, lm_vector_at(j->residuals, i), c, sum);
  }
  if (j->rank) ((int64_t *)j->rank->data)[i] = rank;
  if (j->s && b->min_mn > 0) memcpy(lm_vector_at(j->s, i), s.s, b->item * (size_t)b->min_mn);
  return info;
}

lm_status lm_cpu_linalg_lstsq(const lm_linalg_lstsq_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->A;
  LM_OWNED *copy = NULL, *right = NULL;
  lm_scalar answer = lm_scalar_of(x->dtype, 1);
  int ints[2] = {0}, rank;
  lstsq_job j = {.b = batch_of(x), .driver = a->driver, .columns = (int)a->B->size[a->B->ndim - 1], .solution = out[0]};
  batch *b = &j.b;
  b->numbers = -1;
  j.rcond = a->rcond == a->rcond ? a->rcond : precision_of(b->dtype) * lm_max(b->m, b->n);
  if (out[1]->numel) j.residuals = out[1];
  if (out[2]->numel) j.rank = out[2];
  if (out[3]->numel) j.s = out[3];
  NEED(lm_openblas_load());
  if (b->min_mn > 0) call_driver(&j, NULL, &(scratch){.numbers = &answer, .ints = ints}, &rank);
  NEED(set_workspace(b, &answer, lm_max(b->n, ints[0]) + 16, x));
  NEED(lm_column_major(x, &copy));
  NEED(lm_column_major(a->B, &right));
  b->a = copy, j.right = right;
  return each_by_lapack("the least squares", x, 4.0 * b->m * b->n * (b->min_mn + j.columns),
                        lay_out_lstsq(&j, NULL, &(scratch){0}), lstsq_one, &j);
}
