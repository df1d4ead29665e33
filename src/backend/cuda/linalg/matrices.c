#include "backend/cuda/linalg/matrices.h"

static void set_column_major(lm_tensor *t) {
  t->stride[t->ndim - 2] = 1;
  t->stride[t->ndim - 1] = t->size[t->ndim - 2] > 0 ? t->size[t->ndim - 2] : 1;
}

lm_status lm_matrices_copy(lm_cuda_frame *f, const lm_tensor *x, int order, lm_tensor **out) {
  NEED(lm_cuda_take_tensor(f, x->dtype, x->ndim, x->size, out));
  if (order == LM_BY_COLUMNS) set_column_major(*out);
  return lm_cuda_copy(x, *out);
}

lm_status lm_matrices_scratch(const lm_solver_call *c, int64_t m, int64_t n, lm_tensor **out) {
  NEED(lm_cuda_take_tensor(c->f, c->dtype, 3, (int64_t[]){c->count, m, n}, out));
  set_column_major(*out);
  return LM_OK;
}

lm_status lm_matrices_take(lm_tensor *src, bool transposed, int64_t rows, int64_t columns, lm_tensor *dst) {
  LM_OWNED *part = NULL, *into = NULL;
  int64_t ld = lm_rows_of(src), size[3] = {lm_matrix_count(dst), rows, columns};
  int64_t from[3] = {ld * lm_columns_of(src), transposed ? ld : 1, transposed ? 1 : ld};
  int64_t to[3] = {(int64_t)lm_rows_of(dst) * lm_columns_of(dst), dst->stride[dst->ndim - 2],
                   dst->stride[dst->ndim - 1]};
  NEED(lm_tensor_view(src, 3, size, from, 0, &part));
  NEED(lm_tensor_view(dst, 3, size, to, 0, &into));
  return lm_cuda_copy(part, into);
}
