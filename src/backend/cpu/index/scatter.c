/* Scatters by indices (scatter, index_add, index_put_ and others): combines x[index[i, j], j] with src[i, j] for dim 0.
 * Results do not depend on the number of threads: sums are split over threads by destination, so that each element's
 * additions happen in the order of the indices. */
#include <string.h>

#include "backend/cpu/index/indices.h"
#include "backend/cpu/isa/index.h"
#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/nontemporal_copy.h"
#include "base/large_array.h"
#include "base/mem.h"
#include "merged_dims.h"
#include "op_args_indexing.h"
#include "op_args_scattering.h"

enum { ROW = 32768 }; /* bytes of a row of x, which stays in the L1 or L2 cache while src goes into it */

/* Sets *sums to the tensor that takes the sums: out itself, retained, or a float32 copy of halves; the caller releases
 * it. */
static lm_status open_sums(lm_tensor *out, lm_tensor **sums) {
  if (!lm_dtype_is_half(out->dtype)) {
    *sums = lm_retain(out);
    return LM_OK;
  }
  NEED(lm_tensor_empty_like(out, LM_F32, out->device, sums));
  return lm_cpu_copy(out, *sums);
}

static lm_status close_sums(const lm_tensor *sums, lm_tensor *out) {
  return sums == out ? LM_OK : lm_cpu_copy(sums, out);
}

enum { S_X, S_INDEX, S_SRC }; /* indices of the sides of `rows` (merged_dims.h) */

/* A scatter job. Elements with one destination are along `dim`, and are combined in their order. */
typedef struct scattering {
  lm_dims rows;                         /* all dims except `dim` and the fastest other one */
  int64_t width, across[LM_DIMS_SIDES]; /* size and strides of the fastest other dim */
  int64_t length, to, i_step, s_step;   /* size and strides of `dim` */
  int64_t entries, apart;               /* x's indices are 1 .. entries; elements from one entry to the next */
  int64_t skipped;                      /* index that is ignored, or 0 */
  char *x;
  const int64_t *index;
  const char *src;
  size_t x_item, item;
  lm_scatter_loop loop;
  bool whole, own;     /* true if scatter_entries runs; if scatter_own does, whose ranges read all indices */
  int64_t all, ranges; /* number of destinations; number of ranges that they are cut into */
} scattering;

/* Scatters elements low .. high - 1 of the fastest other dim, for all of `dim`. */
static void scatter_part(const scattering *s, int64_t row, int64_t low, int64_t high) {
  char *x = s->x + (lm_dims_at(&s->rows, S_X, row) + low * s->across[S_X]) * (int64_t)s->x_item;
  const int64_t *index = s->index + lm_dims_at(&s->rows, S_INDEX, row) + low * s->across[S_INDEX];
  const char *src = s->src + (lm_dims_at(&s->rows, S_SRC, row) + low * s->across[S_SRC]) * (int64_t)s->item;
  bool beside = s->i_step != 1 && high - low > 1; /* neighbors of the other dim are closer in memory */
  lm_scatter_line l = {s->length, s->to, 0, s->i_step, s->s_step};
  if (beside) l = (lm_scatter_line){high - low, s->to, s->across[S_X], s->across[S_INDEX], s->across[S_SRC]};
  int64_t lines = beside ? s->length : high - low;
  for (int64_t i = 0; i < lines; i++) {
    s->loop(&l, x + (beside ? 0 : i * s->across[S_X]) * (int64_t)s->x_item,
            index + i * (beside ? s->i_step : s->across[S_INDEX]),
            src + i * (beside ? s->s_step : s->across[S_SRC]) * (int64_t)s->item);
  }
}

