/* mm, bmm, addmm, linear: from tensors of any strides to matrices that cuBLASLt takes, or to our own kernel for the
 * dtypes it lacks. */
#include "matmul.h"

#include "backend/cuda/blas.h"

/* The last two dims of a tensor as a matrix, with the batch dim of a 3-d one before them. */
typedef struct matrix {
  const lm_tensor *t; /* the tensor itself, or `copy` */
  lm_tensor *copy;
  int64_t rows, columns, ld, step;
  bool transposed;
} matrix;

/* Without a copy where one of the two dims is contiguous and the other does not overlap. */
static lm_status matrix_of(const lm_tensor *t, matrix *m) {
  lm_status status = LM_OK;
  int r = t->ndim - 2, c = t->ndim - 1;
  int64_t rows = t->size[r], columns = t->size[c], row_step = t->stride[r], column_step = t->stride[c];
  *m = (matrix){.t = t, .rows = rows, .columns = columns, .step = t->ndim == 3 ? t->stride[0] : 0};
  if ((column_step == 1 || columns == 1) && (row_step >= columns || rows == 1)) {
    m->ld = rows == 1 ? columns : row_step;
  } else if ((row_step == 1 || rows == 1) && (column_step >= rows || columns == 1)) {
    m->ld = columns == 1 ? rows : column_step;
    m->transposed = true;
  } else {
    TRY(lm_tensor_empty((lm_dtype)t->dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, &m->copy));
    TRY(lm_cuda_copy(t, m->copy));
    m->t = m->copy;
    m->ld = columns;
    m->step = t->ndim == 3 ? rows * columns : 0;
  }
done:
  return status;
}

/* y [(batch), n, m] = alpha x other + beta input; `other` is [m, k] with `turned`. input broadcasts to y and is not
 * read if beta is 0. */
typedef struct product {
  const lm_tensor *x, *other, *input;
  bool turned;
  double alpha, beta;
} product;

/* input's strides along y's dims. */
static void spread(const product *p, const lm_tensor *y, int64_t *stride) {
  for (int i = 0; i < y->ndim; i++) stride[i] = 0;
  for (int i = 1; i <= p->input->ndim; i++) {
    int d = p->input->ndim - i;
    stride[y->ndim - i] = p->input->size[d] == 1 ? 0 : p->input->stride[d];
  }
}

/* What cuBLASLt has no kernel for. */
static lm_status by_tiles(const product *p, lm_tensor *y, void *stream) {
  int r = y->ndim - 2, c = y->ndim - 1;
  int64_t zero[LM_MAX_DIMS] = {0}, *input = zero;
  if (p->beta != 0) spread(p, y, input);
  const int64_t *x = p->x->stride, *other = p->other->stride;
  bool batched = y->ndim == 3;
  lm_matmul_job job = {.dtype = y->dtype,
                       .batch = batched ? y->size[0] : 1,
                       .m = y->size[r],
                       .n = y->size[c],
                       .k = p->x->size[c],
                       .a = p->x->data,
                       .b = p->other->data,
                       .c = p->beta != 0 ? p->input->data : NULL,
                       .y = y->data,
                       .a_step = batched ? x[0] : 0,
                       .a_row = x[r],
                       .a_column = x[c],
                       .b_step = batched ? other[0] : 0,
                       .b_row = p->turned ? other[c] : other[r],
                       .b_column = p->turned ? other[r] : other[c],
                       .c_step = batched ? input[0] : 0,
                       .c_row = input[r],
                       .c_column = input[c],
                       .y_step = batched ? y->stride[0] : 0,
                       .y_row = y->stride[r],
                       .y_column = y->stride[c],
                       .alpha = p->alpha,
                       .beta = p->beta};
  return LAUNCH("matmul kernel", lm_k_matmul(&job, stream));
}

static lm_status by_blas(const product *p, lm_tensor *y, void *stream, bool *done_) {
  lm_status status;
  matrix a = {0}, b = {0};
  lm_tensor *sum = NULL;
  int r = y->ndim - 2, c = y->ndim - 1;
  TRY(matrix_of(p->x, &a));
  TRY(matrix_of(p->other, &b));
  const lm_tensor *input = p->beta != 0 ? p->input : NULL;
  /* Added as the product is written. */
  bool fused = input && p->beta == 1 && input->ndim == 1 && input->stride[0] == 1 && input->size[0] == y->size[c];
  lm_gemm job = {.dtype = (lm_dtype)y->dtype,
                 .device = y->device,
                 .batch = y->ndim == 3 ? y->size[0] : 1,
                 .m = y->size[r],
                 .n = y->size[c],
                 .k = a.columns,
                 .ta = a.transposed,
                 .tb = b.transposed != p->turned,
                 .a = a.t->data,
                 .b = b.t->data,
                 .bias = fused ? input->data : NULL,
                 .y = y->data,
                 .lda = a.ld,
                 .ldb = b.ld,
                 .ldy = y->size[c],
                 .step_a = a.step,
                 .step_b = b.step,
                 .step_y = y->size[r] * y->size[c],
                 .alpha = p->alpha,
                 .beta = 0};
  *done_ = false;
  if (!input || fused) TRY(lm_cuda_gemm(&job, stream, done_));
  if (input && !*done_) {
    int64_t stride[LM_MAX_DIMS];
    spread(p, y, stride);
    TRY(lm_tensor_view((lm_tensor *)input, y->ndim, y->size, stride, 0, &sum));
    TRY(lm_cuda_copy(sum, y));
    job.bias = NULL;
    job.beta = p->beta;
    TRY(lm_cuda_gemm(&job, stream, done_));
  }
done:
  lm_cuda_release(a.copy);
  lm_cuda_release(b.copy);
  lm_release(sum);
  return status;
}

/* y is dense and not empty. */
static lm_status multiply(const product *p, lm_tensor *y) {
  lm_status status;
  void *stream;
  bool done_ = false;
  TRY(lm_cuda_enter(y->device, &stream));
  if (lm_dtype_is_float((lm_dtype)y->dtype) && p->x->size[p->x->ndim - 1] > 0) TRY(by_blas(p, y, stream, &done_));
  if (!done_) TRY(by_tiles(p, y, stream));
done:
  return status;
}

lm_status lm_cuda_mm(const void *args, lm_tensor *const *out) {
  const lm_mm_args *a = args;
  return multiply(&(product){.x = a->x, .other = a->other, .alpha = 1}, out[0]);
}

lm_status lm_cuda_bmm(const void *args, lm_tensor *const *out) {
  const lm_bmm_args *a = args;
  return multiply(&(product){.x = a->x, .other = a->other, .alpha = 1}, out[0]);
}

lm_status lm_cuda_addmm(const void *args, lm_tensor *const *out) {
  const lm_addmm_args *a = args;
  return multiply(&(product){a->x, a->other, a->input, .alpha = a->alpha, .beta = a->beta}, out[0]);
}

lm_status lm_cuda_linear(const void *args, lm_tensor *const *out) {
  const lm_linear_args *a = args;
  return multiply(&(product){a->x, a->weight, a->bias, .turned = true, .alpha = 1, .beta = a->bias ? 1 : 0}, out[0]);
}
