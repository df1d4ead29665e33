/* Computes QR, eigenvalues of symmetric matrices, singular values, pseudoinverses. All except QR wait for the device,
 * to report matrices that are not finite, which the library does not see, and to leave to the CPU those that did not
 * converge. Empty matrices are the CPU's. */
#include "backend/cuda/linalg/decompositions.h"

#include "backend/cuda/libraries/cublas.h"
#include "copy.h"
#include "index.h"
#include "linalg.h"

static int least_of(const lm_tensor *x) { return lm_rows_of(x) < lm_columns_of(x) ? lm_rows_of(x) : lm_columns_of(x); }

lm_status lm_solver_open_for(lm_cuda_frame *f, const lm_tensor *x, int64_t count, lm_solver_call *c) {
  if (least_of(x) == 0) return lm_fail(LM_E_MISSING, "%s: the matrix must not be empty", lm_op_running());
  return lm_solver_open(f, x, count, c);
}

/* ---- QR */

/* Computes QR. R is the upper triangle of geqrf's first rows: in its column-major memory, by rows, the lower one. */
lm_status lm_cuda_linalg_qr(const lm_linalg_qr_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *work, *tau, *q = out[0], *r = out[1];
  lm_solver_call c;
  int m = lm_rows_of(a->A), n = lm_columns_of(a->A), k = least_of(a->A);
  NEED(lm_solver_open_for(f, a->A, lm_matrix_count(a->A), &c));
  NEED(lm_matrices_copy(f, a->A, LM_BY_COLUMNS, &work));
  NEED(lm_solver_scratch(&c, k, &tau));
  NEED(lm_solver_geqrf(&c, m, n, work->data, tau->data));
  NEED(lm_matrices_take(work, false, lm_rows_of(r), n, r));
  NEED(LAUNCH("triangle",
              lm_index_triangle(c.stream, (int)c.item, r->numel, n, lm_rows_of(r), 0, false, r->data, r->data)));
  if (a->mode == LM_QR_R) return LM_OK;
  NEED(lm_matrices_take(work, false, m, k, q));
  return lm_solver_orgqr(&c, m, lm_columns_of(q), k, q->data, tau->data);
}

/* ---- eigenvalues */

static lm_status eigh_cuda(lm_cuda_frame *f, const lm_tensor *x, bool vectors, int triangle, lm_tensor *values,
                           lm_tensor *matrices) {
  lm_tensor *copy;
  lm_solver_call c;
  int n = lm_rows_of(x);
  NEED(lm_solver_open_for(f, x, lm_matrix_count(x), &c));
  if (vectors) {
    NEED(lm_cuda_copy(x, matrices));
  } else {
    NEED(lm_matrices_copy(f, x, LM_BY_COLUMNS, &copy));
    matrices = copy;
  }
  NEED(LAUNCH("only_finite", lm_k_only_finite(c.dtype, matrices->data, (int64_t)n * n, c.count, c.flag, c.stream)));
  NEED(lm_solver_syevd(&c, vectors, triangle != 0, n, matrices->data, values->data));
  return lm_solver_converged(&c, x);
}

lm_status lm_cuda_linalg_eigh(const lm_linalg_eigh_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return eigh_cuda(f, a->A, true, a->UPLO, out[0], out[1]);
}

lm_status lm_cuda_linalg_eigvalsh(const lm_linalg_eigvalsh_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return eigh_cuda(f, a->A, false, a->UPLO, out[0], NULL);
}

/* ---- singular values */

lm_status lm_svd_run(const lm_solver_call *c, lm_tensor *a, bool vectors, bool whole, lm_svd_parts *out) {
  int m = lm_rows_of(a), n = lm_columns_of(a), k = least_of(a);
  whole = lm_solver_is_complete(c, whole, m, n);
  NEED(lm_solver_scratch(c, k, &out->s));
  NEED(lm_matrices_scratch(c, m, whole ? m : k, &out->u));
  NEED(lm_matrices_scratch(c, n, whole ? n : k, &out->v));
  NEED(LAUNCH("only_finite", lm_k_only_finite(c->dtype, a->data, (int64_t)m * n, c->count, c->flag, c->stream)));
  return lm_solver_gesvd(c, vectors, whole, m, n, a->data, out->s->data, out->u->data, out->v->data);
}

