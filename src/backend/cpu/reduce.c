/* Computes reductions to numbers: sum, nansum, prod, mean, var, norm, logsumexp, amax, amin, all, any. op/reduce.c
 * checks their dtypes. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/reduce_plan.h"
#include "op_args_reductions.h"

enum { TILE_ROWS = 8 };

/* The folds and functions of a statistic. number: the count of reduced elements. */
typedef struct method {
  lm_reduce_kind first, second;                   /* second: the second fold, if there is a `middle` */
  void (*middle)(lm_total *total, double number); /* makes the second fold's c of the first one's total; or NULL */
  lm_total (*finish)(lm_total total, lm_total c, double number, double parameter); /* returns the result; or NULL */
} method;

typedef struct reduction {
  lm_reduce_plan plan, wide; /* wide: the plan in double, if wide.data is set: for powers that leave float's range */
  lm_tensor *out;
  method by;
  lm_total p; /* the op's parameter, which is the first fold's too */
} reduction;

/* ---- folding one part of one unit */

static void fold_row(const lm_reduce_plan *p, lm_reduce_kind fold, const char *x_row, int64_t begin, int64_t end,
                     const lm_total *c, lm_total *total) {
  int last = p->reduced.ndim - 1;
  int64_t step = p->reduced.stride[0][last];
  bool direct = p->direct && p->direct->rows[fold] && step == 1 && p->reduced.size[last] >= 64;
  _Alignas(64) char tile[LM_TILE_BYTES];
  int filled = 0, num = (int)lm_dtype_size(p->compute), max_chunk = LM_TILE_BYTES / num;
  lm_reduce_walk w = lm_reduce_walk_from(p, begin);
  while (begin < end) {
    int64_t run = lm_reduce_walk_run(p, &w);
    run = run < end - begin ? run : end - begin;
    const char *x = x_row + w.offset * p->bytes;
    if (direct) {
      p->direct->rows[fold](total, x, 0, 1, run, c);
    } else {
      run = run < max_chunk - filled ? run : max_chunk - filled;
      p->loops->load[p->dtype](tile + filled * num, x, step, (int)run);
      filled += (int)run;
      if (filled == max_chunk || begin + run == end) {
        p->folds->rows[fold](total, tile, 0, 1, filled, c);
        filled = 0;
      }
    }
    lm_reduce_walk_on(p, &w, run);
    begin += run;
  }
}

static void fold_rows(const lm_reduce_plan *p, lm_reduce_kind fold, const lm_reduce_unit *u, int64_t begin, int64_t end,
                      const lm_total *c, lm_total *total) {
  int64_t step = p->reduced.stride[0][0];
  if (p->direct && p->direct->rows[fold] && p->reduced.ndim == 1 && (step == 1 || p->reduced_count == 1)) {
    p->direct->rows[fold](total, u->x + begin * p->bytes, u->x_step, u->cols, end - begin, c);
    return;
  }
  for (int j = 0; j < u->cols; j++) {
    fold_row(p, fold, u->x + j * u->x_step * p->bytes, begin, end, c ? c + j : NULL, total + j);
  }
}

static void fold_cols(const lm_reduce_plan *p, lm_reduce_kind fold, const lm_reduce_unit *u, int64_t begin, int64_t end,
                      const lm_total *c, lm_total *total) {
  enum { MAX_RUN = 64 }; /* rows that a column sums in float before they are added to the total */
  int last = p->reduced.ndim - 1;
  bool direct = p->direct && p->direct->cols[fold] && u->x_step == 1;
  LM_LARGE(char, tile, direct ? 0 : TILE_ROWS *LM_TILE_BYTES);
  int filled = 0;
  int64_t row = u->cols * (int64_t)lm_dtype_size(p->compute);
  lm_reduce_walk w = lm_reduce_walk_from(p, begin);
  while (begin < end) {
    int64_t run = 1;
    const char *x = u->x + w.offset * p->bytes;
    if (direct) {
      run = lm_reduce_walk_run(p, &w);
      run = run < end - begin ? run : end - begin;
      run = run < MAX_RUN ? run : MAX_RUN;
      p->direct->cols[fold](total, x, p->reduced.stride[0][last], (int)run, u->cols, c);
    } else {
      p->loops->load[p->dtype](tile + filled * row, x, u->x_step, u->cols);
      if (++filled == TILE_ROWS || begin + 1 == end) {
        p->folds->cols[fold](total, tile, u->cols, filled, u->cols, c);
        filled = 0;
      }
    }
    lm_reduce_walk_on(p, &w, run);
    begin += run;
  }
}

static void fold_part(const lm_reduce_plan *p, lm_reduce_kind fold, const lm_reduce_unit *u, int64_t part,
                      const lm_total *c, lm_total *total) {
  int64_t begin, end;
  lm_reduce_part(p, part, &begin, &end);
  const lm_total start = p->folds->start[fold];
  for (int j = 0, cols = u->cols; j < cols; j++) total[j] = start;
  if (p->cols) {
    fold_cols(p, fold, u, begin, end, c, total);
  } else {
    fold_rows(p, fold, u, begin, end, c, total);
  }
}

