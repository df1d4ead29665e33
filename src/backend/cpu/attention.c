/* Attention in blocks: scores of some queries and some keys at a time, softmax along the keys as they come (Milakov and
 * Gimelshein 2018, Dao 2023), so that memory grows with the lengths and not with their product. */
#include <omp.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/attention.h"
#include "backend/cpu/matmul/gemm.h"
#include "device/alloc.h"

/* Queries and keys of a block, whose scores stay in the second cache. */
enum { QUERIES = 128, KEYS = 256 };

typedef struct attention {
  const lm_tensor *query, *key, *value, *mask; /* [N, H, L or S, E]; mask of [N, H, L, S], or NULL */
  bool causal;
  double scale;
  lm_dtype dtype;
  int64_t heads, shared; /* of queries; how many of them have the keys of one head */
  int64_t queries, keys, width, value_width;
  size_t each; /* bytes of a number */
  const struct lm_attention_loops *loops;
  lm_cpu_gemm_region *region;
} attention;

static attention attention_of(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                              const lm_tensor *mask, bool causal, double scale, lm_cpu_gemm_region *region) {
  lm_dtype dtype = (lm_dtype)query->dtype;
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
      .loops = dtype == LM_F64 ? LM_ISA_PICK(lm_attention_F64) : LM_ISA_PICK(lm_attention_F32),
      .region = region,
  };
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Row i of head h of sample n. */
static char *row_of(const lm_tensor *t, int64_t n, int64_t h, int64_t i) {
  return t->data +
         (n * t->stride[0] + h * t->stride[1] + i * t->stride[2]) * (int64_t)lm_dtype_size((lm_dtype)t->dtype);
}

/* Elements from one row to the next. */
static int64_t step_of(const lm_tensor *t) { return t->size[2] > 1 ? t->stride[2] : t->size[3] > 0 ? t->size[3] : 1; }

/* One product on this thread; a, b and c have so many elements a row. */
static lm_status multiply(const attention *t, bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha,
                          const void *a, int64_t lda, const void *b, int64_t ldb, double beta, void *c, int64_t ldc) {
  return lm_cpu_gemm_alone(t->region, &(lm_cpu_gemm_job){.dtype = t->dtype,
                                                         .batch = 1,
                                                         .m = m,
                                                         .n = n,
                                                         .k = k,
                                                         .ta = ta,
                                                         .tb = tb,
                                                         .alpha = alpha,
                                                         .a = a,
                                                         .lda = lda,
                                                         .b = b,
                                                         .ldb = ldb,
                                                         .beta = beta,
                                                         .c = c,
                                                         .ldc = ldc});
}

/* Scores of queries from i and keys from j on, in the block's memory; its mask is set, too. */
static lm_status score(const attention *t, int64_t n, int64_t h, int64_t i, int64_t j, lm_score_block *b) {
  const lm_tensor *mask = t->mask;
  b->causal = t->causal ? i + 1 - j : LM_SEES_ALL;
  if (mask) {
    b->mask = row_of(mask, n, h, i) + j * mask->stride[3] * (int64_t)lm_dtype_size((lm_dtype)mask->dtype);
    b->mask_is_bool = mask->dtype == LM_BOOL;
    b->mask_row = mask->stride[2];
    b->mask_col = mask->stride[3];
  }
  return multiply(t, false, true, b->rows, b->cols, t->width, t->scale, row_of(t->query, n, h, i), step_of(t->query),
                  row_of(t->key, n, h / t->shared, j), step_of(t->key), 0, b->scores, b->cols);
}

/* ---- forward */

static lm_status attend(const attention *t, int64_t n, int64_t h, int64_t i, char *room, lm_tensor *out, char *norms) {
  lm_status status = LM_OK;
  int64_t rows = smaller(QUERIES, t->queries - i), last = t->causal ? smaller(t->keys, i + rows) : t->keys;
  char *scores = room, *values = scores + QUERIES * KEYS * t->each;
  char *most = values + (size_t)(QUERIES * t->value_width) * t->each, *sum = most + QUERIES * t->each;
  memset(values, 0, (size_t)(rows * t->value_width) * t->each);
  memset(sum, 0, (size_t)rows * t->each);
  for (int64_t r = 0; r < rows; r++) {
    if (t->dtype == LM_F64)
      ((double *)most)[r] = -INFINITY;
    else
      ((float *)most)[r] = -INFINITY;
  }
  for (int64_t j = 0; j < last; j += KEYS) {
    lm_score_block b = {.scores = scores, .rows = rows, .cols = smaller(KEYS, last - j)};
    TRY(score(t, n, h, i, j, &b));
    t->loops->online_softmax(&b, most, sum, values, t->value_width);
    TRY(multiply(t, false, false, rows, t->value_width, b.cols, 1, scores, b.cols,
                 row_of(t->value, n, h / t->shared, j), step_of(t->value), 1, values, t->value_width));
  }
  t->loops->finish(row_of(out, n, h, i), step_of(out), norms + (size_t)((n * t->heads + h) * t->queries + i) * t->each,
                   values, most, sum, rows, t->value_width);
done:
  return status;
}