/* Scatters whole entries, which are contiguous in x, to one thread's destinations, low .. high - 1 in all rows. */
static void scatter_entries(const scattering *s, int64_t low, int64_t high) {
  lm_scatter_line l = {s->width, s->to, s->across[S_X], 0, s->across[S_SRC]};
  for (int64_t row = low / s->entries; low < high && row <= (high - 1) / s->entries; row++) {
    char *x = s->x + lm_dims_at(&s->rows, S_X, row) * (int64_t)s->x_item;
    const char *src = s->src + lm_dims_at(&s->rows, S_SRC, row) * (int64_t)s->item;
    uint64_t first = (uint64_t)(low - row * s->entries), n = (uint64_t)(high - low);
    if (low < row * s->entries) first = 0, n = (uint64_t)(high - row * s->entries);
    for (int64_t i = 0; i < s->length; i++) {
      const int64_t *index = s->index + i * s->i_step;
      if ((uint64_t)*index - 1 - first >= n || *index == s->skipped) continue;
      s->loop(&l, x, index, src + i * s->s_step * (int64_t)s->item);
    }
  }
}

/* Scatters a single line's elements whose destinations are low .. high - 1, which are selected some at a time. */
static void scatter_own(const scattering *s, int64_t low, int64_t high) {
  enum { SOME = 1024 };
  LM_LARGE(int64_t, index, SOME);
  LM_LARGE(int64_t, from, SOME);
  LM_LARGE(uint64_t, src, SOME);
  const uint64_t span = (uint64_t)(high - low);
  for (int64_t first = 0; first < s->length; first += SOME) {
    int64_t some = s->length - first < SOME ? s->length - first : SOME, n = 0;
    for (int64_t i = first; i < first + some; i++) {
      index[n] = s->index[i * s->i_step];
      from[n] = i * s->s_step;
      n += (uint64_t)(index[n] - 1 - low) < span;
    }
#define CASE(type)                                                                      \
  case sizeof(type): {                                                                  \
    for (int64_t i = 0; i < n; i++) ((type *)src)[i] = ((const type *)s->src)[from[i]]; \
    break;                                                                              \
  }
    switch (s->item) { LM_EACH_WIDTH(CASE) }
#undef CASE
    s->loop(&(lm_scatter_line){n, s->to, 0, 1, 1}, s->x, index, src);
  }
}

/* A single line of integers that are added up, in any order: each share but the first has its own sums, which are then
 * added to x. scatter_shares returns false if memory is short. */
typedef struct scatter_shares_job {
  const scattering *s;
  int shares;
  char *own;
} scatter_shares_job;

static void scatter_share(void *ctx, int64_t first, int64_t last) {
  const scatter_shares_job *j = ctx;
  const scattering *s = j->s;
  for (int64_t t = first; t < last; t++) {
    int64_t low = lm_part_begin(s->length, t, j->shares), high = lm_part_begin(s->length, t + 1, j->shares);
    lm_scatter_line l = {high - low, t ? 1 : s->to, 0, s->i_step, s->s_step};
    s->loop(&l, t ? j->own + (size_t)((t - 1) * s->entries) * s->item : s->x, s->index + low * s->i_step,
            s->src + low * s->s_step * (int64_t)s->item);
  }
}

static bool scatter_shares(const scattering *s, int shares, double work) {
  size_t table = (size_t)s->entries * s->item;
  char *own = lm_calloc((size_t)shares - 1, table);
  if (!own) return false;
  lm_parallel(shares, work, 0, scatter_share, &(scatter_shares_job){s, shares, own});
  for (int t = 1; t < shares; t++)
    s->loop(&(lm_scatter_line){s->entries, 0, s->to, 0, 1}, s->x, &(int64_t){1}, own + (size_t)(t - 1) * table);
  lm_free(own);
  return true;
}

static void scatter_ranges(void *ctx, int64_t first, int64_t last) {
  const scattering *s = ctx;
  int64_t begin = lm_part_begin(s->all, first, s->ranges), end = lm_part_begin(s->all, last, s->ranges);
  if (s->whole) {
    scatter_entries(s, begin, end);
  } else if (s->own) {
    scatter_own(s, begin, end);
  } else {
    for (int64_t p = begin; p < end;) {
      int64_t row = p / s->width, low = p % s->width;
      int64_t high = end - row * s->width < s->width ? end - row * s->width : s->width;
      scatter_part(s, row, low, high);
      p = row * s->width + high;
    }
  }
}

