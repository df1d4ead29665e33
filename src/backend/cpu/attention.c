/* Computes attention in blocks of queries and keys, with a softmax that is updated along the keys (Milakov and
 * Gimelshein 2018, Dao 2023), so that memory grows with the lengths and not with their product. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/attention.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/isa/matmul/skinny_gemm.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/scalar_access.h"
#include "op_args_attention.h"

/* Queries and keys of a block, whose scores stay in the L2 cache. LINE: elements between the rows of scores; a power of
 * two would put a column of scores into few sets of the L1 cache. Packed keys and values serve up to SPAN queries. */
enum { QUERIES = 128, KEYS = 256, LINE = KEYS + 16, SPAN = 512, FEW = 4 /* most rows multiplied unpacked */ };
/* A backward pass has at least UNITS units, or one for each block of keys; each part of keys needs its own memory. */
enum { UNITS = 8 };

typedef struct attention {
  const lm_tensor *query, *key, *value, *mask; /* [N, H, L or S, E]; mask of [N, H, L, S], or NULL */
  bool causal;
  double scale;
  lm_dtype dtype;
  int64_t heads, shared; /* query heads; query heads that share a head of keys */
  int64_t queries, keys, width, value_width;
  size_t each; /* bytes of an element */
  const struct lm_attention_loops *loops;
  const struct lm_panel_loops *products;
  bool drops; /* true if `drop` drops weights */
  lm_dropout_params drop;
} attention;

static attention attention_of(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                              const lm_tensor *mask, bool causal, double scale, double dropout_p,
                              const lm_tensor *draw) {
  lm_dtype dtype = query->dtype;
  return (attention){
      .query = query,
      .key = key,
      .value = value,
      .mask = mask,
      .causal = causal,
      .scale = scale,
      .dtype = dtype,
      .heads = query->size[1],
      .shared = key->size[1] > 0 ? query->size[1] / key->size[1] : 1,
      .queries = query->size[2],
      .keys = key->size[2],
      .width = query->size[3],
      .value_width = value->size[3],
      .each = lm_dtype_size(dtype),
      .loops = lm_attention_loops_of(dtype),
      .products = lm_panel_loops_of(dtype),
      .drops = draw != NULL,
      .drop = draw ? lm_dropout_params_of(dropout_p, lm_draw_in(draw)) : (lm_dropout_params){.scale = 1},
  };
}

/* Returns the address of row i of head h of sample n. */
static char *row_of(const lm_tensor *t, int64_t n, int64_t h, int64_t i) {
  return t->data + (n * t->stride[0] + h * t->stride[1] + i * t->stride[2]) * (int64_t)lm_dtype_size(t->dtype);
}

/* Returns the number of elements from one row to the next. */
static int64_t step_of(const lm_tensor *t) { return t->size[2] > 1 ? t->stride[2] : t->size[3] > 0 ? t->size[3] : 1; }

/* Returns the bytes of a [depth, n] matrix in panels. */
static size_t panels_of(const attention *t, int64_t depth, int64_t n) {
  int64_t width = t->products->width;
  return (size_t)(lm_round_up(n, width) * depth) * t->each;
}

/* Packs rows [n, width], `step` elements apart, or with `transposed` their transpose [width, n], into panels. */
static void pack_attention_panels(const attention *t, void *panels, const char *rows, int64_t step, int64_t n,
                                  int64_t width, bool transposed) {
  t->products->pack(panels, rows, transposed ? 1 : step, transposed ? step : 1, transposed ? width : n,
                    transposed ? n : width);
}

/* Computes c [m, n] = alpha a [m, k] b + beta c, b in panels of `depth` rows; `ta`: a is transposed in memory. */
static void multiply(const attention *t, bool ta, int64_t m, int64_t n, int64_t k, double alpha, const void *a,
                     int64_t lda, const void *panels, int64_t depth, double beta, void *c, int64_t ldc) {
  t->products->product(&(lm_panel_product){.m = m,
                                           .n = n,
                                           .k = k,
                                           .a = a,
                                           .a_row = ta ? 1 : lda,
                                           .a_col = ta ? lda : 1,
                                           .panels = panels,
                                           .panel_step = depth * t->products->width,
                                           .panel_row = t->products->width,
                                           .c = c,
                                           .c_row = ldc,
                                           .alpha = alpha,
                                           .beta = beta,
                                           .one_row = m == 1});
}

