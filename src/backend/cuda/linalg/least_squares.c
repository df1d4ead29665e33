/* Solves least squares: by QR if matrices have full rank (gels) and are not wide, else by singular values, whatever the
 * driver. The shortest X is returned, as on the CPU. Waits for the device, as eigenvalues do. */
#include "backend/cuda/linalg/decompositions.h"
#include "copy.h"
#include "linalg.h"

typedef struct lstsq {
  const lm_linalg_lstsq_args *a;
  lm_solver_call c;
  int m, n, k, least;
  lm_tensor *A, *B; /* copies, column-major */
  lm_tensor *const *out;
} lstsq;

static lm_status sum_squares(const lstsq *l, const lm_tensor *b, int from) {
  if (l->out[1]->numel == 0) return LM_OK;
  return LAUNCH("squares",
                lm_k_squares(l->c.dtype, b->data, from, l->m, l->k, l->c.count, l->out[1]->data, l->c.stream));
}

/* Solves by Q^T B, whose first rows are R X; the other rows are the residual. */
static lm_status solve_by_qr(lstsq *l) {
  lm_tensor *tau;
  const lm_solver_call *c = &l->c;
  lm_solver_triangle r = {.upper = true,
                          .n = l->n,
                          .k = l->k,
                          .lda = l->m,
                          .ldb = l->m,
                          .a_step = (int64_t)l->m * l->n,
                          .b_step = (int64_t)l->m * l->k};
  NEED(lm_solver_scratch(c, l->n, &tau));
  NEED(lm_solver_geqrf(c, l->m, l->n, l->A->data, tau->data));
  NEED(lm_solver_ormqr(c, l->m, l->k, l->n, l->A->data, tau->data, l->B->data));
  NEED(LAUNCH("zero_diagonals", lm_k_zero_diagonals(c->dtype, l->A->data, l->m, l->n, c->count, c->info, c->stream)));
  NEED(lm_solver_trsm(c, &r, l->A->data, l->B->data));
  NEED(lm_matrices_take(l->B, false, l->n, l->k, l->out[0]));
  return sum_squares(l, l->B, l->n);
}

/* Computes X = V diag(1 / s) U^T B; the residual is B - U U^T B. */
static lm_status solve_by_svd(lstsq *l) {
  lm_svd_parts parts;
  lm_tensor *transposed;
  const lm_solver_call *c = &l->c;
  double precision = c->dtype == LM_F64 ? 0x1p-52 : 0x1p-23, rcond = l->a->rcond;
  if (rcond != rcond) rcond = precision * (l->m > l->n ? l->m : l->n);
  if (rcond < 0) rcond = precision;
  if (l->a->driver == LM_GELS) rcond = 0;
  NEED(lm_svd_run(c, l->A, true, false, &parts));
  NEED(lm_matrices_scratch(c, l->least, l->k, &transposed));
  NEED(lm_columns_product(
      c, &(lm_columns_job){
             .a = parts.u, .b = l->B, .y = transposed, .m = l->least, .n = l->k, .k = l->m, .ta = true, .alpha = 1}));
  if (l->out[1]->numel > 0) {
    NEED(lm_columns_product(
        c, &(lm_columns_job){
               .a = parts.u, .b = transposed, .y = l->B, .m = l->m, .n = l->k, .k = l->least, .alpha = -1, .beta = 1}));
    NEED(sum_squares(l, l->B, 0));
  }
  lm_inverse_values job = {.dtype = c->dtype,
                           .by_rows = 1,
                           .rows = l->least,
                           .columns = l->k,
                           .k = l->least,
                           .count = c->count,
                           .x_step = (int64_t)l->least * l->k,
                           .x = transposed->data,
                           .s = parts.s->data,
                           .rtol_all = rcond,
                           .rank = l->out[2]->numel ? (int64_t *)l->out[2]->data : NULL};
  NEED(LAUNCH("times_inverse", lm_k_times_inverse(&job, c->stream)));
  NEED(lm_columns_product(
      c, &(lm_columns_job){
             .a = parts.v, .b = transposed, .y = l->out[0], .m = l->n, .n = l->k, .k = l->least, .alpha = 1}));
  if (l->out[3]->numel)
    NEED(lm_cuda_check(lm_copy_bytes(l->out[3]->data, parts.s->data, lm_nbytes(l->out[3]), c->stream),
                       "cudaMemcpyAsync"));
  return LM_OK;
}

lm_status lm_cuda_linalg_lstsq(const lm_linalg_lstsq_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lstsq l = {.a = a, .out = out, .m = lm_rows_of(a->A), .n = lm_columns_of(a->A), .k = lm_columns_of(a->B)};
  l.least = l.m < l.n ? l.m : l.n;
  NEED(lm_solver_open_for(f, a->A, lm_matrix_count(out[0]), &l.c));
  if (l.k == 0) { return lm_fail(LM_E_MISSING, "linalg_lstsq: B must not be empty"); }
  NEED(lm_matrices_copy(f, a->A, LM_BY_COLUMNS, &l.A));
  NEED(lm_matrices_copy(f, a->B, LM_BY_COLUMNS, &l.B));
  for (int i = 0; i < 2; i++) {
    const lm_tensor *x = i == 0 ? l.A : l.B;
    NEED(LAUNCH("only_finite", lm_k_only_finite(l.c.dtype, x->data, (int64_t)lm_rows_of(x) * lm_columns_of(x),
                                                l.c.count, l.c.flag, l.c.stream)));
  }
  NEED(a->driver == LM_GELS && l.m >= l.n ? solve_by_qr(&l) : solve_by_svd(&l));
  return lm_solver_converged(&l.c, a->A);
}
