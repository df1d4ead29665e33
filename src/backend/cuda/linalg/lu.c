/* By LU: inverses, determinants, solutions. The library's matrices are column-major, results row-major. What has to say
 * that a matrix is singular waits for the device, as in PyTorch; determinants, and solutions by given factors,
 * do not. */
#include <string.h>

#include "backend/cuda/linalg/matrices.h"
#include "linalg.h"

/* det and, if it is not NULL, sign, of matrices without entries as well; factors: of x, row-major, and the pivots. */
static lm_status determinants(const lm_tensor *x, lm_tensor *sign, lm_tensor *det, lm_tensor *const *factors) {
  lm_status status;
  lm_solver_call c;
  lm_tensor *lu = NULL;
  int n = lm_rows_of(x), *pivots = (int *)factors[1]->data;
  TRY(lm_solver_open(x, lm_matrices_count(x), &c));
  TRY(lm_matrices_copy(x, LM_BY_COLUMNS, &lu));
  if (lu->numel > 0) TRY(lm_solver_getrf(&c, n, n, lu->data, pivots));
  TRY(LAUNCH("determinants", lm_k_determinants(c.dtype, lu->data, pivots, c.info, n, c.count, sign ? sign->data : NULL,
                                               det->data, c.stream)));
  if (lu->numel > 0) TRY(lm_cuda_copy(lu, factors[0]));
done:
  lm_cuda_release(lu);
  lm_solver_close(&c);
  return status;
}

lm_status lm_cuda_det(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_det_args *)args)->x, NULL, out[0], out + 1);
}

lm_status lm_cuda_slogdet(const void *args, lm_tensor *const *out) {
  return determinants(((const lm_slogdet_args *)args)->x, out[0], out[1], out + 2);
}

/* lu becomes the factors of A that it holds, and the k columns at x the solutions; `transposed`: of the transposed one.
 */
static lm_status solve(const char *arg, const lm_tensor *A, lm_solver_call *c, lm_tensor *lu, int *pivots,
                       bool transposed, int k, void *x) {
  lm_status status;
  lm_bad_matrix bad;
  int n = lm_rows_of(A);
  TRY(lm_solver_getrf(c, n, n, lu->data, pivots));
  TRY(lm_solver_getrs(c, transposed, n, k, lu->data, pivots, x));
  TRY(lm_solver_infos(c, &bad));
  status = lm_matrix_singular(arg, A, bad);
done:
  return status;
}

/* By rows, what the library solves is the transposed equation, and its solution the transposed one. */
lm_status lm_cuda_inverse(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_tensor *x = ((const lm_inverse_args *)args)->x;
  lm_solver_call c;
  lm_tensor *lu = NULL, *pivots = NULL;
  int n = lm_rows_of(x);
  TRY(lm_solver_open(x, lm_matrices_count(x), &c));
  TRY(lm_matrices_copy(x, LM_BY_ROWS, &lu));
  TRY(lm_tensor_empty(LM_I32, c.device, 1, &(int64_t){c.count * n}, LM_CONTIGUOUS, &pivots));
  TRY(LAUNCH("identity", lm_k_identity(c.dtype, out[0]->data, n, c.count, c.stream)));
  status = solve("x", x, &c, lu, (int *)pivots->data, false, n, out[0]->data);
done:
  lm_cuda_release(lu);
  lm_cuda_release(pivots);
  lm_solver_close(&c);
  return status;
}

/* A copy of B as the library takes it: X A = B is A^T X^T = B^T. */
static lm_status right_sides(const lm_tensor *B, bool left, lm_tensor **out) {
  return lm_matrices_copy(B, left ? LM_BY_COLUMNS : LM_BY_ROWS, out);
}

