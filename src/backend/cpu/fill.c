/* Fills tensors with constants, sequences and random numbers, and applies dropout. A random element depends only on its
 * row-major index (dropout: its index in memory) and on the draw (kernels/philox.h), not on threads. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/fill.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/strided_tiles.h"
#include "op/nn/attention.h"
#include "op_args_attention.h"
#include "op_args_creation.h"
#include "op_args_indexing.h"
#include "op_args_normalization.h"
#include "op_args_random.h"
#include "philox.h"
#include "tensor/generator.h"

lm_status lm_cpu_fill_(const lm_fill__args *a, lm_tensor *const *out) {
  const lm_dtype from = (lm_dtype)a->value->dtype, bits[] = {[1] = LM_U8, [2] = LM_I16, [4] = LM_I32, [8] = LM_I64};
  const lm_dtype compute = from == LM_F64 ? LM_F64 : lm_dtype_is_float(from) ? LM_F32 : LM_I64;
  const struct lm_pointwise_loops *loops = lm_pointwise_loops_of(compute);
  _Alignas(8) char wide[8], element[8];
  (void)out;
  loops->load[from](wide, a->value->data, 1, 1);
  loops->store[a->x->dtype](element, 1, wide, 1);
  lm_tiles t = {.nin = 1}; /* reads one integer, as wide as x's elements, repeatedly */
  lm_tiles_result(&t, a->x);
  t.compute = t.out.dtype = bits[lm_dtype_size((lm_dtype)a->x->dtype)];
  t.in[0] = (lm_operand){.data = element, .dtype = t.compute};
  lm_tiles_run(&t);
  return LM_OK;
}

/* ---- sequences */

static void run_source(lm_tensor *out, lm_dtype compute, void (*source)(const void *, int64_t, int, void *),
                       const void *context) {
  lm_tiles t = {.compute = compute, .source = source, .context = context};
  lm_tiles_result(&t, out);
  lm_tiles_run(&t);
}

lm_status lm_cpu_arange(const lm_arange_args *a, lm_tensor *const *out) {
  const struct lm_fill_loops *loops = LM_ISA_PICK(lm_fill_loops);
  const lm_sequence s = {.start = isnan(a->stop) ? 0 : a->start, .step = a->step};
  bool integers = !lm_dtype_is_float(out[0]->dtype) && s.start == trunc(s.start) && s.step == trunc(s.step);
  run_source(out[0], integers ? LM_I64 : LM_F64, integers ? loops->arange_i64 : loops->arange_f64, &s);
  return LM_OK;
}

lm_status lm_cpu_linspace(const lm_linspace_args *a, lm_tensor *const *out) {
  lm_sequence s = {.start = a->start, .stop = a->stop, .steps = a->steps};
  if (a->steps > 1) s.step = (a->stop - a->start) / (double)(a->steps - 1);
  if (a->steps == 1) s.stop = a->start;
  run_source(out[0], LM_F64, LM_ISA_PICK(lm_fill_loops)->linspace, &s);
  return LM_OK;
}

lm_status lm_cpu_cosine_window(const lm_cosine_window_args *a, lm_tensor *const *out) {
  const lm_cosines terms = {.step = 2 * M_PI / a->period, .a0 = a->a0, .a1 = a->a1, .a2 = a->a2};
  run_source(out[0], LM_F64, LM_ISA_PICK(lm_fill_loops)->cosines, &terms);
  return LM_OK;
}

/* ---- random numbers */

/* Returns the number of Philox blocks, of 4 words, for n results of `words` 32-bit words. */
static uint64_t blocks_of(int64_t n, int words) { return ((uint64_t)n * (uint64_t)words + 3) / 4; }

lm_status lm_cpu_fill_random(const lm_fill_random_args *a, lm_tensor *const *out) {
  const struct lm_fill_loops *loops = LM_ISA_PICK(lm_fill_loops);
  lm_tensor *x = out[0];
  /* Float64, and distributions that need more digits than a float has, take two words an element. */
  bool wide = !loops->f32[a->distribution] || (x->dtype == LM_F64 && loops->wide[a->distribution]);
  /* Rounding 24 bits to a shorter significand could reach 1: float16 keeps 11 bits, bfloat16 8. Other ends are chosen
   * such that rounding does not reach them (op/random.c). */
  bool unit = a->distribution == LM_DRAW_UNIFORM && a->a == 0 && a->b == 1;
  uint32_t keep = unit && x->dtype == LM_F16 ? 0xffe00000u : unit && x->dtype == LM_BF16 ? 0xff000000u : 0xffffffffu;
  lm_random r = {.draw = lm_generator_take(a->generator, x->device, blocks_of(x->numel, wide ? 2 : 1)),
                 .a = a->a,
                 .b = a->b,
                 .from = a->from,
                 .to = a->to,
                 .keep = keep};
  run_source(x,
             a->distribution == LM_DRAW_INTEGERS ? LM_I64
             : wide                              ? LM_F64
                                                 : LM_F32,
             wide ? loops->wide[a->distribution] : loops->f32[a->distribution], &r);
  return LM_OK;
}

