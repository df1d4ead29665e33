/* Scans along one dim: cumsum, cumprod, linear_recurrence, logcumsumexp, cummax, cummin.
 *
 * Lines pass through a tile of the compute type, double or int64; if neighbors in memory belong to different lines,
 * rows of a strip of lines do. */
#include "backend/cpu/isa/scan.h"

#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/reduce_plan.h"
#include "op_args_ordering.h"

enum { LONG_PART = 1 << 16 }; /* elements; threads scan parts of few long lines */

typedef struct scan {
  lm_reduce_plan plan;
  lm_scan_kind kind;
  bool reverse;
  lm_scan_loop *row, *cols;
  void (*turn)(void *x, int n); /* reverses a tile */
  const lm_tensor *x, *decay;   /* decay: laid out like x, or NULL */
  lm_tensor *out, *indices;     /* laid out alike; indices may be NULL */
  int64_t n, x_step, out_step;
  bool streams; /* true if the result is written from the tile past the caches */
} scan;

/* One thread's buffers, and the state that is carried from tile to tile. */
typedef struct run {
  char x[LM_SCAN_TILE * 8], decay[LM_SCAN_TILE * 8], y[LM_SCAN_TILE * 8];
  lm_total carry[LM_SCAN_COLS];
  int64_t position[LM_SCAN_TILE], last[LM_SCAN_COLS];
} run;

static void begin_run(const scan *s, run *r, int cols) {
  double start = s->kind == LM_SCAN_PRODUCT ? 1 : s->kind == LM_SCAN_LOGSUMEXP ? -INFINITY : 0;
  for (int j = 0; j < cols; j++) {
    if (s->plan.compute == LM_I64) r->carry[j].i = (int64_t)start;
    if (s->plan.compute == LM_F64) r->carry[j].f = start;
    r->last[j] = 0;
  }
}

static const char *element(const lm_tensor *t, int64_t offset) {
  return t->data + offset * (int64_t)lm_dtype_size(t->dtype);
}

/* Scans `count` elements from number `first` on, or the `count` columns of that row, in a tile. Not `stored`: only
 * their total is computed, into the carry. Rows that are scanned backwards are loaded and stored forwards, and reversed
 * in the tile. */
static void scan_tile(const scan *s, const lm_reduce_unit *u, int64_t first, int count, bool stored, run *r) {
  bool cols = s->plan.cols, backwards = s->reverse && !cols;
  int64_t at = !s->reverse ? first : cols ? s->n - 1 - first : s->n - first - count;
  int64_t x_step = cols ? u->x_step : s->x_step, out_step = cols ? u->o_step : s->out_step;
  int64_t from = (u->x - s->x->data) / s->plan.bytes + at * s->x_step, to = u->out + at * s->out_step;
  const struct lm_pointwise_loops *loops = s->plan.loops;
  bool plain = s->x->dtype == (int)s->plan.compute && x_step == 1; /* true if x lies in memory as in a tile */
  bool here = plain && s->out->dtype == s->x->dtype && out_step == 1 && !s->streams;
  void *tile = here && stored ? (void *)element(s->out, to) : r->x;
  const void *x = plain && !stored ? (const void *)element(s->x, from) : tile;
  if (x == tile) loops->load[s->x->dtype](tile, element(s->x, from), x_step, count);
  if (s->decay) loops->load[s->decay->dtype](r->decay, element(s->decay, from), x_step, count);
  if (!stored) {
    lm_reduce_kind fold = s->kind == LM_SCAN_SUM ? LM_REDUCE_SUM : LM_REDUCE_PRODUCT;
    lm_reduce_loops_of(s->plan.compute)->rows[fold](r->carry, x, 0, 1, count, NULL);
    return;
  }
  if (backwards) s->turn(tile, count);
  if (backwards && s->decay) s->turn(r->decay, count);
  int64_t *indices = s->indices ? (int64_t *)s->indices->data + to : NULL;
  bool in_place = out_step == 1 && !backwards && !s->streams;
  lm_scan_part part = {tile, r->decay, in_place ? indices : r->position, first + 1, r->carry, r->last};
  (cols ? s->cols : s->row)(&part, count);
  if (backwards) s->turn(tile, count);
  if (backwards && indices) s->turn(r->position, count);
  if (s->streams) {
    char *y = r->x;
    if (s->out->dtype != (int)s->plan.compute) {
      y = r->y;
      loops->store[s->out->dtype](y, 1, r->x, count);
    }
    lm_nontemporal_copy((char *)element(s->out, to), y, (size_t)count * lm_dtype_size(s->out->dtype));
  } else if (tile == r->x) {
    loops->store[s->out->dtype]((char *)element(s->out, to), out_step, r->x, count);
  }
  if (indices && s->streams) {
    lm_nontemporal_copy(indices, r->position, (size_t)count * sizeof *indices);
  } else if (indices && !in_place) {
    lm_pointwise_loops_of(LM_I64)->store[LM_I64](indices, out_step, r->position, count);
  }
}

