/* Picking and scattering. Indices are int64, contiguous but for dims that are expanded, and count from 1; all are
 * checked before the first write. Results do not depend on the number of threads: what adds is split over threads by
 * destination, so that each element's additions happen in the order of the indices. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/index.h"
#include "backend/cpu/stream_copy.h"
#include "base/mem.h"
#include "device/alloc.h"
#include "merged_dims.h"

/* ---- checks */

/* Every index in low .. high. Negative ones, where allowed, are in -high .. -1; *negative says whether there are. */
static lm_status check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool *negative) {
  uint64_t beyond = 0, below = 0; /* the top bit says it, of v - 1 or of high - v: loops of these vectorize */
  int threads = lm_cpu_share((double)n);
  if (negative) {
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) reduction(| : beyond, below)
    for (int64_t i = 0; i < n; i++) {
      uint64_t sign = index[i] < 0 ? UINT64_MAX : 0, v = ((uint64_t)index[i] ^ sign) - sign;
      below |= sign;
      beyond |= (v - 1) | ((uint64_t)high - v);
    }
    *negative = below != 0;
  } else {
#pragma omp parallel for simd num_threads(threads) if (parallel : threads > 1) reduction(| : beyond)
    for (int64_t i = 0; i < n; i++) beyond |= ((uint64_t)index[i] - 1) | ((uint64_t)high - (uint64_t)index[i]);
  }
  if (beyond >> 63 == 0) return LM_OK;
  for (int64_t i = 0; i < n; i++) {
    uint64_t v = negative && index[i] < 0 ? 0 - (uint64_t)index[i] : (uint64_t)index[i];
    if (v - 1 < (uint64_t)high) continue;
    return lm_bad_index(op, what, index[i], i + 1, high, negative != NULL);
  }
  return LM_OK;
}

/* The same of an index tensor that may be expanded. */
static lm_status check_index(const char *op, const lm_tensor *index, int64_t high) {
  int64_t n = 1;
  for (int d = 0; d < index->ndim; d++) n *= index->stride[d] == 0 && index->size[d] > 0 ? 1 : index->size[d];
  return check_indices(op, "index", n, (const int64_t *)index->data, high, NULL);
}

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

/* ---- index tuples: x is indexed in its first dims by as many index tensors [n] */

/* x's entry that tuple i names begins (place[i] - 1) * step elements after x. */
typedef struct tuples {
  const int64_t *place;
  int64_t n, step, entries;
  int64_t apart; /* elements between neighbours among them */
  void *own;     /* what place points to, if it is no index tensor */
} tuples;

static void close_tuples(const lm_tensor *x, tuples *t) {
  if (t->own) lm_device_free(x->device, t->own, (size_t)t->n * sizeof *t->place);
}

static lm_status open_tuples(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, tuples *t) {
  lm_status status = LM_OK;
  bool negative = false, any_negative = false;
  *t = (tuples){(const int64_t *)indices->v[0]->data, n, x->stride[0], x->size[0], x->stride[0], NULL};
  for (int k = 0; k < indices->n; k++) {
    TRY(check_indices(op, "index", n, (const int64_t *)indices->v[k]->data, x->size[k], &negative));
    any_negative |= negative;
  }
  if (indices->n == 1 && !any_negative) return LM_OK;
  t->step = t->entries = 1;
  for (int k = 0; k < indices->n; k++) {
    t->entries += (x->size[k] - 1) * x->stride[k];
    if (x->size[k] > 1 && x->stride[k] < t->apart) t->apart = x->stride[k];
  }
  TRY(lm_device_alloc(x->device, (size_t)n * sizeof *t->place, &t->own));
  int64_t *place = t->own;
  t->place = place;
  int threads = lm_cpu_share((double)n * indices->n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; part++) {
    int64_t low = lm_cpu_share_begin(n, part, threads), high = lm_cpu_share_begin(n, part + 1, threads);
    for (int k = 0; k < indices->n; k++) {
      const int64_t *index = (const int64_t *)indices->v[k]->data;
      int64_t stride = x->stride[k], size = x->size[k];
      for (int64_t i = low; i < high; i++) {
        place[i] = (k ? place[i] : 1) + (index[i] - 1 + (size + 1) * (index[i] < 0)) * stride;
      }
    }
  }
done:
  return status;
}

/* ---- gather and its kin: out[i, j] = x[index[i, j], j] for dim 0 */

