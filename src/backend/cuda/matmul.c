/* Computes mm, bmm, addmm, linear: converts tensors of any strides to matrices for cuBLASLt, or runs our own kernel for
 * the dtypes that it lacks. */
#include "matmul.h"

#include "backend/cuda/libraries/cublas.h"
#include "op/matmul_call.h"

/* Multiplies what cuBLASLt has no kernel for. */
static lm_status multiply_by_tiles(const lm_product_args *p, lm_tensor *y, void *stream) {
  int r = y->ndim - 2, c = y->ndim - 1, b_row = p->transposed ? c : r;
  int64_t zero[LM_MAX_DIMS] = {0}, *input = zero;
  if (p->beta != 0) lm_product_spread(p, y, input);
  const int64_t *x = p->x->stride, *other = p->other->stride;
  bool batched = y->ndim == 3;
  lm_matmul_job job = {.dtype = y->dtype,
                       .batch = batched ? y->size[0] : 1,
                       .m = y->size[r],
                       .n = y->size[c],
                       .k = p->x->size[c],
                       .a = {p->x->data, batched ? x[0] : 0, x[r], x[c]},
                       .b = {p->other->data, batched ? other[0] : 0, other[b_row], other[r + c - b_row]},
                       .c = {p->beta != 0 ? p->input->data : NULL, batched ? input[0] : 0, input[r], input[c]},
                       .y = {y->data, batched ? y->stride[0] : 0, y->stride[r], y->stride[c]},
                       .alpha = p->alpha,
                       .beta = p->beta};
  return LAUNCH("matmul kernel", lm_k_matmul(&job, stream));
}

typedef struct beside { /* as of lm_cuda_gemm_job: with one of them only a kernel that computes it does */
  lm_tensor *sums, *before;
  bool sums_b, is_gradient;
} beside;

static lm_status multiply_by_blas(lm_cuda_frame *f, const lm_product_args *p, lm_tensor *y, beside with, bool *done_) {
  lm_status status;
  lm_matrix a = {0}, b = {0};
  lm_tensor *sum = NULL, *bias = NULL;
  const lm_dtype dtype = p->x->dtype;
  int r = y->ndim - 2, c = y->ndim - 1;
  TRY(lm_matrix_describe(p->x, dtype, &a));
  TRY(lm_matrix_describe(p->other, dtype, &b));
  const lm_tensor *input = p->beta != 0 ? p->input : NULL;
  /* A fused bias is added as the product is written. */
  bool fused = input && p->beta == 1 && input->ndim == 1 && input->size[0] == y->size[c];
  if (fused) TRY(lm_cuda_lay_out(f, (lm_tensor *)input, LM_CONTIGUOUS, true, &bias));
  lm_cuda_gemm_job job = {.shape = {.batch = y->ndim == 3 ? y->size[0] : 1,
                                    .m = y->size[r],
                                    .n = y->size[c],
                                    .k = a.columns,
                                    .lda = a.ld,
                                    .ldb = b.ld,
                                    .ldy = y->size[c],
                                    .step_a = a.step,
                                    .step_b = b.step,
                                    .step_y = y->size[r] * y->size[c],
                                    .dtype = dtype,
                                    .dtype_y = y->dtype,
                                    .ta = a.transposed,
                                    .tb = b.transposed != p->transposed},
                          .device = y->device,
                          .a = a.t->data,
                          .b = b.t->data,
                          .bias = bias ? bias->data : NULL,
                          .sums = with.sums ? with.sums->data : NULL,
                          .sums_b = with.sums_b,
                          .before = with.before ? with.before->data : NULL,
                          .is_gradient = with.is_gradient,
                          .y = y->data,
                          .alpha = p->alpha,
                          .beta = 0};
  *done_ = false;
  if (!input || fused) TRY(lm_cuda_gemm(&job, f->stream, done_));
  if (input && !*done_ && !with.before) {
    int64_t stride[LM_MAX_DIMS];
    lm_product_spread(p, y, stride);
    TRY(lm_tensor_view((lm_tensor *)input, y->ndim, y->size, stride, 0, &sum));
    if (input != y) TRY(lm_cuda_copy(sum, y));
    job.bias = NULL;
    job.beta = p->beta;
    TRY(lm_cuda_gemm(&job, f->stream, done_));
  }
done:
  lm_cuda_release(a.copy);
  lm_cuda_release(b.copy);
  lm_release(sum);
  return status;
}

/* Computes a product; y is dense and not empty, of x's dtype or float32. */
lm_status lm_cuda_product(const lm_product_args *p, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *y = out[0];
  bool done_ = false;
  if (lm_dtype_is_float(y->dtype) && p->x->size[p->x->ndim - 1] > 0)
    NEED(multiply_by_blas(f, p, y, (beside){0}, &done_));
  if (done_ || y->dtype == p->x->dtype) return done_ ? LM_OK : multiply_by_tiles(p, y, f->stream);
  LM_OWNED *half = NULL;
  const lm_product_args q = {.x = p->x, .other = p->other, .transposed = p->transposed, .alpha = p->alpha};
  NEED(lm_tensor_empty(p->x->dtype, y->device, y->ndim, y->size, LM_CONTIGUOUS, &half));
  NEED(multiply_by_tiles(&q, half, f->stream));
  return p->beta == 0 ? lm_cuda_copy(half, y) : lm_product_add(half, y);
}

lm_status lm_cuda_mm_with_sums(const lm_mm_with_sums_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_product_args p = {.x = a->x, .other = a->other, .alpha = 1};
  bool done_ = false;
  if (a->x->size[1] > 0) NEED(multiply_by_blas(f, &p, out[0], (beside){.sums = out[1], .sums_b = a->of_other}, &done_));
  if (done_) return LM_OK;
  NEED(lm_cuda_product(&p, out, f));
  LM_OWNED *sums = NULL;
  const lm_reduce_args reduced = {
      .x = a->of_other ? a->other : a->x, .dim = {1, {!a->of_other}}, .statistic = LM_STATISTIC_SUM};
  NEED(lm_product_sums(a->of_other, out[1], &sums));
  return lm_cuda_reduce(&reduced, &sums, f);
}

/* Returns true if the library may compute gelu_tanh with the product: it takes `before` in packs of 16 bytes. */
static bool may_fuse_gelu(const lm_tensor *x, const lm_tensor *before) {
  return lm_dtype_is_half(x->dtype) && x->size[1] > 0 && before->size[1] % 8 == 0 && (uintptr_t)before->data % 16 == 0;
}

lm_status lm_cuda_addmm_gelu(const lm_addmm_gelu_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_product_args p = {.x = a->x, .other = a->other, .input = a->input, .beta = a->input ? 1 : 0, .alpha = 1};
  bool done_ = false;
  if (may_fuse_gelu(a->x, out[1])) NEED(multiply_by_blas(f, &p, out[0], (beside){.before = out[1]}, &done_));
  if (done_) return LM_OK;
  NEED(lm_cuda_product(&p, &out[1], f));
  return lm_product_gelu(NULL, out[1], out[0]);
}

lm_status lm_cuda_mm_gelu_backward(const lm_mm_gelu_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_product_args p = {.x = a->x, .other = a->other, .alpha = 1};
  const beside with = {.before = (lm_tensor *)a->before, .is_gradient = true};
  bool done_ = false;
  if (may_fuse_gelu(a->x, a->before)) NEED(multiply_by_blas(f, &p, out[0], with, &done_));
  if (done_) return LM_OK;
  NEED(lm_cuda_product(&p, out, f));
  return lm_product_gelu(out[0], a->before, out[0]);
}