/* ---- results */

static void write_unit(const reduction *r, const lm_reduce_unit *u, lm_total *total, const lm_total *c) {
  lm_dtype d = r->out->dtype;
  double number = (double)r->plan.reduced_count;
  for (int j = 0; r->by.finish && j < u->cols; j++) {
    total[j] = r->by.finish(total[j], c ? c[j] : (lm_total){0}, number, r->p.f);
  }
  const struct lm_pointwise_loops *loops = lm_pointwise_loops_of(lm_dtype_is_float(r->plan.compute) ? LM_F64 : LM_I64);
  loops->store[d](r->out->data + u->out * (int64_t)lm_dtype_size(d), u->o_step, total, u->cols);
}

static bool leaves_float(lm_total total) { return isinf(total.f) || total.f < 1e-30; }

static void whole_unit(const reduction *r, int64_t unit) {
  lm_reduce_unit u = lm_reduce_unit_at(&r->plan, unit);
  lm_total total[LM_REDUCE_COLS];
  LM_LARGE(lm_total, c, LM_REDUCE_COLS);
  for (int j = 0; j < u.cols; j++) c[j] = r->p;
  fold_part(&r->plan, r->by.first, &u, 0, c, total);
  bool again = false;
  for (int j = 0; r->wide.data && j < u.cols; j++) again = again || leaves_float(total[j]);
  if (again) {
    LM_LARGE(lm_total, wide, LM_REDUCE_COLS);
    fold_part(&r->wide, r->by.first, &u, 0, c, wide);
    for (int j = 0; j < u.cols; j++) total[j] = leaves_float(total[j]) ? wide[j] : total[j];
  }
  if (r->by.middle) {
    for (int j = 0; j < u.cols; j++) {
      c[j] = total[j];
      r->by.middle(&c[j], (double)r->plan.reduced_count);
    }
    fold_part(&r->plan, r->by.second, &u, 0, c, total);
  }
  write_unit(r, &u, total, c);
}

typedef struct parts_job {
  const lm_reduce_plan *p;
  lm_reduce_kind fold;
  const lm_total *c;
  lm_total *scratch;
} parts_job;

static void fold_tasks(void *ctx, int64_t first, int64_t last) {
  const parts_job *j = ctx;
  for (int64_t task = first; task < last; task++) {
    lm_reduce_unit u = lm_reduce_unit_at(j->p, task % j->p->units);
    int64_t part = task / j->p->units;
    /* A local total: other cores may have the cache lines of `scratch`, which are written once here. */
    lm_total total[LM_REDUCE_COLS];
    fold_part(j->p, j->fold, &u, part, j->c + u.index, total);
    memcpy(j->scratch + part * j->p->kept_count + u.index, total, (size_t)u.cols * sizeof *total);
  }
}

/* Folds all parts of all units into scratch [parts, kept], then merges them into its first row. */
static void all_parts(const lm_reduce_plan *p, lm_reduce_kind fold, const lm_total *c, lm_total *scratch) {
  int64_t kept = p->kept_count;
  lm_parallel(p->units * p->parts, lm_reduce_work(p), 0, fold_tasks, &(parts_job){p, fold, c, scratch});
  for (int64_t part = 1; part < p->parts; part++) p->folds->merge(fold, scratch, scratch + part * kept, kept);
}

static lm_status reduce_in_parts(const reduction *r) {
  const lm_reduce_plan *p = &r->plan;
  int64_t kept = p->kept_count;
  LM_WORKSPACE(lm_total, scratch, kept * p->parts);
  LM_WORKSPACE(lm_total, c, kept);
  for (int64_t i = 0; i < kept; i++) c[i] = r->p;
  all_parts(p, r->by.first, c, scratch);
  bool again = false;
  for (int64_t i = 0; r->wide.data && i < kept; i++) again = again || leaves_float(scratch[i]);
  if (again) all_parts(&r->wide, r->by.first, c, scratch);
  if (r->by.middle) {
    for (int64_t i = 0; i < kept; i++) {
      c[i] = scratch[i];
      r->by.middle(&c[i], (double)p->reduced_count);
    }
    all_parts(p, r->by.second, c, scratch);
  }
  for (int64_t unit = 0; unit < p->units; unit++) {
    lm_reduce_unit u = lm_reduce_unit_at(p, unit);
    write_unit(r, &u, scratch + u.index, c + u.index);
  }
  return LM_OK;
}

/* ---- statistics */

static lm_total finish_mean(lm_total total, lm_total c, double number, double parameter) {
  (void)c, (void)parameter;
  return (lm_total){.f = total.f / number};
}