enum { OF_OUT, OF_X, OF_INDEX }; /* sides */

enum { TILE = 8192, ROW = 32768 }; /* bytes of a large result that are made before they go past the caches */

/* Indices that follow one another: x's entries first .. first + n - 1, from 0. */
typedef struct index_run {
  int64_t first, n;
} index_run;

typedef struct gathering {
  lm_dims rows;                 /* of out, which is dense, in its order: all dims but the fastest; x: 0 along the dim */
  int64_t width;                /* of a row */
  int64_t x_step, i_step, step; /* along a row; step: in x from one index to the next */
  int64_t entries;              /* indices are 1 .. entries */
  bool checked;                 /* they are */
  const char *x;
  const int64_t *index;
  const index_run *runs; /* what the indices of a row are made of, or NULL */
  char *out;
  size_t item;
} gathering;

/* Where indices come in runs that are worth a copy each (as those of padding do), these; NULL else, and where there is
 * no memory for them. To be freed. */
static index_run *runs_of(const int64_t *index, int64_t n) {
  enum { LEAST_MEAN = 8 };
  int64_t count = 1;
  for (int64_t i = 1; i < n; i++) count += index[i] != index[i - 1] + 1;
  index_run *runs = count <= n / LEAST_MEAN ? lm_malloc((size_t)count * sizeof *runs) : NULL;
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

/* Elements low .. high - 1 of one row, to `tile` and on or where the writer is. The top bit of the result says that an
 * index is none of 1 .. entries, of which the first entry is taken. */
static uint64_t gather_row(const gathering *g, int64_t row, int64_t low, int64_t high, lm_stream_writer *w,
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
    lm_stream_write(w, x + ((int64_t)at * step + low) * (int64_t)g->item, bytes);
    return beyond;
  }
#define CASE(type)                                                                    \
  case sizeof(type): {                                                                \
    const type *from = (const type *)x;                                               \
    type *to = (type *)out;                                                           \
    if (g->runs && high - low == g->width) {                                          \
      for (const index_run *r = g->runs; to < (type *)out + g->width; to += r++->n) { \
        if (r->n == 1) {                                                              \
          *to = from[r->first];                                                       \
        } else {                                                                      \
          memcpy(to, from + r->first, (size_t)r->n * sizeof(type));                   \
        }                                                                             \
      }                                                                               \
      break;                                                                          \
    }                                                                                 \
    if (g->checked && x_step == 0 && i_step == 1 && step == 1) {                      \
      for (int64_t j = low; j < high; j++) to[j - low] = from[index[j] - 1];          \
      break;                                                                          \
    }                                                                                 \
    for (int64_t j = low; j < high; j++) {                                            \
      uint64_t at = (uint64_t)index[j * i_step] - 1;                                  \
      beyond |= at | (entries - 1 - at);                                              \
      to[j - low] = from[j * x_step + (int64_t)(at < entries ? at : 0) * step];       \
    }                                                                                 \
    break;                                                                            \
  }
  switch (g->item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
#undef CASE
  if (w->streams) {
    lm_stream_write(w, tile, bytes);
  } else {
    w->to += bytes;
  }
  return beyond;
}

/* g has memory, step and entries. Strides are those along out's dims. False if an index is out of range. */
static bool gather_all(gathering *g, const lm_tensor *out, const int64_t *x_stride, const int64_t *i_stride) {
  int64_t along[LM_DIMS_SIDES], n = out->numel;
  uint64_t beyond = 0;
  g->out = out->data;
  g->item = lm_dtype_size((lm_dtype)out->dtype);
  g->rows = lm_dims_of(out->ndim, out->size, NULL, 3, (const int64_t *[]){out->stride, x_stride, i_stride}, true);
  int64_t width = g->width = lm_dims_pop(&g->rows, along, 0);
  g->x_step = along[OF_X], g->i_step = along[OF_INDEX];
  bool shared = g->checked && g->x_step == 0 && g->i_step == 1 && g->step == 1; /* a row of indices for all rows */
  for (int d = 0; d < g->rows.ndim; d++) shared &= g->rows.stride[OF_INDEX][d] == 0;
  index_run *runs = shared && n > 0 ? runs_of(g->index, width) : NULL;
  g->runs = runs;
  int threads = lm_cpu_share((double)n);
  const int64_t most = TILE / (int64_t)g->item;
  bool streams = lm_stream_pays(lm_nbytes(out)) && !(runs && width > most), entry = g->i_step == 0 && g->x_step == 1;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : beyond)
  for (int t = 0; t < threads; t++) {
    int64_t begin = lm_cpu_share_begin(n, t, threads), end = lm_cpu_share_begin(n, t + 1, threads);
    char tile[TILE];
    lm_stream_writer w;
    lm_stream_open(&w, g->out + begin * (int64_t)g->item, streams);
    for (int64_t p = begin; p < end;) {
      int64_t row = p / width, low = p % width, high = end - row * width < width ? end - row * width : width;
      if (streams && !entry && high - low > most) high = low + most;
      beyond |= gather_row(g, row, low, high, &w, tile);
      p = row * width + high;
    }
    lm_stream_close(&w);
  }
  lm_free(runs);
  return beyond >> 63 == 0;
}

