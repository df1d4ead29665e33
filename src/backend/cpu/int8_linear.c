/* Computes linear with an int8 weight. A few rows, whose bottleneck is reading the weight, multiply its bytes by
 * integer products. More rows, and an x that is not finite, expand some of its rows at a time for a float product. */

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/int8_product.h"
#include "backend/cpu/matmul/gemm.h"
#include "backend/cpu/memory.h"
#include "op_args_products.h"

enum { FEW = 4 * LM_INT8_ROWS, PANEL = 1 << 17 }; /* rows; floats of a panel, half an L2 cache */

typedef struct bytes_job {
  const lm_int8_linear_args *a;
  lm_tensor *y;
  lm_int8_steps whole;
} bytes_job;

static void multiply_columns(void *ctx, int64_t first, int64_t last) {
  const bytes_job *j = ctx;
  int64_t rows = j->a->x->size[0], k = j->a->x->size[1], outs = j->y->size[1];
  const float *scale = (const float *)j->a->scale->data + first;
  const float *bias = j->a->bias ? (const float *)j->a->bias->data + first : NULL;
  const int8_t *weight = (const int8_t *)j->a->weight->data + first * k;
  for (int64_t r = 0; r < rows; r += LM_INT8_ROWS) {
    LM_ISA_PICK(lm_int8_loops)
        ->products((int)lm_min(rows - r, LM_INT8_ROWS), last - first, k, &j->whole, r, weight, scale, bias,
                   (float *)j->y->data + r * outs + first, outs);
  }
}

/* Computes y by integer products if x is finite; if not, sets *done_ to false and leaves y unset. */
static lm_status multiply_by_bytes(const lm_int8_linear_args *a, lm_tensor *y, bool *done_) {
  const struct lm_int8_loops *loops = LM_ISA_PICK(lm_int8_loops);
  int64_t rows = a->x->size[0], k = a->x->size[1], outs = y->size[1];
  int64_t blocks = (k + LM_INT8_BLOCK - 1) / LM_INT8_BLOCK, row = blocks * LM_INT8_BLOCK;
  const float *x = (const float *)a->x->data;
  LM_WORKSPACE(float, scale, rows *blocks);
  LM_WORKSPACE(int16_t, values, rows * row);
  lm_int8_steps whole = {row, values, scale};
  *done_ = true;
  for (int64_t r = 0; r < rows && *done_; r++) *done_ = loops->round(k, x + r * k, &whole, r);
  if (!*done_) return LM_OK;
  return lm_parallel(outs, (double)outs * (double)k / 16, 0, multiply_columns, &(bytes_job){a, y, whole});
}

typedef struct panels_job {
  const lm_int8_linear_args *a;
  lm_tensor *y;
  int64_t each; /* outputs of a panel */
} panels_job;

static void multiply_panels(void *ctx, int64_t from, int64_t to) {
  panels_job *j = ctx;
  const lm_int8_linear_args *a = j->a;
  int64_t rows = a->x->size[0], k = a->x->size[1], outs = j->y->size[1];
  for (int64_t p = from; p < to; p++) {
    float *panel = lm_scratch(), *y = (float *)j->y->data + p * j->each;
    int64_t first = p * j->each, n = lm_min(j->each, outs - first);
    LM_ISA_PICK(lm_int8_loops)
        ->expand(n, k, (const int8_t *)a->weight->data + first * k, (const float *)a->scale->data + first, panel);
    for (int64_t r = 0; a->bias && r < rows; r++)
      memcpy(y + r * outs, (const float *)a->bias->data + first, (size_t)n * sizeof(float));
    const lm_cpu_gemm_job job = lm_cpu_gemm_job_of(LM_F32, rows, n, k, 1, lm_gemm_matrix_of(a->x->data, k, false),
                                                   lm_gemm_matrix_of(panel, k, true), a->bias ? 1 : 0, y, outs);
    lm_parallel_note(lm_cpu_gemm(&job));
  }
}

static lm_status multiply_by_panels(const lm_int8_linear_args *a, lm_tensor *y) {
  int64_t rows = a->x->size[0], k = a->x->size[1], outs = y->size[1];
  panels_job job = {.a = a, .y = y, .each = PANEL / k < 16 ? 16 : PANEL / k};
  double work = (double)rows * (double)outs * (double)k / 16;
  return lm_parallel((outs + job.each - 1) / job.each, work, (size_t)(job.each * k) * sizeof(float), multiply_panels,
                     &job);
}

lm_status lm_cpu_int8_linear(const lm_int8_linear_args *a, lm_tensor *const *out) {
  bool done_ = false;
  if (a->x->size[0] <= FEW || a->x->size[1] == 0) NEED(multiply_by_bytes(a, out[0], &done_));
  if (!done_) NEED(multiply_by_panels(a, out[0]));
  return LM_OK;
}