/* Scans elements begin .. end - 1 of one line. */
static void scan_row(const scan *s, const lm_reduce_unit *u, int64_t begin, int64_t end, bool stored, run *r) {
  for (int64_t i = begin; i < end; i += LM_SCAN_TILE) {
    scan_tile(s, u, i, end - i < LM_SCAN_TILE ? (int)(end - i) : LM_SCAN_TILE, stored, r);
  }
}

static void scan_unit(const scan *s, int64_t unit, run *r) {
  lm_reduce_unit u = lm_reduce_unit_at(&s->plan, unit);
  begin_run(s, r, u.cols);
  if (!s->plan.cols) {
    scan_row(s, &u, 0, s->n, true, r);
    return;
  }
  for (int64_t i = 0; i < s->n; i++) scan_tile(s, &u, i, u.cols, true, r);
}

static void scan_units(void *ctx, int64_t first, int64_t last) {
  const scan *s = ctx;
  for (int64_t unit = first; unit < last; unit++) scan_unit(s, unit, lm_scratch());
  if (s->streams) lm_nontemporal_fence();
}

/* One of two passes over the parts of lines. */
typedef struct parts_job {
  const scan *s;
  int64_t parts; /* parts of a line */
  int pass;
  lm_total *carry; /* each part's total, then its total with those before it */
} parts_job;

static void scan_tasks(void *ctx, int64_t from, int64_t to) {
  const parts_job *j = ctx;
  const scan *s = j->s;
  run *r = lm_scratch();
  for (int64_t task = from; task < to; task++) {
    int64_t part = task % j->parts, first = part * LONG_PART;
    lm_reduce_unit u = lm_reduce_unit_at(&s->plan, task / j->parts);
    begin_run(s, r, 1);
    if (j->pass == 1 && part > 0) r->carry[0] = j->carry[task - 1];
    scan_row(s, &u, first, s->n - first < LONG_PART ? s->n : first + LONG_PART, j->pass == 1, r);
    if (j->pass == 0) j->carry[task] = r->carry[0];
  }
  if (s->streams) lm_nontemporal_fence();
}

/* Scans sums and products of few long lines: computes each part's total, then scans each part after the total of those
 * before it. Parts are the same for any number of threads. */
static lm_status scan_parts(const scan *s, int64_t parts, double work) {
  int64_t tasks = s->plan.units * parts;
  LM_WORKSPACE(lm_total, carry, tasks);
  parts_job job = {s, parts, 0, carry};
  NEED(lm_parallel(tasks, work, sizeof(run), scan_tasks, &job));
  for (int64_t task = 1; task < tasks; task++) {
    if (task % parts == 0) continue;
    lm_total before = carry[task - 1];
    s->row(&(lm_scan_part){.x = &carry[task], .carry = &before}, 1);
  }
  job.pass = 1;
  return lm_parallel(tasks, work, sizeof(run), scan_tasks, &job);
}

lm_status lm_cpu_scan(const lm_scan_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  const lm_scan_kind kind = (lm_scan_kind)a->kind;
  const int64_t dim = a->dim;
  scan s = {.kind = kind, .reverse = a->reverse, .x = x, .decay = a->decay, .out = out[0], .indices = out[1]};
  bool scanned[LM_MAX_DIMS] = {false};
  scanned[dim] = true;
  lm_reduce_plan_make(&s.plan, x, out[0], scanned, LM_SCAN_COLS);
  /* Integers with a floating result are summed as floating numbers. */
  lm_dtype result = out[0]->dtype;
  s.plan.compute = lm_dtype_is_float(x->dtype) || lm_dtype_is_float(result) ? LM_F64 : LM_I64;
  s.plan.loops = lm_pointwise_loops_of(s.plan.compute);
  const struct lm_scan_loops *loops = s.plan.compute == LM_I64 ? LM_ISA_PICK(lm_scan_I64) : LM_ISA_PICK(lm_scan_F64);
  s.row = loops->row[kind];
  s.cols = loops->cols[kind];
  s.turn = loops->reverse;
  s.n = x->size[dim];
  s.x_step = x->stride[dim];
  s.out_step = out[0]->stride[dim];
  s.streams = !s.plan.cols && s.out_step == 1 && lm_use_nontemporal(lm_nbytes(out[0]));
  int64_t units = s.plan.units, parts = lm_ceil_div(s.n, LONG_PART);
  bool in_parts = !s.plan.cols && units < 16 && parts > 1 && (kind == LM_SCAN_SUM || kind == LM_SCAN_PRODUCT);
  double work = (double)x->numel * (kind == LM_SCAN_LOGSUMEXP ? 10 : 2);
  if (s.plan.compute == LM_I64 && lm_threads_for(work) == 1) in_parts = false; /* integers are the same either way */
  return in_parts ? scan_parts(&s, parts, work) : lm_parallel(units, work, sizeof(run), scan_units, &s);
}
