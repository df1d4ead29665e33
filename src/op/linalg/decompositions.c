/* Linear algebra: checks, and results laid out as LAPACK wants them. Matrices that say so are column-major: dense, with
 * the last two dims exchanged in memory. Slots get batches that may be broadcast (stride 0) and no empty results alone:
 * where every result is empty they are not called. */
#include <limits.h>
#include <string.h>

#include "base/message.h"
#include "op/check.h"

enum { ROWS, COLUMNS }; /* what lies together in memory */

static lm_status check_matrix(lm_op_id op, const char *arg, const lm_tensor *x, bool square) {
  const char *name = lm_ops[op].name;
  if (x->dtype != LM_F32 && x->dtype != LM_F64)
    return lm_remedy(lm_fail_dtype(name, arg, "float32 or float64", lm_dtype_name(x->dtype)),
                     "convert it with :float()");
  if (x->ndim < 2) return lm_fail_shape(name, arg, "[*, m, n]", lm_shape_of(x));
  int64_t m = x->size[x->ndim - 2], n = x->size[x->ndim - 1];
  if (square && m != n) return lm_fail_shape(name, arg, "[*, n, n]", lm_shape_of(x));
  if (m > 1 << 20 || n > 1 << 20 || m * n > INT_MAX)
    return lm_fail_value(name, arg, "at most 2^31 - 1 elements a matrix", lm_shape_of(x));
  return LM_OK;
}

static lm_status check_same_dtype(lm_op_id op, const char *first, const lm_tensor *a, const char *second,
                                  const lm_tensor *b) {
  if (a->dtype == b->dtype) return lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)a, (lm_tensor *)b});
  return lm_fail_dtypes(lm_ops[op].name, first, lm_dtype_name(a->dtype), second, lm_dtype_name(b->dtype));
}

/* A tensor of [batch..., m, n]. */
static lm_status new_matrices(const lm_tensor *like, int nbatch, const int64_t *batch, int64_t m, int64_t n, int order,
                              lm_tensor **out) {
  int64_t size[LM_MAX_DIMS];
  memcpy(size, batch, sizeof *size * (size_t)nbatch);
  size[nbatch] = m;
  size[nbatch + 1] = n;
  lm_status status = lm_tensor_empty(like->dtype, like->device, nbatch + 2, size, LM_CONTIGUOUS, out);
  if (status == LM_OK && order == COLUMNS) {
    (*out)->stride[nbatch] = 1;
    (*out)->stride[nbatch + 1] = m > 0 ? m : 1;
  }
  return status;
}

static lm_status new_vectors(const lm_tensor *like, lm_dtype dtype, int64_t n, lm_tensor **out) {
  int64_t size[LM_MAX_DIMS];
  memcpy(size, like->size, sizeof size);
  size[like->ndim - 2] = n;
  return lm_tensor_empty(dtype, like->device, like->ndim - 1, size, LM_CONTIGUOUS, out);
}

static lm_status new_numbers(const lm_tensor *like, lm_dtype dtype, lm_tensor **out) {
  return lm_tensor_empty(dtype, like->device, like->ndim - 2, like->size, LM_CONTIGUOUS, out);
}

/* Runs the kernel and hands the results over; else they go. */
static lm_status finish(lm_op_id op, lm_status status, lm_device device, const void *args, int n, lm_tensor **result,
                        lm_tensor **out) {
  bool any = false;
  for (int i = 0; i < n && status == LM_OK; i++) any = any || result[i]->numel > 0;
  if (any) status = lm_dispatch_or_host(op, device, args, result);
  for (int i = 0; i < n; i++) {
    if (status == LM_OK)
      out[i] = result[i];
    else
      lm_release(result[i]);
  }
  return status;
}
#define FINISH(name, like, n) finish(LM_OP_##name, status, (like)->device, a, n, result, out)

static int64_t rows_of(const lm_tensor *x) { return x->size[x->ndim - 2]; }
static int64_t columns_of(const lm_tensor *x) { return x->size[x->ndim - 1]; }

