/* Copies between layouts and dtypes. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/strided_tiles.h"
#include "merged_dims.h"

enum { TO, FROM }; /* indices of the sides of lm_dims (merged_dims.h): dst, src */

enum {
  MIN_RUN = 64,          /* bytes; tiles copy shorter runs as fast */
  MIN_ROWS = 64,         /* rows that threads share without splitting them, at least */
  MIN_NONTEMPORAL = 1024 /* bytes of separate runs; shorter ones cover too few whole cache lines */
};

/* Returns the compute type whose tiles hold elements of `item` bytes bit by bit. */
static lm_dtype raw_type(size_t item) { return item == 1 ? LM_U8 : item == 2 ? LM_I16 : item == 4 ? LM_I32 : LM_I64; }

typedef struct run_copy {
  const lm_tensor *src, *dst;
  lm_dims rows;
  int64_t run, step, item;
  bool dense, streams; /* dense: rows of dst are contiguous */
  void (*reverse)(void *dst, const void *src, int64_t n);
  void (*fill)(void *dst, const void *src, int64_t stride, int n);
} run_copy;

/* While a piece of a row is moved, the piece AHEAD bytes later, of this row or of others, is prefetched into the L2
 * cache. The hardware does not predict rows that are apart or reversed, and the L1 cache has fewer lines in flight. */
enum { PIECE = 1024, AHEAD = 8 * PIECE, MAX_FILL = 1 << 24 }; /* in bytes */

/* Writes n elements of a row from src on, c->step (1, 0 or -1) apart; at most a PIECE, or MAX_FILL if they are one
 * element. */
static void write_run(const run_copy *c, lm_nontemporal_writer *w, int64_t n, const char *src) {
  const size_t item = (size_t)c->item;
  const int64_t step = c->step;
  if (step == 1) {
    lm_nontemporal_write(w, src, (size_t)n * item);
    return;
  }
  if (!w->streams) {
    if (step < 0) {
      c->reverse(w->to, src, n);
    } else {
      c->fill(w->to, src, 0, (int)n);
    }
    w->to += (size_t)n * item;
    return;
  }
  char tile[PIECE];
  const int64_t max_chunk = PIECE / (int64_t)item;
  if (step < 0) {
    c->reverse(tile, src, n);
    lm_nontemporal_write(w, tile, (size_t)n * item);
    return;
  }
  c->fill(tile, src, 0, (int)lm_min(n, max_chunk));
  for (int64_t i = 0, part; i < n; i += part) {
    part = n - i < max_chunk ? n - i : max_chunk;
    lm_nontemporal_write(w, tile, (size_t)part * item);
  }
}

/* A row on both sides: its index in each dim, and its offsets in elements. */
typedef struct row_cursor {
  int64_t index[LM_DIMS_MAX], offset[2];
} row_cursor;

static void row_at(const lm_dims *rows, int64_t row, row_cursor *r) {
  for (int s = 0; s < 2; s++) r->offset[s] = lm_dims_at(rows, s, row);
  for (int d = rows->ndim - 1; d >= 0; d--) r->index[d] = row % rows->size[d], row /= rows->size[d];
}

static void next_row(const lm_dims *rows, row_cursor *r) {
  for (int d = rows->ndim - 1; d >= 0; d--) {
    for (int s = 0; s < 2; s++) r->offset[s] += rows->stride[s][d];
    if (++r->index[d] < rows->size[d]) return;
    for (int s = 0; s < 2; s++) r->offset[s] -= rows->size[d] * rows->stride[s][d];
    r->index[d] = 0;
  }
}

/* A position in a walk over src's elements: `low` elements after the first of a row. */
typedef struct walk {
  row_cursor row;
  int64_t low, left; /* elements to the end of the walk */
} walk;

static walk walk_from(const run_copy *c, int64_t element, int64_t end) {
  walk w = {.low = element % c->run, .left = end - element};
  if (w.left > 0) row_at(&c->rows, element / c->run, &w.row);
  return w;
}

