/* Adds another tensor to results of a convolution or product, applies an activation and limits them, while they are in
 * the cache. */
#include "backend/cpu/epilogue.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/add_clamp.h"
#include "backend/cpu/isa/pointwise.h"
#include "op_ids.h"

/* Elementwise ops of the activations, in their order. */
static const lm_op_id op_of[] = {
    [LM_ACTIVATION_SIGMOID] = LM_OP_sigmoid,     [LM_ACTIVATION_TANH] = LM_OP_tanh,
    [LM_ACTIVATION_SILU] = LM_OP_silu,           [LM_ACTIVATION_GELU] = LM_OP_gelu,
    [LM_ACTIVATION_GELU_TANH] = LM_OP_gelu_tanh, [LM_ACTIVATION_HARDSIGMOID] = LM_OP_hardsigmoid,
    [LM_ACTIVATION_HARDSWISH] = LM_OP_hardswish,
};

/* Applies a kernel, which takes whole vectors, to n elements of y, at most LM_TILE. */
static void apply_pointwise(lm_pointwise_loop *kernel, float *y, int64_t n) {
  const int64_t whole = n - n % LM_LANES;
  if (whole > 0) kernel(y, (const void *[]){y}, NULL, whole);
  if (n == whole) return;
  _Alignas(64) float tail[LM_LANES] = {0};
  memcpy(tail, y + whole, (size_t)(n - whole) * sizeof *y);
  kernel(tail, (const void *[]){tail}, NULL, LM_LANES);
  memcpy(y + whole, tail, (size_t)(n - whole) * sizeof *y);
}

static void run_row(const lm_epilogue *e, lm_pointwise_loop *kernel, int64_t at, int64_t n) {
  const struct lm_add_clamp_loops *loops = LM_ISA_PICK(lm_add_clamp_loops);
  float *y = e->y + at;
  const float *other = e->other ? e->other + at : NULL;
  if (!kernel) {
    loops->run(y, other, n, e->low, e->high);
    return;
  }
  const bool is_limited = e->low > -INFINITY || e->high < INFINITY;
  for (int64_t i = 0; i < n; i += LM_TILE) {
    const int64_t part = lm_min(n - i, LM_TILE);
    if (other) loops->run(y + i, other + i, part, -INFINITY, INFINITY);
    apply_pointwise(kernel, y + i, part);
    if (is_limited) loops->run(y + i, NULL, part, e->low, e->high);
  }
}

void lm_epilogue_run(const lm_epilogue *e, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  lm_pointwise_loop *kernel =
      e->activation ? lm_pointwise_loops_of(LM_F32)->kernel[lm_pointwise_row(op_of[e->activation])] : NULL;
  if (columns == e->row) columns *= rows, rows = 1;
  for (int64_t r = row; r < row + rows; r++) run_row(e, kernel, r * e->row + column, columns);
}

enum { ROWS = 64 };

typedef struct rows_job {
  const lm_epilogue *e;
  int64_t rows;
} rows_job;

static void finish_rows(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  const int64_t end = lm_min(last * ROWS, j->rows);
  lm_epilogue_run(j->e, first * ROWS, end - first * ROWS, 0, j->e->row);
}

lm_status lm_epilogue_run_all(const lm_epilogue *e, int64_t rows) {
  const double each_ns = e->activation ? 0.5 : 0.125;
  return lm_parallel(lm_ceil_div(rows, ROWS), (double)(rows * e->row) * each_ns, 0, finish_rows, &(rows_job){e, rows});
}
