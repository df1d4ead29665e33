/* Computes QR, and products of Householder matrices, by LAPACK. */
#include <string.h>

#include "backend/cpu/linalg/lapack.h"

/* Matrices are column-major; q has `columns` columns, at first the reflections, v_i below the diagonal of column i. */
typedef struct qr_job {
  lm_dtype dtype;
  size_t item;
  int m, n, min_mn, columns;
  const lm_tensor *a, *q, *r; /* q, r: NULL if not requested */
} qr_job;

static int orgqr(const qr_job *j, void *q, const void *tau, char *work) {
  const int numbers = lm_blocked_workspace(j->columns);
  int info = 0;
  if (j->m > 0 && j->columns > 0)
    LM_CALL(j->dtype, orgqr, &j->m, &j->columns, &j->min_mn, q, &j->m, tau, work, &numbers, &info);
  return info;
}

static int qr_one(const void *job, int64_t i, char *work) {
  const qr_job *j = job;
  const int rows = (int)j->r->size[j->r->ndim - 2], numbers = lm_blocked_workspace(j->n);
  char *a = lm_matrix_at(j->a, i), *r = lm_matrix_at(j->r, i), *tau = work;
  int info = 0;
  work += lm_round_up(j->item * (size_t)j->min_mn, 64);
  if (j->min_mn > 0) LM_CALL(j->dtype, geqrf, &j->m, &j->n, a, &j->m, tau, work, &numbers, &info);
  for (int c = 0; c < j->n; c++) {
    const int kept = lm_min(c + 1, rows);
    memcpy(r + j->item * (size_t)c * (size_t)rows, a + j->item * (size_t)c * (size_t)j->m, j->item * (size_t)kept);
    memset(r + j->item * ((size_t)c * (size_t)rows + (size_t)kept), 0, j->item * (size_t)(rows - kept));
  }
  if (!j->q || info != 0) return info;
  memcpy(lm_matrix_at(j->q, i), a, j->item * (size_t)j->m * (size_t)j->min_mn);
  return orgqr(j, lm_matrix_at(j->q, i), tau, work);
}

lm_status lm_cpu_linalg_qr(const void *args, lm_tensor *const *out) {
  const lm_linalg_qr_args *a = args;
  const lm_tensor *x = a->A;
  LM_OWNED *copy = NULL;
  lm_bad_matrix bad;
  NEED(lm_column_major(x, &copy));
  qr_job j = {.dtype = x->dtype,
              .item = lm_dtype_size(x->dtype),
              .m = (int)x->size[x->ndim - 2],
              .n = (int)x->size[x->ndim - 1],
              .a = copy,
              .r = out[1]};
  j.min_mn = lm_min(j.m, j.n);
  if (a->mode != LM_QR_R) {
    j.q = out[0];
    j.columns = (int)out[0]->size[out[0]->ndim - 1];
  }
  const size_t work =
      lm_round_up(j.item * (size_t)j.min_mn, 64) + j.item * (size_t)lm_blocked_workspace(lm_max(j.n, j.columns));
  return lm_each_by_lapack(lm_matrix_count(x), 2.0 * j.m * j.n * (j.min_mn + j.columns), work, qr_one, &j, &bad);
}

static int orgqr_one(const void *job, int64_t i, char *work) {
  const qr_job *j = job;
  return orgqr(j, lm_matrix_at(j->q, i), lm_vector_at(j->a, i), work);
}

/* Computes H1 H2 … Hk with Hi = 1 - tau_i v_i v_i^T: v_i has a 1 at i, zeros above it, and the column i of x below. */
lm_status lm_cpu_orgqr(const void *args, lm_tensor *const *out) {
  const lm_orgqr_args *a = args;
  LM_OWNED *q = NULL;
  lm_bad_matrix bad;
  NEED(lm_column_major(a->x, &q));
  const qr_job j = {.dtype = q->dtype,
                    .m = (int)q->size[q->ndim - 2],
                    .columns = (int)q->size[q->ndim - 1],
                    .min_mn = (int)a->tau->size[a->tau->ndim - 1],
                    .a = a->tau,
                    .q = q};
  NEED(lm_each_by_lapack(lm_matrix_count(q), 4.0 * j.m * j.columns * j.min_mn,
                         lm_dtype_size(q->dtype) * (size_t)lm_blocked_workspace(j.columns), orgqr_one, &j, &bad));
  return lm_cpu_copy(q, out[0]);
}
