#include "op/matmul_call.h"

#include "op/check.h"
#include "op/run.h"

void lm_product_spread(const lm_product_args *p, const lm_tensor *y, int64_t *stride) {
  for (int i = 0; i < y->ndim; i++) stride[i] = 0;
  for (int i = 1; i <= p->input->ndim; i++) {
    int d = p->input->ndim - i;
    stride[y->ndim - i] = p->input->size[d] == 1 ? 0 : p->input->stride[d];
  }
}

lm_status lm_matrix_describe(const lm_tensor *t, lm_dtype dtype, lm_matrix *m) {
  int r = t->ndim - 2, c = t->ndim - 1;
  int64_t rows = t->size[r], columns = t->size[c], row_step = t->stride[r], column_step = t->stride[c];
  *m = (lm_matrix){.t = t, .rows = rows, .columns = columns, .step = t->ndim == 3 ? t->stride[0] : 0};
  int64_t least_row = columns > 1 ? columns : 1, least_column = rows > 1 ? rows : 1;
  if (t->dtype == dtype && (column_step == 1 || columns <= 1) && (row_step >= least_row || rows <= 1)) {
    m->ld = rows <= 1 ? least_row : row_step;
  } else if (t->dtype == dtype && (row_step == 1 || rows <= 1) && (column_step >= least_column || columns <= 1)) {
    m->ld = columns <= 1 ? least_column : column_step;
    m->transposed = true;
  } else {
    NEED(lm_tensor_empty(dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, &m->copy));
    NEED(lm_copy(t, m->copy));
    m->t = m->copy;
    m->ld = least_row;
    m->step = t->ndim == 3 ? rows * columns : 0;
  }
  return LM_OK;
}

lm_status lm_product_sums(bool of_other, lm_tensor *sums, lm_tensor **out) {
  const int64_t n = sums->size[0];
  const int64_t size[] = {of_other ? 1 : n, of_other ? n : 1}, stride[] = {of_other ? n : 1, 1};
  return lm_tensor_view(sums, 2, size, stride, 0, out);
}

lm_status lm_product_add(lm_tensor *part, lm_tensor *y) {
  LM_OWNED *same = NULL;
  return lm_pointwise_run(LM_OP_add, 2, (lm_tensor *[]){y, part}, (double[]){1}, y, &same);
}

lm_status lm_product_gelu(lm_tensor *grad, const lm_tensor *before, lm_tensor *y) {
  LM_OWNED *same = NULL;
  lm_tensor *in[] = {grad ? grad : (lm_tensor *)before, (lm_tensor *)before};
  return lm_pointwise_run(grad ? LM_GRAD_gelu_tanh_x : LM_OP_gelu_tanh, grad ? 2 : 1, in, NULL, y, &same);
}