lm_status lm_op_inverse(const lm_inverse_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_matrix(LM_OP_inverse, "x", a->x, true));
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, a->x->ndim, a->x->size, LM_CONTIGUOUS, &result[0]));
done:
  return FINISH(inverse, a->x, 1);
}

/* Room for P L U of x and its pivots, with the batch of `like`. */
static lm_status new_factors(const lm_tensor *x, const lm_tensor *like, lm_tensor **factors) {
  lm_status status;
  TRY(new_matrices(x, like->ndim - 2, like->size, rows_of(x), columns_of(x), ROWS, &factors[0]));
  TRY(new_vectors(factors[0], LM_I32, lm_min(rows_of(x), columns_of(x)), &factors[1]));
done:
  return status;
}

lm_status lm_op_det(const lm_det_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[3] = {NULL};
  TRY(check_matrix(LM_OP_det, "x", a->x, true));
  TRY(new_numbers(a->x, a->x->dtype, &result[0]));
  TRY(new_factors(a->x, a->x, result + 1));
done:
  return FINISH(det, a->x, 3);
}

lm_status lm_op_slogdet(const lm_slogdet_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[4] = {NULL};
  TRY(check_matrix(LM_OP_slogdet, "x", a->x, true));
  for (int i = 0; i < 2; i++) TRY(new_numbers(a->x, a->x->dtype, &result[i]));
  TRY(new_factors(a->x, a->x, result + 2));
done:
  return FINISH(slogdet, a->x, 4);
}

lm_status lm_op_cholesky(const lm_cholesky_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_matrix(LM_OP_cholesky, "x", a->x, true));
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, a->x->ndim, a->x->size, LM_CONTIGUOUS, &result[0]));
done:
  return FINISH(cholesky, a->x, 1);
}

/* A (and LU) [..., n, n] beside B [..., n, k], or [..., k, n] without left: the result is of B's sizes, its batch that
 * of both. With `left` it is row-major, else the transposed one is. */
static lm_status solution(lm_op_id op, const char *first, const lm_tensor *A, const lm_tensor *B, bool left,
                          lm_tensor **out) {
  lm_status status;
  const char *name = lm_ops[op].name;
  int64_t batch[LM_MAX_DIMS], n;
  int nbatch;
  TRY(check_matrix(op, first, A, true));
  TRY(check_matrix(op, "B", B, false));
  TRY(check_same_dtype(op, first, A, "B", B));
  n = left ? rows_of(B) : columns_of(B);
  if (n != rows_of(A)) {
    status = lm_fail_shape(name, "B",
                           lm_text(left ? "[*, %lld, k] for %s of %s" : "[*, k, %lld] for %s of %s",
                                   (long long)rows_of(A), first, lm_shape_of(A)),
                           lm_shape_of(B));
    goto done;
  }
  TRY(lm_broadcast(name, A->ndim - 2, A->size, B->ndim - 2, B->size, &nbatch, batch));
  status = new_matrices(B, nbatch, batch, rows_of(B), columns_of(B), left ? ROWS : COLUMNS, out);
done:
  return status;
}

/* t with the leading dims of `like`: [batch..., last dims of t]. */
static lm_status broadcast_to(lm_tensor *t, int last, const lm_tensor *like, lm_tensor **out) {
  lm_ints size = {.n = like->ndim - 2 + last};
  memcpy(size.v, like->size, sizeof *size.v * (size_t)(like->ndim - 2));
  for (int i = 0; i < last; i++) size.v[like->ndim - 2 + i] = t->size[t->ndim - last + i];
  return lm_op_expand(&(lm_expand_args){.x = t, .size = size}, out);
}

lm_status lm_op_linalg_solve(const lm_linalg_solve_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[3] = {NULL}, *A = NULL, *B = NULL;
  lm_linalg_solve_args wide = *a;
  TRY(solution(LM_OP_linalg_solve, "A", a->A, a->B, a->left, &result[0]));
  TRY(new_factors(a->A, result[0], result + 1));
  TRY(broadcast_to(a->A, 2, result[0], &A));
  TRY(broadcast_to(a->B, 2, result[0], &B));
  wide.A = A;
  wide.B = B;
done:
  status = finish(LM_OP_linalg_solve, status, a->A->device, &wide, 3, result, out);
  lm_release(A);
  lm_release(B);
  return status;
}

