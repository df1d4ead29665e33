/* mm, bmm, addmm, linear: from tensors of any strides to matrices a library takes. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/onednn.h"

/* The last two dims of a tensor as a matrix, with the batch dim of a 3-d one before them. */
typedef struct matrix {
  const lm_tensor *t; /* the tensor itself, or `copy` */
  lm_tensor *copy;
  int64_t rows, columns, ld, step;
  bool transposed;
} matrix;

/* Without a copy where one of the two dims is contiguous and the dtype is right. */
static lm_status matrix_of(const lm_tensor *t, lm_dtype dtype, matrix *m) {
  lm_status status = LM_OK;
  int r = t->ndim - 2, c = t->ndim - 1;
  int64_t rows = t->size[r], columns = t->size[c], row_step = t->stride[r], column_step = t->stride[c];
  *m = (matrix){.t = t, .rows = rows, .columns = columns, .step = t->ndim == 3 ? t->stride[0] : 0};
  int64_t least_row = columns > 1 ? columns : 1, least_column = rows > 1 ? rows : 1;
  if (t->dtype == dtype && (column_step == 1 || columns <= 1) && (row_step >= least_row || rows <= 1)) {
    m->ld = rows <= 1 ? least_row : row_step;
  } else if (t->dtype == dtype && (row_step == 1 || rows <= 1) && (column_step >= least_column || columns <= 1)) {
    m->ld = columns <= 1 ? least_column : column_step;
    m->transposed = true;
  } else {
    TRY(lm_tensor_empty(dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, &m->copy));
    TRY(lm_cpu_copy(t, m->copy));
    m->t = m->copy;
    m->ld = least_row;
    m->step = t->ndim == 3 ? rows * columns : 0;
  }
done:
  return status;
}

/* y [(batch), n, m] = alpha x other + beta input; `other` is [m, k] with `turned`. input broadcasts to
 * y and is not read if beta is 0. */
typedef struct product {
  const lm_tensor *x, *other, *input;
  bool turned;
  double alpha, beta;
} product;

static lm_status multiply_in(const product *p, lm_dtype dtype, lm_tensor *y, bool *done_) {
  lm_status status;
  matrix a = {0}, b = {0};
  lm_tensor *sum = NULL, *spread = NULL;
  TRY(matrix_of(p->x, dtype, &a));
  TRY(matrix_of(p->other, dtype, &b));
  if (y->dtype == dtype)
    sum = lm_retain(y);
  else
    TRY(lm_tensor_empty(dtype, y->device, y->ndim, y->size, LM_CONTIGUOUS, &sum));
  if (p->beta != 0) {
    int64_t stride[LM_MAX_DIMS] = {0};
    for (int i = 1; i <= p->input->ndim; i++) {
      int d = p->input->ndim - i;
      stride[y->ndim - i] = p->input->size[d] == 1 ? 0 : p->input->stride[d];
    }
    TRY(lm_tensor_view((lm_tensor *)p->input, y->ndim, y->size, stride, 0, &spread));
    TRY(lm_cpu_copy(spread, sum));
  }
  int64_t n = y->size[y->ndim - 2], m = y->size[y->ndim - 1];
  lm_gemm job = {.dtype = dtype,
                 .device = y->device,
                 .batch = y->ndim == 3 ? y->size[0] : 1,
                 .m = n,
                 .n = m,
                 .k = a.columns,
                 .ta = a.transposed,
                 .tb = b.transposed != p->turned,
                 .a = a.t->data,
                 .b = b.t->data,
                 .c = sum->data,
                 .lda = a.ld,
                 .ldb = b.ld,
                 .ldc = m,
                 .step_a = a.step,
                 .step_b = b.step,
                 .step_c = n * m,
                 .alpha = p->alpha,
                 .beta = p->beta};
  *done_ = true;
  if (dtype == LM_BF16)
    TRY(lm_dnn_gemm_bf16(&job, done_));
  else
    TRY(lm_cpu_gemm(&job));
  if (*done_ && sum != y) TRY(lm_cpu_copy(sum, y));
done:
  lm_release(a.copy);
  lm_release(b.copy);
  lm_release(sum);
  lm_release(spread);
  return status;
}

static lm_status multiply(const product *p, lm_tensor *y) {
  lm_status status = LM_OK;
  bool done_ = false;
  lm_dtype dtype = (lm_dtype)y->dtype;
  if (dtype == LM_BF16 && p->x->size[p->x->ndim - 1] > 0 && lm_dnn_has_bf16()) TRY(multiply_in(p, LM_BF16, y, &done_));
  if (!done_) TRY(multiply_in(p, dtype == LM_F16 || dtype == LM_BF16 ? LM_F32 : dtype, y, &done_));
done:
  return status;
}

lm_status lm_cpu_mm(const void *args, lm_tensor *const *out) {
  const lm_mm_args *a = args;
  return multiply(&(product){.x = a->x, .other = a->other, .alpha = 1}, out[0]);
}

lm_status lm_cpu_bmm(const void *args, lm_tensor *const *out) {
  const lm_bmm_args *a = args;
  return multiply(&(product){.x = a->x, .other = a->other, .alpha = 1}, out[0]);
}

lm_status lm_cpu_addmm(const void *args, lm_tensor *const *out) {
  const lm_addmm_args *a = args;
  return multiply(&(product){a->x, a->other, a->input, .alpha = a->alpha, .beta = a->beta}, out[0]);
}

lm_status lm_cpu_linear(const void *args, lm_tensor *const *out) {
  const lm_linear_args *a = args;
  return multiply(&(product){a->x, a->weight, a->bias, .turned = true, .alpha = 1, .beta = a->bias ? 1 : 0}, out[0]);
}
