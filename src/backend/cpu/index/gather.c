/* Gathers by indices (gather, index_select, embedding, x[indices]): out[i, j] = x[index[i, j], j] for dim 0. */
#include <string.h>

#include "backend/cpu/index/indices.h"
#include "backend/cpu/isa/index.h"
#include "backend/cpu/nontemporal_copy.h"
#include "base/mem.h"
#include "base/message.h"
#include "merged_dims.h"
#include "op_args_indexing.h"

enum { OF_OUT, OF_X, OF_INDEX }; /* indices of the sides of `rows` (merged_dims.h) */

enum { TILE = 2048 }; /* bytes of a large result that are gathered in the L1 cache before they bypass the caches */

/* Consecutive indices: x's entries first .. first + n - 1, from 0. */
typedef struct index_run {
  int64_t first, n;
} index_run;

typedef struct gathering {
  lm_dims rows;                 /* all dims of out, which is dense, but the fastest; x's stride along the dim is 0 */
  int64_t width;                /* elements of a row */
  int64_t x_step, i_step, step; /* strides along a row; step: x's from one index to the next */
  int64_t entries;              /* indices are 1 .. entries */
  bool checked;                 /* true if they were checked */
  const char *x;
  const int64_t *index;
  const index_run *runs; /* runs that the indices of a row consist of, or NULL */
  char *out;
  size_t item;
  bool streams;
  bool entry_rows;     /* true for a matrix whose rows are each a contiguous part of one entry */
  _Atomic bool beyond; /* true if an index is out of range */
} gathering;

/* Returns the runs of n indices if these are worth a copy each (as those of padding are), to be freed by the caller.
 * Returns NULL if they are not, or if memory is short. */
static index_run *find_index_runs(const int64_t *index, int64_t n) {
  enum { MIN_MEAN = 8 };
  int64_t count = 1;
  for (int64_t i = 1; i < n; i++) count += index[i] != index[i - 1] + 1;
  index_run *runs = count <= n / MIN_MEAN ? lm_malloc((size_t)count * sizeof *runs) : NULL;
  if (!runs) return NULL;
  index_run *r = runs;
  *r = (index_run){index[0] - 1, 1};
  for (int64_t i = 1; i < n; i++) {
    if (index[i] == index[i - 1] + 1) {
      r->n++;
    } else {
      *++r = (index_run){index[i] - 1, 1};
    }
  }
  return runs;
}

/* Gathers elements low .. high - 1 of one row to the writer, through `tile` if it streams. The result's top bit is set
 * if an index is none of 1 .. entries; the row's elements are then arbitrary. */
static uint64_t gather_row(const gathering *g, int64_t row, int64_t low, int64_t high, lm_nontemporal_writer *w,
                           char *tile) {
  int64_t x_step = g->x_step, i_step = g->i_step, step = g->step;
  uint64_t beyond = 0, entries = (uint64_t)g->entries;
  const char *x = g->x + lm_dims_at(&g->rows, OF_X, row) * (int64_t)g->item;
  const int64_t *index = g->index + lm_dims_at(&g->rows, OF_INDEX, row);
  const size_t bytes = (size_t)(high - low) * g->item;
  char *out = w->streams ? tile : w->to;
  if (i_step == 0 && x_step == 1) { /* a part of one entry */
    uint64_t at = (uint64_t)index[0] - 1;
    beyond = at | (entries - 1 - at);
    if (at >= entries) at = 0;
    lm_nontemporal_write(w, x + ((int64_t)at * step + low) * (int64_t)g->item, bytes);
    return beyond;
  }
#define CASE(type)                                                                      \
  case sizeof(type): {                                                                  \
    const type *from = (const type *)x;                                                 \
    type *to = (type *)out;                                                             \
    if (g->runs && high - low == g->width) {                                            \
      for (const index_run *r = g->runs; to < (type *)out + g->width; to += r++->n) {   \
        if (r->n == 1) {                                                                \
          *to = from[r->first];                                                         \
        } else {                                                                        \
          lm_copy_run(to, from + r->first, (size_t)r->n * sizeof(type));                \
        }                                                                               \
      }                                                                                 \
      break;                                                                            \
    }                                                                                   \
    if (g->checked && x_step == 0 && i_step == 1 && step == 1) {                        \
      for (int64_t j = low; j < high; j++) to[j - low] = from[index[j] - 1];            \
      break;                                                                            \
    }                                                                                   \
    if (x_step == 0 && i_step == 1 && step == 1) { /* checked in vectors, then taken */ \
      _Pragma("omp simd reduction(| : beyond)") for (int64_t j = low; j < high; j++) {  \
        uint64_t at = (uint64_t)index[j] - 1;                                           \
        beyond |= at | (entries - 1 - at);                                              \
      }                                                                                 \
      if (beyond >> 63) break;                                                          \
      for (int64_t j = low; j < high; j++) to[j - low] = from[index[j] - 1];            \
      break;                                                                            \
    }                                                                                   \
    for (int64_t j = low; j < high; j++) {                                              \
      uint64_t at = (uint64_t)index[j * i_step] - 1;                                    \
      beyond |= at | (entries - 1 - at);                                                \
      to[j - low] = from[j * x_step + (int64_t)(at < entries ? at : 0) * step];         \
    }                                                                                   \
    break;                                                                              \
  }
  switch (g->item) { LM_EACH_WIDTH(CASE) }
#undef CASE
  if (w->streams) {
    lm_nontemporal_write(w, tile, bytes);
  } else {
    w->to += bytes;
  }
  return beyond;
}