/* i_stride: of the index along out's dims, 0 where it is shared. */
static lm_status gather(const char *op, const lm_tensor *x, int dim, const lm_tensor *index, const int64_t *i_stride,
                        lm_tensor *out) {
  int64_t x_stride[LM_MAX_DIMS];
  bool often = index->numel < out->numel / 4 || x->size[dim] == 0; /* is each looked at often? */
  lm_status status = often ? check_index(op, index, x->size[dim]) : LM_OK;
  if (status != LM_OK) return status;
  for (int d = 0; d < x->ndim; d++) x_stride[d] = d == dim ? 0 : x->stride[d];
  gathering g = {.x = x->data,
                 .index = (const int64_t *)index->data,
                 .step = x->stride[dim],
                 .entries = x->size[dim],
                 .checked = often};
  return gather_all(&g, out, x_stride, i_stride) ? LM_OK : check_index(op, index, x->size[dim]);
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

lm_status lm_cpu_bag_sums(const void *args, lm_tensor *const *out) {
  const lm_bag_sums_args *a = args;
  lm_bags job = {.weight = a->weight->data,
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
    return lm_fail(LM_E_ARG, "bag_sums: there are no offsets, and %lld indices", (long long)job.n);
  if (job.bags > 0 && job.offsets[0] != 1) {
    return lm_fail(LM_E_ARG, "bag_sums: offsets[1] has to be 1, where the first bag begins, is %lld",
                   (long long)job.offsets[0]);
  }
  for (int64_t b = 1; b < job.bags; b++) {
    if (job.offsets[b] >= job.offsets[b - 1] && job.offsets[b] <= job.n + 1) continue;
    return lm_fail(LM_E_ARG, "bag_sums: offsets have to grow from 1 up to %lld, one past index; offsets[%lld] is %lld",
                   (long long)job.n + 1, (long long)b + 1, (long long)job.offsets[b]);
  }
  lm_status status = check_indices("bag_sums", "index", job.n, job.index, a->weight->size[0], NULL);
  if (status != LM_OK) return status;
  int threads = lm_cpu_share(0.25 * (double)(job.n + job.bags) * (double)(job.d + 16));
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    LM_ISA_PICK(lm_bag_loops)
        ->sums[a->weight->dtype](&job, lm_cpu_share_begin(job.bags, t, threads),
                                 lm_cpu_share_begin(job.bags, t + 1, threads));
  }
  return LM_OK;
}

lm_status lm_cpu_index_get(const void *args, lm_tensor *const *out) {
  const lm_index_get_args *a = args;
  const lm_tensor *x = a->x, *result = out[0];
  tuples t;
  int64_t x_stride[LM_MAX_DIMS] = {0}, i_stride[LM_MAX_DIMS] = {1};
  lm_status status = open_tuples("index_get", x, &a->indices, result->size[0], &t);
  if (status == LM_OK) {
    for (int d = 1; d < result->ndim; d++) x_stride[d] = x->stride[a->indices.n + d - 1];
    gathering g = {.x = x->data, .index = t.place, .step = t.step, .entries = t.entries, .checked = true};
    gather_all(&g, result, x_stride, i_stride);
  }
  close_tuples(x, &t);
  return status;
}

/* ---- scatter and its kin: x[index[i, j], j] becomes what it is with src[i, j] for dim 0 */

enum { S_X, S_INDEX, S_SRC }; /* sides */

/* What shares a destination lies along `dim`, and keeps its order. */
typedef struct scattering {
  lm_dims rows;                         /* the dims but `dim` and the fastest other one */
  int64_t width, across[LM_DIMS_SIDES]; /* of that one */
  int64_t length, to, i_step, s_step;   /* of `dim` */
  int64_t entries, apart;               /* of x: indices are 1 .. entries; elements between neighbours among them */
  int64_t skipped;                      /* an index that goes nowhere, or 0 */
  char *x;
  const int64_t *index;
  const char *src;
  size_t x_item, item;
  lm_scatter_loop loop;
} scattering;

/* Elements low .. high - 1 of the fastest other dim, all of `dim`. */
static void scatter_part(const scattering *s, int64_t row, int64_t low, int64_t high) {
  char *x = s->x + (lm_dims_at(&s->rows, S_X, row) + low * s->across[S_X]) * (int64_t)s->x_item;
  const int64_t *index = s->index + lm_dims_at(&s->rows, S_INDEX, row) + low * s->across[S_INDEX];
  const char *src = s->src + (lm_dims_at(&s->rows, S_SRC, row) + low * s->across[S_SRC]) * (int64_t)s->item;
  bool beside = s->i_step != 1 && high - low > 1; /* neighbours of the other dim are closer in memory */
  lm_scatter_line l = {s->length, s->to, 0, s->i_step, s->s_step};
  if (beside) l = (lm_scatter_line){high - low, s->to, s->across[S_X], s->across[S_INDEX], s->across[S_SRC]};
  int64_t lines = beside ? s->length : high - low;
  for (int64_t i = 0; i < lines; i++) {
    s->loop(&l, x + (beside ? 0 : i * s->across[S_X]) * (int64_t)s->x_item,
            index + i * (beside ? s->i_step : s->across[S_INDEX]),
            src + i * (beside ? s->s_step : s->across[S_SRC]) * (int64_t)s->item);
  }
}

/* Whole entries, which lie together in x: each thread takes some of the destinations, low .. high - 1 in all rows. */
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

/* The only line there is: what goes to the destinations low .. high - 1, sorted out some at a time. */
static void scatter_own(const scattering *s, int64_t low, int64_t high) {
  enum { SOME = 1024 };
  int64_t index[SOME], from[SOME];
  uint64_t src[SOME], span = (uint64_t)(high - low);
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
    switch (s->item) {
      CASE(uint8_t)
      CASE(uint16_t)
      CASE(uint32_t)
      CASE(uint64_t)
    }
#undef CASE
    s->loop(&(lm_scatter_line){n, s->to, 0, 1, 1}, s->x, index, src);
  }
}