/* Computes the scores of queries from i and keys from j on into b->scores, and sets b's mask and dropout. `keys` are
 * packed keys, or NULL for few queries, which are multiplied by the keys in place. */
static void score(const attention *t, int64_t n, int64_t h, int64_t i, int64_t j, const char *keys, lm_score_block *b) {
  const lm_tensor *mask = t->mask;
  b->line = LINE;
  b->causal = t->causal ? i + 1 - j : LM_SEES_ALL;
  if (mask) {
    b->mask = row_of(mask, n, h, i) + j * mask->stride[3] * (int64_t)lm_dtype_size(mask->dtype);
    b->mask_is_bool = mask->dtype == LM_BOOL;
    b->mask_row = mask->stride[2];
    b->mask_col = mask->stride[3];
  }
  if (t->drops) {
    b->drop = &t->drop;
    b->position = ((n * t->heads + h) * t->queries + i) * t->keys + j;
    b->position_row = t->keys;
  }
  const char *queries = row_of(t->query, n, h, i);
  if (keys) {
    multiply(t, false, b->rows, b->cols, t->width, t->scale, queries, step_of(t->query), keys, t->width, 0, b->scores,
             LINE);
  } else {
    lm_skinny_multiply(b->rows, b->cols, t->width, t->scale, queries, step_of(t->query),
                       row_of(t->key, n, h / t->shared, j), step_of(t->key), true, 0, b->scores, LINE);
  }
}

/* ---- forward */

/* A thread's scratch: scores; panels of keys transposed and of values; sums of values, maxima and sums of a span. */
typedef struct forward_scratch {
  void *scores, *keys, *packed, *values, *row_max, *sum;
} forward_scratch;

static size_t forward_scratch_of(const attention *t, char *memory, forward_scratch *r) {
  return lm_memory_divide(memory, 6,
                          (lm_memory_part[]){{&r->scores, (size_t)(QUERIES * LINE) * t->each},
                                             {&r->keys, panels_of(t, t->width, KEYS)},
                                             {&r->packed, panels_of(t, KEYS, t->value_width)},
                                             {&r->values, (size_t)(SPAN * t->value_width) * t->each},
                                             {&r->row_max, SPAN * t->each},
                                             {&r->sum, SPAN * t->each}});
}

