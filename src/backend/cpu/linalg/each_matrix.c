/* Runs a function for each matrix of a batch, on several threads, and copies matrices to LAPACK's layout. */
#include <pthread.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "base/message.h"

static lm_status copy_matrices(const lm_tensor *x, bool columns, lm_tensor **out) {
  NEED(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, out));
  if (columns) {
    (*out)->stride[x->ndim - 2] = 1;
    (*out)->stride[x->ndim - 1] = lm_max(x->size[x->ndim - 2], 1);
  }
  return x->numel ? lm_cpu_copy(x, *out) : LM_OK;
}

lm_status lm_column_major(const lm_tensor *x, lm_tensor **out) { return copy_matrices(x, true, out); }

lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out) { return copy_matrices(x, false, out); }

lm_status lm_row_major(const lm_tensor *x, lm_tensor **out) {
  if (!lm_is_contiguous(x)) return copy_matrices(x, false, out);
  *out = lm_retain((lm_tensor *)x);
  return LM_OK;
}

typedef struct matrices_job {
  lm_matrix_fn *one;
  const void *job;
  pthread_mutex_t lock; /* guards `first`, the first matrix that failed, and `info` */
  int64_t first;
  int info;
} matrices_job;

static void run_matrices(void *ctx, int64_t begin, int64_t end) {
  matrices_job *m = ctx;
  for (int64_t i = begin; i < end; i++) {
    int info = m->one(m->job, i, lm_scratch());
    if (info == 0) continue;
    pthread_mutex_lock(&m->lock);
    if (i < m->first) m->first = i, m->info = info;
    pthread_mutex_unlock(&m->lock);
    break;
  }
}

static double matrices_ns(int64_t count, double flops) { return (double)count * (1000 + flops / 4); }

int lm_matrix_threads(int64_t count, double flops) { return lm_threads_for(matrices_ns(count, flops)); }

lm_status lm_each_matrix(int64_t count, double flops, size_t scratch, lm_matrix_fn *one, const void *job,
                         lm_bad_matrix *bad) {
  *bad = (lm_bad_matrix){0, -1};
  matrices_job matrices = {one, job, PTHREAD_MUTEX_INITIALIZER, count, 0};
  lm_status status = lm_parallel(count, matrices_ns(count, flops), scratch + 64, run_matrices, &matrices);
  if (matrices.first < count) *bad = (lm_bad_matrix){matrices.info, matrices.first};
  return status;
}
