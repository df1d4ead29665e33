/* linear by a weight of int8: a few rows straight from its bytes, which is what a product with one row waits for, by
 * products of whole numbers; more rows, and what is not finite, by expanding some of its rows at a time for a product
 * of floats. */
#include <omp.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/int8_product.h"
#include "backend/cpu/matmul/gemm.h"
#include "device/alloc.h"

enum { FEW = 4 * LM_INT8_ROWS, PANEL = 1 << 17 }; /* rows; floats of a panel: half a second cache's */

/* *done: whether x is finite; if not, there is no y yet. */
static lm_status by_bytes(const lm_int8_linear_args *a, lm_tensor *y, bool *done_) {
  lm_status status = LM_OK;
  const struct lm_int8_loops *loops = LM_ISA_PICK(lm_int8_loops);
  int64_t rows = a->x->size[0], k = a->x->size[1], outs = y->size[1];
  int64_t blocks = lm_ceil_div(k, LM_INT8_BLOCK), row = blocks * LM_INT8_BLOCK;
  const float *x = (const float *)a->x->data, *scale = (const float *)a->scale->data;
  const float *bias = a->bias ? (const float *)a->bias->data : NULL;
  int threads = lm_cpu_share((double)outs * (double)k / 16);
  size_t capacity = (size_t)(rows * blocks + 1) * (sizeof(float) + LM_INT8_BLOCK * sizeof(int16_t)); /* never none */
  void *scratch = NULL;
  TRY(lm_device_alloc(y->device, capacity, &scratch));
  lm_int8_steps whole = {row, (int16_t *)((float *)scratch + rows * blocks), scratch};
  *done_ = true;
  for (int64_t r = 0; r < rows && *done_; r++) *done_ = loops->round(k, x + r * k, &whole, r);
  if (!*done_) goto done;
  int pieces = lm_cpu_pieces(threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int p = 0; p < pieces; p++) {
    int64_t first = lm_cpu_share_begin(outs, p, pieces), n = lm_cpu_share_begin(outs, p + 1, pieces) - first;
    const int8_t *weight = (const int8_t *)a->weight->data + first * k;
    for (int64_t r = 0; r < rows; r += LM_INT8_ROWS) {
      loops->products((int)lm_min(rows - r, LM_INT8_ROWS), n, k, &whole, r, weight, scale + first,
                      bias ? bias + first : NULL, (float *)y->data + r * outs + first, outs);
    }
  }
done:
  if (scratch) lm_device_free(y->device, scratch, capacity);
  return status;
}

static lm_status by_panels(const lm_int8_linear_args *a, lm_tensor *y) {
  const struct lm_int8_loops *loops = LM_ISA_PICK(lm_int8_loops);
  lm_status status = LM_OK;
  int64_t rows = a->x->size[0], k = a->x->size[1], outs = y->size[1];
  int64_t each = PANEL / k < 16 ? 16 : PANEL / k, panels = lm_ceil_div(outs, each);
  int threads = lm_cpu_share((double)rows * (double)outs * (double)k / 16);
  if (threads > panels) threads = (int)panels;
  size_t capacity = (size_t)(each * k) * sizeof(float);
  void *scratch = NULL;
  lm_cpu_gemm_region region;
  bool good = true;
  TRY(lm_device_alloc(y->device, capacity * (size_t)threads, &scratch));
  TRY(lm_cpu_gemm_enter(&region, LM_F32, threads));
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic) reduction(&& : good)
  for (int64_t p = 0; p < panels; p++) {
    float *panel = (float *)((char *)scratch + capacity * (size_t)omp_get_thread_num());
    int64_t first = p * each, n = lm_min(each, outs - first);
    loops->expand(n, k, (const int8_t *)a->weight->data + first * k, (const float *)a->scale->data + first, panel);
    float *to = (float *)y->data + first;
    for (int64_t r = 0; a->bias && r < rows; r++)
      memcpy(to + r * outs, (const float *)a->bias->data + first, (size_t)n * sizeof(float));
    lm_cpu_gemm_job job = {.dtype = LM_F32,
                           .batch = 1,
                           .m = rows,
                           .n = n,
                           .k = k,
                           .tb = true,
                           .alpha = 1,
                           .beta = a->bias ? 1 : 0,
                           .a = a->x->data,
                           .lda = k,
                           .b = panel,
                           .ldb = k,
                           .c = to,
                           .ldc = outs};
    good = good && lm_cpu_gemm_alone(&region, &job) == LM_OK;
  }
  lm_cpu_gemm_leave(&region);
  if (!good) status = lm_cpu_gemm_failed(LM_E_STATE);
done:
  if (scratch) lm_device_free(y->device, scratch, capacity * (size_t)threads);
  return status;
}

lm_status lm_cpu_int8_linear(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_int8_linear_args *a = args;
  bool done_ = false;
  if (a->x->size[0] <= FEW || a->x->size[1] == 0) TRY(by_bytes(a, out[0], &done_));
  if (!done_) TRY(by_panels(a, out[0]));
done:
  return status;
}
