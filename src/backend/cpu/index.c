/* Picking and scattering. Indices are int64, contiguous, and count from 1; all are checked
 * before the first write. Results do not depend on the number of threads: what adds is split over
 * threads by destination, so that each element's additions happen in the order of the indices. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "base/mem.h"
#include "device/alloc.h"
#include "merged_dims.h"

/* ---- checks */

/* Every index in low .. high. Negative ones, where allowed, are in -high .. -1. */
static lm_status check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool negative) {
  bool bad = false;
  int threads = lm_cpu_share((double)n);
  if (negative) {
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : bad)
    for (int64_t i = 0; i < n; i++) {
      uint64_t v = index[i] < 0 ? 0 - (uint64_t)index[i] : (uint64_t)index[i];
      bad |= v - 1 >= (uint64_t)high;
    }
  } else { /* the top bit says it, of v - 1 or of high - v: loops of these vectorize */
    uint64_t beyond = 0;
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) reduction(| : beyond)
    for (int64_t i = 0; i < n; i++) beyond |= ((uint64_t)index[i] - 1) | ((uint64_t)high - (uint64_t)index[i]);
    bad = beyond >> 63;
  }
  if (!bad) return LM_OK;
  for (int64_t i = 0; i < n; i++) {
    int64_t v = negative && index[i] < 0 ? -index[i] : index[i];
    if (v >= 1 && v <= high) continue;
    return lm_bad_index(op, what, index[i], i + 1, high, negative);
  }
  return LM_OK;
}

/* ---- runs of n elements, strides in elements */