/* Scatters. s has memory and the values of `dim`; ndim other dims have sizes and strides. how: LM_FOLD_… */
static void scatter_all(scattering *s, int how, lm_dtype dtype, int ndim, const int64_t *size,
                        const int64_t *const stride[3]) {
  const struct lm_scatter_loops *loops = LM_ISA_PICK(lm_scatter_loops);
  s->item = lm_dtype_size(dtype);
  s->loop = how == LM_FOLD_REPLACE ? loops->put[s->item] : loops->fold[how][dtype];
  s->rows = lm_dims_of(ndim, size, NULL, 3, stride, true);
  s->width = lm_dims_pop(&s->rows, s->across, 0);
  int64_t rows = lm_dims_numel(&s->rows), n = rows * s->width, count = n * s->length;
  bool shared = s->across[S_INDEX] == 0;
  for (int d = 0; d < s->rows.ndim; d++) shared &= s->rows.stride[S_INDEX][d] == 0;
  if (count == 0) return;
  double work = 2.0 * (double)count;
  int threads = lm_threads_for(work);
  s->whole = s->skipped != 0 || (shared && s->width > 1 && s->across[S_X] < s->apart), s->own = n == 1 && threads > 1;
  bool few = s->entries <= s->length / (4 * threads); /* true if few entries take many elements */
  if (s->own && few && how == LM_FOLD_SUM && !lm_dtype_is_float(dtype) && scatter_shares(s, threads, work)) return;
  s->all = s->whole ? rows * s->entries : s->own ? s->entries : n;
  s->ranges = s->whole || s->own ? threads : n;
  lm_parallel(s->ranges, work, 0, scatter_ranges, s);
}

/* Scatters src to x, of the type of the sums, along `dim`. The index's strides are passed, since it may have that dim
 * alone. */
static void scatter_lines(lm_tensor *x, int dim, const lm_tensor *index, const int64_t *i_stride, const int64_t *sizes,
                          int64_t skipped, const lm_tensor *src, int how) {
  int64_t size[LM_MAX_DIMS], stride[3][LM_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (d == dim) continue;
    size[n] = sizes[d];
    stride[S_X][n] = x->stride[d], stride[S_INDEX][n] = i_stride[d], stride[S_SRC][n] = src->stride[d];
    n++;
  }
  scattering s = {.length = sizes[dim],
                  .to = x->stride[dim],
                  .i_step = i_stride[dim],
                  .s_step = src->stride[dim],
                  .entries = x->size[dim],
                  .apart = x->stride[dim],
                  .skipped = skipped,
                  .x = x->data,
                  .index = (const int64_t *)index->data,
                  .src = src->data,
                  .x_item = lm_dtype_size(x->dtype)};
  scatter_all(&s, how, src->dtype, n, size, (const int64_t *[]){stride[0], stride[1], stride[2]});
}

typedef struct row_scatter {
  const lm_tensor *x, *index, *src, *out;
  lm_scatter_loop loop;
  bool streams;
  _Atomic bool beyond; /* true if an index is out of range */
} row_scatter;

static void scatter_some_rows(void *ctx, int64_t begin, int64_t end) {
  row_scatter *j = ctx;
  const int last = j->x->ndim - 1;
  const int64_t width = j->x->size[last], n = j->index->size[last];
  const size_t item = lm_dtype_size((lm_dtype)j->x->dtype), bytes = (size_t)width * item;
  const lm_scatter_line line = {n, 1, 0, 1, 1};
  LM_LARGE(char, row, ROW);
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, j->out->data + (size_t)begin * bytes, j->streams);
  for (int64_t r = begin; r < end && !atomic_load_explicit(&j->beyond, memory_order_relaxed); r++) {
    const int64_t *at = (const int64_t *)j->index->data + r * n;
    uint64_t beyond = 0;
#pragma omp simd reduction(| : beyond)
    for (int64_t i = 0; i < n; i++) beyond |= ((uint64_t)at[i] - 1) | ((uint64_t)width - (uint64_t)at[i]);
    if (beyond >> 63) {
      atomic_store_explicit(&j->beyond, true, memory_order_relaxed);
      break;
    }
    char *here = j->streams ? row : w.to;
    lm_copy_run(here, j->x->data + (size_t)r * bytes, bytes);
    j->loop(&line, here, at, j->src->data + (size_t)(r * n) * item);
    if (j->streams) {
      lm_nontemporal_write(&w, row, bytes);
    } else {
      w.to += bytes;
    }
  }
  lm_nontemporal_close(&w);
}