/* The only line there is, of integers that are added up, whose order does not matter: each thread but the first has
 * sums of its own, which then go to x. False: there is no memory for them. */
static bool scatter_shares(const scattering *s, int threads) {
  size_t table = (size_t)s->entries * s->item;
  char *own = lm_calloc((size_t)threads - 1, table);
  if (!own) return false;
#pragma omp parallel for num_threads(threads)
  for (int t = 0; t < threads; t++) {
    int64_t low = lm_cpu_share_begin(s->length, t, threads), high = lm_cpu_share_begin(s->length, t + 1, threads);
    lm_scatter_line l = {high - low, t ? 1 : s->to, 0, s->i_step, s->s_step};
    s->loop(&l, t ? own + (size_t)(t - 1) * table : s->x, s->index + low * s->i_step,
            s->src + low * s->s_step * (int64_t)s->item);
  }
  for (int t = 1; t < threads; t++)
    s->loop(&(lm_scatter_line){s->entries, 0, s->to, 0, 1}, s->x, &(int64_t){1}, own + (size_t)(t - 1) * table);
  lm_free(own);
  return true;
}

/* s has memory, `dim` and what stands with it; dims: ndim others, with their sizes and strides. how: LM_FOLD_… */
static void scatter_all(scattering *s, int how, lm_dtype dtype, int ndim, const int64_t *size,
                        const int64_t *const stride[3]) {
  const struct lm_scatter_loops *loops = LM_ISA_PICK(lm_scatter_loops);
  s->item = lm_dtype_size(dtype);
  s->loop = how == LM_FOLD_REPLACE ? loops->put[s->item] : loops->fold[how][dtype];
  s->rows = lm_dims_of(ndim, size, NULL, 3, stride, true);
  s->width = lm_dims_pop(&s->rows, s->across, 0);
  int64_t rows = lm_dims_count(&s->rows), n = rows * s->width, work = n * s->length;
  bool shared = s->across[S_INDEX] == 0;
  for (int d = 0; d < s->rows.ndim; d++) shared &= s->rows.stride[S_INDEX][d] == 0;
  if (work == 0) return;
  int threads = lm_cpu_share(2.0 * (double)work);
  bool whole = s->skipped != 0 || (shared && s->width > 1 && s->across[S_X] < s->apart), own = n == 1 && threads > 1;
  bool few = s->entries <= s->length / (4 * threads); /* beside what goes there */
  if (own && few && how == LM_FOLD_SUM && !lm_dtype_is_float(dtype) && scatter_shares(s, threads)) return;
  int64_t all = whole ? rows * s->entries : own ? s->entries : n;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t begin = lm_cpu_share_begin(all, t, threads), end = lm_cpu_share_begin(all, t + 1, threads);
    if (whole) {
      scatter_entries(s, begin, end);
    } else if (own) {
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
}

/* The dims of x, an index (whose strides are given, as it may have one dim alone) and src but `dim`; x is of what the
 * sums are kept in. */
static void scatter_along(lm_tensor *x, int dim, const lm_tensor *index, const int64_t *i_stride, const int64_t *sizes,
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
                  .x_item = lm_dtype_size((lm_dtype)x->dtype)};
  scatter_all(&s, how, (lm_dtype)src->dtype, n, size, (const int64_t *[]){stride[0], stride[1], stride[2]});
}

