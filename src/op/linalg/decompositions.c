/* Checks operands of linear algebra, and composes ops. Results are as LAPACK returns them: matrices that say `columns`
 * are column-major. Kernels get batches that may be broadcast (stride 0). */
#include <limits.h>
#include <string.h>

#include "base/message.h"
#include "op/operand_checks.h"

lm_status lm_check_matrix(lm_op_id op, const char *name, const lm_tensor *x) {
  NEED(lm_check_real(op, name, x));
  if (x->ndim < 2) return lm_fail_shape(lm_ops[op].name, name, "[*, m, n]", lm_shape_of(x));
  int64_t m = x->size[x->ndim - 2], n = x->size[x->ndim - 1];
  if (m > 1 << 20 || n > 1 << 20 || m * n > INT_MAX)
    return lm_fail_value(lm_ops[op].name, name, "at most 2^31 - 1 elements a matrix", lm_shape_of(x));
  return LM_OK;
}

lm_status lm_check_solves(lm_op_id op, const lm_tensor *A, const lm_tensor *B, bool left) {
  const char *name = op == LM_OP_linalg_lu_solve ? "LU" : "A";
  const int64_t n = A->size[A->ndim - 1];
  if (B->size[B->ndim - (left ? 2 : 1)] == n) return LM_OK;
  return lm_fail_shape(
      lm_ops[op].name, "B",
      lm_text(left ? "[*, %lld, k] for %s of %s" : "[*, k, %lld] for %s of %s", (long long)n, name, lm_shape_of(A)),
      lm_shape_of(B));
}

lm_status lm_check_pivots(lm_op_id op, const lm_tensor *pivots, const lm_tensor *LU) {
  const int last = LU->ndim - 2;
  const lm_ints batch = lm_sizes_between(LU->ndim, LU->size, 0, 2);
  if ((pivots->dtype == LM_I32 || pivots->dtype == LM_I64) && lm_sizes_are(&batch, pivots->ndim, pivots->size, 0, 1) &&
      pivots->size[last] == lm_min(LU->size[last], LU->size[last + 1]))
    return LM_OK;
  return lm_remedy(
      lm_fail_value(lm_ops[op].name, "pivots", lm_text("integers, one for each diagonal entry of %s", lm_shape_of(LU)),
                    lm_text("%s %s", lm_dtype_name(pivots->dtype), lm_shape_of(pivots))),
      "linalg.lu_factor returns them");
}

/* Solves L (L^T X) = B, or U^T (U X) = B. */
lm_status lm_op_cholesky_solve(const lm_cholesky_solve_args *a, lm_tensor **out) {
  LM_OWNED *transposed = NULL, *half = NULL;
  NEED(lm_check_matrix(LM_OP_cholesky_solve, "L", a->L));
  NEED(lm_op_transpose(&(lm_transpose_args){.x = a->L, .dim0 = -2, .dim1 = -1}, &transposed));
  lm_linalg_solve_triangular_args first = {.A = a->upper ? transposed : a->L, .B = a->B, .left = true}, second = first;
  NEED(lm_op_linalg_solve_triangular(&first, &half));
  second.A = a->upper ? a->L : transposed;
  second.B = half;
  second.upper = true;
  return lm_op_linalg_solve_triangular(&second, out);
}

/* Makes *t a contiguous float64 tensor on `device` with one tolerance for each matrix. NULL stays NULL. */
static lm_status expand_tolerances(lm_frame *f, const lm_ints *batch, lm_device device, lm_tensor **t) {
  if (!*t) return LM_OK;
  NEED(lm_frame_expand(f, t, batch, 0));
  return lm_frame_contiguous_in(f, t, LM_F64, device);
}

lm_status lm_op_linalg_pinv(const lm_linalg_pinv_args *a, lm_tensor **out) {
  lm_linalg_pinv_args run = *a;
  lm_ints size;
  LM_FRAME(f, LM_OP_linalg_pinv);
  NEED(lm_check_matrix(f.op, "A", a->A));
  const int64_t m = a->A->size[a->A->ndim - 2], n = a->A->size[a->A->ndim - 1];
  if (a->hermitian && m != n) return lm_fail_shape("linalg_pinv", "A", "[*, n, n]", lm_shape_of(a->A));
  const lm_ints batch = lm_sizes_between(a->A->ndim, a->A->size, 0, 2);
  NEED(expand_tolerances(&f, &batch, a->A->device, &run.atol));
  NEED(expand_tolerances(&f, &batch, a->A->device, &run.rtol));
  NEED(lm_sizes_join(&f, 0, NULL, &batch, 2, (int64_t[]){n, m}, &size));
  NEED(lm_frame_result(&f, 0, a->A->dtype, a->A->device, size.n, size.v, LM_CONTIGUOUS));
  lm_frame_columns(&f, 0);
  NEED(lm_frame_dispatch_or_host(&f, a->A->device, &run));
  return lm_frame_end(&f, out);
}