/* Makes a new result row by row: a row of x is copied into the near caches, takes its elements of src there, and is
 * stored. Returns false, with nothing done, if tensors are not contiguous; *good: true if indices are in range. */
static bool scatter_rows(const lm_scatter_along_args *a, lm_tensor *out, bool *good) {
  const struct lm_scatter_loops *loops = LM_ISA_PICK(lm_scatter_loops);
  const lm_tensor *x = a->x, *index = a->index, *src = a->src;
  const int last = x->ndim - 1;
  const int64_t width = x->size[last], rows = width ? x->numel / width : 0;
  const size_t item = lm_dtype_size((lm_dtype)x->dtype), bytes = (size_t)width * item;
  bool folds = a->how != LM_FOLD_REPLACE, half = lm_dtype_is_half(x->dtype);
  bool fits = a->dim == last && !(folds && half) && bytes > 0 && bytes <= ROW && lm_is_contiguous(x) &&
              lm_is_contiguous(out) && lm_is_contiguous(index) && lm_is_contiguous(src) &&
              src->size[last] == index->size[last];
  for (int d = 0; fits && d < last; d++) fits = index->size[d] == x->size[d] && src->size[d] == x->size[d];
  if (!fits) return false;
  row_scatter job = {.x = x, .index = index, .src = src, .out = out};
  job.loop = folds ? loops->fold[a->how][x->dtype] : loops->put[item];
  job.streams = lm_use_nontemporal(lm_nbytes(out));
  lm_parallel(rows, 2.0 * (double)index->numel + (double)x->numel / 4, 0, scatter_some_rows, &job);
  *good = !job.beyond;
  return true;
}

lm_status lm_cpu_scatter_along(const lm_scatter_along_args *a, lm_tensor *const *out) {
  LM_OWNED *x = NULL;
  bool good = true;
  if (a->x != out[0] && scatter_rows(a, out[0], &good) && good) return LM_OK;
  NEED(lm_cpu_check_index(lm_op_running(), a->index, out[0]->size[a->dim]));
  if (a->x != out[0]) NEED(lm_cpu_copy(a->x, out[0]));
  if (a->how == LM_FOLD_REPLACE)
    x = lm_retain(out[0]);
  else
    NEED(open_sums(out[0], &x));
  scatter_lines(x, (int)a->dim, a->index, a->index->stride, a->index->size, 0, a->src, a->how);
  return close_sums(x, out[0]);
}

/* The entries of a half tensor that an index names, with their sums in float32. */
typedef struct named_entries {
  const lm_tensor *out;
  const int64_t *entry; /* their indices in out, from 0 */
  lm_tensor *sums;
  bool back; /* true to round the sums to out, false to load them */
} named_entries;

static void move_entries(void *ctx, int64_t first, int64_t last) {
  const named_entries *e = ctx;
  const struct lm_pointwise_loops *loops = lm_pointwise_loops_of(LM_F32);
  const int64_t width = e->out->stride[0];
  for (int64_t i = first; i < last; i++) {
    char *entry = e->out->data + (size_t)(e->entry[i] * width) * sizeof(uint16_t);
    char *sums = e->sums->data + (size_t)(i * width) * sizeof(float);
    if (e->back) {
      lm_store_long(loops, e->out->dtype, sizeof(float), sums, entry, 1, width);
    } else {
      lm_load_long(loops, e->out->dtype, sizeof(float), sums, entry, 1, width);
    }
  }
}