/* About how many nanoseconds a thread is busy with so many products of scores' size. */
static double work_of(const attention *t, int products) {
  double scores = (double)t->query->size[0] * (double)t->heads * (double)t->queries * (double)t->keys;
  return scores * (2 + products * (double)(t->width + t->value_width) / (t->dtype == LM_F64 ? 50 : 200));
}

lm_status lm_cpu_attention(const void *args, lm_tensor *const *out) {
  const lm_attention_args *a = args;
  lm_cpu_gemm_region region;
  const attention t = attention_of(a->query, a->key, a->value, a->attn_mask, a->is_causal, a->scale, &region);
  int64_t blocks = (t.queries + QUERIES - 1) / QUERIES, units = a->query->size[0] * t.heads * blocks;
  int share = lm_cpu_share(work_of(&t, 1));
  size_t room = (size_t)(QUERIES * (KEYS + t.value_width + 2)) * t.each, all = room * (size_t)share;
  void *rooms;
  lm_status status = lm_cpu_gemm_enter(&region, t.dtype, share);
  if (status != LM_OK) return status;
  TRY(lm_device_alloc(a->query->device, all, &rooms));
  bool good = true;
#pragma omp parallel for num_threads(share) if (share > 1) schedule(dynamic) reduction(&& : good)
  for (int64_t unit = 0; unit < units; unit++) {
    int64_t head = unit / blocks, block = blocks - 1 - unit % blocks; /* those that see the most come first */
    char *mine = (char *)rooms + room * (size_t)omp_get_thread_num();
    good = attend(&t, head / t.heads, head % t.heads, block * QUERIES, mine, out[0], out[1]->data) == LM_OK && good;
  }
  lm_device_free(a->query->device, rooms, all);
  if (!good) status = lm_fail(LM_E_STATE, "attention: a product failed in oneDNN");
done:
  lm_cpu_gemm_leave(&region);
  return status;
}

/* ---- backward */

