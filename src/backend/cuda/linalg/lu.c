/* Computes inverses, determinants and solutions by LU. The library's matrices are column-major, results row-major. Ops
 * that report a singular matrix wait for the device, as in PyTorch; determinants, and solutions by given factors, do
 * not. */
#include <string.h>

#include "backend/cuda/linalg/matrices.h"
#include "linalg.h"

/* Computes det and, unless NULL, sign, of empty matrices too; factors: those of x, row-major, and the pivots. */
static lm_status determinants(lm_cuda_frame *f, const lm_tensor *x, lm_tensor *sign, lm_tensor *det,
                              lm_tensor *const *factors) {
  lm_solver_call c;
  lm_tensor *lu;
  int n = lm_rows_of(x), *pivots = (int *)factors[1]->data;
  NEED(lm_solver_open(f, x, lm_matrix_count(x), &c));
  NEED(lm_matrices_copy(f, x, LM_BY_COLUMNS, &lu));
  if (lu->numel > 0) NEED(lm_solver_getrf(&c, n, n, lu->data, pivots));
  NEED(LAUNCH("determinants", lm_k_determinants(c.dtype, lu->data, pivots, c.info, n, c.count, sign ? sign->data : NULL,
                                                det->data, c.stream)));
  if (lu->numel > 0) NEED(lm_cuda_copy(lu, factors[0]));
  return LM_OK;
}

lm_status lm_cuda_det(const lm_det_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return determinants(f, a->x, NULL, out[0], out + 1);
}

lm_status lm_cuda_slogdet(const lm_slogdet_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return determinants(f, a->x, out[0], out[1], out + 2);
}

/* Replaces lu by its factors, and the k columns at x by solutions; `transposed`: by those of A^T. `arg`: A's name in
 * errors. */
static lm_status lu_solve(const char *arg, const lm_tensor *A, lm_solver_call *c, lm_tensor *lu, int *pivots,
                          bool transposed, int k, void *x) {
  lm_bad_matrix bad;
  int n = lm_rows_of(A);
  NEED(lm_solver_getrf(c, n, n, lu->data, pivots));
  NEED(lm_solver_getrs(c, transposed, n, k, lu->data, pivots, x));
  NEED(lm_solver_infos(c, &bad));
  return lm_matrix_singular(arg, A, bad);
}

/* Inverts x. The library's matrix is the transpose of ours, and so is its solution. */
lm_status lm_cuda_inverse(const lm_inverse_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_tensor *x = a->x;
  lm_solver_call c;
  lm_tensor *lu, *pivots;
  int n = lm_rows_of(x);
  NEED(lm_solver_open(f, x, lm_matrix_count(x), &c));
  NEED(lm_matrices_copy(f, x, LM_BY_ROWS, &lu));
  NEED(lm_cuda_take_tensor(f, LM_I32, 1, &(int64_t){c.count * n}, &pivots));
  NEED(LAUNCH("identity", lm_k_identity(c.dtype, out[0]->data, n, c.count, c.stream)));
  return lu_solve("x", x, &c, lu, (int *)pivots->data, false, n, out[0]->data);
}

/* Copies B to the library's layout: X A = B is A^T X^T = B^T. */
static lm_status right_sides(lm_cuda_frame *f, const lm_tensor *B, bool left, lm_tensor **out) {
  return lm_matrices_copy(f, B, left ? LM_BY_COLUMNS : LM_BY_ROWS, out);
}

lm_status lm_cuda_linalg_solve(const lm_linalg_solve_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_solver_call c;
  lm_tensor *lu, *x;
  NEED(lm_solver_open(f, a->A, lm_matrix_count(out[0]), &c));
  NEED(lm_matrices_copy(f, a->A, LM_BY_COLUMNS, &lu));
  NEED(right_sides(f, a->B, a->left, &x));
  NEED(lu_solve("A", a->A, &c, lu, (int *)out[2]->data, !a->left, a->left ? lm_columns_of(x) : lm_rows_of(x), x->data));
  NEED(lm_cuda_copy(x, out[0]));
  return lm_cuda_copy(lu, out[1]);
}

lm_status lm_cuda_linalg_lu_factor(const lm_linalg_lu_factor_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_solver_call c;
  lm_bad_matrix bad;
  lm_tensor *lu;
  NEED(lm_solver_open(f, a->A, lm_matrix_count(a->A), &c));
  NEED(lm_matrices_copy(f, a->A, LM_BY_COLUMNS, &lu));
  NEED(lm_solver_getrf(&c, lm_rows_of(a->A), lm_columns_of(a->A), lu->data, (int *)out[1]->data));
  NEED(lm_cuda_copy(lu, out[0]));
  if (!a->check) return LM_OK;
  NEED(lm_solver_infos(&c, &bad));
  return lm_matrix_singular("A", a->A, bad);
}

/* Copies pivots to int32; one that is out of range is reported, and then exchanges nothing. */
static lm_status checked_pivots(lm_cuda_frame *f, const lm_tensor *pivots, int64_t rows, lm_tensor **out) {
  lm_bad bad;
  int64_t n = pivots->size[pivots->ndim - 1];
  NEED(lm_cuda_take_tensor(f, LM_I32, pivots->ndim, pivots->size, out));
  NEED(lm_cuda_copy(pivots, *out));
  NEED(lm_cuda_bad(pivots->device, &bad));
  if (pivots->numel)
    NEED(LAUNCH("check_pivots",
                lm_k_check_pivots((int *)(*out)->data, n, pivots->numel / n, rows, LM_BAD_PIVOT, bad, f->stream)));
  return LM_OK;
}

lm_status lm_cuda_linalg_lu_solve(const lm_linalg_lu_solve_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_solver_call c;
  lm_tensor *lu, *pivots, *x;
  int n = lm_rows_of(a->LU), k = a->left ? lm_columns_of(out[0]) : lm_rows_of(out[0]);
  NEED(lm_solver_open(f, a->LU, lm_matrix_count(out[0]), &c));
  NEED(checked_pivots(f, a->pivots, n, &pivots));
  NEED(lm_matrices_copy(f, a->LU, LM_BY_COLUMNS, &lu));
  NEED(right_sides(f, a->B, a->left, &x));
  NEED(lm_solver_getrs(&c, a->left == a->adjoint, n, k, lu->data, (int *)pivots->data, x->data));
  return lm_cuda_copy(x, out[0]);
}

lm_status lm_cuda_lu_pivots_to_matrix(const lm_lu_pivots_to_matrix_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *pivots, *scratch;
  int64_t m = lm_rows_of(out[0]), k = a->pivots->size[a->pivots->ndim - 1], count = lm_matrix_count(out[0]);
  NEED(checked_pivots(f, a->pivots, m, &pivots));
  NEED(lm_cuda_take_tensor(f, LM_I32, 1, &(int64_t){count * m}, &scratch));
  NEED(LAUNCH("permutations", lm_k_permutations(out[0]->dtype, (int *)pivots->data, k, m, count, (int *)scratch->data,
                                                out[0]->data, f->stream)));
  return LM_OK;
}
