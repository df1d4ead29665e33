#include "backend/cpu/reduce_plan.h"

#include "backend/cpu/cpu.h"

enum { OF_X, OF_OUT }; /* indices of the sides of lm_dims (merged_dims.h) */

/* Sets dims to those of x that `take` selects, and returns their number of elements. */
static int64_t set_dims(lm_dims *dims, const lm_tensor *x, const int64_t *out_stride, const bool *take) {
  lm_dims_set(dims, x->ndim, x->size, take, 2, (const int64_t *[]){x->stride, out_stride}, true);
  int64_t count = lm_dims_numel(dims);
  if (dims->ndim == 0 || count == 0) { /* one element or none */
    dims->ndim = 1, dims->size[0] = 1;
    dims->stride[OF_X][0] = dims->stride[OF_OUT][0] = 0;
  }
  return count;
}

/* Returns true for strips of columns, false for rows. Columns: the last kept dim is the closer one in memory. If
 * reduced elements are closer but few, strips of many results still beat short rows; short strips do not. */
static bool wants_cols(const lm_reduce_plan *p) {
  int last = p->kept.ndim - 1;
  int64_t across = p->kept.size[last];
  if (p->kept_count == 1) return false;
  if (p->reduced_count == 1) return true;
  if (p->reduced.stride[OF_X][p->reduced.ndim - 1] < p->kept.stride[OF_X][last]) {
    return p->reduced_count <= 32 && across >= 32;
  }
  return across >= 8;
}

void lm_reduce_plan_compute(lm_reduce_plan *p, lm_dtype compute) {
  p->compute = compute;
  p->loops = lm_pointwise_loops_of(compute);
  p->folds = lm_reduce_loops_of(compute);
  bool direct = p->dtype == compute || (p->dtype == LM_BF16 && compute == LM_F32);
  p->direct = direct ? lm_reduce_loops_of(p->dtype) : NULL;
}

void lm_reduce_plan_make(lm_reduce_plan *p, const lm_tensor *x, const lm_tensor *out, const bool *reduced, int width) {
  p->dtype = x->dtype;
  lm_reduce_plan_compute(p, p->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(p->dtype) ? LM_F32 : LM_I64);
  p->data = x->data;
  p->bytes = (int64_t)lm_dtype_size(p->dtype);
  bool kept[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) kept[d] = !reduced[d];
  p->kept_count = set_dims(&p->kept, x, out->stride, kept);
  p->reduced_count = set_dims(&p->reduced, x, NULL, reduced);
  p->strips = p->parts = p->width = 1;
  p->units = 0;
  p->cols = false;
  if (p->kept_count == 0) return;
  p->cols = wants_cols(p);
  const int64_t row_part = 1 << 16, skinny_gemm = 64, col_part = 128, few_strips = 16;
  if (p->cols) {
    int64_t across = p->kept.size[p->kept.ndim - 1];
    p->width = width;
    p->strips = lm_ceil_div(across, width);
    p->units = p->kept_count / across * p->strips;
    p->parts = p->units < few_strips ? lm_ceil_div(p->reduced_count, col_part) : 1;
    int64_t max_parts = lm_ceil_div(4 * few_strips, p->units);
    p->parts = p->parts < max_parts ? p->parts : max_parts;
  } else {
    p->units = p->kept_count;
    p->strips = p->kept.size[p->kept.ndim - 1];
    p->parts = p->units < skinny_gemm ? lm_ceil_div(p->reduced_count, row_part) : 1;
  }
  if (p->parts == 0) p->parts = 1;
}

void lm_reduce_plan_batch(lm_reduce_plan *p) {
  enum { IN_NEAR_CACHE = 4096 }; /* elements, which a second pass then finds in the L1 cache */
  if (p->kept_count == 0 || p->cols || p->parts > 1 || p->reduced_count > IN_NEAR_CACHE / 2) return;
  int64_t across = p->kept.size[p->kept.ndim - 1], rows = IN_NEAR_CACHE / lm_max(p->reduced_count, 1);
  p->width = (int)lm_min(rows, LM_REDUCE_COLS);
  p->strips = lm_ceil_div(across, p->width);
  p->units = p->kept_count / across * p->strips;
}

lm_reduce_unit lm_reduce_unit_at(const lm_reduce_plan *p, int64_t unit) {
  const lm_dims *kept = &p->kept;
  int last = kept->ndim - 1;
  lm_reduce_unit u = {.x_step = kept->stride[OF_X][last], .o_step = kept->stride[OF_OUT][last]};
  int64_t first = unit % p->strips * p->width, left = kept->size[last] - first, rest = unit / p->strips;
  u.cols = left < p->width ? (int)left : p->width;
  u.index = rest * kept->size[last] + first;
  int64_t x = first * u.x_step;
  u.out = first * u.o_step;
  for (int d = last - 1; d >= 0; d--) {
    x += rest % kept->size[d] * kept->stride[OF_X][d];
    u.out += rest % kept->size[d] * kept->stride[OF_OUT][d];
    rest /= kept->size[d];
  }
  u.x = p->data + x * p->bytes;
  return u;
}

void lm_reduce_part(const lm_reduce_plan *p, int64_t part, int64_t *begin, int64_t *end) {
  int64_t each = lm_ceil_div(p->reduced_count, p->parts);
  *begin = part * each < p->reduced_count ? part * each : p->reduced_count;
  *end = *begin + each < p->reduced_count ? *begin + each : p->reduced_count;
}

lm_reduce_walk lm_reduce_walk_from(const lm_reduce_plan *p, int64_t element) {
  lm_reduce_walk w = {.offset = 0};
  for (int d = p->reduced.ndim - 1; d >= 0; d--) {
    w.index[d] = element % p->reduced.size[d];
    w.offset += w.index[d] * p->reduced.stride[OF_X][d];
    element /= p->reduced.size[d];
  }
  return w;
}

int64_t lm_reduce_walk_run(const lm_reduce_plan *p, const lm_reduce_walk *w) {
  int last = p->reduced.ndim - 1;
  return p->reduced.size[last] - w->index[last];
}

void lm_reduce_walk_on(const lm_reduce_plan *p, lm_reduce_walk *w, int64_t n) {
  const lm_dims *r = &p->reduced;
  int last = r->ndim - 1;
  w->index[last] += n;
  w->offset += n * r->stride[OF_X][last];
  for (int d = last; d > 0 && w->index[d] == r->size[d]; d--) {
    w->offset += r->stride[OF_X][d - 1] - w->index[d] * r->stride[OF_X][d];
    w->index[d] = 0;
    w->index[d - 1]++;
  }
}

double lm_reduce_work(const lm_reduce_plan *p) { return (double)p->kept_count * (double)p->reduced_count * 0.5; }