/* What a unit of the backward pass, some keys of a head, works on. */
typedef struct backward_part {
  const attention *t;
  const lm_tensor *grad;
  const char *norms, *dots; /* [N, H, L] */
  lm_tensor *dquery, *dkey, *dvalue;
  char *dqueries; /* or [parts, N, H, L, E], where dquery is the sum of the parts */
  int64_t parts;  /* of a head's keys */
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

/* What one block of queries gives to one of keys, and gets. */
static lm_status backward_block(const backward_part *w, int64_t part, int64_t n, int64_t h, int64_t i, int64_t j,
                                char *room) {
  lm_status status = LM_OK;
  const attention *t = w->t;
  lm_score_block b = {.scores = room, .rows = smaller(QUERIES, t->queries - i), .cols = smaller(KEYS, t->keys - j)};
  char *slopes = room + QUERIES * KEYS * t->each;
  size_t stat = (size_t)((n * t->heads + h) * t->queries + i) * t->each;
  int64_t kv = h / t->shared, row;
  const char *query = row_of(t->query, n, h, i), *grad = row_of(w->grad, n, h, i);
  TRY(score(t, n, h, i, j, &b));
  t->loops->weights(&b, w->norms + stat);
  TRY(multiply(t, true, false, b.cols, t->value_width, b.rows, 1, b.scores, b.cols, grad, step_of(w->grad), 1,
               row_of(w->dvalue, n, kv, j), step_of(w->dvalue)));
  TRY(multiply(t, false, true, b.rows, b.cols, t->value_width, 1, grad, step_of(w->grad), row_of(t->value, n, kv, j),
               step_of(t->value), 0, slopes, b.cols));
  t->loops->slopes(slopes, b.scores, b.rows, b.cols, w->dots + stat, t->scale);
  TRY(multiply(t, true, false, b.cols, t->width, b.rows, 1, slopes, b.cols, query, step_of(t->query), 1,
               row_of(w->dkey, n, kv, j), step_of(w->dkey)));
  char *dquery = dquery_of(w, part, n, h, i, &row);
  TRY(multiply(t, false, false, b.rows, t->width, b.cols, 1, slopes, b.cols, row_of(t->key, n, kv, j), step_of(t->key),
               1, dquery, row));
done:
  return status;
}

/* The keys of one part, for all queries that share them. */
static lm_status backward_unit(const backward_part *w, int64_t n, int64_t kv, int64_t part, char *room) {
  lm_status status = LM_OK;
  const attention *t = w->t;
  int64_t blocks = (t->keys + KEYS - 1) / KEYS;
  for (int64_t block = blocks * part / w->parts; block < blocks * (part + 1) / w->parts; block++) {
    int64_t j = block * KEYS, from = t->causal ? j / QUERIES * QUERIES : 0;
    for (int64_t h = kv * t->shared; h < (kv + 1) * t->shared; h++) {
      for (int64_t i = from; i < t->queries; i += QUERIES) TRY(backward_block(w, part, n, h, i, j, room));
    }
  }
done:
  return status;
}

static void clear(lm_tensor *t) { memset(t->data, 0, lm_nbytes(t)); } /* of dense ones */

/* dquery = the sum of its parts */
static void add_parts(const backward_part *w) {
  const attention *t = w->t;
  int64_t rows = t->query->size[0] * t->heads * t->queries, step = rows * t->width;
#pragma omp parallel for num_threads(lm_cpu_share((double)(step * w->parts))) schedule(static)
  for (int64_t r = 0; r < rows; r++) {
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

lm_status lm_cpu_attention_backward(const void *args, lm_tensor *const *out) {
  const lm_attention_backward_args *a = args;
  lm_cpu_gemm_region region;
  const attention t = attention_of(a->query, a->key, a->value, a->attn_mask, a->is_causal, a->scale, &region);
  lm_device device = a->query->device;
  int64_t samples = a->query->size[0], kv_heads = a->key->size[1], blocks = (t.keys + KEYS - 1) / KEYS;
  int64_t rows = samples * t.heads * t.queries, heads = samples * kv_heads, parts = 1;
  int share = lm_cpu_share(work_of(&t, 3));
  /* Heads are what threads divide among themselves; of few heads the keys too. */
  if (share > 1 && heads < 4 * share) parts = smaller(blocks, (4 * share + heads - 1) / (heads > 0 ? heads : 1));
  if (parts < 1) parts = 1;
  size_t room = 2 * (size_t)(QUERIES * KEYS) * t.each, dots = (size_t)rows * t.each;
  size_t dqueries = parts > 1 ? (size_t)(parts * rows * t.width) * t.each : 0;
  size_t all = room * (size_t)share + dots + dqueries;
  void *memory;
  lm_status status = lm_cpu_gemm_enter(&region, t.dtype, share);
  if (status != LM_OK) return status;
  TRY(lm_device_alloc(device, all, &memory));
  char *rooms = memory, *dot = rooms + room * (size_t)share;
  backward_part w = {.t = &t,
                     .grad = a->grad,
                     .norms = a->log_sum->data,
                     .dots = dot,
                     .dquery = out[0],
                     .dkey = out[1],
                     .dvalue = out[2],
                     .dqueries = dot + dots,
                     .parts = parts};
  for (int k = 0; k < 3; k++) clear(out[k]);
  memset(w.dqueries, 0, dqueries);
#pragma omp parallel for num_threads(lm_cpu_share((double)(rows * t.value_width))) schedule(static)
  for (int64_t head = 0; head < samples * t.heads; head++) {
    int64_t n = head / t.heads, h = head % t.heads;
    t.loops->row_dots(dot + (size_t)(head * t.queries) * t.each, row_of(a->grad, n, h, 0), step_of(a->grad),
                      row_of(a->out, n, h, 0), step_of(a->out), t.queries, t.value_width);
  }
  bool good = true;
#pragma omp parallel for num_threads(share) if (share > 1) schedule(dynamic) reduction(&& : good)
  for (int64_t unit = 0; unit < heads * parts; unit++) {
    int64_t head = unit / parts;
    char *mine = rooms + room * (size_t)omp_get_thread_num();
    good = backward_unit(&w, head / kv_heads, head % kv_heads, unit % parts, mine) == LM_OK && good;
  }
  if (parts > 1) add_parts(&w);
  lm_device_free(device, memory, all);
  if (!good) status = lm_fail(LM_E_STATE, "attention: a product failed in oneDNN");
done:
  lm_cpu_gemm_leave(&region);
  return status;
}
