/* Computes inverses, determinants and solutions of matrices by LAPACK's LU factors, of column-major copies: results are
 * row-major. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/gemm.h"

typedef struct lu_job {
  lm_dtype dtype;
  int m, n, k;         /* k columns of right sides */
  const lm_tensor *lu; /* takes the factors; dense and column-major */
  const lm_tensor *pivots, *b;
  bool check, transposed;
  const lm_tensor *det, *sign;
} lu_job;

/* A panel is `count` columns from `first` on. A large matrix is factored panel by panel; threads take GRAIN columns
 * beside one at a time, of which a panel is a multiple. */
enum { PANEL = 64, GRAIN = 32, LARGE = 192 };
typedef struct panel {
  const lu_job *j;
  char *a;
  const int *pivots;
  int first, count;
} panel;

static char *entry(const panel *p, int row, int column) {
  return p->a + lm_dtype_size(p->j->dtype) * ((size_t)column * (size_t)p->j->m + (size_t)row);
}

/* Exchanges rows of columns beside a factored panel; in those after it, computes U's rows and subtracts the product. */
static void update_beside(void *ctx, int64_t begin, int64_t end) {
  const panel *p = ctx;
  const lu_job *j = p->j;
  const int m = j->m, step = 1, last = p->first + p->count, below = m - last, rows[2] = {p->first + 1, last};
  const int parts[2][2] = {{(int)begin * GRAIN, lm_min((int)end * GRAIN, p->first)},
                           {lm_max((int)begin * GRAIN, last), (int)lm_min(end * GRAIN, j->n)}};
  const lm_scalar one = lm_scalar_of(j->dtype, 1);
  for (int i = 0; i < 2; i++) {
    const int column = parts[i][0], n = parts[i][1] - column;
    if (n <= 0) continue;
    LM_CALL(j->dtype, laswp, &n, entry(p, 0, column), &m, &rows[0], &rows[1], p->pivots, &step);
    if (i == 0) continue;
    LM_CALL(j->dtype, trsm, "L", "L", "N", "U", &p->count, &n, &one, entry(p, p->first, p->first), &m,
            entry(p, p->first, column), &m, 1, 1, 1, 1);
    lm_cpu_gemm_job product =
        lm_cpu_gemm_job_of(j->dtype, n, below, p->count, -1, lm_gemm_matrix_of(entry(p, p->first, column), m, false),
                           lm_gemm_matrix_of(entry(p, last, p->first), m, false), 1, entry(p, last, column), m);
    product.alone = true;
    if (below > 0) lm_parallel_note(lm_cpu_gemm(&product));
  }
}

/* Factors a [m, n] in place; returns getrf's info. */
static int factor(const lu_job *j, void *a, int *pivots) {
  const int min_mn = lm_min(j->m, j->n), width = min_mn < LARGE ? min_mn : PANEL;
  int info = 0, own;
  for (panel p = {.j = j, .a = a, .pivots = pivots}; p.first < min_mn; p.first += p.count) {
    const int rows = j->m - p.first;
    p.count = lm_min(width, min_mn - p.first);
    const int columns = width == min_mn ? j->n : p.count;
    LM_CALL(j->dtype, getrf, &rows, &columns, entry(&p, p.first, p.first), &j->m, pivots + p.first, &own);
    if (info == 0 && own > 0) info = own + p.first;
    for (int c = p.first; c < p.first + p.count; c++) pivots[c] += p.first;
    if (columns < j->n)
      lm_parallel_note(
          lm_parallel_by_lapack(lm_ceil_div(j->n, GRAIN), (double)rows * p.count * j->n / 50, 0, update_beside, &p));
  }
  return info;
}

