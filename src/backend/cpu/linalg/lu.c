/* Computes inverses, determinants and solutions of row-major matrices by LU factors. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linalg/recursive.h"
#include "backend/cpu/matmul/gemm.h"
#include "op_args_linalg.h"

typedef struct lu_job {
  lm_dtype dtype;
  int m, n, k;         /* k columns of right sides */
  const lm_tensor *lu; /* takes the factors; dense */
  const lm_tensor *pivots, *b;
  bool check, transposed;
  const lm_tensor *det, *sign;
} lu_job;

/* Returns the bytes of scratch for one matrix: for its factors, and n pivots. */
static size_t scratch_of(const lu_job *j) { return lm_lu_scratch(j->dtype, j->m, j->n) + sizeof(int) * (size_t)j->n; }
static int *pivots_in(const lu_job *j, char *work) { return (int *)(work + lm_lu_scratch(j->dtype, j->m, j->n)); }

static int factor(const lu_job *j, int64_t i, int *pivots, char *scratch) {
  int info = 0;
  lm_status status = lm_factor_lu(j->dtype, j->m, j->n, lm_matrix_at(j->lu, i), j->n, pivots, scratch, &info);
  return status == LM_OK ? info : lm_matrix_failed(status);
}

/* Computes one determinant. Zeros on the diagonal of U become something small: the gradient divides by them. */
static int det_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int *pivots = lm_vector_at(j->pivots, i);
  double det = 1, sign = 1, log_of = 0;
  if (j->n > 0) factor(j, i, pivots, work); /* a zero on the diagonal is a determinant of 0 */
  void *lu = lm_matrix_at(j->lu, i);
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
  int n = (int)x->size[x->ndim - 1];
  if (x->numel) NEED(lm_cpu_copy(x, factors[0]));
  lu_job j = {.dtype = x->dtype, .m = n, .n = n, .lu = factors[0], .pivots = factors[1], .det = det, .sign = sign};
  return lm_each_matrix(lm_matrix_count(x), 0.67 * n * n * n, scratch_of(&j), det_one, &j, &bad);
}

lm_status lm_cpu_det(const lm_det_args *a, lm_tensor *const *out) { return determinants(a->x, NULL, out[0], out + 1); }

lm_status lm_cpu_slogdet(const lm_slogdet_args *a, lm_tensor *const *out) {
  return determinants(a->x, out[0], out[1], out + 2);
}

static int factor_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int info = factor(j, i, lm_vector_at(j->pivots, i), work);
  return j->check ? info : 0;
}

lm_status lm_cpu_linalg_lu_factor(const lm_linalg_lu_factor_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->A;
  lm_bad_matrix bad;
  lu_job j = {.dtype = x->dtype,
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .lu = out[0],
              .pivots = out[1],
              .check = a->check};
  NEED(lm_cpu_copy(x, out[0]));
  NEED(lm_each_matrix(lm_matrix_count(x), 0.67 * j.m * j.n * j.n, scratch_of(&j), factor_one, &j, &bad));
  return lm_matrix_singular("A", x, bad);
}

static int solve_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  int info = 0, *pivots = lm_vector_at(j->pivots, i);
  if (j->check) info = factor(j, i, pivots, work);
  if (info != 0 || j->k == 0) return info;
  void *lu = lm_matrix_at(j->lu, i), *b = lm_matrix_at(j->b, i);
  lm_trsm_job lower = {.dtype = j->dtype, .transposed = j->transposed, .ones = true}, upper = lower;
  upper.upper = true;
  upper.ones = false;
  lm_status status = LM_OK;
  if (!j->transposed) lm_swap_rows(j->dtype, j->k, b, j->k, pivots, 0, j->n, false);
  status = lm_trsm_solve(j->transposed ? &upper : &lower, j->n, j->k, lu, j->n, b, j->k);
  if (status == LM_OK) status = lm_trsm_solve(j->transposed ? &lower : &upper, j->n, j->k, lu, j->n, b, j->k);
  if (j->transposed) lm_swap_rows(j->dtype, j->k, b, j->k, pivots, 0, j->n, true);
  return status == LM_OK ? 0 : lm_matrix_failed(status);
}

/* Solves by the factors j.lu, or with `check` by those of A, which it puts there. X is in the memory of `out`,
 * row-major with `left`; else column-major, so that the equation in memory is the transposed one. */
static lm_status solve(const char *arg, const lm_tensor *A, lu_job j, const lm_tensor *B, bool left, bool adjoint,
                       lm_tensor *out) {
  lm_bad_matrix bad;
  j.dtype = A->dtype;
  j.m = j.n = (int)A->size[A->ndim - 1];
  j.k = (int)out->size[left ? out->ndim - 1 : out->ndim - 2];
  j.transposed = left == adjoint;
  j.b = out;
  if (out->numel) NEED(lm_cpu_copy(B, out));
  NEED(
      lm_each_matrix(lm_matrix_count(out), (double)j.n * j.n * (j.n + 2.0 * j.k), scratch_of(&j), solve_one, &j, &bad));
  return lm_matrix_singular(arg, A, bad);
}