/* Does what add_entries does for a contiguous half tensor and dim 0, with float32 sums of the named entries alone. */
static lm_status add_to_named(lm_tensor *out, const lm_tensor *index, int64_t skipped, const lm_tensor *src) {
  const int64_t n = index->numel, *at = (const int64_t *)index->data;
  LM_OWNED *numbers = NULL, *sums = NULL;
  LM_WORKSPACE(int64_t, entry, n);
  LM_FREED int32_t *number_of = lm_calloc((size_t)out->size[0], sizeof *number_of); /* in sums, from 1 */
  if (!number_of) return LM_E_OOM;
  NEED(lm_tensor_empty_like(index, LM_I64, out->device, &numbers));
  int64_t *number = (int64_t *)numbers->data, size[LM_MAX_DIMS], count = 0;
  for (int64_t i = 0; i < n; i++) {
    number[i] = 0;
    if (at[i] == skipped) continue;
    int32_t *of = &number_of[at[i] - 1];
    if (*of == 0) entry[count] = at[i] - 1, *of = (int32_t)++count;
    number[i] = *of;
  }
  if (count == 0) return LM_OK;
  memcpy(size, out->size, sizeof size);
  size[0] = count;
  NEED(lm_tensor_empty(LM_F32, out->device, out->ndim, size, LM_CONTIGUOUS, &sums));
  named_entries e = {out, entry, sums, false};
  const double work = (double)sums->numel;
  NEED(lm_parallel(count, work, 0, move_entries, &e));
  scatter_lines(sums, 0, numbers, (const int64_t[LM_MAX_DIMS]){1}, src->size, INT64_MAX, src, LM_FOLD_SUM);
  e.back = true;
  return lm_parallel(count, work, 0, move_entries, &e);
}

/* Adds src's entries to those of out that a 1-d index names; `skipped`: an index that is ignored, or 0. */
static lm_status add_entries(const char *op, lm_tensor *out, int dim, const lm_tensor *index, int64_t skipped,
                             const lm_tensor *src) {
  LM_OWNED *sums = NULL;
  int64_t i_stride[LM_MAX_DIMS] = {0};
  i_stride[dim] = 1;
  NEED(lm_cpu_check_indices(op, "index", index->numel, (const int64_t *)index->data, out->size[dim], NULL));
  const bool half = lm_dtype_is_half(out->dtype);
  if (half && dim == 0 && index->numel < lm_min(out->size[0] / 2, INT32_MAX) && lm_is_contiguous(out))
    return add_to_named(out, index, skipped, src);
  NEED(open_sums(out, &sums));
  scatter_lines(sums, dim, index, i_stride, src->size, skipped, src, LM_FOLD_SUM);
  return close_sums(sums, out);
}

lm_status lm_cpu_index_add(const lm_index_add_args *a, lm_tensor *const *out) {
  return add_entries("index_add", out[0], (int)a->dim, a->index, 0, a->src);
}

lm_status lm_cpu_embedding_backward(const lm_embedding_backward_args *a, lm_tensor *const *out) {
  LM_OWNED *src = NULL;
  int64_t features = out[0]->size[1];
  memset(out[0]->data, 0, lm_nbytes(out[0]));
  NEED(lm_tensor_view(a->grad, 2, (int64_t[]){a->index->numel, features}, (int64_t[]){features, 1}, 0, &src));
  return add_entries("embedding_backward", out[0], 0, a->index, a->padding_idx, src);
}

/* Puts values at tuples of indices: of equal tuples the last one wins, or all are added in order. */
lm_status lm_cpu_index_put_(const lm_index_put__args *a, lm_tensor *const *out) {
  const lm_tensor *values = a->values;
  LM_OWNED *x = NULL;
  LM_INDEX_TUPLES t = {0};
  int indexed = a->indices.n;
  const int64_t shared[LM_MAX_DIMS] = {0};
  if (a->accumulate)
    NEED(open_sums(out[0], &x));
  else
    x = lm_retain(out[0]);
  NEED(lm_tuples_open("index_put_", x, &a->indices, values->size[0], &t));
  scattering s = {.length = t.n,
                  .to = t.step,
                  .i_step = 1,
                  .s_step = values->stride[0],
                  .entries = t.entries,
                  .apart = t.apart,
                  .x = x->data,
                  .index = t.position,
                  .src = values->data,
                  .x_item = lm_dtype_size(x->dtype)};
  scatter_all(&s, a->accumulate ? LM_FOLD_SUM : LM_FOLD_REPLACE, values->dtype, x->ndim - indexed, x->size + indexed,
              (const int64_t *[]){x->stride + indexed, shared, values->stride + 1});
  return close_sums(x, out[0]);
}