/* Computes rows i .. end - 1 of head h of sample n: the result, and the logarithms of the softmax's sums in `norms`. */
static void attend(const attention *t, int64_t n, int64_t h, int64_t i, int64_t end, char *scratch, lm_tensor *out,
                   char *norms) {
  forward_scratch r;
  forward_scratch_of(t, scratch, &r);
  char *values = r.values, *row_max = r.row_max, *sum = r.sum;
  int64_t last = t->causal ? lm_min(t->keys, end) : t->keys, kv = h / t->shared, vw = t->value_width;
  bool packs = t->dtype != LM_F32 || end - i > FEW;
  size_t value_row = (size_t)vw * t->each;
  memset(values, 0, (size_t)(end - i) * value_row);
  memset(sum, 0, (size_t)(end - i) * t->each);
  for (int64_t q = 0; q < end - i; q++) lm_scalar_put(t->dtype, row_max, q, -INFINITY);
  for (int64_t j = 0; j < last; j += KEYS) {
    int64_t there = lm_min(KEYS, last - j);
    const char *value = row_of(t->value, n, kv, j);
    if (packs) {
      pack_attention_panels(t, r.keys, row_of(t->key, n, kv, j), step_of(t->key), there, t->width, true);
      pack_attention_panels(t, r.packed, value, step_of(t->value), there, vw, false);
    }
    for (int64_t q = t->causal && j > i ? (j - i) / QUERIES * QUERIES : 0; q < end - i; q += QUERIES) {
      /* Cut by the block of queries, not by the span, which threads set: a hidden key's weight 0 times inf is NaN. */
      int64_t cols = t->causal ? lm_min(there, i + q + QUERIES - j) : there, rows = lm_min(QUERIES, end - i - q);
      bool few = t->dtype == LM_F32 && rows <= FEW;
      lm_score_block b = {.scores = r.scores, .rows = rows, .cols = cols};
      char *row_result = values + (size_t)q * value_row;
      score(t, n, h, i + q, j, few ? NULL : r.keys, &b);
      t->loops->online_softmax(&b, row_max + (size_t)q * t->each, sum + (size_t)q * t->each, row_result, vw);
      if (few)
        lm_skinny_multiply(rows, vw, cols, 1, r.scores, LINE, value, step_of(t->value), false, 1, row_result, vw);
      else
        multiply(t, false, rows, vw, cols, 1, r.scores, LINE, r.packed, there, 1, row_result, vw);
    }
  }
  t->loops->finish(row_of(out, n, h, i), step_of(out), norms + (size_t)((n * t->heads + h) * t->queries + i) * t->each,
                   values, row_max, sum, t->drop.scale, end - i, vw);
}

/* Estimates one thread's nanoseconds for `products` products of the scores' size. */
static double attention_ns(const attention *t, int products) {
  double scores = (double)t->query->size[0] * (double)t->heads * (double)t->queries * (double)t->keys;
  return scores * (2 + products * (double)(t->width + t->value_width) / (t->dtype == LM_F64 ? 50 : 200));
}

typedef struct forward_job {
  const attention *t;
  int64_t span, blocks; /* queries of a unit; units of a head */
  lm_tensor *const *out;
} forward_job;

static void attend_units(void *ctx, int64_t first, int64_t last) {
  const forward_job *j = ctx;
  const attention *t = j->t;
  for (int64_t unit = first; unit < last; unit++) {
    int64_t head = unit / j->blocks;
    int64_t i = (j->blocks - 1 - unit % j->blocks) * j->span; /* causal: the last queries, with most keys, come first */
    attend(t, head / t->heads, head % t->heads, i, lm_min(i + j->span, t->queries), lm_scratch(), j->out[0],
           j->out[1]->data);
  }
}

lm_status lm_cpu_attention(const lm_attention_args *a, lm_tensor *const *out) {
  const attention t =
      attention_of(a->query, a->key, a->value, a->attn_mask, a->is_causal, a->scale, a->dropout_p, a->draw);
  int64_t heads = a->query->size[0] * t.heads, span = SPAN;
  double work = attention_ns(&t, 1);
  int threads = lm_threads_for(work);
  while (threads > 1 && span > QUERIES && heads * lm_ceil_div(t.queries, span) < 8 * threads) span /= 2;
  forward_job job = {.t = &t, .span = span, .blocks = lm_ceil_div(t.queries, span), .out = out};
  return lm_parallel(heads * job.blocks, work, forward_scratch_of(&t, NULL, &(forward_scratch){0}), attend_units, &job);
}

/* ---- backward */

/* A backward pass, whose units each take some keys of a head. */
typedef struct backward_part {
  const attention *t;
  const lm_tensor *grad, *y;
  const char *norms;
  char *dots; /* norms and dots: [N, H, L] */
  lm_tensor *dquery, *dkey, *dvalue;
  char *dqueries; /* [parts, N, H, L, E], whose sum is dquery; unused for one part */
  int64_t parts;  /* parts of a head's keys */
} backward_part;

static char *dquery_of(const backward_part *w, int64_t part, int64_t n, int64_t h, int64_t i, int64_t *row) {
  const attention *t = w->t;
  if (w->parts == 1) {
    *row = step_of(w->dquery);
    return row_of(w->dquery, n, h, i);
  }
  *row = t->width;
  int64_t at = ((part * t->query->size[0] + n) * t->heads + h) * t->queries + i;
  return w->dqueries + (size_t)(at * t->width) * t->each;
}