static void copy_run(size_t item, int64_t n, char *dst, int64_t to, const char *src, int64_t from) {
  if (to == 1 && from == 1) {
    memcpy(dst, src, (size_t)n * item);
    return;
  }
#define CASE(type)                                                                         \
  case sizeof(type): {                                                                     \
    for (int64_t i = 0; i < n; i++) ((type *)dst)[i * to] = ((const type *)src)[i * from]; \
    break;                                                                                 \
  }
  switch (item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
}

typedef void (*add_run_fn)(int64_t n, char *dst, int64_t to, const char *src, int64_t from);

/* n elements: element i of src (its step `from`) goes to (index i (step) - 1) * to + i * along of dst. */
typedef struct scatter_line {
  int64_t n, to, along, step, from;
} scatter_line;
typedef void (*scatter_fn)(const scatter_line *l, char *dst, const int64_t *index, const char *src);

#define LM_TEMPLATE "backend/cpu/isa/templates/index_add.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

static const struct {
  add_run_fn run;
  scatter_fn scatter[LM_FOLD_REPLACE + 1]; /* that one only moves bytes */
} adders[] = {
#define X(id, ...)                                 \
  [LM_##id] = {add_run_##id,                       \
               {[LM_FOLD_SUM] = scatter_add_##id,  \
                [LM_FOLD_PROD] = scatter_mul_##id, \
                [LM_FOLD_AMAX] = scatter_max_##id, \
                [LM_FOLD_AMIN] = scatter_min_##id}},
    LM_DTYPES(X)
#undef X
};

/* Where to add up: out itself, or a copy of it in float. */
static lm_status open_sums(lm_tensor *out, lm_tensor **sums) {
  lm_status status = LM_OK;
  lm_tensor *copy = NULL;
  if (out->dtype != LM_F16 && out->dtype != LM_BF16) {
    *sums = lm_retain(out);
    return LM_OK;
  }
  TRY(lm_tensor_empty_like(out, LM_F32, out->device, &copy));
  TRY(lm_cpu_copy(out, copy));
  *sums = copy;
  copy = NULL;
done:
  lm_release(copy);
  return status;
}

static lm_status close_sums(const lm_tensor *sums, lm_tensor *out) {
  return sums == out ? LM_OK : lm_cpu_copy(sums, out);
}

/* ---- gather, index_select, embedding: out[i, j] = x[index[i, j], j] for dim 0 */

enum { OF_X, OF_INDEX }; /* sides */

typedef struct gathering {
  lm_dims rows;                 /* of out, which is contiguous: all dims but the last; x has stride 0 along `dim` */
  int64_t width;                /* of a row */
  int64_t x_step, i_step, step; /* along a row; step: in x from one index to the next */
  const char *x;
  const int64_t *index;
  char *out;
  size_t item;
} gathering;

/* Elements low .. high - 1 of one row (out's last dim). */
static void gather_row(const gathering *g, int64_t row, int64_t low, int64_t high) {
  int64_t x_step = g->x_step, i_step = g->i_step, step = g->step;
  const char *x = g->x + (size_t)lm_dims_at(&g->rows, OF_X, row) * g->item;
  const int64_t *index = g->index + lm_dims_at(&g->rows, OF_INDEX, row);
  char *out = g->out + (size_t)(row * g->width) * g->item;
  if (i_step == 0) { /* one index for the row */
    copy_run(g->item, high - low, out + (size_t)low * g->item, 1,
             x + (size_t)((index[0] - 1) * step + low * x_step) * g->item, x_step);
    return;
  }
#define CASE(type)                                                                                             \
  case sizeof(type): {                                                                                         \
    const type *from = (const type *)x;                                                                        \
    for (int64_t j = low; j < high; j++) ((type *)out)[j] = from[j * x_step + (index[j * i_step] - 1) * step]; \
    break;                                                                                                     \
  }
  switch (g->item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
}

/* out[i, j] = x[index[i, j], j], where out has these sizes; i_stride: of the index along them, 0 where it is shared. */
static lm_status gather(const char *op, const lm_tensor *x, int dim, const lm_tensor *index, const int64_t *i_stride,
                        lm_tensor *out) {
  lm_status status = check_indices(op, "index", index->numel, (const int64_t *)index->data, x->size[dim], false);
  if (status != LM_OK) return status;
  int64_t x_stride[LM_MAX_DIMS], along[LM_DIMS_SIDES], n = out->numel;
  for (int d = 0; d < x->ndim; d++) x_stride[d] = d == dim ? 0 : x->stride[d];
  gathering gathered = {.x = x->data,
                        .index = (const int64_t *)index->data,
                        .out = out->data,
                        .item = lm_dtype_size((lm_dtype)x->dtype),
                        .step = x->stride[dim]};
  gathering *g = &gathered;
  g->rows = lm_dims_of(out->ndim, out->size, NULL, 2, (const int64_t *[]){x_stride, i_stride}, false);
  int64_t width = g->width = lm_dims_pop(&g->rows, along, 0);
  g->x_step = along[OF_X], g->i_step = along[OF_INDEX];
  int threads = lm_cpu_share((double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t end = lm_cpu_share_begin(n, t + 1, threads);
    for (int64_t p = lm_cpu_share_begin(n, t, threads); p < end;) {
      int64_t row = p / width, low = p % width, high = end - row * width < width ? end - row * width : width;
      gather_row(g, row, low, high);
      p = row * width + high;
    }
  }
  return LM_OK;
}

lm_status lm_cpu_gather(const void *args, lm_tensor *const *out) {
  const lm_gather_args *a = args;
  return gather("gather", a->x, (int)a->dim, a->index, a->index->stride, out[0]);
}

static lm_status select_entries(const char *op, const lm_tensor *x, int dim, const lm_tensor *index, lm_tensor *out) {
  int64_t i_stride[LM_MAX_DIMS] = {0};
  i_stride[dim] = 1;
  return gather(op, x, dim, index, i_stride, out);
}

lm_status lm_cpu_index_select(const void *args, lm_tensor *const *out) {
  const lm_index_select_args *a = args;
  return select_entries("index_select", a->x, (int)a->dim, a->index, out[0]);
}

lm_status lm_cpu_embedding(const void *args, lm_tensor *const *out) {
  const lm_embedding_args *a = args;
  return select_entries("embedding", a->weight, 0, a->index, out[0]);
}

/* ---- scatter and its kin */

static void put_line(size_t item, const scatter_line *l, char *dst, const int64_t *index, const char *src) {
  int64_t n = l->n, to = l->to, along = l->along, step = l->step, from = l->from;
#define CASE(type)                                                                           \
  case sizeof(type): {                                                                       \
    type *d = (type *)dst;                                                                   \
    const type *s = (const type *)src;                                                       \
    for (int64_t i = 0; i < n; i++) d[(index[i * step] - 1) * to + i * along] = s[i * from]; \
    break;                                                                                   \
  }
  switch (item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
}

enum { S_X, S_INDEX, S_SRC }; /* sides */

/* Elements low .. high - 1 of a dim apart from `dim`, all of `dim`: what shares a destination lies along that, and
 * keeps its order. */
typedef struct scattering {
  lm_dims rows;                         /* the dims but the two */
  int64_t width, across[LM_DIMS_SIDES]; /* of the dim apart */
  int64_t length, to, i_step, s_step;   /* of `dim` */
  char *x;
  const int64_t *index;
  const char *src;
  size_t x_item, item;
  scatter_fn fold; /* NULL: replace */
} scattering;

static void scatter_part(const scattering *s, int64_t row, int64_t low, int64_t high) {
  char *x = s->x + (lm_dims_at(&s->rows, S_X, row) + low * s->across[S_X]) * (int64_t)s->x_item;
  const int64_t *index = s->index + lm_dims_at(&s->rows, S_INDEX, row) + low * s->across[S_INDEX];
  const char *src = s->src + (lm_dims_at(&s->rows, S_SRC, row) + low * s->across[S_SRC]) * (int64_t)s->item;
  bool beside = s->i_step != 1 && high - low > 1; /* neighbours of the other dim are closer in memory */
  scatter_line l = {s->length, s->to, 0, s->i_step, s->s_step};
  if (beside) l = (scatter_line){high - low, s->to, s->across[S_X], s->across[S_INDEX], s->across[S_SRC]};
  int64_t lines = beside ? s->length : high - low;
  for (int64_t i = 0; i < lines; i++) {
    char *to = x + (beside ? 0 : i * s->across[S_X]) * (int64_t)s->x_item;
    const int64_t *at = index + i * (beside ? s->i_step : s->across[S_INDEX]);
    const char *from = src + i * (beside ? s->s_step : s->across[S_SRC]) * (int64_t)s->item;
    if (s->fold) {
      s->fold(&l, to, at, from);
    } else {
      put_line(s->x_item, &l, to, at, from);
    }
  }
}

lm_status lm_cpu_scatter_fold(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_scatter_fold_args *a = args;
  const lm_tensor *index = a->index, *src = a->src;
  lm_tensor *x = NULL;
  int dim = (int)a->dim;
  bool others[LM_MAX_DIMS];
  TRY(check_indices(lm_op_running(), "index", index->numel, (const int64_t *)index->data, out[0]->size[dim], false));
  if (a->how == LM_FOLD_REPLACE) {
    x = lm_retain(out[0]);
  } else {
    TRY(open_sums(out[0], &x));
  }
  for (int d = 0; d < index->ndim; d++) others[d] = d != dim;
  scattering s = {.length = index->size[dim],
                  .to = x->stride[dim],
                  .i_step = index->stride[dim],
                  .s_step = src->stride[dim],
                  .x = x->data,
                  .index = (const int64_t *)index->data,
                  .src = src->data,
                  .x_item = lm_dtype_size((lm_dtype)x->dtype),
                  .item = lm_dtype_size((lm_dtype)src->dtype),
                  .fold = adders[src->dtype].scatter[a->how]};
  s.rows = lm_dims_of(index->ndim, index->size, others, 3, (const int64_t *[]){x->stride, index->stride, src->stride},
                      false);
  s.width = lm_dims_pop(&s.rows, s.across, 0);
  int64_t n = index->numel / s.length;
  int threads = lm_cpu_share(2.0 * (double)index->numel);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t end = lm_cpu_share_begin(n, t + 1, threads);
    for (int64_t p = lm_cpu_share_begin(n, t, threads); p < end;) {
      int64_t row = p / s.width, low = p % s.width;
      int64_t high = end - row * s.width < s.width ? end - row * s.width : s.width;
      scatter_part(&s, row, low, high);
      p = row * s.width + high;
    }
  }
  TRY(close_sums(x, out[0]));
done:
  lm_release(x);
  return status;
}

/* ---- index_add, embedding_backward: threads take destinations */

/* out [outer, rows, inner] += src [outer, n, inner] at index [n]; index `skipped` is left out. */
static lm_status add_entries(lm_tensor *out, int64_t outer, int64_t rows, int64_t inner, const lm_tensor *index,
                             int64_t skipped, const lm_tensor *src) {
  lm_status status = LM_OK;
  lm_tensor *sums = NULL;
  TRY(open_sums(out, &sums));
  size_t bytes = (size_t)inner * lm_dtype_size((lm_dtype)src->dtype);
  size_t sum_bytes = (size_t)inner * lm_dtype_size((lm_dtype)sums->dtype);
  const int64_t *place = (const int64_t *)index->data, n = index->numel;
  add_run_fn add = adders[src->dtype].run;
  if (inner == 1 && skipped == 0) { /* lines that share no destination */
    scatter_line line = {n, 1, 0, 1, 1};
    scatter_fn scatter = adders[src->dtype].scatter[LM_FOLD_SUM];
    int lines = outer > 1 ? lm_cpu_share((double)outer * (double)n) : 1;
#pragma omp parallel for num_threads(lines) if (lines > 1)
    for (int64_t o = 0; o < outer; o++) {
      scatter(&line, sums->data + (size_t)(o * rows) * sum_bytes, place, src->data + (size_t)(o * n) * bytes);
    }
    TRY(close_sums(sums, out));
    goto done;
  }
  int threads = lm_cpu_share((double)outer * (double)n * (double)inner);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t low = lm_cpu_share_begin(outer * rows, t, threads), high = lm_cpu_share_begin(outer * rows, t + 1, threads);
    if (low == high) continue;
    for (int64_t o = low / rows; o <= (high - 1) / rows; o++) {
      for (int64_t i = 0; i < n; i++) {
        int64_t row = o * rows + place[i] - 1;
        if (row < low || row >= high || place[i] == skipped) continue;
        add(inner, sums->data + (size_t)row * sum_bytes, 1, src->data + (size_t)(o * n + i) * bytes, 1);
      }
    }
  }
  TRY(close_sums(sums, out));
done:
  lm_release(sums);
  return status;
}

lm_status lm_cpu_index_add(const void *args, lm_tensor *const *out) {
  const lm_index_add_args *a = args;
  lm_tensor *result = out[0];
  int64_t outer = 1, inner = 1, rows = result->size[a->dim];
  lm_status status = check_indices("index_add", "index", a->index->numel, (const int64_t *)a->index->data, rows, false);
  if (status != LM_OK) return status;
  for (int d = 0; d < a->dim; d++) outer *= result->size[d];
  for (int d = (int)a->dim + 1; d < result->ndim; d++) inner *= result->size[d];
  return add_entries(result, outer, rows, inner, a->index, 0, a->src);
}

lm_status lm_cpu_embedding_backward(const void *args, lm_tensor *const *out) {
  const lm_embedding_backward_args *a = args;
  lm_tensor *result = out[0];
  lm_status status =
      check_indices("embedding_backward", "index", a->index->numel, (const int64_t *)a->index->data, a->num, false);
  if (status != LM_OK) return status;
  memset(result->data, 0, lm_nbytes(result));
  return add_entries(result, 1, a->num, result->size[1], a->index, a->padding_idx, a->grad);
}

/* ---- index_get, index_put_ */

/* Where each index tuple points in x, in elements. Yours to lm_device_free, n * 8 bytes. */
static lm_status tuple_offsets(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, int64_t **out) {
  lm_status status = LM_OK;
  void *memory = NULL;
  for (int k = 0; k < indices->n; k++) {
    TRY(check_indices(op, "index", n, (const int64_t *)indices->v[k]->data, x->size[k], true));
  }
  TRY(lm_device_alloc(x->device, (size_t)n * sizeof(int64_t), &memory));
  int64_t *offset = memory;
  memset(offset, 0, (size_t)n * sizeof *offset);
  for (int k = 0; k < indices->n; k++) {
    const int64_t *index = (const int64_t *)indices->v[k]->data;
    int64_t stride = x->stride[k], entries = x->size[k];
    for (int64_t i = 0; i < n; i++) offset[i] += (index[i] < 0 ? index[i] + entries : index[i] - 1) * stride;
  }
  *out = offset;
done:
  return status;
}

/* The dims beside the indexed ones: rows of a strided run each. */
typedef struct block {
  lm_dims dims; /* of the rows; sides: to, from */
  int64_t rows, run, run_to, run_from;
} block;

enum { TO, FROM };

static block block_of(const lm_tensor *dst, int dst_first, const lm_tensor *src, int src_first) {
  int64_t along[LM_DIMS_SIDES];
  block b = {.dims = lm_dims_of(dst->ndim - dst_first, dst->size + dst_first, NULL, 2,
                                (const int64_t *[]){dst->stride + dst_first, src->stride + src_first}, false)};
  b.run = lm_dims_pop(&b.dims, along, 1);
  b.run_to = along[TO], b.run_from = along[FROM];
  b.rows = lm_dims_count(&b.dims);
  return b;
}

static inline int64_t row_offset(const block *b, int64_t row, int side) {
  return b->rows == 1 ? 0 : lm_dims_at(&b->dims, side, row);
}

/* dst[i] = x[offset[i]] */
static void pick_elements(size_t item, int64_t n, char *dst, int64_t to, const char *x, const int64_t *offset) {
#define CASE(type)                                                                        \
  case sizeof(type): {                                                                    \
    for (int64_t i = 0; i < n; i++) ((type *)dst)[i * to] = ((const type *)x)[offset[i]]; \
    break;                                                                                \
  }
  switch (item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
}

lm_status lm_cpu_index_get(const void *args, lm_tensor *const *out) {
  const lm_index_get_args *a = args;
  const lm_tensor *x = a->x;
  lm_tensor *result = out[0];
  int64_t *offset = NULL, n = result->size[0];
  size_t item = lm_dtype_size((lm_dtype)x->dtype);
  lm_status status = tuple_offsets("index_get", x, &a->indices, n, &offset);
  if (status != LM_OK) return status;
  block b = block_of(result, 1, x, a->indices.n);
  int threads = lm_cpu_share((double)result->numel);
  bool single = b.rows == 1 && b.run == 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < (single ? threads : 0); t++) {
    int64_t low = lm_cpu_share_begin(n, t, threads), high = lm_cpu_share_begin(n, t + 1, threads);
    pick_elements(item, high - low, result->data + (size_t)(low * result->stride[0]) * item, result->stride[0], x->data,
                  offset + low);
  }
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < (single ? 0 : n); i++) {
    for (int64_t r = 0; r < b.rows; r++) {
      copy_run(item, b.run, result->data + (size_t)(i * result->stride[0] + row_offset(&b, r, TO)) * item, b.run_to,
               x->data + (size_t)(offset[i] + row_offset(&b, r, FROM)) * item, b.run_from);
    }
  }
  lm_device_free(x->device, offset, (size_t)n * sizeof *offset);
  return LM_OK;
}

/* x[offset[i]] = src[i], of offsets from low to high - 1. */
static void put_elements(size_t item, int64_t n, char *x, const int64_t *offset, int64_t low, int64_t high,
                         const char *src, int64_t from) {
  uint64_t span = (uint64_t)(high - low);
#define CASE(type)                                                                                    \
  case sizeof(type): {                                                                                \
    for (int64_t i = 0; i < n; i++) {                                                                 \
      if ((uint64_t)(offset[i] - low) < span) ((type *)x)[offset[i]] = ((const type *)src)[i * from]; \
    }                                                                                                 \
    break;                                                                                            \
  }
  switch (item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
}

/* Threads take ranges of destinations: of equal tuples the last one wins, or all add up in order. */
lm_status lm_cpu_index_put_(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_index_put__args *a = args;
  const lm_tensor *values = a->values;
  lm_tensor *x = NULL;
  int64_t *offset = NULL, n = values->size[0], span = 1;
  if (a->accumulate) {
    TRY(open_sums(out[0], &x));
  } else {
    x = lm_retain(out[0]);
  }
  TRY(tuple_offsets("index_put_", x, &a->indices, n, &offset));
  block b = block_of(x, a->indices.n, values, 1);
  for (int k = 0; k < a->indices.n; k++) span += (x->size[k] - 1) * x->stride[k];
  size_t x_item = lm_dtype_size((lm_dtype)x->dtype), item = lm_dtype_size((lm_dtype)values->dtype);
  add_run_fn add = a->accumulate ? adders[values->dtype].run : NULL;
  int threads = lm_cpu_share((double)values->numel);
  if (b.rows == 1 && b.run == 1 && !add) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
      put_elements(item, n, x->data, offset, lm_cpu_share_begin(span, t, threads),
                   lm_cpu_share_begin(span, t + 1, threads), values->data, values->stride[0]);
    }
    goto done;
  }
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t low = lm_cpu_share_begin(span, t, threads), high = lm_cpu_share_begin(span, t + 1, threads);
    for (int64_t i = 0; i < n; i++) {
      if (offset[i] < low || offset[i] >= high) continue;
      for (int64_t r = 0; r < b.rows; r++) {
        char *to = x->data + (size_t)(offset[i] + row_offset(&b, r, TO)) * x_item;
        const char *from = values->data + (size_t)(i * values->stride[0] + row_offset(&b, r, FROM)) * item;
        if (add) {
          add(b.run, to, b.run_to, from, b.run_from);
        } else {
          copy_run(item, b.run, to, b.run_to, from, b.run_from);
        }
      }
    }
  }
  TRY(close_sums(x, out[0]));
done:
  if (offset) lm_device_free(out[0]->device, offset, (size_t)n * sizeof *offset);
  lm_release(x);
  return status;
}

/* ---- nonzero, one_hot */

/* x: a contiguous bool mask, out [count, ndim]. Each thread counts its part, then writes from where
 * the parts before it end. */
lm_status lm_cpu_nonzero(const void *args, lm_tensor *const *out) {
  const lm_nonzero_args *a = args;
  const lm_tensor *x = a->x;
  const uint8_t *mask = (const uint8_t *)x->data;
  int ndim = x->ndim, threads = lm_cpu_share((double)x->numel);
  int64_t *before = lm_calloc((size_t)threads + 1, sizeof *before);
  if (!before) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t count = 0, end = lm_cpu_share_begin(x->numel, t + 1, threads);
    for (int64_t i = lm_cpu_share_begin(x->numel, t, threads); i < end; i++) count += mask[i] != 0;
    before[t + 1] = count;
  }
  for (int t = 0; t < threads; t++) before[t + 1] += before[t];
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t *row = (int64_t *)out[0]->data + before[t] * ndim, end = lm_cpu_share_begin(x->numel, t + 1, threads);
    int64_t begin = lm_cpu_share_begin(x->numel, t, threads), count = before[t + 1] - before[t];
    if (ndim == 1) { /* without branches: what is no place is written over */
      int64_t k = 0;
      for (int64_t i = begin; k < count; i++) {
        row[k] = i + 1;
        k += mask[i] != 0;
      }
      continue;
    }
    for (int64_t i = begin; i < end; i++) {
      if (!mask[i]) continue;
      int64_t position = i;
      for (int d = ndim - 1; d >= 0; d--) {
        row[d] = position % x->size[d] + 1;
        position /= x->size[d];
      }
      row += ndim;
    }
  }
  lm_free(before);
  return LM_OK;
}

