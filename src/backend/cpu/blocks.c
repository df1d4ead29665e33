/* Computes products with rows of quantized blocks, and expands them. */
#include "blocks.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/index/indices.h"
#include "backend/cpu/isa/block_expand.h"
#include "backend/cpu/isa/block_product.h"
#include "backend/cpu/isa/block_tiles.h"
#include "backend/cpu/matmul/gemm.h"
#include "backend/cpu/memory.h"
#include "integers.h"
#include "op_args_blocks.h"

enum { PANEL = 1 << 17 }; /* floats of expanded rows of weight, half an L2 cache */

/* ---- block_linear */

typedef struct linear_job {
  int kind;
  const lm_tensor *x, *weight;
  const float *bias;
  lm_tensor *y;
  lm_block_steps steps;
  uint16_t *packed; /* rows of x for tiles */
  int64_t each;     /* outputs of a unit of work by tiles */
} linear_job;

static void round_rows(void *ctx, int64_t first, int64_t last) {
  const linear_job *j = ctx;
  const int64_t n = j->x->size[1];
  for (int64_t r = first; r < last; r++)
    LM_ISA_PICK(lm_block_loops)->round(lm_block_kind_of(j->kind), n, (const float *)j->x->data + r * n, &j->steps, r);
}

static void multiply_few(void *ctx, int64_t first, int64_t last) {
  const linear_job *j = ctx;
  LM_ISA_PICK(lm_block_loops)
      ->few[j->kind](j->x->size[0], last - first, j->x->size[1], &j->steps,
                     (const uint8_t *)j->weight->data + first * j->weight->size[1], j->bias ? j->bias + first : NULL,
                     (float *)j->y->data + first, j->y->size[1]);
}

static void multiply_many(void *ctx, int64_t first, int64_t last) {
  const linear_job *j = ctx;
  const struct lm_block_loops *loops = LM_ISA_PICK(lm_block_loops);
  const int64_t outs = j->y->size[1];
  for (int64_t p = first; p < last; p++) {
    const int64_t at = p * loops->panel;
    loops->many[j->kind](j->x->size[0], (int)lm_min(loops->panel, outs - at), j->x->size[1], &j->steps,
                         (const uint8_t *)j->weight->data + at * j->weight->size[1], j->bias ? j->bias + at : NULL,
                         (float *)j->y->data + at, outs, lm_scratch());
  }
}

static void pack_rows(void *ctx, int64_t first, int64_t last) {
  const linear_job *j = ctx;
  const int64_t rows = j->x->size[0], n = j->x->size[1];
  for (int64_t r = first * LM_TILE_STEP; r < last * LM_TILE_STEP; r += LM_TILE_STEP)
    LM_ISA_PICK(lm_block_tile_loops)
        ->pack(n, (int)lm_min(LM_TILE_STEP, rows - r), (const float *)j->x->data + r * n, j->packed + r * n);
}

static void multiply_tiles(void *ctx, int64_t first, int64_t last) {
  const linear_job *j = ctx;
  const int64_t rows = j->x->size[0], n = j->x->size[1], outs = j->y->size[1];
  for (int64_t at = first * j->each; at < lm_min(outs, last * j->each); at += j->each) {
    for (int64_t r = 0; r < rows; r += LM_TILE_ROWS)
      LM_ISA_PICK(lm_block_tile_loops)
          ->product(j->kind, (int)lm_min(LM_TILE_ROWS, rows - r), (int)lm_min(j->each, outs - at), n, j->packed + r * n,
                    (const uint8_t *)j->weight->data + at * j->weight->size[1], j->bias ? j->bias + at : NULL,
                    (float *)j->y->data + r * outs + at, outs, lm_scratch());
  }
}

static bool has_tiles(void) {
  static _Atomic int known;
  const struct lm_block_tile_loops *loops = LM_ISA_PICK(lm_block_tile_loops);
  if (!known) known = loops->start && loops->start() ? 1 : -1;
  return known > 0;
}

static lm_status linear_by_tiles(linear_job *j) {
  const int64_t rows = j->x->size[0], n = j->x->size[1], outs = j->y->size[1];
  const int64_t steps = lm_ceil_div(rows, LM_TILE_STEP);
  const double work_ns = (double)rows * (double)outs * (double)n / 300;
  LM_WORKSPACE(uint16_t, packed, steps * LM_TILE_STEP * n);
  j->packed = packed;
  j->each = lm_min(LM_TILE_OUTS, lm_round_up(lm_ceil_div(outs, lm_threads_for(work_ns)), LM_TILE_STEP));
  NEED(lm_parallel(steps, (double)(rows * n) / 2, 0, pack_rows, j));
  return lm_parallel(lm_ceil_div(outs, j->each), work_ns, LM_TILE_SCRATCH, multiply_tiles, j);
}