/* Gathers rows begin .. end - 1 of a matrix, contiguous parts of entries. Returns as gather_row. */
static uint64_t gather_entries(const gathering *g, int64_t begin, int64_t end, lm_nontemporal_writer *w) {
  enum { AHEAD = 4, LINE = 64, MAX_BYTES = 1024 };
  const int64_t i_step = g->rows.ndim > 0 ? g->rows.stride[OF_INDEX][0] : 0, step = g->step * (int64_t)g->item;
  const size_t bytes = (size_t)g->width * g->item;
  uint64_t beyond = 0, entries = (uint64_t)g->entries;
  for (int64_t row = begin; row < end; row++) {
    const uint64_t at = (uint64_t)g->index[row * i_step] - 1;
    beyond |= at | (entries - 1 - at);
    if (row + AHEAD < end && bytes <= MAX_BYTES) {
      const uint64_t next = (uint64_t)g->index[(row + AHEAD) * i_step] - 1;
      const char *x = g->x + (next < entries ? (int64_t)next : 0) * step;
      for (size_t line = 0; line < bytes; line += LINE) __builtin_prefetch(x + line);
    }
    lm_nontemporal_write(w, g->x + (at < entries ? (int64_t)at : 0) * step, bytes);
  }
  return beyond;
}

/* Prefetches entries of the next row: indices reach them in no order that the hardware could predict. */
static void fetch_row(const gathering *g, int64_t row) {
  enum { LINE = 64, MAX_BYTES = 16384 };
  const int64_t bytes = g->entries * (int64_t)g->item;
  if (g->x_step != 0 || g->step != 1 || bytes > MAX_BYTES || row >= lm_dims_numel(&g->rows)) return;
  const char *x = g->x + lm_dims_at(&g->rows, OF_X, row) * (int64_t)g->item;
  for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(x + at);
}

/* Gathers elements begin .. end - 1 of the result. */
static void gather_elements(void *ctx, int64_t begin, int64_t end) {
  gathering *g = ctx;
  const int64_t max_chunk = TILE / (int64_t)g->item, width = g->width;
  const bool entry = g->i_step == 0 && g->x_step == 1;
  uint64_t beyond = 0;
  char tile[TILE];
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, g->out + begin * (int64_t)g->item, g->streams);
  for (int64_t p = begin; p < end;) {
    if (g->entry_rows && p % width == 0 && end - p >= width) {
      beyond |= gather_entries(g, p / width, end / width, &w);
      p = end / width * width;
      continue;
    }
    int64_t row = p / width, low = p % width, high = end - row * width < width ? end - row * width : width;
    if (g->streams && !entry && high - low > max_chunk) high = low + max_chunk;
    if (low == 0) fetch_row(g, row + 1);
    beyond |= gather_row(g, row, low, high, &w, tile);
    p = row * width + high;
  }
  lm_nontemporal_close(&w);
  if (beyond >> 63) atomic_store_explicit(&g->beyond, true, memory_order_relaxed);
}

/* Gathers all of out. g has memory, step and entries; strides are along out's dims. Returns false for a bad index. */
static bool gather_all(gathering *g, const lm_tensor *out, const int64_t *x_stride, const int64_t *i_stride) {
  int64_t along[LM_DIMS_SIDES], n = out->numel;
  g->out = out->data;
  g->item = lm_dtype_size(out->dtype);
  g->rows = lm_dims_of(out->ndim, out->size, NULL, 3, (const int64_t *[]){out->stride, x_stride, i_stride}, true);
  int64_t width = g->width = lm_dims_pop(&g->rows, along, 0);
  g->x_step = along[OF_X], g->i_step = along[OF_INDEX];
  g->entry_rows =
      g->x_step == 1 && g->i_step == 0 && (g->rows.ndim == 0 || (g->rows.ndim == 1 && g->rows.stride[OF_X][0] == 0));
  bool shared = g->checked && g->x_step == 0 && g->i_step == 1 && g->step == 1; /* a row of indices for all rows */
  for (int d = 0; d < g->rows.ndim; d++) shared &= g->rows.stride[OF_INDEX][d] == 0;
  index_run *runs = shared && n > 0 ? find_index_runs(g->index, width) : NULL;
  g->runs = runs;
  g->streams = lm_use_nontemporal(lm_nbytes(out)) && !(runs && width > TILE / (int64_t)g->item);
  lm_parallel(n, (double)n, 0, gather_elements, g);
  lm_free(runs);
  return !g->beyond;
}