lm_status lm_cpu_one_hot(const void *args, lm_tensor *const *out) {
  const lm_one_hot_args *a = args;
  int64_t n = a->x->numel, classes = a->num_classes, *result = (int64_t *)out[0]->data;
  const int64_t *label = (const int64_t *)a->x->data;
  lm_status status = check_indices("one_hot", "label", n, label, classes, false);
  if (status != LM_OK) return status;
  memset(result, 0, (size_t)(n * classes) * sizeof *result);
  for (int64_t i = 0; i < n; i++) result[i * classes + label[i] - 1] = 1;
  return LM_OK;
}

/* ---- tril, triu */

lm_status lm_cpu_triangle(const void *args, lm_tensor *const *out) {
  const lm_triangle_args *a = args;
  const lm_tensor *x = a->x;
  size_t item = lm_dtype_size((lm_dtype)x->dtype);
  int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1], lines = x->numel / columns;
  int threads = lm_cpu_share((double)x->numel * (double)item / 16);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t line = 0; line < lines; line++) {
    int64_t cut = line % rows + a->diagonal + (a->upper ? 0 : 1); /* the first column of the right part */
    size_t left = (size_t)(cut < 0 ? 0 : cut > columns ? columns : cut) * item, all = (size_t)columns * item;
    char *to = out[0]->data + (size_t)line * all;
    const char *from = x->data + (size_t)line * all;
    size_t kept = a->upper ? left : 0, n = a->upper ? all - left : left;
    memset(to + (a->upper ? 0 : left), 0, all - n);
    if (to != from) memcpy(to + kept, from + kept, n);
  }
  return LM_OK;
}