static const char *next_of(const run_copy *c, const walk *w) {
  return c->src->data + (w->row.offset[FROM] + w->low * c->step) * c->item;
}

static void go_on(const run_copy *c, walk *w, int64_t n) {
  w->low += n, w->left -= n;
  if (w->low < c->run || w->left <= 0) return;
  next_row(&c->rows, &w->row);
  w->low = 0;
}

/* Prefetches the walk's next n elements into the L2 cache. */
static void fetch_elements(const run_copy *c, walk *w, int64_t n) {
  for (int64_t part; n > 0 && w->left > 0; n -= part) {
    part = lm_min(lm_min(c->run - w->low, n), w->left);
    const char *from = next_of(c, w) - (c->step < 0 ? (part - 1) * c->item : 0);
    for (int64_t at = 0; at < part * c->item; at += LM_NONTEMPORAL_LINE) __builtin_prefetch(from + at, 0, 2);
    go_on(c, w, part);
  }
}

static void copy_elements(void *ctx, int64_t begin, int64_t end) {
  const run_copy *c = ctx;
  const int64_t piece = (c->step == 0 ? MAX_FILL : PIECE) / c->item;
  walk here = walk_from(c, begin, end), ahead = walk_from(c, lm_min(begin + AHEAD / c->item, end), end);
  if (c->step == 0) ahead.left = 0;
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, c->dst->data + begin * c->item, c->streams);
  for (int64_t n; here.left > 0; go_on(c, &here, n)) {
    n = lm_min(lm_min(c->run - here.low, piece), here.left);
    if (!c->dense && (here.low == 0 || here.left == end - begin)) {
      if (here.left < end - begin) lm_nontemporal_finish(&w);
      lm_nontemporal_open(&w, c->dst->data + (here.row.offset[TO] + here.low) * c->item, c->streams);
    }
    fetch_elements(c, &ahead, n);
    write_run(c, &w, n, next_of(c, &here));
  }
  lm_nontemporal_close(&w);
}

/* Copies rows that run forward on both sides, of which the hardware predicts the next one of src. */
static void copy_rows(void *ctx, int64_t begin, int64_t end) {
  const run_copy *c = ctx;
  const int d = c->rows.ndim - 1;
  const int64_t to_step = c->rows.stride[TO][d] * c->item, from_step = c->rows.stride[FROM][d] * c->item;
  const size_t bytes = (size_t)(c->run * c->item);
  row_cursor r;
  row_at(&c->rows, begin, &r);
  for (int64_t n; begin < end; begin += n) {
    n = lm_min(c->rows.size[d] - r.index[d], end - begin);
    char *to = c->dst->data + r.offset[TO] * c->item;
    const char *from = c->src->data + r.offset[FROM] * c->item;
    for (int64_t i = 0; i < n; i++)
      lm_nontemporal_copy_if_large(c->streams, to + i * to_step, from + i * from_step, bytes);
    for (int s = 0; s < 2; s++) r.offset[s] += (n - 1) * c->rows.stride[s][d];
    r.index[d] += n - 1;
    next_row(&c->rows, &r);
  }
  if (c->streams) lm_nontemporal_fence();
}

/* Orders c's rows as src has them and returns true if each of them fills whole lines of dst: src is then read in
 * sequence, and stores past the caches are as fast in any order. */
static bool order_by_source(run_copy *c) {
  const lm_tensor *src = c->src, *dst = c->dst;
  int64_t misaligned = (int64_t)(uintptr_t)dst->data | c->run * c->item, along[LM_DIMS_SIDES];
  for (int d = 0; d < c->rows.ndim; d++) misaligned |= c->rows.stride[TO][d] * c->item;
  if (misaligned % LM_NONTEMPORAL_LINE != 0) return false;
  lm_dims rows = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){src->stride, dst->stride}, true);
  /* If src repeats or overlaps elements, other dims than the run may have its smallest strides. */
  if (lm_dims_pop(&rows, along, 1) != c->run || along[0] != 1 || along[1] != 1) return false;
  c->rows = rows;
  memcpy(c->rows.stride[TO], rows.stride[1], sizeof rows.stride[1]);
  memcpy(c->rows.stride[FROM], rows.stride[0], sizeof rows.stride[0]);
  return true;
}