/* Computes one determinant. Zeros on the diagonal of U become something small: the gradient divides by them. */
static int det_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int *pivots = lm_vector_at(j->pivots, i);
  double det = 1, sign = 1, log_of = 0;
  void *lu = lm_matrix_at(j->lu, i);
  (void)work;
  factor(j, lu, pivots); /* a zero on the diagonal is a determinant of 0 */
  for (int d = 0; d < j->n; d++) {
    double u = lm_real_at(j->dtype, lu, (int64_t)d * (j->n + 1));
    if (u == 0) lm_scalar_put(j->dtype, lu, (int64_t)d * (j->n + 1), j->dtype == LM_F64 ? 0x1p-52 : 0x1p-23);
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

/* Computes determinants; factors: take those of x, and the pivots. */
static lm_status determinants(const lm_tensor *x, const lm_tensor *sign, const lm_tensor *det,
                              lm_tensor *const *factors) {
  lm_bad_matrix bad;
  LM_OWNED *lu = NULL;
  int n = (int)x->size[x->ndim - 1];
  NEED(lm_column_major(x, &lu));
  lu_job j = {.dtype = x->dtype, .m = n, .n = n, .lu = lu, .pivots = factors[1], .det = det, .sign = sign};
  NEED(lm_each_by_lapack(lm_matrix_count(x), 0.67 * n * n * n, 0, det_one, &j, &bad));
  return lm_cpu_copy(lu, factors[0]);
}

lm_status lm_cpu_det(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_det_args *)args)->x, NULL, out[0], out + 1);
}

lm_status lm_cpu_slogdet(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_slogdet_args *)args)->x, out[0], out[1], out + 2);
}

static int factor_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  (void)work;
  int info = factor(j, lm_matrix_at(j->lu, i), lm_vector_at(j->pivots, i));
  return j->check ? info : 0;
}

lm_status lm_cpu_linalg_lu_factor(const void *args, lm_tensor *const *out) {
  const lm_linalg_lu_factor_args *a = args;
  const lm_tensor *x = a->A;
  lm_bad_matrix bad;
  LM_OWNED *lu = NULL;
  NEED(lm_column_major(x, &lu));
  lu_job j = {.dtype = x->dtype,
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .lu = lu,
              .pivots = out[1],
              .check = a->check};
  NEED(lm_each_by_lapack(lm_matrix_count(x), 0.67 * j.m * j.n * j.n, 0, factor_one, &j, &bad));
  NEED(lm_matrix_singular("A", x, bad));
  return lm_cpu_copy(lu, out[0]);
}

static int solve_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int info = 0, *pivots = lm_vector_at(j->pivots, i);
  void *lu = lm_matrix_at(j->lu, i);
  (void)work;
  if (j->check) info = factor(j, lu, pivots);
  if (info == 0 && j->n > 0 && j->k > 0)
    LM_CALL(j->dtype, getrs, j->transposed ? "T" : "N", &j->n, &j->k, lu, &j->n, pivots, lm_matrix_at(j->b, i), &j->n,
            &info, 1);
  return info;
}

/* Solves by the factors j.lu, or with `check` by those of A, which it puts there. Without `left` the equation is the
 * transposed one, X^T in column-major memory. */
static lm_status solve(const char *arg, const lm_tensor *A, lu_job j, const lm_tensor *B, bool left, bool adjoint,
                       lm_tensor *out) {
  lm_bad_matrix bad;
  LM_OWNED *x = NULL;
  NEED(left ? lm_column_major(B, &x) : lm_row_major_copy(B, &x));
  j.dtype = A->dtype;
  j.m = j.n = (int)A->size[A->ndim - 1];
  j.k = (int)out->size[left ? out->ndim - 1 : out->ndim - 2];
  j.transposed = left == adjoint;
  j.b = x;
  NEED(lm_each_by_lapack(lm_matrix_count(out), (double)j.n * j.n * (j.n + 2.0 * j.k), 0, solve_one, &j, &bad));
  NEED(lm_matrix_singular(arg, A, bad));
  return lm_cpu_copy(x, out);
}

lm_status lm_cpu_linalg_solve(const void *args, lm_tensor *const *out) {
  const lm_linalg_solve_args *a = args;
  LM_OWNED *lu = NULL;
  NEED(lm_column_major(a->A, &lu));
  NEED(solve("A", a->A, (lu_job){.lu = lu, .pivots = out[2], .check = true}, a->B, a->left, false, out[0]));
  return lm_cpu_copy(lu, out[1]);
}