/* Gathers along `dim`. i_stride: the index's strides along out's dims, 0 where it is shared. */
static lm_status gather_along_dim(const char *op, const lm_tensor *x, int dim, const lm_tensor *index,
                                  const int64_t *i_stride, lm_tensor *out) {
  int64_t x_stride[LM_MAX_DIMS];
  bool often = index->numel < out->numel / 4 || x->size[dim] == 0; /* true if each index is read often */
  NEED(often ? lm_cpu_check_index(op, index, x->size[dim]) : LM_OK);
  for (int d = 0; d < x->ndim; d++) x_stride[d] = d == dim ? 0 : x->stride[d];
  gathering g = {.x = x->data,
                 .index = (const int64_t *)index->data,
                 .step = x->stride[dim],
                 .entries = x->size[dim],
                 .checked = often};
  return gather_all(&g, out, x_stride, i_stride) ? LM_OK : lm_cpu_check_index(op, index, x->size[dim]);
}

lm_status lm_cpu_gather(const lm_gather_args *a, lm_tensor *const *out) {
  return gather_along_dim("gather", a->x, (int)a->dim, a->index, a->index->stride, out[0]);
}

static lm_status select_entries(const char *op, const lm_tensor *x, int dim, const lm_tensor *index, lm_tensor *out) {
  int64_t i_stride[LM_MAX_DIMS] = {0};
  i_stride[dim] = 1;
  return gather_along_dim(op, x, dim, index, i_stride, out);
}

lm_status lm_cpu_index_select(const lm_index_select_args *a, lm_tensor *const *out) {
  return select_entries("index_select", a->x, (int)a->dim, a->index, out[0]);
}

lm_status lm_cpu_embedding(const lm_embedding_args *a, lm_tensor *const *out) {
  return select_entries("embedding", a->weight, 0, a->index, out[0]);
}

lm_status lm_cpu_embedding_bag_sums(const lm_embedding_bag_sums_args *a, lm_tensor *const *out) {
  lm_embedding_bag_job job = {.weight = a->weight->data,
                              .each = a->each ? a->each->data : NULL,
                              .index = (const int64_t *)a->index->data,
                              .offsets = (const int64_t *)a->offsets->data,
                              .bags = a->offsets->numel,
                              .n = a->index->numel,
                              .d = a->weight->size[1],
                              .skipped = a->padding_idx,
                              .means = a->means,
                              .out = out[0]->data,
                              .counts = out[1]->data};
  if (job.bags == 0 && job.n > 0)
    return lm_fail_value("embedding_bag", "offsets", lm_text("non-empty for %lld indices", (long long)job.n), "[0]");
  if (job.bags > 0 && job.offsets[0] != 1) { return lm_fail_int("embedding_bag", "offsets[1]", "1", job.offsets[0]); }
  for (int64_t b = 1; b < job.bags; b++) {
    if (job.offsets[b] >= job.offsets[b - 1] && job.offsets[b] <= job.n + 1) continue;
    return lm_fail_int("embedding_bag", lm_text("offsets[%lld]", (long long)b + 1),
                       lm_text("non-decreasing and at most %lld", (long long)job.n + 1), job.offsets[b]);
  }
  NEED(lm_cpu_check_indices("embedding_bag", "index", job.n, job.index, a->weight->size[0], NULL));
  return lm_parallel(job.bags, 0.25 * (double)(job.n + job.bags) * (double)(job.d + 16), 0,
                     LM_ISA_PICK(lm_embedding_bag_loops)->sums[a->weight->dtype], &job);
}

lm_status lm_cpu_index_get(const lm_index_get_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x, *result = out[0];
  LM_INDEX_TUPLES t = {0};
  int64_t x_stride[LM_MAX_DIMS] = {0}, i_stride[LM_MAX_DIMS] = {1};
  NEED(lm_tuples_open("index_get", x, &a->indices, result->size[0], &t));
  for (int d = 1; d < result->ndim; d++) x_stride[d] = x->stride[a->indices.n + d - 1];
  gathering g = {.x = x->data, .index = t.position, .step = t.step, .entries = t.entries, .checked = true};
  gather_all(&g, result, x_stride, i_stride);
  return LM_OK;
}