static lm_status svd_cuda(lm_cuda_frame *f, const lm_tensor *x, bool whole, lm_tensor *u, lm_tensor *s, lm_tensor *vh) {
  lm_tensor *copy;
  lm_solver_call c;
  lm_svd_parts parts;
  NEED(lm_solver_open_for(f, x, lm_matrix_count(x), &c));
  NEED(lm_matrices_copy(f, x, LM_BY_COLUMNS, &copy));
  NEED(lm_svd_run(&c, copy, u != NULL, whole, &parts));
  NEED(lm_solver_converged(&c, x));
  NEED(lm_cuda_check(lm_copy_bytes(s->data, parts.s->data, lm_nbytes(s), c.stream), "cudaMemcpyAsync"));
  if (!u) return LM_OK;
  NEED(lm_matrices_take(parts.u, false, lm_rows_of(u), lm_columns_of(u), u));
  NEED(lm_matrices_take(parts.v, true, lm_rows_of(vh), lm_columns_of(vh), vh));
  return LM_OK;
}

lm_status lm_cuda_linalg_svd(const lm_linalg_svd_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return svd_cuda(f, a->A, a->full_matrices, out[0], out[1], out[2]);
}

lm_status lm_cuda_linalg_svdvals(const lm_linalg_svdvals_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return svd_cuda(f, a->A, false, NULL, out[0], NULL);
}

/* ---- the pseudoinverse: V diag(1 / s) U^T, without those s that count as 0 */

lm_status lm_columns_product(const lm_solver_call *c, const lm_columns_job *job) {
  bool done_ = false;
  lm_cuda_gemm_job gemm = {.shape = {.batch = c->count,
                                     .m = job->n,
                                     .n = job->m,
                                     .k = job->k,
                                     .lda = lm_rows_of(job->b),
                                     .ldb = lm_rows_of(job->a),
                                     .ldy = lm_rows_of(job->y),
                                     .step_a = (int64_t)lm_rows_of(job->b) * lm_columns_of(job->b),
                                     .step_b = (int64_t)lm_rows_of(job->a) * lm_columns_of(job->a),
                                     .step_y = (int64_t)lm_rows_of(job->y) * lm_columns_of(job->y),
                                     .dtype = c->dtype,
                                     .dtype_y = c->dtype,
                                     .ta = job->tb,
                                     .tb = job->ta},
                           .device = c->device,
                           .a = job->b->data,
                           .b = job->a->data,
                           .y = job->y->data,
                           .alpha = job->alpha,
                           .beta = job->beta};
  lm_status status = lm_cuda_gemm(&gemm, c->stream, &done_);
  if (status != LM_OK || done_) return status;
  return lm_fail(LM_E_MISSING, "%s: cuBLASLt has no kernel for this matrix product", lm_op_running());
}

lm_status lm_cuda_linalg_pinv(const lm_linalg_pinv_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *copy;
  lm_solver_call c;
  lm_svd_parts parts;
  int m = lm_rows_of(a->A), n = lm_columns_of(a->A), k = least_of(a->A);
  NEED(lm_solver_open_for(f, a->A, lm_matrix_count(a->A), &c));
  NEED(lm_matrices_copy(f, a->A, LM_BY_COLUMNS, &copy));
  if (a->hermitian) NEED(LAUNCH("mirror", lm_k_mirror(c.dtype, copy->data, n, c.count, c.stream)));
  NEED(lm_svd_run(&c, copy, true, false, &parts));
  lm_inverse_values job = {.dtype = c.dtype,
                           .rows = n,
                           .columns = k,
                           .k = k,
                           .count = c.count,
                           .x_step = (int64_t)n * lm_columns_of(parts.v),
                           .x = parts.v->data,
                           .s = parts.s->data,
                           .atol = a->atol ? (const double *)a->atol->data : NULL,
                           .rtol = a->rtol ? (const double *)a->rtol->data : NULL,
                           .rtol_all = (c.dtype == LM_F64 ? 0x1p-52 : 0x1p-23) * (m > n ? m : n)};
  NEED(LAUNCH("times_inverse", lm_k_times_inverse(&job, c.stream)));
  NEED(lm_columns_product(
      &c, &(lm_columns_job){.a = parts.v, .b = parts.u, .y = out[0], .m = n, .n = m, .k = k, .tb = true, .alpha = 1}));
  return lm_solver_converged(&c, a->A);
}
