/* Computes softmax, its logarithm and their gradients along one dim. */
#include "backend/cpu/isa/softmax.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/reduce_plan.h"
#include "op_args_reductions.h"

typedef struct softmax {
  lm_reduce_plan plan;
  lm_softmax_kind kind;
  const lm_tensor *x, *y; /* y: NULL except for gradients; laid out like x */
  lm_tensor *out;
  int dim;
  bool direct;  /* true if rows are read and written in place */
  size_t bytes; /* bytes of one buffer: a row, or a strip [n, width] */
} softmax;

/* Returns the address of y's element at x's position. */
static const char *beside(const softmax *s, const char *x) {
  return s->y->data + (x - s->x->data) / s->plan.bytes * (int64_t)lm_dtype_size(s->y->dtype);
}

/* Loads a unit from a tensor into a buffer: a row of n elements, or n rows of columns. */
static void load_unit(const softmax *s, const lm_tensor *t, const char *at, const lm_reduce_unit *u, char *buffer) {
  const bool cols = s->plan.cols;
  const int64_t n = s->plan.reduced_count, step = t->stride[s->dim], width = cols ? u->cols : n;
  const size_t num = lm_dtype_size(s->plan.compute);
  for (int64_t i = 0; i < (cols ? n : 1); i++)
    lm_load_long(s->plan.loops, t->dtype, num, buffer + (size_t)(i * width) * num,
                 at + i * step * (int64_t)lm_dtype_size(t->dtype), cols ? u->x_step : step, width);
}

static void store_unit(const softmax *s, const lm_reduce_unit *u, const char *buffer) {
  const bool cols = s->plan.cols;
  const int64_t n = s->plan.reduced_count, step = s->out->stride[s->dim], width = cols ? u->cols : n;
  const size_t num = lm_dtype_size(s->plan.compute);
  for (int64_t i = 0; i < (cols ? n : 1); i++)
    lm_store_long(s->plan.loops, s->out->dtype, num, buffer + (size_t)(i * width) * num,
                  s->out->data + (u->out + i * step) * (int64_t)lm_dtype_size(s->out->dtype), cols ? u->o_step : step,
                  width);
}

static void run_unit(const softmax *s, int64_t unit, char *buffer) {
  const struct lm_softmax_loops *loops = lm_softmax_loops_of(s->direct ? (lm_dtype)s->x->dtype : s->plan.compute);
  lm_reduce_unit u = lm_reduce_unit_at(&s->plan, unit);
  int64_t n = s->plan.reduced_count;
  if (s->direct) {
    void *out = s->out->data + u.out * (int64_t)lm_dtype_size(s->out->dtype);
    loops->row[s->kind](out, u.x, s->y ? beside(s, u.x) : NULL, n, buffer);
    return;
  }
  char *y = s->y ? buffer + s->bytes : NULL;
  load_unit(s, s->x, u.x, &u, buffer);
  if (y) load_unit(s, s->y, beside(s, u.x), &u, y);
  if (s->plan.cols) {
    loops->cols[s->kind](buffer, buffer, y, n, u.cols);
  } else {
    loops->row[s->kind](buffer, buffer, y, n, NULL);
  }
  store_unit(s, &u, buffer);
}

static bool same_strides(const lm_tensor *a, const lm_tensor *b) {
  return memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride) == 0;
}

/* Sets *out to a new copy of t, laid out as `like` is. */
static lm_status copied_like(const lm_tensor *like, const lm_tensor *t, lm_tensor **out) {
  lm_status status = lm_tensor_empty_like(like, t->dtype, t->device, out);
  return status == LM_OK ? lm_cpu_copy(t, *out) : status;
}

static void run_softmax_units(void *ctx, int64_t first, int64_t last) {
  for (int64_t unit = first; unit < last; unit++) run_unit(ctx, unit, lm_scratch());
}

lm_status lm_cpu_softmax_along(const lm_softmax_along_args *a, lm_tensor *const *outs) {
  const lm_tensor *x = a->x, *y = a->y;
  const int64_t dim = a->dim;
  LM_OWNED *beside_x = NULL, *dense_y = NULL;
  lm_tensor *out = outs[0];
  softmax s = {.kind = (lm_softmax_kind)a->kind, .x = x, .y = y, .out = out, .dim = (int)dim};
  if (x->numel == 0) return LM_OK;
  if (y && !same_strides(x, y)) {
    NEED(copied_like(y, x, &beside_x));
    s.x = beside_x;
    if (!same_strides(beside_x, y)) { /* y has gaps */
      NEED(copied_like(beside_x, y, &dense_y));
      s.y = dense_y;
    }
  }
  bool reduced[LM_MAX_DIMS] = {false};
  reduced[dim] = true;
  /* Strips of n rows with at most 65536 elements (256 KB of float32), but at least 16 wide. */
  int64_t n = x->size[dim], width = (1 << 16) / n;
  width = width < 16 ? 16 : width > LM_SOFTMAX_STRIP ? LM_SOFTMAX_STRIP : width;
  lm_reduce_plan_make(&s.plan, s.x, out, reduced, (int)width);
  s.plan.parts = 1;
  lm_dtype compute = s.plan.compute, dtype = (lm_dtype)s.x->dtype;
  s.direct = !s.plan.cols && s.x->stride[dim] == 1 && out->stride[dim] == 1 && (dtype == compute || dtype == LM_BF16) &&
             (lm_dtype)out->dtype == dtype && (!y || (lm_dtype)y->dtype == dtype);
  if (!s.direct || dtype != compute) {
    s.bytes = lm_round_up((size_t)n * lm_dtype_size(compute) * (s.plan.cols ? (size_t)width : 1), 64);
  }
  const double each_ns = 1;
  return lm_parallel(s.plan.units, each_ns * (double)x->numel, s.bytes * (y ? 2 : 1), run_softmax_units, &s);
}
