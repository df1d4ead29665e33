/* Runs a function for each matrix of a batch, on several threads, and copies matrices to LAPACK's layout. */
#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "base/message.h"

int64_t lm_matrix_count(const lm_tensor *x) {
  int64_t n = 1;
  for (int d = 0; d < x->ndim - 2; d++) n *= x->size[d];
  return n;
}

static lm_status copy_of(const lm_tensor *x, bool columns, lm_tensor **out) {
  NEED(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, out));
  if (columns) {
    (*out)->stride[x->ndim - 2] = 1;
    (*out)->stride[x->ndim - 1] = lm_max(x->size[x->ndim - 2], 1);
  }
  return lm_cpu_copy(x, *out);
}

lm_status lm_column_major(const lm_tensor *x, lm_tensor **out) { return copy_of(x, true, out); }

lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out) { return copy_of(x, false, out); }

lm_status lm_row_major(const lm_tensor *x, lm_tensor **out) {
  if (!lm_is_contiguous(x)) return copy_of(x, false, out);
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

static double work_of(int64_t count, double flops) { return (double)count * (1000 + flops / 4); }

typedef struct lapack_loop {
  lm_parallel_fn *fn;
  void *ctx;
} lapack_loop;

/* Runs a part without OpenMP threads: an OpenBLAS built with OpenMP would have its own ones for each of ours. */
static void run_part(void *ctx, int64_t begin, int64_t end) {
  const lapack_loop *l = ctx;
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  l->fn(l->ctx, begin, end);
  omp_set_num_threads(threads);
}

lm_status lm_parallel_by_lapack(int64_t count, double work, size_t scratch, lm_parallel_fn *fn, void *ctx) {
  return lm_parallel(count, work, scratch, run_part, &(lapack_loop){fn, ctx});
}

lm_status lm_each_by_lapack(int64_t count, double flops, size_t scratch, lm_matrix_fn *one, const void *job,
                            lm_bad_matrix *bad) {
  *bad = (lm_bad_matrix){0, -1};
  matrices_job matrices = {one, job, PTHREAD_MUTEX_INITIALIZER, count, 0};
  const double work = work_of(count, flops);
  const int buffers = 2 * lm_threads_for(work); /* some routines hold one buffer while they ask for another */
  if (count == 0) return LM_OK;
  NEED(lm_openblas_enter(buffers));
  lm_status status = lm_parallel_by_lapack(count, work, scratch + 64, run_matrices, &matrices);
  lm_openblas_leave(buffers);
  if (matrices.first < count) *bad = (lm_bad_matrix){matrices.info, matrices.first};
  return status;
}
