/* Multiplies tensors of any strides (mm, bmm, addmm, linear), as matrices that lm_cpu_gemm takes. */
#include <math.h>

#include "backend/cpu/chain.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/epilogue.h"
#include "backend/cpu/matmul/gemm.h"
#include "backend/cpu/onednn/onednn.h"
#include "base/message.h"
#include "op/input_layout.h"
#include "op/matmul_call.h"
#include "op_args_products.h"
#include "op_args_reductions.h"

/* finish, finish_ctx, finished: of the job (gemm.h). An input that is y itself is added to; if finished is not NULL
 * and that may change bits, nothing is done, and *finished is false. */
static lm_status multiply_in_dtype(const lm_product_args *p, lm_dtype dtype, lm_tensor *y, lm_chain_block *finish,
                                   const void *finish_ctx, bool *finished, bool *done_) {
  lm_status status;
  lm_matrix a = {0}, b = {0};
  lm_tensor *sum = NULL, *spread = NULL;
  const int64_t n = y->size[y->ndim - 2], m = y->size[y->ndim - 1];
  const void *bias = NULL;
  TRY(lm_matrix_describe(p->x, dtype, &a));
  TRY(lm_matrix_describe(p->other, dtype, &b));
  const bool few = lm_cpu_gemm_takes_rows(dtype, n, m, a.columns) && !a.transposed;
  const bool by_gemm = few || (dtype != LM_F16 && (dtype != LM_BF16 || lm_cpu_gemm_has_bf16()));
  if (y->dtype == dtype)
    sum = lm_retain(y);
  else
    TRY(lm_tensor_empty(dtype, y->device, y->ndim, y->size, LM_CONTIGUOUS, &sum));
  const bool adds = p->input == y;
  if (p->beta != 0 && !adds) {
    int64_t stride[LM_MAX_DIMS];
    lm_product_spread(p, y, stride);
    if (by_gemm && p->input->dtype == dtype && y->ndim == 2 && stride[0] == 0 && stride[1] == 1) {
      bias = p->input->data;
    } else {
      TRY(lm_tensor_view((lm_tensor *)p->input, y->ndim, y->size, stride, 0, &spread));
      TRY(lm_cpu_copy(spread, sum));
    }
  }
  const bool transposed = b.transposed != p->transposed;
  lm_cpu_gemm_job job = lm_cpu_gemm_job_of(
      dtype, n, m, a.columns, p->alpha, (lm_gemm_matrix){a.t->data, a.ld, a.transposed, a.step, NULL},
      (lm_gemm_matrix){b.t->data, b.ld, transposed, b.step, b.t}, p->beta, sum->data, m);
  job.batch = y->ndim == 3 ? y->size[0] : 1;
  job.step_c = n * m;
  job.bias = bias;
  if (finish && sum == y) job.finish = finish, job.finish_ctx = finish_ctx, job.finished = finished;
  *done_ = true;
  if (adds && finished) *finished = sum == y && by_gemm && lm_cpu_gemm_adds_once(&job);
  if (adds && finished && !*finished) goto done;
  if (by_gemm)
    TRY(lm_cpu_gemm(&job));
  else if (dtype == LM_BF16)
    TRY(lm_cpu_gemm_bf16(&job, done_));
  else
    *done_ = false;
  if (*done_ && sum != y) TRY(lm_cpu_copy(sum, y));
done:
  lm_release(a.copy);
  lm_release(b.copy);
  lm_release(sum);
  lm_release(spread);
  return status;
}

static lm_status multiply_by_blocks(const lm_product_args *p, lm_tensor *y, lm_chain_block *finish, const void *ctx,
                                    bool *finished) {
  bool done_ = false;
  lm_dtype dtype = y->dtype;
  const int64_t terms = p->x->size[p->x->ndim - 1];
  bool few = lm_cpu_gemm_takes_rows(dtype, y->size[y->ndim - 2], y->size[y->ndim - 1], terms);
  /* oneDNN multiplies by an alpha of 0, which makes NaN of infinities; BLAS ignores them. */
  bool dnn = p->alpha != 0 && terms > 0 && lm_dnn_has_bf16();
  if (few || (dtype == LM_BF16 && (dnn || lm_cpu_gemm_has_bf16())))
    NEED(multiply_in_dtype(p, dtype, y, finish, ctx, finished, &done_));
  if (done_) return LM_OK;
  return multiply_in_dtype(p, lm_dtype_is_half(dtype) ? LM_F32 : dtype, y, finish, ctx, finished, &done_);
}