lm_status lm_cuda_linalg_solve(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_solve_args *a = args;
  lm_solver_call c;
  lm_tensor *lu = NULL, *x = NULL;
  TRY(lm_solver_open(a->A, lm_matrices_count(out[0]), &c));
  TRY(lm_matrices_copy(a->A, LM_BY_COLUMNS, &lu));
  TRY(right_sides(a->B, a->left, &x));
  TRY(solve("A", a->A, &c, lu, (int *)out[2]->data, !a->left, a->left ? lm_columns_of(x) : lm_rows_of(x), x->data));
  TRY(lm_cuda_copy(x, out[0]));
  status = lm_cuda_copy(lu, out[1]);
done:
  lm_cuda_release(lu);
  lm_cuda_release(x);
  lm_solver_close(&c);
  return status;
}

lm_status lm_cuda_linalg_lu_factor(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_lu_factor_args *a = args;
  lm_solver_call c;
  lm_bad_matrix bad;
  lm_tensor *lu = NULL;
  TRY(lm_solver_open(a->A, lm_matrices_count(a->A), &c));
  TRY(lm_matrices_copy(a->A, LM_BY_COLUMNS, &lu));
  TRY(lm_solver_getrf(&c, lm_rows_of(a->A), lm_columns_of(a->A), lu->data, (int *)out[1]->data));
  TRY(lm_cuda_copy(lu, out[0]));
  if (!a->check) goto done;
  TRY(lm_solver_infos(&c, &bad));
  status = lm_matrix_singular("A", a->A, bad);
done:
  lm_cuda_release(lu);
  lm_solver_close(&c);
  return status;
}

/* Copies of pivots, as int32, each of which names a row: others are reported, and stand for no exchange. */
static lm_status checked_pivots(const lm_tensor *pivots, int64_t rows, void *stream, lm_tensor **out) {
  lm_bad bad;
  int64_t n = pivots->size[pivots->ndim - 1];
  NEED(lm_tensor_empty(LM_I32, pivots->device, pivots->ndim, pivots->size, LM_CONTIGUOUS, out));
  NEED(lm_cuda_copy(pivots, *out));
  NEED(lm_cuda_bad(pivots->device, &bad));
  if (pivots->numel)
    NEED(LAUNCH("check_pivots",
                lm_k_check_pivots((int *)(*out)->data, n, pivots->numel / n, rows, LM_BAD_PIVOT, bad, stream)));
  return LM_OK;
}

lm_status lm_cuda_linalg_lu_solve(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_linalg_lu_solve_args *a = args;
  lm_solver_call c;
  lm_tensor *lu = NULL, *pivots = NULL, *x = NULL;
  int n = lm_rows_of(a->LU), k = a->left ? lm_columns_of(out[0]) : lm_rows_of(out[0]);
  TRY(lm_solver_open(a->LU, lm_matrices_count(out[0]), &c));
  TRY(checked_pivots(a->pivots, n, c.stream, &pivots));
  TRY(lm_matrices_copy(a->LU, LM_BY_COLUMNS, &lu));
  TRY(right_sides(a->B, a->left, &x));
  TRY(lm_solver_getrs(&c, a->left == a->adjoint, n, k, lu->data, (int *)pivots->data, x->data));
  status = lm_cuda_copy(x, out[0]);
done:
  lm_cuda_release(x);
  lm_cuda_release(lu);
  lm_cuda_release(pivots);
  lm_solver_close(&c);
  return status;
}

lm_status lm_cuda_lu_pivots_to_matrix(const void *args, lm_tensor *const *out) {
  lm_status status;
  const lm_lu_pivots_to_matrix_args *a = args;
  lm_tensor *pivots = NULL, *scratch = NULL;
  void *stream;
  int64_t m = lm_rows_of(out[0]), k = a->pivots->size[a->pivots->ndim - 1], count = lm_matrices_count(out[0]);
  TRY(lm_cuda_enter(out[0]->device, &stream));
  TRY(checked_pivots(a->pivots, m, stream, &pivots));
  TRY(lm_tensor_empty(LM_I32, out[0]->device, 1, &(int64_t){count * m}, LM_CONTIGUOUS, &scratch));
  TRY(LAUNCH("permutations", lm_k_permutations(out[0]->dtype, (int *)pivots->data, k, m, count, (int *)scratch->data,
                                               out[0]->data, stream)));
done:
  lm_cuda_release(pivots);
  lm_cuda_release(scratch);
  return status;
}