lm_status lm_op_linalg_solve_triangular(const lm_linalg_solve_triangular_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL}, *A = NULL, *B = NULL;
  lm_linalg_solve_triangular_args wide = *a;
  TRY(solution(LM_OP_linalg_solve_triangular, "A", a->A, a->B, a->left, &result[0]));
  TRY(broadcast_to(a->A, 2, result[0], &A));
  TRY(broadcast_to(a->B, 2, result[0], &B));
  wide.A = A;
  wide.B = B;
done:
  status = finish(LM_OP_linalg_solve_triangular, status, a->A->device, &wide, 1, result, out);
  lm_release(A);
  lm_release(B);
  return status;
}

lm_status lm_op_row_distances(const lm_row_distances_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL}, *x1 = NULL, *x2 = NULL;
  lm_row_distances_args wide = *a;
  int64_t batch[LM_MAX_DIMS];
  int nbatch;
  TRY(check_matrix(LM_OP_row_distances, "x1", a->x1, false));
  TRY(check_matrix(LM_OP_row_distances, "x2", a->x2, false));
  TRY(check_same_dtype(LM_OP_row_distances, "x1", a->x1, "x2", a->x2));
  if (columns_of(a->x1) != columns_of(a->x2)) {
    status = lm_fail(LM_E_SHAPE,
                     "row_distances: expected x1 and x2 to have shapes [..., n, m] and [..., r, m], got %s and %s",
                     lm_shape_of(a->x1), lm_shape_of(a->x2));
    goto done;
  }
  TRY(lm_broadcast("row_distances", a->x1->ndim - 2, a->x1->size, a->x2->ndim - 2, a->x2->size, &nbatch, batch));
  TRY(new_matrices(a->x1, nbatch, batch, rows_of(a->x1), rows_of(a->x2), ROWS, &result[0]));
  TRY(broadcast_to(a->x1, 2, result[0], &x1));
  TRY(broadcast_to(a->x2, 2, result[0], &x2));
  wide.x1 = x1;
  wide.x2 = x2;
done:
  status = finish(LM_OP_row_distances, status, a->x1->device, &wide, 1, result, out);
  lm_release(x1);
  lm_release(x2);
  return status;
}

lm_status lm_op_row_distances_backward(const lm_row_distances_backward_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL}, *x1 = NULL, *x2 = NULL;
  lm_row_distances_backward_args wide = *a;
  TRY(check_matrix(LM_OP_row_distances_backward, "grad", a->grad, false));
  TRY(check_matrix(LM_OP_row_distances_backward, "x1", a->x1, false));
  TRY(check_matrix(LM_OP_row_distances_backward, "x2", a->x2, false));
  TRY(check_same_dtype(LM_OP_row_distances_backward, "grad", a->grad, "x1", a->x1));
  TRY(check_same_dtype(LM_OP_row_distances_backward, "x1", a->x1, "x2", a->x2));
  if (columns_of(a->x1) != columns_of(a->x2) || rows_of(a->grad) != rows_of(a->x1) ||
      columns_of(a->grad) != rows_of(a->x2)) {
    status = lm_fail(LM_E_SHAPE,
                     "row_distances_backward: expected grad, x1 and x2 to have shapes [..., n, r], [..., n, m] and "
                     "[..., r, m], got %s, %s and %s",
                     lm_shape_of(a->grad), lm_shape_of(a->x1), lm_shape_of(a->x2));
    goto done;
  }
  TRY(new_matrices(a->x1, a->grad->ndim - 2, a->grad->size, rows_of(a->x1), columns_of(a->x1), ROWS, &result[0]));
  TRY(broadcast_to(a->x1, 2, result[0], &x1));
  TRY(broadcast_to(a->x2, 2, result[0], &x2));
  wide.x1 = x1;
  wide.x2 = x2;
done:
  status = finish(LM_OP_row_distances_backward, status, a->x1->device, &wide, 1, result, out);
  lm_release(x1);
  lm_release(x2);
  return status;
}

static int64_t pairs_of(int64_t n) { return n > 1 ? n * (n - 1) / 2 : 0; }