lm_status lm_cpu_block_linear(const lm_block_linear_args *a, lm_tensor *const *out) {
  const struct lm_block_loops *loops = LM_ISA_PICK(lm_block_loops);
  linear_job job = {.kind = a->kind,
                    .x = a->x,
                    .weight = a->weight,
                    .y = out[0],
                    .bias = a->bias ? (const float *)a->bias->data : NULL};
  const int64_t rows = a->x->size[0], n = a->x->size[1], outs = out[0]->size[1];
  const int64_t row = lm_round_up(n, LM_BLOCK_CHUNK), groups = rows * row / lm_block_kind_of(a->kind)->group;
  const bool few = rows <= loops->few_rows;
  if (!few && has_tiles()) return linear_by_tiles(&job);
  LM_WORKSPACE(int8_t, steps, rows * row);
  LM_WORKSPACE(float, scale, 2 * groups);
  LM_WORKSPACE(int32_t, starts, few ? rows * row / 4 : groups);
  job.steps = (lm_block_steps){row, steps, scale, scale + groups, few ? NULL : starts, few ? starts : NULL};
  const double products = (double)rows * (double)outs * (double)n;
  NEED(lm_parallel(rows, (double)(rows * row) / 2, 0, round_rows, &job));
  if (few) return lm_parallel(outs, products / 32 / (rows < 4 ? 1 : 2), 0, multiply_few, &job);
  return lm_parallel(lm_ceil_div(outs, loops->panel), products / 128, lm_block_scratch(loops->panel, row),
                     multiply_many, &job);
}

/* ---- the gradient of x */

typedef struct expand_job {
  int kind;
  const lm_tensor *index;
  const uint8_t *from;
  int64_t bytes, elements; /* sizes of a row */
  float *to;
} expand_job;

static void expand_rows(void *ctx, int64_t first, int64_t last) {
  const expand_job *j = ctx;
  for (int64_t i = first; i < last; i++) {
    const int64_t row = j->index ? ((const int64_t *)j->index->data)[i] - 1 : i;
    LM_ISA_PICK(lm_block_expand_loops)
        ->expand[j->kind](j->elements / lm_block_kind_of(j->kind)->elements, j->from + row * j->bytes,
                          j->to + i * j->elements);
  }
}

/* Expands `rows` rows of x, from row `first` on or at an index from 1. */
static lm_status expand(int kind, const lm_tensor *x, const lm_tensor *index, int64_t first, int64_t rows, float *to) {
  const int64_t bytes = x->size[1], elements = bytes / lm_block_kind_of(kind)->bytes * lm_block_kind_of(kind)->elements;
  expand_job job = {kind, index, (const uint8_t *)x->data + first * bytes, bytes, elements, to};
  return lm_parallel(rows, (double)rows * (double)elements / 4, 0, expand_rows, &job);
}

lm_status lm_cpu_block_linear_input(const lm_block_linear_input_args *a, lm_tensor *const *out) {
  const int64_t rows = a->grad->size[0], outs = a->grad->size[1], n = out[0]->size[1];
  const int64_t each = lm_min(outs, PANEL / (n + 1) + 16) + (outs == 0); /* with no outputs the gradient is 0 */
  LM_WORKSPACE(float, panel, each *n);
  for (int64_t j = 0; j < outs || j == 0; j += each) {
    const int64_t part = lm_min(each, outs - j);
    NEED(expand(a->kind, a->weight, NULL, j, part, panel));
    const lm_cpu_gemm_job job =
        lm_cpu_gemm_job_of(LM_F32, rows, n, part, 1, lm_gemm_matrix_of((const float *)a->grad->data + j, outs, false),
                           lm_gemm_matrix_of(panel, n, false), j ? 1 : 0, out[0]->data, n);
    NEED(lm_cpu_gemm(&job));
  }
  return LM_OK;
}

lm_status lm_cpu_block_rows(const lm_block_rows_args *a, lm_tensor *const *out) {
  NEED(lm_cpu_check_index("block_rows", a->index, a->weight->size[0]));
  return expand(a->kind, a->weight, a->index, 0, a->index->numel, (float *)out[0]->data);
}

lm_status lm_cpu_expand_blocks(const lm_expand_blocks_args *a, lm_tensor *const *out) {
  return expand(a->kind, a->x, NULL, 0, a->x->size[0], (float *)out[0]->data);
}
