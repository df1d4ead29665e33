/* Finds extremes along one dim and their indices: max_dim, min_dim, argmax, argmin. Indices count from 1; of equal
 * elements the first wins, and the first NaN wins over all. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/reduce_plan.h"
#include "op_args_reductions.h"

typedef struct search {
  lm_reduce_plan plan;
  bool largest;
  lm_tensor *values, *indices; /* values may be NULL */
  lm_total *extreme;           /* when rows are searched: each part's extreme and its index, from 0 */
  int64_t *position;
} search;

static void write_unit(const search *s, const lm_reduce_unit *u, const void *best, lm_dtype in,
                       const int64_t *position) {
  if (s->values) {
    lm_dtype d = s->values->dtype;
    lm_pointwise_loops_of(in)->store[d](s->values->data + u->out * (int64_t)lm_dtype_size(d), u->o_step, best, u->cols);
  }
  lm_pointwise_loops_of(LM_I64)->store[s->indices->dtype](
      s->indices->data + u->out * (int64_t)lm_dtype_size(s->indices->dtype), u->o_step, position, u->cols);
}

/* Searches a unit's columns for their extremes and indices, row by row. */
static void search_cols(const search *s, int64_t unit) {
  const lm_reduce_plan *p = &s->plan;
  lm_reduce_unit u = lm_reduce_unit_at(p, unit);
  LM_LARGE(char, best, LM_TILE_BYTES);
  LM_LARGE(char, tile, LM_TILE_BYTES);
  int64_t position[LM_REDUCE_COLS];
  bool direct = p->direct && u.x_step == 1;
  p->loops->load[p->dtype](best, u.x, u.x_step, u.cols);
  for (int j = 0; j < u.cols; j++) position[j] = 1;
  for (int64_t r = 1; r < p->reduced_count; r++) {
    const char *x = u.x + r * p->reduced.stride[0][0] * p->bytes;
    if (!direct) p->loops->load[p->dtype](tile, x, u.x_step, u.cols);
    (direct ? p->direct : p->folds)->track(best, position, direct ? x : tile, r + 1, u.cols, s->largest);
  }
  write_unit(s, &u, best, p->compute, position);
}

/* Finds the extreme of elements begin .. end - 1 of a row, and the index, from 0, of the first element equal to it. */
static void search_row(const search *s, const lm_reduce_unit *u, int64_t begin, int64_t end, lm_total *extreme,
                       int64_t *position) {
  const lm_reduce_plan *p = &s->plan;
  lm_reduce_kind fold = s->largest ? LM_REDUCE_MAX : LM_REDUCE_MIN;
  bool direct = p->direct && p->reduced.stride[0][0] == 1;
  const struct lm_reduce_loops *folds = direct ? p->direct : p->folds;
  int64_t step = p->reduced.stride[0][0], max_chunk = direct ? 1 << 14 : LM_TILE;
  _Alignas(64) char tile[LM_TILE_BYTES];
  *extreme = p->folds->start[fold];
  *position = begin;
  bool floating = p->compute != LM_I64;
  for (int64_t i = begin; i < end; i += max_chunk) {
    int64_t n = end - i < max_chunk ? end - i : max_chunk;
    const void *x = u->x + i * step * p->bytes;
    if (!direct) {
      p->loops->load[p->dtype](tile, x, step, (int)n);
      x = tile;
    }
    lm_total here = p->folds->start[fold];
    folds->rows[fold](&here, x, 0, 1, n, NULL);
    bool better = i == begin;
    if (floating) better |= isnan(here.f) || (s->largest ? here.f > extreme->f : here.f < extreme->f);
    if (!floating) better |= s->largest ? here.i > extreme->i : here.i < extreme->i;
    if (!better) continue;
    *extreme = here;
    *position = i + folds->find(x, n, here);
    if (floating && isnan(here.f)) return;
  }
}

static void search_tasks(void *ctx, int64_t first, int64_t last) {
  const search *s = ctx;
  const lm_reduce_plan *p = &s->plan;
  for (int64_t task = first; task < last; task++) {
    int64_t begin, end;
    lm_reduce_unit u = lm_reduce_unit_at(p, task / p->parts);
    lm_reduce_part(p, task % p->parts, &begin, &end);
    search_row(s, &u, begin, end, &s->extreme[task], &s->position[task]);
  }
}

static lm_status search_rows(search *s) {
  const lm_reduce_plan *p = &s->plan;
  int64_t tasks = p->units * p->parts;
  LM_WORKSPACE(lm_total, extreme, tasks);
  LM_WORKSPACE(int64_t, position, tasks);
  s->extreme = extreme, s->position = position;
  lm_parallel(tasks, lm_reduce_work(p), 0, search_tasks, s);
  for (int64_t unit = 0; unit < p->units; unit++) {
    lm_reduce_unit u = lm_reduce_unit_at(p, unit);
    int64_t best = unit * p->parts;
    for (int64_t task = best + 1; task < (unit + 1) * p->parts; task++) {
      const lm_total a = extreme[task], b = extreme[best];
      if (p->compute == LM_I64 ? (s->largest ? a.i > b.i : a.i < b.i)
                               : (isnan(a.f) && !isnan(b.f)) || (s->largest ? a.f > b.f : a.f < b.f)) {
        best = task;
      }
    }
    int64_t from_one = position[best] + 1;
    write_unit(s, &u, &extreme[best], p->compute == LM_I64 ? LM_I64 : LM_F64, &from_one);
  }
  return LM_OK;
}

static void search_units(void *ctx, int64_t first, int64_t last) {
  for (int64_t unit = first; unit < last; unit++) search_cols(ctx, unit);
}

lm_status lm_cpu_extreme_along(const lm_extreme_along_args *a, lm_tensor *const *out) {
  search s = {.largest = a->largest, .indices = out[0], .values = out[1]};
  bool reduced[LM_MAX_DIMS] = {false};
  reduced[a->dim] = true;
  lm_reduce_plan_make(&s.plan, a->x, s.indices, reduced, LM_REDUCE_COLS);
  if (s.plan.kept_count == 0) return LM_OK;
  if (!s.plan.cols) return search_rows(&s);
  return lm_parallel(s.plan.units, lm_reduce_work(&s.plan), 0, search_units, &s);
}