/* A matrix that is no batch. */
static lm_status check_one_matrix(lm_op_id op, const lm_tensor *x, bool square) {
  if (x->ndim <= 2) return check_matrix(op, "x", x, square);
  return lm_fail_shape(lm_ops[op].name, "x", "[m, n]", lm_shape_of(x));
}

lm_status lm_op_pair_distances(const lm_pair_distances_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_one_matrix(LM_OP_pair_distances, a->x, false));
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, 1, (int64_t[]){pairs_of(rows_of(a->x))}, LM_CONTIGUOUS, &result[0]));
done:
  return FINISH(pair_distances, a->x, 1);
}

lm_status lm_op_matrix_to_pairs(const lm_matrix_to_pairs_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_one_matrix(LM_OP_matrix_to_pairs, a->x, true));
  TRY(lm_tensor_empty(a->x->dtype, a->x->device, 1, (int64_t[]){pairs_of(rows_of(a->x))}, LM_CONTIGUOUS, &result[0]));
done:
  return FINISH(matrix_to_pairs, a->x, 1);
}

lm_status lm_op_pairs_to_matrix(const lm_pairs_to_matrix_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *result[1] = {NULL};
  const lm_tensor *x = a->x;
  if (x->dtype != LM_F32 && x->dtype != LM_F64) {
    status = lm_remedy(lm_fail_dtype("pairs_to_matrix", "x", "float32 or float64", lm_dtype_name(x->dtype)),
                       "convert it with :float()");
  } else if (a->n < 0 || a->n > 1 << 15 || x->ndim != 1 || x->numel != pairs_of(a->n)) {
    status =
        lm_fail_shape("pairs_to_matrix", "x",
                      lm_text("[n (n - 1) / 2] for n = %lld, at most %d", (long long)a->n, 1 << 15), lm_shape_of(x));
  } else {
    status = lm_tensor_empty(x->dtype, x->device, 2, (int64_t[]){a->n, a->n}, LM_CONTIGUOUS, &result[0]);
  }
  return FINISH(pairs_to_matrix, x, 1);
}

/* L (L^T X) = B, or U^T (U X) = B. */
lm_status lm_op_cholesky_solve(const lm_cholesky_solve_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *transposed = NULL, *half = NULL;
  TRY(check_matrix(LM_OP_cholesky_solve, "L", a->L, true));
  TRY(lm_op_transpose(&(lm_transpose_args){.x = a->L, .dim0 = -2, .dim1 = -1}, &transposed));
  lm_linalg_solve_triangular_args first = {.A = a->upper ? transposed : a->L, .B = a->B, .left = true}, second = first;
  TRY(lm_op_linalg_solve_triangular(&first, &half));
  second.A = a->upper ? a->L : transposed;
  second.B = half;
  second.upper = true;
  status = lm_op_linalg_solve_triangular(&second, out);
done:
  lm_release(transposed);
  lm_release(half);
  return status;
}

static lm_status check_pivots(lm_op_id op, const lm_tensor *pivots, const lm_tensor *LU) {
  bool fits = (pivots->dtype == LM_I32 || pivots->dtype == LM_I64) && pivots->ndim == LU->ndim - 1;
  for (int d = 0; fits && d < LU->ndim - 2; d++) fits = pivots->size[d] == LU->size[d];
  if (fits && pivots->size[LU->ndim - 2] == lm_min(rows_of(LU), columns_of(LU)))
    return lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)pivots, (lm_tensor *)LU});
  return lm_remedy(
      lm_fail_value(lm_ops[op].name, "pivots", lm_text("integers, one for each diagonal entry of %s", lm_shape_of(LU)),
                    lm_text("%s %s", lm_dtype_name(pivots->dtype), lm_shape_of(pivots))),
      "linalg.lu_factor returns them");
}

