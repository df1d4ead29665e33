/* Computes Cholesky factors, for which it waits for the device, and solutions by a triangle, for which it does not. */
#include "backend/cuda/linalg/matrices.h"
#include "index.h"

/* Computes Cholesky factors. The library is column-major, so its upper triangle is our lower one. */
lm_status lm_cuda_cholesky(const lm_cholesky_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_solver_call c;
  lm_bad_matrix bad;
  int n = lm_rows_of(a->x);
  NEED(lm_solver_open(f, a->x, lm_matrix_count(a->x), &c));
  NEED(lm_cuda_copy(a->x, out[0]));
  NEED(lm_solver_potrf(&c, !a->upper, n, out[0]->data));
  NEED(LAUNCH("triangle",
              lm_index_triangle(c.stream, (int)c.item, out[0]->numel, n, n, 0, a->upper, out[0]->data, out[0]->data)));
  NEED(lm_solver_infos(&c, &bad));
  return lm_matrix_fail_not_positive("x", a->x, bad);
}

/* Solves for X. A is row-major, so the library sees A^T and is passed the opposite `transposed`. Without `left` X is
 * row-major too: X A = B is A^T X^T = B^T. */
lm_status lm_cuda_linalg_solve_triangular(const lm_linalg_solve_triangular_args *a, lm_tensor *const *out,
                                          lm_cuda_frame *f) {
  lm_solver_call c;
  lm_tensor *A, *X;
  int n = lm_rows_of(a->A), k = a->left ? lm_columns_of(out[0]) : lm_rows_of(out[0]);
  NEED(lm_solver_open(f, a->A, lm_matrix_count(out[0]), &c));
  NEED(lm_matrices_copy(f, a->A, LM_BY_ROWS, &A));
  NEED(lm_matrices_copy(f, a->B, a->left ? LM_BY_COLUMNS : LM_BY_ROWS, &X));
  lm_solver_triangle t = {.upper = !a->upper,
                          .transposed = a->left,
                          .ones = a->unitriangular,
                          .n = n,
                          .k = k,
                          .lda = n,
                          .ldb = n,
                          .a_step = (int64_t)n * n,
                          .b_step = (int64_t)n * k};
  NEED(lm_solver_trsm(&c, &t, A->data, X->data));
  return lm_cuda_copy(X, out[0]);
}