/* A thread's scratch: scores and their gradients; panels of keys and values transposed, keys, queries, gradients. */
typedef struct backward_scratch {
  void *scores, *slopes, *keys, *values, *key_rows, *queries, *grads;
} backward_scratch;

static size_t backward_scratch_of(const attention *t, char *memory, backward_scratch *r) {
  return lm_memory_divide(memory, 7,
                          (lm_memory_part[]){{&r->scores, (size_t)(QUERIES * LINE) * t->each},
                                             {&r->slopes, (size_t)(QUERIES * LINE) * t->each},
                                             {&r->keys, panels_of(t, t->width, KEYS)},
                                             {&r->values, panels_of(t, t->value_width, KEYS)},
                                             {&r->key_rows, panels_of(t, KEYS, t->width)},
                                             {&r->queries, panels_of(t, QUERIES, t->width)},
                                             {&r->grads, panels_of(t, QUERIES, t->value_width)}});
}

/* Adds the terms of one block of queries and one of packed keys to the gradients of queries, keys and values. */
static void backward_block(const backward_part *w, int64_t part, int64_t n, int64_t h, int64_t i, int64_t j,
                           const backward_scratch *r) {
  const attention *t = w->t;
  lm_score_block b = {.scores = r->scores, .rows = lm_min(QUERIES, t->queries - i), .cols = lm_min(KEYS, t->keys - j)};
  size_t stat = (size_t)((n * t->heads + h) * t->queries + i) * t->each;
  int64_t kv = h / t->shared, row, vw = t->value_width;
  const char *grad = row_of(w->grad, n, h, i);
  pack_attention_panels(t, r->queries, row_of(t->query, n, h, i), step_of(t->query), b.rows, t->width, false);
  pack_attention_panels(t, r->grads, grad, step_of(w->grad), b.rows, vw, false);
  score(t, n, h, i, j, r->keys, &b);
  t->loops->weights(&b, w->norms + stat);
  multiply(t, false, b.rows, b.cols, vw, 1, grad, step_of(w->grad), r->values, vw, 0, r->slopes, LINE);
  t->loops->slopes(&b, r->slopes, w->dots + stat, t->scale);
  multiply(t, true, b.cols, vw, b.rows, t->drop.scale, r->scores, LINE, r->grads, b.rows, 1,
           row_of(w->dvalue, n, kv, j), step_of(w->dvalue));
  multiply(t, true, b.cols, t->width, b.rows, 1, r->slopes, LINE, r->queries, b.rows, 1, row_of(w->dkey, n, kv, j),
           step_of(w->dkey));
  char *dquery = dquery_of(w, part, n, h, i, &row);
  multiply(t, false, b.rows, t->width, b.cols, 1, r->slopes, LINE, r->key_rows, b.cols, 1, dquery, row);
}

/* Adds the terms of the keys of one part, for all queries that share them. */
static void backward_unit(const backward_part *w, int64_t n, int64_t kv, int64_t part, char *scratch) {
  const attention *t = w->t;
  backward_scratch r;
  backward_scratch_of(t, scratch, &r);
  int64_t blocks = lm_ceil_div(t->keys, KEYS);
  for (int64_t block = blocks * part / w->parts; block < blocks * (part + 1) / w->parts; block++) {
    int64_t j = block * KEYS, from = t->causal ? j / QUERIES * QUERIES : 0, there = lm_min(KEYS, t->keys - j);
    const char *key = row_of(t->key, n, kv, j);
    pack_attention_panels(t, r.keys, key, step_of(t->key), there, t->width, true);
    pack_attention_panels(t, r.key_rows, key, step_of(t->key), there, t->width, false);
    pack_attention_panels(t, r.values, row_of(t->value, n, kv, j), step_of(t->value), there, t->value_width, true);
    for (int64_t h = kv * t->shared; h < (kv + 1) * t->shared; h++) {
      for (int64_t i = from; i < t->queries; i += QUERIES) backward_block(w, part, n, h, i, j, &r);
    }
  }
}

