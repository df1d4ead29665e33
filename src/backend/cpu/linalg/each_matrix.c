/* Batches of matrices: copies laid out for LAPACK, and threads. */
#include <limits.h>
#include <string.h>

#include "backend/cpu/linalg/lapack.h"
#include "backend/cpu/matmul/openblas.h"
#include "base/mem.h"
#include "base/message.h"

int64_t lm_matrix_count(const lm_tensor *x) {
  int64_t n = 1;
  for (int d = 0; d < x->ndim - 2; d++) n *= x->size[d];
  return n;
}

static lm_status copy_of(const lm_tensor *x, bool columns, lm_tensor **out) {
  lm_status status;
  lm_tensor *t = NULL;
  TRY(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &t));
  if (columns) {
    t->stride[x->ndim - 2] = 1;
    t->stride[x->ndim - 1] = x->size[x->ndim - 2] > 0 ? x->size[x->ndim - 2] : 1;
  }
  if (t->numel) TRY(lm_cpu_copy(x, t));
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}

lm_status lm_column_major(const lm_tensor *x, lm_tensor **out) { return copy_of(x, true, out); }

lm_status lm_row_major_copy(const lm_tensor *x, lm_tensor **out) { return copy_of(x, false, out); }

lm_status lm_row_major(const lm_tensor *x, lm_tensor **out) {
  if (!lm_is_contiguous(x)) return copy_of(x, false, out);
  *out = lm_retain((lm_tensor *)x);
  return LM_OK;
}

lm_status lm_each_matrix(int64_t count, double flops, size_t work, lm_matrix_fn *one, const void *job,
                         lm_bad_matrix *bad) {
  *bad = (lm_bad_matrix){0, -1};
  int parts = lm_cpu_share((double)count * (1000 + flops / 4));
  if (parts > count) parts = count > 0 ? (int)count : 1;
  work = (work + 127) / 64 * 64; /* parts of it do not share a line of the cache */
  char *scratch = lm_malloc(work * (size_t)parts);
  if (!scratch) return LM_E_OOM;
  if (!lm_blas_enter(2 * parts)) { /* some routines hold one buffer while they ask for another */
    lm_free(scratch);
    return lm_fail_memory("address space for OpenBLAS's buffers (ulimit -v)");
  }
  int64_t first = count;
  int info = 0;
#pragma omp parallel for num_threads(parts) schedule(static) if (parts > 1)
  for (int part = 0; part < parts; part++) {
    int64_t end = lm_cpu_share_begin(count, part + 1, parts);
    for (int64_t i = lm_cpu_share_begin(count, part, parts); i < end; i++) {
      int its = one(job, i, scratch + work * (size_t)part);
      if (its == 0) continue;
#pragma omp critical(lm_bad_matrix)
      if (i < first) {
        first = i;
        info = its;
      }
      break;
    }
  }
  lm_blas_leave(2 * parts);
  lm_free(scratch);
  if (first < count) *bad = (lm_bad_matrix){info, first};
  return LM_OK;
}

int lm_work_size(lm_dtype dtype, const lm_scalar *answer) {
  double n = lm_scalar_at(dtype, answer, 0) * (1 + 1e-6) + 8; /* float32 may have rounded it down */
  return n < INT_MAX / 2 ? (int)n : -1;
}