/* Copies src to dst if their elements form runs in both: forward, reversed (a flip) or one repeated element. Returns
 * false, with nothing copied, if they do not. */
static bool copy_runs(const lm_tensor *src, lm_tensor *dst) {
  int64_t along[LM_DIMS_SIDES], n = dst->numel;
  run_copy c = {.src = src, .dst = dst, .item = (int64_t)lm_dtype_size((lm_dtype)dst->dtype)};
  c.rows = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){dst->stride, src->stride}, true);
  c.run = lm_dims_pop(&c.rows, along, 1), c.step = along[FROM];
  if (along[TO] != 1 || c.step < -1 || c.step > 1 || c.run * c.item < MIN_RUN) return false;
  c.dense = lm_is_dense(dst);
  const lm_dtype raw = raw_type((size_t)c.item);
  c.reverse = lm_pointwise_loops_of(raw)->reverse;
  c.fill = lm_pointwise_loops_of(raw)->load[raw];
  c.streams = lm_use_nontemporal((size_t)(n * c.item)) && (c.dense || c.run * c.item >= MIN_NONTEMPORAL);
  bool forward = c.step == 1 && n / c.run >= MIN_ROWS;
  for (int d = 0; d < c.rows.ndim; d++) forward = forward && c.rows.stride[FROM][d] >= 0;
  if (c.streams) forward = forward && order_by_source(&c);
  lm_parallel(forward ? n / c.run : n, (double)(n * c.item) / 16, 0, forward ? copy_rows : copy_elements, &c);
  return true;
}

typedef struct byte_copy {
  const char *from;
  char *to;
  int64_t bytes;
  bool streams;
} byte_copy;

static void copy_lines(void *ctx, int64_t first, int64_t last) {
  const byte_copy *c = ctx;
  int64_t begin = first * LM_NONTEMPORAL_LINE, end = last * LM_NONTEMPORAL_LINE;
  lm_nontemporal_copy_if_large(c->streams, c->to + begin, c->from + begin,
                               (size_t)((end < c->bytes ? end : c->bytes) - begin));
  if (c->streams) lm_nontemporal_fence();
}

lm_status lm_cpu_copy(const lm_tensor *src, lm_tensor *dst) {
  if (src->dtype == dst->dtype && lm_same_layout(src, dst)) {
    size_t bytes = lm_nbytes(src);
    if (bytes == 0 || src->data == dst->data) return LM_OK;
    byte_copy c = {src->data, dst->data, (int64_t)bytes, lm_use_nontemporal(bytes)};
    lm_parallel((c.bytes + LM_NONTEMPORAL_LINE - 1) / LM_NONTEMPORAL_LINE, (double)bytes / 16, 0, copy_lines, &c);
    return LM_OK;
  }
  if (src->dtype == dst->dtype && dst->numel > 0 && (copy_runs(src, dst) || lm_cpu_copy_short_rows(src, dst))) {
    return LM_OK;
  }
  lm_operand from = lm_operand_of(src);
  if (src->dtype == dst->dtype) { /* copied as integers of its size */
    lm_tiles t = {.compute = raw_type(lm_dtype_size((lm_dtype)dst->dtype)), .nin = 1, .in = {from}};
    lm_tiles_result(&t, dst);
    t.in[0].dtype = t.out.dtype = t.compute;
    lm_tiles_run(&t);
    return LM_OK;
  }
  /* Computes in a floating source's type (float32 for halves), else in int64 or a floating result's type. */
  lm_dtype compute = src->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(src->dtype) ? LM_F32 : LM_I64;
  if (compute == LM_I64 && lm_dtype_is_float(dst->dtype)) compute = dst->dtype == LM_F64 ? LM_F64 : LM_F32;
  lm_tiles t = {.compute = compute, .nin = 1, .in = {from}};
  lm_tiles_result(&t, dst);
  lm_tiles_run(&t);
  return LM_OK;
}