/* Inverts the transpose: that is what LAPACK sees in row-major memory. */
static int inverse_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  const int numbers = lm_blocked_workspace(j->n);
  int info, *pivots = (int *)(work + lm_dtype_size(j->dtype) * (size_t)numbers);
  void *a = lm_matrix_at(j->b, i);
  info = factor(j, a, pivots);
  if (info == 0 && j->n > 0) LM_CALL(j->dtype, getri, &j->n, a, &j->n, pivots, work, &numbers, &info);
  return info;
}

lm_status lm_cpu_inverse(const void *args, lm_tensor *const *out) {
  const lm_tensor *x = ((const lm_inverse_args *)args)->x;
  int n = (int)x->size[x->ndim - 1];
  lm_bad_matrix bad;
  NEED(lm_cpu_copy(x, out[0]));
  lu_job j = {.dtype = x->dtype, .m = n, .n = n, .b = out[0]};
  const size_t bytes = lm_dtype_size(x->dtype) * (size_t)lm_blocked_workspace(n) + sizeof(int) * (size_t)n;
  NEED(lm_each_by_lapack(lm_matrix_count(x), 2.0 * n * n * n, bytes, inverse_one, &j, &bad));
  return lm_matrix_singular("x", x, bad);
}

/* Sets *out, which the caller releases, to dense int32 pivots. They may come from anywhere: checks that each names a
 * row. */
static lm_status read_pivots(const lm_tensor *pivots, int64_t rows, lm_tensor **out) {
  NEED(lm_tensor_empty(LM_I32, pivots->device, pivots->ndim, pivots->size, LM_CONTIGUOUS, out));
  NEED(lm_cpu_copy(pivots, *out));
  const int32_t *p = (const int32_t *)(*out)->data;
  int64_t n = pivots->size[pivots->ndim - 1];
  for (int64_t i = 0; i < pivots->numel; i++)
    if (p[i] < 1 || p[i] > rows) return lm_bad_value(LM_BAD_PIVOT, lm_op_running_id(), i % n + 1, p[i], rows);
  return LM_OK;
}

lm_status lm_cpu_linalg_lu_solve(const void *args, lm_tensor *const *out) {
  const lm_linalg_lu_solve_args *a = args;
  LM_OWNED *pivots = NULL, *lu = NULL;
  NEED(read_pivots(a->pivots, a->LU->size[a->LU->ndim - 1], &pivots));
  NEED(lm_column_major(a->LU, &lu));
  return solve("LU", a->LU, (lu_job){.lu = lu, .pivots = pivots}, a->B, a->left, a->adjoint, out[0]);
}

/* Computes P = S1 S2 …, where Si exchanges rows i and pivots[i]: from the last pivot on, of the identity. */
lm_status lm_cpu_lu_pivots_to_matrix(const void *args, lm_tensor *const *out) {
  const lm_lu_pivots_to_matrix_args *a = args;
  LM_OWNED *pivots = NULL;
  const lm_dtype dtype = out[0]->dtype;
  const int m = (int)out[0]->size[out[0]->ndim - 1], k = (int)a->pivots->size[a->pivots->ndim - 1];
  NEED(read_pivots(a->pivots, m, &pivots));
  LM_WORKSPACE(int, column, m); /* index of each row's 1 */
  memset(out[0]->data, 0, lm_nbytes(out[0]));
  for (int64_t i = 0; i < lm_matrix_count(out[0]); i++) {
    const int *pivot = lm_vector_at(pivots, i);
    for (int d = 0; d < m; d++) column[d] = d;
    for (int d = k - 1; d >= 0; d--) {
      const int kept = column[d];
      column[d] = column[pivot[d] - 1], column[pivot[d] - 1] = kept;
    }
    for (int d = 0; d < m; d++) lm_scalar_put(dtype, lm_matrix_at(out[0], i), (int64_t)d * m + column[d], 1);
  }
  return LM_OK;
}