/* A new result, row by row: x's goes into the near caches, gets its elements of src there, and goes out. False: what
 * has to lie side by side does not, and nothing was done; *good: whether indices are in range. */
static bool scatter_rows(const lm_scatter_fold_args *a, lm_tensor *out, bool *good) {
  const struct lm_scatter_loops *loops = LM_ISA_PICK(lm_scatter_loops);
  const lm_tensor *x = a->x, *index = a->index, *src = a->src;
  const int last = x->ndim - 1;
  const int64_t width = x->size[last], n = index->size[last], rows = width ? x->numel / width : 0;
  const size_t item = lm_dtype_size((lm_dtype)x->dtype), bytes = (size_t)width * item;
  bool folds = a->how != LM_FOLD_REPLACE, half = x->dtype == LM_F16 || x->dtype == LM_BF16;
  bool fits = a->dim == last && !(folds && half) && bytes > 0 && bytes <= ROW && lm_is_contiguous(x) &&
              lm_is_contiguous(out) && lm_is_contiguous(index) && lm_is_contiguous(src) && src->size[last] == n;
  for (int d = 0; fits && d < last; d++) fits = index->size[d] == x->size[d] && src->size[d] == x->size[d];
  if (!fits) return false;
  lm_scatter_loop loop = folds ? loops->fold[a->how][x->dtype] : loops->put[item];
  const bool streams = lm_stream_pays(lm_nbytes(out));
  const lm_scatter_line line = {n, 1, 0, 1, 1};
  uint64_t beyond = 0;
  int threads = lm_cpu_share(2.0 * (double)index->numel + (double)x->numel / 4);
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : beyond)
  for (int t = 0; t < threads; t++) {
    _Alignas(64) char row[ROW];
    int64_t begin = lm_cpu_share_begin(rows, t, threads), end = lm_cpu_share_begin(rows, t + 1, threads);
    lm_stream_writer w;
    lm_stream_open(&w, out->data + (size_t)begin * bytes, streams);
    for (int64_t r = begin; r < end && beyond >> 63 == 0; r++) {
      const int64_t *at = (const int64_t *)index->data + r * n;
#pragma omp simd reduction(| : beyond)
      for (int64_t i = 0; i < n; i++) beyond |= ((uint64_t)at[i] - 1) | ((uint64_t)width - (uint64_t)at[i]);
      if (beyond >> 63 != 0) break;
      char *here = streams ? row : w.to;
      memcpy(here, x->data + (size_t)r * bytes, bytes);
      loop(&line, here, at, src->data + (size_t)(r * n) * item);
      if (streams) {
        lm_stream_write(&w, row, bytes);
      } else {
        w.to += bytes;
      }
    }
    lm_stream_close(&w);
  }
  *good = beyond >> 63 == 0;
  return true;
}