static void middle_mean(lm_total *total, double number) { total->f /= number; }

static lm_total finish_var(lm_total total, lm_total c, double number, double correction) {
  (void)c;
  return (lm_total){.f = total.f / fmax(number - correction, 0)};
}

static lm_total finish_norm(lm_total total, lm_total c, double number, double p) {
  (void)c, (void)number;
  return (lm_total){.f = p == 2 ? sqrt(total.f) : pow(total.f, 1 / p)};
}

/* Sets an infinite maximum to 0: the maximum is subtracted in the exponents, and inf - inf is NaN. */
static void middle_finite(lm_total *total, double number) {
  (void)number;
  if (isinf(total->f)) total->f = 0;
}

static lm_total finish_logsumexp(lm_total total, lm_total c, double number, double parameter) {
  (void)number, (void)parameter;
  return (lm_total){.f = log(total.f) + c.f};
}

/* Return 1 if the count of nonzero elements is the number of all elements, else 0. */
static lm_total finish_all_f(lm_total total, lm_total c, double number, double parameter) {
  (void)c, (void)parameter;
  return (lm_total){.f = total.f == number};
}

static lm_total finish_all_i(lm_total total, lm_total c, double number, double parameter) {
  (void)c, (void)parameter;
  return (lm_total){.i = (double)total.i == number};
}

static const method methods[] = {
    [LM_STATISTIC_SUM] = {.first = LM_REDUCE_SUM},
    [LM_STATISTIC_NANSUM] = {.first = LM_REDUCE_NUMBERS},
    [LM_STATISTIC_PROD] = {.first = LM_REDUCE_PRODUCT},
    [LM_STATISTIC_MEAN] = {.first = LM_REDUCE_SUM, .finish = finish_mean},
    [LM_STATISTIC_VAR] = {LM_REDUCE_SUM, LM_REDUCE_DEVIATION, middle_mean, finish_var},
    [LM_STATISTIC_NORM] = {.first = LM_REDUCE_POWER, .finish = finish_norm},
    [LM_STATISTIC_LOGSUMEXP] = {LM_REDUCE_MAX, LM_REDUCE_EXP, middle_finite, finish_logsumexp},
    [LM_STATISTIC_AMAX] = {.first = LM_REDUCE_MAX},
    [LM_STATISTIC_AMIN] = {.first = LM_REDUCE_MIN},
    [LM_STATISTIC_ALL] = {.first = LM_REDUCE_NONZERO, .finish = finish_all_f},
    [LM_STATISTIC_ANY] = {.first = LM_REDUCE_NONZERO},
    [LM_STATISTIC_COUNT_NONZERO] = {.first = LM_REDUCE_NONZERO},
};

static method method_of(const lm_reduce_args *a) {
  method by = methods[a->statistic];
  if (a->statistic == LM_STATISTIC_NORM) {
    by.first = lm_reduce_norm_kind(a->parameter);
    if (by.first != LM_REDUCE_SQUARE && by.first != LM_REDUCE_POWER) by.finish = NULL;
  }
  if (!lm_dtype_is_float(a->x->dtype)) {
    if (a->statistic == LM_STATISTIC_NANSUM) by.first = LM_REDUCE_SUM;
    if (a->statistic == LM_STATISTIC_ALL) by.finish = finish_all_i;
  }
  return by;
}

/* Returns the narrowest type with loops that holds an integer dtype's numbers. */
static lm_dtype narrowest(lm_dtype dtype) { return dtype == LM_BOOL ? LM_U8 : dtype == LM_U16 ? LM_I32 : dtype; }

static void whole_units(void *ctx, int64_t first, int64_t last) {
  for (int64_t unit = first; unit < last; unit++) whole_unit(ctx, unit);
}

lm_status lm_cpu_reduce(const lm_reduce_args *a, lm_tensor *const *out) {
  bool reduced[LM_MAX_DIMS] = {false};
  for (int i = 0; i < a->dim.n; i++) reduced[a->dim.v[i]] = true;
  reduction r = {.out = out[0], .by = method_of(a), .p = {.f = a->parameter}};
  lm_reduce_plan_make(&r.plan, a->x, r.out, reduced, LM_REDUCE_COLS);
  lm_reduce_plan_batch(&r.plan);
  if ((r.by.first == LM_REDUCE_MAX || r.by.first == LM_REDUCE_MIN) && r.plan.compute == LM_I64) {
    lm_reduce_plan_compute(&r.plan, narrowest(a->x->dtype));
  }
  if (r.by.finish == finish_norm && r.plan.compute == LM_F32) {
    r.wide = r.plan;
    lm_reduce_plan_compute(&r.wide, LM_F64);
  }
  if (r.plan.kept_count == 0) return LM_OK;
  if (r.plan.parts > 1) return reduce_in_parts(&r);
  return lm_parallel(r.plan.units, lm_reduce_work(&r.plan), 0, whole_units, &r);
}