enum { DROPOUT_PART = 4096 }; /* elements */

typedef struct dropout_job {
  const lm_tensor *x;
  lm_tensor *y;
  uint8_t *keep;
  lm_dropout_params d;
} dropout_job;

static void drop_parts(void *ctx, int64_t first, int64_t last) {
  const dropout_job *j = ctx;
  int64_t n = j->x->numel, to = last * DROPOUT_PART < n ? last * DROPOUT_PART : n;
  LM_ISA_PICK(lm_fill_loops)->dropout[j->x->dtype](j->x->data, j->y->data, j->keep, first * DROPOUT_PART, to, &j->d);
}

/* Writes x with dropout to y, dense and laid out alike; element i in memory order takes word i of the draw. */
static void write_dropout(const lm_tensor *x, lm_tensor *y, uint8_t *keep, lm_dropout_params d) {
  dropout_job job = {x, y, keep, d};
  lm_parallel((x->numel + DROPOUT_PART - 1) / DROPOUT_PART, (double)x->numel * 0.5, 0, drop_parts, &job);
}

lm_status lm_cpu_dropout(const lm_dropout_args *a, lm_tensor *const *out) {
  lm_draw draw = lm_generator_take(NULL, a->x->device, blocks_of(a->x->numel, 1));
  write_dropout(a->x, out[0], (uint8_t *)out[1]->data, lm_dropout_params_of(a->p, draw));
  return LM_OK;
}

lm_status lm_cpu_attention_draw(const lm_attention_draw_args *a, lm_tensor *const *out) {
  const lm_draw taken = lm_attention_take(a->query, a->key);
  memcpy(out[0]->data, (uint64_t[]){taken.seed, taken.offset}, 2 * sizeof(uint64_t));
  return LM_OK;
}

lm_status lm_cpu_dropout_by_draw(const lm_dropout_by_draw_args *a, lm_tensor *const *out) {
  write_dropout(a->x, out[0], NULL, lm_dropout_params_of(a->p, lm_draw_in(a->draw)));
  return LM_OK;
}

/* Shuffles by Fisher and Yates: index i takes one of the unused entries. Serial: each exchange needs the one before. */
lm_status lm_cpu_randperm(const lm_randperm_args *a, lm_tensor *const *out) {
  enum { PART = 256 };
  lm_tensor *y = out[0];
  if (a->n == 0) return LM_OK;
  lm_random r = {.draw = lm_generator_take(a->generator, y->device, blocks_of(a->n, 2))};
  const struct lm_fill_loops *loops = LM_ISA_PICK(lm_fill_loops);
  const lm_sequence s = {.start = 1, .step = 1};
  bool own = y->dtype == LM_I64 && lm_is_contiguous(y);
  LM_WORKSPACE(int64_t, scratch, own ? 0 : a->n);
  int64_t *order = own ? (int64_t *)y->data : scratch;
  for (int64_t i = 0; i < a->n; i += LM_TILE)
    loops->arange_i64(&s, i, (int)(a->n - i < LM_TILE ? a->n - i : LM_TILE), order + i);
  for (int64_t first = 0; first < a->n - 1; first += PART) {
    int count = (int)(a->n - 1 - first < PART ? a->n - 1 - first : PART);
    uint64_t other[PART];
    loops->bits(&r, first, count, other);
    for (int i = 0; i < count; i++) {
      other[i] = (uint64_t)(first + i) + lm_uniform_below(other[i], (uint64_t)(a->n - first - i));
      __builtin_prefetch(order + other[i], 1);
    }
    for (int i = 0; i < count; i++) {
      int64_t was = order[first + i];
      order[first + i] = order[other[i]];
      order[other[i]] = was;
    }
  }
  if (own) return LM_OK;
  lm_tensor all = *y;
  all.dtype = LM_I64, all.data = (char *)order, all.stride[0] = 1;
  return lm_cpu_copy(&all, y);
}