lm_status lm_op_linalg_lu_solve(const lm_linalg_lu_solve_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL}, *LU = NULL, *pivots = NULL, *B = NULL;
  lm_linalg_lu_solve_args wide = *a;
  TRY(solution(LM_OP_linalg_lu_solve, "LU", a->LU, a->B, a->left, &result[0]));
  TRY(check_pivots(LM_OP_linalg_lu_solve, a->pivots, a->LU));
  TRY(broadcast_to(a->LU, 2, result[0], &LU));
  TRY(broadcast_to(a->pivots, 1, result[0], &pivots));
  TRY(broadcast_to(a->B, 2, result[0], &B));
  wide = (lm_linalg_lu_solve_args){.LU = LU, .pivots = pivots, .B = B, .left = a->left, .adjoint = a->adjoint};
done:
  status = finish(LM_OP_linalg_lu_solve, status, a->LU->device, &wide, 1, result, out);
  lm_release(LU);
  lm_release(pivots);
  lm_release(B);
  return status;
}

lm_status lm_op_linalg_lu_factor(const lm_linalg_lu_factor_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[2] = {NULL, NULL};
  TRY(check_matrix(LM_OP_linalg_lu_factor, "A", a->A, false));
  TRY(new_factors(a->A, a->A, result));
done:
  return FINISH(linalg_lu_factor, a->A, 2);
}

lm_status lm_op_lu_pivots_to_matrix(const lm_lu_pivots_to_matrix_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_matrix(LM_OP_lu_pivots_to_matrix, "like", a->like, false));
  TRY(check_pivots(LM_OP_lu_pivots_to_matrix, a->pivots, a->like));
  TRY(new_matrices(a->like, a->like->ndim - 2, a->like->size, rows_of(a->like), rows_of(a->like), ROWS, &result[0]));
done:
  return FINISH(lu_pivots_to_matrix, a->like, 1);
}

lm_status lm_op_linalg_qr(const lm_linalg_qr_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[2] = {NULL, NULL};
  TRY(check_matrix(LM_OP_linalg_qr, "A", a->A, false));
  int64_t m = rows_of(a->A), n = columns_of(a->A), k = a->mode == LM_QR_COMPLETE ? m : lm_min(m, n);
  if (a->mode == LM_QR_R)
    TRY(lm_tensor_empty(a->A->dtype, a->A->device, 1, (int64_t[]){0}, LM_CONTIGUOUS, &result[0]));
  else
    TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, m, k, COLUMNS, &result[0]));
  TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, k, n, COLUMNS, &result[1]));
done:
  return FINISH(linalg_qr, a->A, 2);
}

lm_status lm_op_linalg_eigh(const lm_linalg_eigh_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[2] = {NULL, NULL};
  TRY(check_matrix(LM_OP_linalg_eigh, "A", a->A, true));
  TRY(new_vectors(a->A, a->A->dtype, rows_of(a->A), &result[0]));
  TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, rows_of(a->A), rows_of(a->A), COLUMNS, &result[1]));
done:
  return FINISH(linalg_eigh, a->A, 2);
}

lm_status lm_op_linalg_eigvalsh(const lm_linalg_eigvalsh_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_matrix(LM_OP_linalg_eigvalsh, "A", a->A, true));
  TRY(new_vectors(a->A, a->A->dtype, rows_of(a->A), &result[0]));
done:
  return FINISH(linalg_eigvalsh, a->A, 1);
}

lm_status lm_op_linalg_svd(const lm_linalg_svd_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[3] = {NULL, NULL, NULL};
  TRY(check_matrix(LM_OP_linalg_svd, "A", a->A, false));
  int64_t m = rows_of(a->A), n = columns_of(a->A), k = lm_min(m, n);
  TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, m, a->full_matrices ? m : k, COLUMNS, &result[0]));
  TRY(new_vectors(a->A, a->A->dtype, k, &result[1]));
  TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, a->full_matrices ? n : k, n, COLUMNS, &result[2]));
done:
  return FINISH(linalg_svd, a->A, 3);
}

lm_status lm_op_linalg_svdvals(const lm_linalg_svdvals_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL};
  TRY(check_matrix(LM_OP_linalg_svdvals, "A", a->A, false));
  TRY(new_vectors(a->A, a->A->dtype, lm_min(rows_of(a->A), columns_of(a->A)), &result[0]));
done:
  return FINISH(linalg_svdvals, a->A, 1);
}

