#include "backend/cpu/reduce_plan.h"

#include <string.h>

#include "backend/cpu/cpu.h"

/* Decreasing strides in x; neighbours merged where x (and, for kept dims, the result) allow it. */
static void arrange(lm_fold_dims *d) {
  for (int i = 1; i < d->ndim; i++) {
    int64_t size = d->size[i], x = d->x[i], out = d->out[i];
    int to = i;
    for (; to > 0 && d->x[to - 1] < x; to--) {
      d->size[to] = d->size[to - 1], d->x[to] = d->x[to - 1], d->out[to] = d->out[to - 1];
    }
    d->size[to] = size, d->x[to] = x, d->out[to] = out;
  }
  int last = 0;
  for (int i = 1; i < d->ndim; i++) {
    bool merges = d->x[last] == d->x[i] * d->size[i] && d->out[last] == d->out[i] * d->size[i];
    if (!merges) last++;
    d->size[last] = merges ? d->size[last] * d->size[i] : d->size[i];
    d->x[last] = d->x[i], d->out[last] = d->out[i];
  }
  d->ndim = d->ndim ? last + 1 : 1;
  d->count = 1;
  for (int i = 0; i < d->ndim; i++) d->count *= d->size[i];
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Columns where the last kept dim is the closer one in memory. Where reduced elements are closer but few, strips
 * of many results are still better than many short rows; and where the strips would be short, rows are. */
static bool wants_cols(const lm_fold_dims *kept, const lm_fold_dims *reduced) {
  int64_t across = kept->size[kept->ndim - 1], x_kept = kept->x[kept->ndim - 1];
  if (kept->count == 1) return false;
  if (reduced->count == 1) return true;
  if (reduced->x[reduced->ndim - 1] < x_kept) return reduced->count <= 32 && across >= 32;
  return across >= 8;
}

void lm_fold_plan_make(lm_fold_plan *p, const lm_tensor *x, const lm_tensor *out, const bool *reduced, int width) {
  memset(p, 0, sizeof *p);
  p->width = width;
  p->dtype = (lm_dtype)x->dtype;
  p->compute = p->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(p->dtype) ? LM_F32 : LM_I64;
  p->data = x->data;
  p->bytes = (int64_t)lm_dtype_size(p->dtype);
  p->loops = lm_point_loops_of(p->compute);
  p->folds = lm_reduce_loops_of(p->compute);
  p->kept.size[0] = p->reduced.size[0] = 1;
  for (int d = 0; d < x->ndim; d++) {
    lm_fold_dims *dims = reduced[d] ? &p->reduced : &p->kept;
    if (x->size[d] == 1) continue;
    dims->size[dims->ndim] = x->size[d], dims->x[dims->ndim] = x->stride[d];
    dims->out[dims->ndim++] = reduced[d] ? 0 : out->stride[d];
  }
  for (int d = 0; d < p->reduced.ndim; d++) p->reduced.out[d] = 0;
  arrange(&p->kept);
  arrange(&p->reduced);
  p->strips = p->parts = 1;
  if (p->kept.count == 0) return;
  p->cols = wants_cols(&p->kept, &p->reduced);
  const int64_t row_part = 1 << 16, few_rows = 64, col_part = 64, few_strips = 16;
  if (p->cols) {
    int64_t across = p->kept.size[p->kept.ndim - 1];
    p->strips = ceil_div(across, p->width);
    p->units = p->kept.count / across * p->strips;
    p->parts = p->units < few_strips ? ceil_div(p->reduced.count, col_part) : 1;
    int64_t most = ceil_div(4 * few_strips, p->units);
    p->parts = p->parts < most ? p->parts : most;
  } else {
    p->units = p->kept.count;
    p->parts = p->units < few_rows ? ceil_div(p->reduced.count, row_part) : 1;
  }
  if (p->parts == 0) p->parts = 1;
}

lm_fold_unit lm_fold_unit_at(const lm_fold_plan *p, int64_t unit) {
  const lm_fold_dims *kept = &p->kept;
  int last = kept->ndim - 1;
  lm_fold_unit u = {.cols = 1, .x_step = kept->x[last], .o_step = kept->out[last]};
  int64_t x = 0, rest = unit;
  u.index = unit;
  if (p->cols) {
    int64_t first = rest % p->strips * p->width, left = kept->size[last] - first;
    rest /= p->strips;
    u.cols = left < p->width ? (int)left : p->width;
    u.index = rest * kept->size[last] + first;
    x = first * u.x_step, u.out = first * u.o_step;
    last--;
  }
  for (int d = last; d >= 0; d--) {
    x += rest % kept->size[d] * kept->x[d];
    u.out += rest % kept->size[d] * kept->out[d];
    rest /= kept->size[d];
  }
  u.x = p->data + x * p->bytes;
  return u;
}

void lm_fold_part(const lm_fold_plan *p, int64_t part, int64_t *begin, int64_t *end) {
  int64_t each = ceil_div(p->reduced.count, p->parts);
  *begin = part * each < p->reduced.count ? part * each : p->reduced.count;
  *end = *begin + each < p->reduced.count ? *begin + each : p->reduced.count;
}

lm_fold_walk lm_fold_walk_from(const lm_fold_plan *p, int64_t element) {
  lm_fold_walk w = {.offset = 0};
  for (int d = p->reduced.ndim - 1; d >= 0; d--) {
    w.index[d] = element % p->reduced.size[d];
    w.offset += w.index[d] * p->reduced.x[d];
    element /= p->reduced.size[d];
  }
  return w;
}

int64_t lm_fold_walk_run(const lm_fold_plan *p, const lm_fold_walk *w) {
  int last = p->reduced.ndim - 1;
  return p->reduced.size[last] - w->index[last];
}

void lm_fold_walk_on(const lm_fold_plan *p, lm_fold_walk *w, int64_t n) {
  const lm_fold_dims *r = &p->reduced;
  int last = r->ndim - 1;
  w->index[last] += n;
  w->offset += n * r->x[last];
  for (int d = last; d > 0 && w->index[d] == r->size[d]; d--) {
    w->offset += r->x[d - 1] - w->index[d] * r->x[d];
    w->index[d] = 0;
    w->index[d - 1]++;
  }
}

int lm_fold_share(const lm_fold_plan *p) {
  int share = lm_cpu_share((double)p->kept.count * (double)p->reduced.count * 0.5);
  return share < p->units * p->parts ? share : (int)(p->units * p->parts);
}