/* Sets y, of another dtype than x, to a product, or adds that to it. */
static lm_status multiply_to(const lm_product_args *p, lm_tensor *y) {
  LM_OWNED *part = NULL;
  NEED(lm_tensor_empty(p->x->dtype, y->device, y->ndim, y->size, LM_CONTIGUOUS, &part));
  NEED(multiply_by_blocks(&(lm_product_args){.x = p->x, .other = p->other, .alpha = p->alpha}, part, NULL, NULL, NULL));
  return p->input ? lm_product_add(part, y) : lm_cpu_copy(part, y);
}

lm_status lm_cpu_product(const lm_product_args *p, lm_tensor *const *out) {
  if (p->x->dtype != out[0]->dtype) return multiply_to(p, out[0]);
  const bool defers = atomic_load_explicit(&lm_chains, memory_order_relaxed) > 0;
  if (__builtin_expect(defers, 0) && lm_chain_put_product(p, out[0], multiply_by_blocks)) return LM_OK;
  return multiply_by_blocks(p, out[0], NULL, NULL, NULL);
}

lm_status lm_cpu_mm_with_sums(const lm_mm_with_sums_args *a, lm_tensor *const *out) {
  LM_OWNED *x = NULL, *other = NULL;
  NEED(lm_to_dtype(a->x, out[0]->dtype, &x));
  NEED(lm_to_dtype(a->other, out[0]->dtype, &other));
  NEED(lm_cpu_product(&(lm_product_args){.x = x, .other = other, .alpha = 1}, out));
  LM_OWNED *sums = NULL;
  const lm_reduce_args reduced = {
      .x = a->of_other ? other : x, .dim = {1, {!a->of_other}}, .statistic = LM_STATISTIC_SUM};
  NEED(lm_product_sums(a->of_other, out[1], &sums));
  return lm_cpu_reduce(&reduced, &sums);
}

lm_status lm_cpu_addmm_gelu(const lm_addmm_gelu_args *a, lm_tensor *const *out) {
  const lm_product_args p = {.x = a->x, .other = a->other, .input = a->input, .beta = a->input ? 1 : 0, .alpha = 1};
  NEED(lm_cpu_product(&p, &out[1]));
  return lm_product_gelu(NULL, out[1], out[0]);
}

lm_status lm_cpu_mm_gelu_backward(const lm_mm_gelu_backward_args *a, lm_tensor *const *out) {
  NEED(lm_cpu_product(&(lm_product_args){.x = a->x, .other = a->other, .alpha = 1}, out));
  return lm_product_gelu(out[0], a->before, out[0]);
}

lm_status lm_cpu_linear_with_epilogue(const lm_linear_with_epilogue_args *a, lm_tensor *const *out) {
  const lm_tensor *y = out[0];
  const int64_t rows = y->size[0], k = y->size[1], terms = a->x->size[1];
  lm_matrix w = {0};
  if (y->dtype != LM_F32) return lm_fail_dtype("linear_with_epilogue", "x", "float32", lm_dtype_name(y->dtype));
  NEED(lm_matrix_describe(a->weight, LM_F32, &w));
  const lm_epilogue end = {
      (float *)y->data, k, a->other ? (const float *)a->other->data : NULL, (lm_activation)a->activation, (float)a->min,
      (float)a->max};
  const bool finishes = end.other || end.activation || end.low > -INFINITY || end.high < INFINITY;
  bool finished = false;
  lm_cpu_gemm_job g =
      lm_cpu_gemm_job_of(LM_F32, rows, k, terms, 1, lm_gemm_matrix_of(a->x->data, terms, false),
                         (lm_gemm_matrix){w.t->data, w.ld, !w.transposed, 0, w.t}, a->bias ? 1 : 0, y->data, k);
  if (a->bias) g.bias = a->bias->data;
  if (finishes) g.finish = lm_epilogue_finish, g.finish_ctx = &end, g.finished = &finished;
  lm_status status = lm_cpu_gemm(&g);
  lm_release(w.copy);
  if (status == LM_OK && finishes && !finished) status = lm_epilogue_run_all(&end, rows);
  return status;
}