lm_status lm_cpu_scatter_fold(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_scatter_fold_args *a = args;
  lm_tensor *x = NULL;
  bool good = true;
  if (a->x != out[0] && scatter_rows(a, out[0], &good) && good) return LM_OK;
  TRY(check_index(lm_op_running(), a->index, out[0]->size[a->dim]));
  if (a->x != out[0]) TRY(lm_cpu_copy(a->x, out[0]));
  if (a->how == LM_FOLD_REPLACE) {
    x = lm_retain(out[0]);
  } else {
    TRY(open_sums(out[0], &x));
  }
  scatter_along(x, (int)a->dim, a->index, a->index->stride, a->index->size, 0, a->src, a->how);
  TRY(close_sums(x, out[0]));
done:
  lm_release(x);
  return status;
}

/* src's entries, where a 1-d index says. */
static lm_status add_entries(const char *op, lm_tensor *out, int dim, const lm_tensor *index, int64_t skipped,
                             const lm_tensor *src) {
  lm_status status = LM_OK;
  lm_tensor *sums = NULL;
  int64_t i_stride[LM_MAX_DIMS] = {0};
  i_stride[dim] = 1;
  TRY(check_indices(op, "index", index->numel, (const int64_t *)index->data, out->size[dim], NULL));
  TRY(open_sums(out, &sums));
  scatter_along(sums, dim, index, i_stride, src->size, skipped, src, LM_FOLD_SUM);
  TRY(close_sums(sums, out));
done:
  lm_release(sums);
  return status;
}

lm_status lm_cpu_index_add(const void *args, lm_tensor *const *out) {
  const lm_index_add_args *a = args;
  return add_entries("index_add", out[0], (int)a->dim, a->index, 0, a->src);
}

lm_status lm_cpu_embedding_backward(const void *args, lm_tensor *const *out) {
  const lm_embedding_backward_args *a = args;
  lm_tensor *src = NULL;
  int64_t features = out[0]->size[1];
  memset(out[0]->data, 0, lm_nbytes(out[0]));
  lm_status status =
      lm_tensor_view(a->grad, 2, (int64_t[]){a->index->numel, features}, (int64_t[]){features, 1}, 0, &src);
  if (status == LM_OK) status = add_entries("embedding_backward", out[0], 0, a->index, a->padding_idx, src);
  lm_release(src);
  return status;
}

/* Of equal tuples the last one wins, or all add up in order. */
lm_status lm_cpu_index_put_(const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_index_put__args *a = args;
  const lm_tensor *values = a->values;
  lm_tensor *x = NULL;
  tuples t = {.own = NULL};
  int indexed = a->indices.n;
  const int64_t shared[LM_MAX_DIMS] = {0};
  if (a->accumulate) {
    TRY(open_sums(out[0], &x));
  } else {
    x = lm_retain(out[0]);
  }
  TRY(open_tuples("index_put_", x, &a->indices, values->size[0], &t));
  scattering s = {.length = t.n,
                  .to = t.step,
                  .i_step = 1,
                  .s_step = values->stride[0],
                  .entries = t.entries,
                  .apart = t.apart,
                  .x = x->data,
                  .index = t.place,
                  .src = values->data,
                  .x_item = lm_dtype_size((lm_dtype)x->dtype)};
  scatter_all(&s, a->accumulate ? LM_FOLD_SUM : LM_FOLD_REPLACE, (lm_dtype)values->dtype, x->ndim - indexed,
              x->size + indexed, (const int64_t *[]){x->stride + indexed, shared, values->stride + 1});
  TRY(close_sums(x, out[0]));
done:
  close_tuples(out[0], &t);
  lm_release(x);
  return status;
}

/* ---- nonzero, one_hot */

/* How many of n there are before each thread's part, to be freed, and then in all; NULL without memory. */
static int64_t *counts_before(const uint8_t *mask, int64_t n, int threads) {
  int64_t *before = lm_calloc((size_t)threads + 1, sizeof *before);
  if (!before) return NULL;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    enum { SOME = 128 }; /* whose count a byte holds */
    int64_t count = 0, end = lm_cpu_share_begin(n, t + 1, threads), i = lm_cpu_share_begin(n, t, threads);
    for (; i + SOME <= end; i += SOME) {
      uint8_t some = 0;
#pragma omp simd reduction(+ : some)
      for (int j = 0; j < SOME; j++) some += mask[i + j] != 0;
      count += some;
    }
    for (; i < end; i++) count += mask[i] != 0;
    before[t + 1] = count;
  }
  for (int t = 0; t < threads; t++) before[t + 1] += before[t];
  return before;
}