static void backward_units(void *ctx, int64_t first, int64_t last) {
  const backward_part *w = ctx;
  int64_t kv_heads = w->dkey->size[1];
  for (int64_t unit = first; unit < last; unit++) {
    int64_t head = unit / w->parts;
    backward_unit(w, head / kv_heads, head % kv_heads, unit % w->parts, lm_scratch());
  }
}

static void clear(lm_tensor *t) { memset(t->data, 0, lm_nbytes(t)); } /* t must be dense */

/* Adds the parts of dquery, for rows first .. last - 1. */
static void add_parts(void *ctx, int64_t first, int64_t last) {
  const backward_part *w = ctx;
  const attention *t = w->t;
  int64_t step = t->query->size[0] * t->heads * t->queries * t->width;
  for (int64_t r = first; r < last; r++) {
    char *to = row_of(w->dquery, r / t->queries / t->heads, r / t->queries % t->heads, r % t->queries);
    for (int64_t p = 0; p < w->parts; p++) {
      const char *from = w->dqueries + (size_t)(p * step + r * t->width) * t->each;
      for (int64_t e = 0; e < t->width; e++) {
        if (t->dtype == LM_F64)
          ((double *)to)[e] += ((const double *)from)[e];
        else
          ((float *)to)[e] += ((const float *)from)[e];
      }
    }
  }
}

/* Computes the dot product of each row of the result with its gradient. */
static void dot_heads(void *ctx, int64_t first, int64_t last) {
  const backward_part *w = ctx;
  const attention *t = w->t;
  for (int64_t head = first; head < last; head++) {
    int64_t n = head / t->heads, h = head % t->heads;
    t->loops->row_dots(w->dots + (size_t)(head * t->queries) * t->each, row_of(w->grad, n, h, 0), step_of(w->grad),
                       row_of(w->y, n, h, 0), step_of(w->y), t->queries, t->value_width);
  }
}

lm_status lm_cpu_attention_backward(const lm_attention_backward_args *a, lm_tensor *const *out) {
  const attention t =
      attention_of(a->query, a->key, a->value, a->attn_mask, a->is_causal, a->scale, a->dropout_p, a->draw);
  int64_t samples = a->query->size[0], kv_heads = a->key->size[1], blocks = lm_ceil_div(t.keys, KEYS);
  int64_t rows = samples * t.heads * t.queries, heads = samples * kv_heads, parts = 1;
  double work = attention_ns(&t, 3);
  /* Threads divide the heads, and the keys of few heads too. Parts depend on the shape alone, so that a gradient's
   * order of summation does not depend on the number of threads. */
  if (heads > 0 && heads < UNITS && blocks > 1) parts = lm_min(blocks, lm_ceil_div(UNITS, heads));
  LM_WORKSPACE(char, dots, (size_t)rows *t.each);
  LM_WORKSPACE(char, dqueries, parts > 1 ? (size_t)(parts * rows * t.width) * t.each : 0);
  backward_part w = {.t = &t,
                     .grad = a->grad,
                     .y = a->out,
                     .norms = a->log_sum->data,
                     .dots = dots,
                     .dquery = out[0],
                     .dkey = out[1],
                     .dvalue = out[2],
                     .dqueries = dqueries,
                     .parts = parts};
  for (int k = 0; k < 3; k++) clear(out[k]);
  if (dqueries) memset(dqueries, 0, (size_t)(parts * rows * t.width) * t.each);
  lm_parallel(samples * t.heads, (double)(rows * t.value_width), 0, dot_heads, &w);
  NEED(lm_parallel(heads * parts, work, backward_scratch_of(&t, NULL, &(backward_scratch){0}), backward_units, &w));
  return parts > 1 ? lm_parallel(rows, (double)(rows * t.width * parts), 0, add_parts, &w) : LM_OK;
}