/* A tolerance as float64 for each matrix, on the device; NULL stays. */
static lm_status tolerances(lm_tensor *t, const lm_tensor *A, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *wide = NULL, *numbers = NULL;
  *out = NULL;
  if (!t) return LM_OK;
  lm_ints size = {.n = A->ndim - 2};
  memcpy(size.v, A->size, sizeof *size.v * (size_t)(A->ndim - 2));
  TRY(lm_op_expand(&(lm_expand_args){.x = t, .size = size}, &wide));
  TRY(lm_tensor_empty(LM_F64, t->device, size.n, size.v, LM_CONTIGUOUS, &numbers));
  TRY(lm_copy(wide, numbers));
  *out = numbers;
  numbers = NULL;
done:
  lm_release(wide);
  lm_release(numbers);
  return status;
}

lm_status lm_op_linalg_pinv(const lm_linalg_pinv_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[1] = {NULL}, *atol = NULL, *rtol = NULL;
  lm_linalg_pinv_args given = *a;
  TRY(check_matrix(LM_OP_linalg_pinv, "A", a->A, a->hermitian));
  TRY(tolerances(a->atol, a->A, &atol));
  TRY(tolerances(a->rtol, a->A, &rtol));
  given.atol = atol;
  given.rtol = rtol;
  TRY(new_matrices(a->A, a->A->ndim - 2, a->A->size, columns_of(a->A), rows_of(a->A), COLUMNS, &result[0]));
done:
  status = finish(LM_OP_linalg_pinv, status, a->A->device, &given, 1, result, out);
  lm_release(atol);
  lm_release(rtol);
  return status;
}

lm_status lm_op_linalg_lstsq(const lm_linalg_lstsq_args *a, lm_tensor **out) {
  lm_status status;
  lm_tensor *result[4] = {NULL}, *A = NULL, *B = NULL;
  lm_linalg_lstsq_args wide = *a;
  const lm_tensor *x;
  int64_t batch[LM_MAX_DIMS], m, n, k;
  int nbatch;
  TRY(check_matrix(LM_OP_linalg_lstsq, "A", a->A, false));
  TRY(check_matrix(LM_OP_linalg_lstsq, "B", a->B, false));
  TRY(check_same_dtype(LM_OP_linalg_lstsq, "A", a->A, "B", a->B));
  m = rows_of(a->A), n = columns_of(a->A), k = columns_of(a->B);
  if (rows_of(a->B) != m) {
    status = lm_fail_shape("linalg_lstsq", "B", lm_text("[*, %lld, k] for A of %s", (long long)m, lm_shape_of(a->A)),
                           lm_shape_of(a->B));
    goto done;
  }
  TRY(lm_broadcast("linalg_lstsq", a->A->ndim - 2, a->A->size, a->B->ndim - 2, a->B->size, &nbatch, batch));
  TRY(new_matrices(a->A, nbatch, batch, n, k, COLUMNS, &result[0]));
  x = result[0];
  if (m > n && a->driver != LM_GELSY)
    TRY(new_vectors(x, x->dtype, k, &result[1]));
  else
    TRY(lm_tensor_empty(x->dtype, x->device, 1, (int64_t[]){0}, LM_CONTIGUOUS, &result[1]));
  if (a->driver == LM_GELS)
    TRY(lm_tensor_empty(LM_I64, x->device, 1, (int64_t[]){0}, LM_CONTIGUOUS, &result[2]));
  else
    TRY(new_numbers(x, LM_I64, &result[2]));
  if (a->driver == LM_GELSD || a->driver == LM_GELSS)
    TRY(new_vectors(x, x->dtype, lm_min(m, n), &result[3]));
  else
    TRY(lm_tensor_empty(x->dtype, x->device, 1, (int64_t[]){0}, LM_CONTIGUOUS, &result[3]));
  TRY(broadcast_to(a->A, 2, x, &A));
  TRY(broadcast_to(a->B, 2, x, &B));
  wide.A = A;
  wide.B = B;
done:
  status = finish(LM_OP_linalg_lstsq, status, a->A->device, &wide, 4, result, out);
  lm_release(A);
  lm_release(B);
  return status;
}