#define EIGHT_TRUE UINT64_C(0x0101010101010101)
/* Calls `take` of each place from i on that counts until there were `count`, k of them before it, without branches:
 * what is no such place is written over. Eight alike go at once, by `take_eight`. */
#define EACH_KEPT(mask, i, end, count, take, take_eight)          \
  for (int64_t k = 0; k < (count);) {                             \
    uint64_t eight = 2;                                           \
    if (i + 8 <= (end)) memcpy(&eight, (mask) + i, sizeof eight); \
    if (eight == 0) {                                             \
      i += 8;                                                     \
    } else if (eight == EIGHT_TRUE && k + 8 <= (count)) {         \
      take_eight;                                                 \
      i += 8, k += 8;                                             \
    } else {                                                      \
      for (int64_t j = 0; j < 8 && k < (count); j++, i++) {       \
        take;                                                     \
        k += (mask)[i] != 0;                                      \
      }                                                           \
    }                                                             \
  }

/* x: a contiguous bool mask, out [count, ndim]. Each thread counts its part, then writes from where
 * the parts before it end. */
lm_status lm_cpu_nonzero(const void *args, lm_tensor *const *out) {
  const lm_nonzero_args *a = args;
  const lm_tensor *x = a->x;
  const uint8_t *mask = (const uint8_t *)x->data;
  int ndim = x->ndim, threads = lm_cpu_share((double)x->numel);
  int64_t *before = counts_before(mask, x->numel, threads);
  if (!before) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t *row = (int64_t *)out[0]->data + before[t] * ndim, end = lm_cpu_share_begin(x->numel, t + 1, threads);
    int64_t begin = lm_cpu_share_begin(x->numel, t, threads), count = before[t + 1] - before[t];
    if (ndim == 1) {
      int64_t i = begin;
      EACH_KEPT(mask, i, end, count, row[k] = i + 1, for (int j = 0; j < 8; j++) row[k + j] = i + j + 1)
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

/* x and the mask contiguous, out [count]. */
lm_status lm_cpu_masked_values(const void *args, lm_tensor *const *out) {
  const lm_masked_values_args *a = args;
  const uint8_t *mask = (const uint8_t *)a->mask->data;
  int64_t n = a->x->numel;
  const size_t item = lm_dtype_size((lm_dtype)a->x->dtype);
  const int64_t most = TILE / (int64_t)item;
  bool streams = lm_stream_pays(lm_nbytes(out[0]));
  int threads = lm_cpu_share((double)n);
  int64_t *before = counts_before(mask, n, threads);
  if (!before) return LM_E_OOM;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t i = lm_cpu_share_begin(n, t, threads), end = lm_cpu_share_begin(n, t + 1, threads);
    int64_t left = before[t + 1] - before[t];
    char tile[TILE];
    lm_stream_writer w;
    lm_stream_open(&w, out[0]->data + before[t] * (int64_t)item, streams);
    while (left > 0) { /* a tile's worth, or all */
      int64_t count = streams && left > most ? most : left;
      char *at = streams ? tile : w.to;
#define CASE(type)                                                                              \
  case sizeof(type): {                                                                          \
    const type *from = (const type *)a->x->data;                                                \
    type *to = (type *)at;                                                                      \
    EACH_KEPT(mask, i, end, count, to[k] = from[i], memcpy(to + k, from + i, 8 * sizeof(type))) \
    break;                                                                                      \
  }
      switch (item) {
        CASE(uint8_t)
        CASE(uint16_t)
        CASE(uint32_t)
        CASE(uint64_t)
      }
#undef CASE
      if (streams) lm_stream_write(&w, tile, (size_t)count * item);
      left -= count;
    }
    lm_stream_close(&w);
  }
  lm_free(before);
  return LM_OK;
}

lm_status lm_cpu_one_hot(const void *args, lm_tensor *const *out) {
  const lm_one_hot_args *a = args;
  int64_t n = a->x->numel, classes = a->num_classes, *result = (int64_t *)out[0]->data;
  const int64_t *label = (const int64_t *)a->x->data;
  lm_status status = check_indices("one_hot", "label", n, label, classes, NULL);
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