/* Computes x = U^-1 L^-1 P, where P exchanges columns. */
static int inverse_one(const void *job, int64_t i, char *work) {
  const lu_job *j = job;
  if (j->n <= LM_TINY) return lm_trsm_loops_of(j->dtype)->invert_tiny(j->n, lm_matrix_at(j->b, i));
  int n = j->n, *pivots = pivots_in(j, work), *from = pivots + n, info = factor(j, i, pivots, work);
  if (info != 0) return info;
  void *lu = lm_matrix_at(j->lu, i), *x = lm_matrix_at(j->b, i);
  memset(x, 0, lm_dtype_size(j->dtype) * (size_t)n * (size_t)n);
  lm_status status = lm_invert_lower(j->dtype, n, lu, n, x, n);
  if (status == LM_OK) { status = lm_trsm_solve(&(lm_trsm_job){.dtype = j->dtype, .upper = true}, n, n, lu, n, x, n); }
  for (int c = 0; c < n; c++) from[c] = c;
  for (int c = n - 1; c >= 0; c--) {
    int kept = from[c];
    from[c] = from[pivots[c] - 1];
    from[pivots[c] - 1] = kept;
  }
  lm_trsm_loops_of(j->dtype)->permute(n, n, from, x, n, work);
  return status == LM_OK ? 0 : lm_matrix_failed(status);
}

lm_status lm_cpu_inverse(const lm_inverse_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  int n = (int)x->size[x->ndim - 1];
  LM_OWNED *copy = NULL;
  lm_bad_matrix bad;
  if (n > LM_TINY)
    NEED(lm_row_major_copy(x, &copy));
  else if (x->numel)
    NEED(lm_cpu_copy(x, out[0]));
  lu_job j = {.dtype = x->dtype, .m = n, .n = n, .lu = copy, .b = out[0]};
  NEED(lm_each_matrix(lm_matrix_count(x), 2.0 * n * n * n, scratch_of(&j) + sizeof(int) * (size_t)n, inverse_one, &j,
                      &bad));
  return lm_matrix_singular("x", x, bad);
}

lm_status lm_cpu_linalg_solve(const lm_linalg_solve_args *a, lm_tensor *const *out) {
  if (a->A->numel) NEED(lm_cpu_copy(a->A, out[1]));
  return solve("A", a->A, (lu_job){.lu = out[1], .pivots = out[2], .check = true}, a->B, a->left, false, out[0]);
}

/* Sets *out, which the caller releases, to dense int32 pivots. They may come from anywhere: checks that each names a
 * row. */
static lm_status read_pivots(const lm_tensor *pivots, int64_t rows, lm_tensor **out) {
  NEED(lm_tensor_empty(LM_I32, pivots->device, pivots->ndim, pivots->size, LM_CONTIGUOUS, out));
  if (pivots->numel) NEED(lm_cpu_copy(pivots, *out));
  const int32_t *p = (const int32_t *)(*out)->data;
  int64_t n = pivots->size[pivots->ndim - 1];
  for (int64_t i = 0; i < pivots->numel; i++)
    if (p[i] < 1 || p[i] > rows) return lm_fail_bad_value(LM_BAD_PIVOT, lm_op_running_id(), i % n + 1, p[i], rows);
  return LM_OK;
}

lm_status lm_cpu_linalg_lu_solve(const lm_linalg_lu_solve_args *a, lm_tensor *const *out) {
  LM_OWNED *pivots = NULL, *lu = NULL;
  NEED(read_pivots(a->pivots, a->LU->size[a->LU->ndim - 1], &pivots));
  NEED(lm_row_major(a->LU, &lu));
  return solve("LU", lu, (lu_job){.lu = lu, .pivots = pivots}, a->B, a->left, a->adjoint, out[0]);
}

lm_status lm_cpu_lu_pivots_to_matrix(const lm_lu_pivots_to_matrix_args *a, lm_tensor *const *out) {
  LM_OWNED *pivots = NULL;
  lm_dtype dtype = out[0]->dtype;
  int m = (int)out[0]->size[out[0]->ndim - 1], k = (int)a->pivots->size[a->pivots->ndim - 1];
  NEED(read_pivots(a->pivots, m, &pivots));
  memset(out[0]->data, 0, lm_nbytes(out[0]));
  for (int64_t i = 0; i < lm_matrix_count(out[0]); i++) {
    void *p = lm_matrix_at(out[0], i);
    for (int d = 0; d < m; d++) lm_scalar_put(dtype, p, (int64_t)d * (m + 1), 1);
    lm_swap_rows(dtype, m, p, m, lm_vector_at(pivots, i), 0, k, true); /* P = S1 S2 …: from the last pivot on */
  }
  return LM_OK;
}
