#include "backend/cpu/strided_tiles.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "base/mem.h"
#include "convert.h"
#include "merged_dims.h"

/* Blocks of a tile read one cache line of each column of a transposed input, and have at least MIN_BLOCK_ROWS rows.
 * PILE blocks, one below the other, follow each other: they read the next lines of the same columns. */
enum { MIN_BLOCK_ROWS = 16, PILE = 8 };

/* Elements. Rows shorter than MIN_ROW pass through a tile together, as do rows shorter than LONG_ROW if all broadcast
 * inputs repeat. A tile of a broadcast column's value has COLUMN elements. */
enum { MIN_ROW = 64, LONG_ROW = 512, COLUMN = 128 };

/* Most elements of an input of which copies are made: copies of more would not stay in the L1 cache. */
enum { MAX_PERIOD = 4096 };

typedef struct plan {
  lm_tiles *t;
  const struct lm_pointwise_loops *loops;
  size_t num;  /* bytes of the compute type */
  int tile;    /* elements of a tile */
  bool direct; /* true if all operands have the compute type, and rows that are contiguous or one element */
  bool fills;  /* true for a dense result of one value */
  bool blocked;
  int block_rows, block_cols;
  bool streams; /* true if the result bypasses the caches, from a tile */
  int64_t numel, tiles;
  const char *scalar[LM_POINTWISE_MAX_IN]; /* for a scalar input: a tile of its value */
  lm_tile_numbers numbers;
} plan;

_Static_assert((int)LM_DIMS_MAX == (int)LM_MAX_DIMS && (int)LM_DIMS_SIDES > (int)LM_POINTWISE_MAX_IN, "merged_dims.h");

typedef struct buffers {
  _Alignas(64) char in[LM_POINTWISE_MAX_IN][LM_TILE_BYTES];
  _Alignas(64) char out[LM_TILE_BYTES];
  _Alignas(64) char transposed[LM_TILE_BYTES];
} buffers;

lm_operand lm_operand_of(const lm_tensor *t) {
  lm_operand o = {.data = t->data, .dtype = t->dtype};
  memcpy(o.stride, t->stride, (size_t)t->ndim * sizeof *o.stride);
  return o;
}

void lm_tiles_result(lm_tiles *t, const lm_tensor *out) {
  t->ndim = out->ndim;
  memcpy(t->size, out->size, (size_t)out->ndim * sizeof *t->size);
  t->out = lm_operand_of(out);
}

/* ---- planning: operand -1 is the result */

static lm_operand *operand(lm_tiles *t, int i) { return i < 0 ? &t->out : &t->in[i]; }

/* Moves dim `from` to index `to`; the dims between move down. */
static void move_dim(lm_tiles *t, int from, int to) {
  for (int i = -2; i < t->nin; i++) {
    int64_t *along = i == -2 ? t->size : operand(t, i)->stride, moved = along[from];
    memmove(along + from, along + from + 1, (size_t)(to - from) * sizeof *along);
    along[to] = moved;
  }
}

/* Orders dims by the result's memory, except for a source, and merges those that all operands allow to merge. */
static void merge_dims(lm_tiles *t) {
  const int64_t *stride[LM_POINTWISE_MAX_IN + 1] = {t->out.stride};
  for (int i = 0; i < t->nin; i++) stride[i + 1] = t->in[i].stride;
  lm_dims dims;
  lm_dims_set(&dims, t->ndim, t->size, NULL, t->nin + 1, stride, !t->source);
  if (dims.ndim == 0) { /* one element: a run of one */
    dims.ndim = 1, dims.size[0] = 1;
    for (int s = 0; s < dims.sides; s++) dims.stride[s][0] = 1;
  }
  t->ndim = dims.ndim;
  memcpy(t->size, dims.size, sizeof t->size);
  for (int i = -1; i < t->nin; i++) memcpy(operand(t, i)->stride, dims.stride[i + 1], sizeof t->out.stride);
}

static void classify_strides(lm_operand *o, const lm_tiles *t) {
  o->bytes = lm_dtype_size(o->dtype);
  o->linear = o->scalar = true;
  int64_t expected = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    o->linear &= o->stride[d] == expected;
    o->scalar &= o->stride[d] == 0;
    expected *= t->size[d];
  }
}

/* Finds how an input of few elements repeats: all of it, or a block of it several times before the next one. */
static void find_repeats(lm_operand *o, const lm_tiles *t, int64_t numel) {
  int first = 0, d = t->ndim;
  while (first < t->ndim && o->stride[first] == 0) first++;
  o->period = first > 0 && !o->scalar;
  for (int i = first; i < t->ndim; i++) o->period *= t->size[i];
  if (o->period > MAX_PERIOD || o->period > numel / 4) o->period = 0;

  o->block = 1;
  for (; d > 0 && o->stride[d - 1] == o->block; d--) o->block *= t->size[d - 1];
  o->group = o->block;
  for (; d > 0 && o->stride[d - 1] == 0; d--) o->group *= t->size[d - 1];
  const bool pays = o->group >= (o->block == 1 ? 2 : lm_max(MIN_ROW, 4 * o->block));
  o->repeated = pays && o->dtype == t->compute ? d : 0;
}

/* If an input's closest elements lie along another dim than the result's, makes that dim the second to last, so that
 * blocks span it and the last dim, and returns true. */
static bool find_block(lm_tiles *t) {
  int last = t->ndim - 1;
  if (t->source || last == 0 || t->size[last] < 8) return false;
  for (int i = 0; i < t->nin; i++) {
    const int64_t *stride = t->in[i].stride;
    if (stride[last] < 8) continue;
    for (int d = 0; d < last; d++) {
      if (stride[d] < 1 || stride[d] > 2 || t->size[d] < 8) continue;
      move_dim(t, d, last - 1);
      return true;
    }
  }
  return false;
}

lm_tile_numbers lm_tile_numbers_of(lm_dtype compute, const double *number) {
  lm_tile_numbers n = {.repeated = 0};
  for (int i = 0; i < LM_POINTWISE_MAX_NUMBERS; i++) {
    if (compute == LM_F32) n.f32[i] = (float)number[i];
    if (compute == LM_F64) n.f64[i] = number[i];
    int64_t whole = lm_dtype_is_float(compute) ? 0 : LM_PUT_I64(number[i]);
    if (compute == LM_I64) n.i64[i] = whole;
    if (compute == LM_I32) n.i32[i] = (int32_t)whole;
    if (compute == LM_I16) n.i16[i] = (int16_t)whole;
    if (compute == LM_I8 || compute == LM_U8) n.i8[i] = (int8_t)whole;
  }
  return n;
}

/* Returns true if the result should bypass the caches; not if it is an input, which the caches hold by then. */
static bool is_streamed(const lm_tiles *t, size_t bytes) {
  for (int i = 0; i < t->nin; i++) {
    if (t->in[i].data == t->out.data) return false;
  }
  return lm_use_nontemporal(bytes);
}

static void make_plan(plan *p, lm_tiles *t) {
  p->t = t;
  p->loops = lm_pointwise_loops_of(t->compute);
  p->num = lm_dtype_size(t->compute);
  p->tile = p->num < 4 ? LM_TILE_BYTES / (int)p->num : LM_TILE;
  p->numbers = lm_tile_numbers_of(t->halves ? LM_F32 : t->compute, t->number);
  merge_dims(t);
  if (t->tests && t->out.dtype == LM_BOOL && p->num == 1) t->out.dtype = t->compute; /* equal bytes in memory */
  p->numel = 1;
  for (int d = 0; d < t->ndim; d++) p->numel *= t->size[d];
  p->blocked = find_block(t);
  const int last = t->ndim - 1;
  p->direct = t->kernel && !p->blocked && (last == 0 || t->size[last] >= MIN_ROW);
  bool repeats = last > 0 && t->size[last] < LONG_ROW;
  for (int i = -1; i < t->nin; i++) {
    lm_operand *o = operand(t, i);
    classify_strides(o, t);
    o->copies = NULL;
    if (t->halves && i >= 0 && o->scalar) {
      p->numbers.repeated |= 1u << i;
    } else if (t->halves && o->dtype != LM_BOOL) {
      o->dtype = LM_I16;
    }
    find_repeats(o, t, p->numel);
    repeats &= (o->linear && o->dtype == t->compute) || (i >= 0 && (o->scalar || o->period || o->repeated));
    p->direct &= o->scalar || (o->dtype == t->compute && (o->stride[last] == 1 || (o->stride[last] == 0 && i >= 0)));
  }
  p->direct &= t->out.stride[last] == 1 && !repeats;
  p->streams = (p->blocked ? t->out.dtype == t->compute && t->out.stride[last] == 1 : t->out.linear) &&
               is_streamed(t, (size_t)p->numel * t->out.bytes) && (size_t)p->tile * t->out.bytes <= LM_TILE_BYTES;
  /* A fill displaces nothing but itself: memory of up to half the cache may still be in it. */
  if (t->nin == 1 && !t->kernel && t->in[0].scalar)
    p->streams &= (size_t)p->numel * t->out.bytes > lm_cache_bytes() / 2;
  /* Rows that end within a cache line would store it twice, once past the caches and once into them. */
  p->direct &= !p->streams || last == 0 || (size_t)t->size[last] * p->num % LM_NONTEMPORAL_LINE == 0;
  p->fills = t->nin == 1 && !t->kernel && t->in[0].scalar && t->in[0].dtype == t->compute &&
             t->out.dtype == t->compute && t->out.linear && !p->streams;
  p->tiles = lm_ceil_div(p->numel, p->tile);
  if (p->blocked) {
    int64_t rows = t->size[t->ndim - 2], cols = t->size[t->ndim - 1];
    p->block_rows = LM_NONTEMPORAL_LINE / (int)p->num;
    if (p->block_rows < MIN_BLOCK_ROWS) p->block_rows = MIN_BLOCK_ROWS;
    if (cols < p->tile / p->block_rows) p->block_rows *= p->tile / p->block_rows / (int)cols;
    p->block_cols = p->tile / p->block_rows;
    p->tiles =
        lm_ceil_div(rows, p->block_rows * PILE) * PILE * lm_ceil_div(cols, p->block_cols) * (p->numel / (rows * cols));
  }
}

/* ---- pieces of a tile */

static void compute(const plan *p, void *out, const void *const *in, int n) {
  p->t->kernel(out, in, &p->numbers, lm_round_up(n, LM_LANES));
}

/* Computes to a result past the caches, by way of the tile, in pieces: the next one is computed while the lines of `to`
 * that this one fills are on their way. */
static void compute_past(const plan *p, char *to, char *tile, const void *const *in, int n) {
  enum { PIECE_BYTES = 768 };
  const int piece = PIECE_BYTES / (int)p->num;
  size_t sent = 0;
  for (int i = 0, some; i < n; i += some) {
    const size_t at = (size_t)i * p->num;
    some = n - i < piece ? n - i : piece;
    const void *from[LM_POINTWISE_MAX_IN];
    for (int k = 0; k < p->t->nin; k++) from[k] = (const char *)in[k] + at;
    compute(p, tile + at, from, some);
    size_t end = at + (size_t)some * p->num;
    if (i + some < n) end -= (uintptr_t)(to + end) % LM_NONTEMPORAL_LINE;
    lm_nontemporal_copy(to + sent, tile + sent, end - sent);
    sent = end;
  }
}

typedef struct cursor {
  int64_t index[LM_MAX_DIMS];
} cursor;

static cursor seek_tile(const lm_tiles *t, int64_t element) {
  cursor c;
  for (int d = t->ndim - 1; d >= 0; d--) {
    c.index[d] = element % t->size[d];
    element /= t->size[d];
  }
  return c;
}

/* Advances c by n elements, without a division if they end within a row. */
static void advance_cursor(const lm_tiles *t, cursor *c, int64_t n) {
  for (int d = t->ndim - 1; d >= 0; d--) {
    c->index[d] += n;
    if (c->index[d] < t->size[d]) return;
    n = c->index[d] / t->size[d];
    c->index[d] -= n * t->size[d];
  }
}

static char *element_at(const lm_tiles *t, const lm_operand *o, const cursor *c) {
  int64_t offset = 0;
  for (int d = 0; d < t->ndim; d++) offset += c->index[d] * o->stride[d];
  return o->data + offset * (int64_t)o->bytes;
}

/* Copies rows of n bytes that begin at multiples of the pitches; a short row by two moves that may overlap, since a
 * call takes as long as ten elements. */
static void copy_rows(char *restrict to, int64_t to_pitch, const char *restrict from, int64_t from_pitch, size_t n,
                      int rows) {
#define COPY_BY(size)                                                           \
  if (n >= (size) && n <= 2 * (size)) {                                         \
    for (int i = 0; i < rows; i++, to += to_pitch, from += from_pitch) {        \
      memcpy(to, from, size), memcpy(to + n - (size), from + n - (size), size); \
    }                                                                           \
    return;                                                                     \
  }
  COPY_BY(4);
  COPY_BY(8);
  COPY_BY(16);
  COPY_BY(32);
  COPY_BY(64);
#undef COPY_BY
  for (int i = 0; i < rows; i++, to += to_pitch, from += from_pitch) memcpy(to, from, n);
}

/* Moves n elements between a tile and an operand that is not linear, run by run along the last dim. */
static void move_runs(const plan *p, const lm_operand *o, cursor c, int n, char *tile, bool store) {
  const lm_tiles *t = p->t;
  const int last = t->ndim - 1;
  const int64_t bytes = (int64_t)o->bytes;
  const bool copies = o->dtype == t->compute && o->stride[last] == 1;
  char *at = element_at(t, o, &c);
  while (n > 0) {
    const int run = (int)lm_min(t->size[last] - c.index[last], n);
    int rows = 1; /* whole ones, moved at once */
    if (copies) {
      const int64_t pitch = last > 0 ? o->stride[last - 1] * bytes : 0, row = run * bytes;
      if (last > 0 && run == t->size[last]) rows = (int)lm_min(t->size[last - 1] - c.index[last - 1], n / run);
      copy_rows(store ? at : tile, store ? pitch : row, store ? tile : at, store ? row : pitch, (size_t)row, rows);
      if (rows > 1) c.index[last - 1] += rows - 1, at += (rows - 1) * pitch;
    } else if (store) {
      p->loops->store[o->dtype](at, o->stride[last], tile, run);
    } else {
      p->loops->load[o->dtype](tile, at, o->stride[last], run);
    }
    tile += (size_t)rows * (size_t)run * p->num;
    n -= rows * run;
    c.index[last] += run;
    at += run * o->stride[last] * bytes;
    for (int d = last; d > 0 && c.index[d] == t->size[d]; d--) {
      at += (o->stride[d - 1] - c.index[d] * o->stride[d]) * bytes;
      c.index[d] = 0;
      c.index[d - 1]++;
    }
  }
}

/* Fills a tile with n bytes of a block that repeats, from byte `from` of the block on. */
static void repeat_block(char *tile, const char *block, int64_t bytes, int64_t from, int64_t n) {
  int64_t done = lm_min(bytes - from, n);
  memcpy(tile, block + from, (size_t)done);
  if (done < n) {
    const int64_t before = lm_min(from, n - done);
    memcpy(tile + done, block, (size_t)before);
    done += before;
  }
  for (int64_t some; done < n; done += some) { /* the tile holds whole blocks */
    some = lm_min(done, n - done);
    memcpy(tile + done, tile, (size_t)some);
  }
}

/* A position in an input whose blocks repeat: `from` elements into a group; its block is at `offset`, in elements. */
typedef struct repeated_walk {
  cursor group;
  int64_t from, offset;
} repeated_walk;

static void repeated_seek(const lm_tiles *t, const lm_operand *o, const cursor *c, repeated_walk *w) {
  w->group = *c;
  w->from = w->offset = 0;
  for (int d = 0; d < o->repeated; d++) w->offset += c->index[d] * o->stride[d];
  for (int d = o->repeated; d < t->ndim; d++) w->from = w->from * t->size[d] + c->index[d];
}

/* Returns the walk's next n elements: in the tile, or in the input itself if `reads_there` and they are contiguous. */
static const char *next_repeated(const plan *p, const lm_operand *o, repeated_walk *w, int n, bool reads_there,
                                 char *tile) {
  const int64_t *size = p->t->size, num = (int64_t)p->num;
  const int dim = o->repeated - 1;
  int64_t *index = w->group.index;
  const char *result = tile;
  for (int some; n > 0; n -= some, tile += some * num) {
    const char *block = o->data + w->offset * num;
    const int64_t groups = o->block == 1 ? size[dim] - index[dim] : 1, at = o->block == 1 ? 0 : w->from % o->block;
    some = (int)lm_min(groups * o->group - w->from, (int64_t)n);
    if (reads_there && o->block - at >= n) {
      result = block + at * num;
    } else if (o->block == 1) {
      p->loops->repeat(tile, block, o->stride[dim], w->from, o->group, some);
    } else {
      repeat_block(tile, block, o->block * num, at * num, some * num);
    }
    reads_there = false;
    w->from += some;
    if (w->from < o->group) continue;
    const int64_t passed = w->from / o->group;
    w->from -= passed * o->group;
    index[dim] += passed;
    w->offset += passed * o->stride[dim];
    for (int d = dim; d > 0 && index[d] == size[d]; d--) {
      w->offset += o->stride[d - 1] - index[d] * o->stride[d];
      index[d] = 0;
      index[d - 1]++;
    }
  }
  return result;
}

/* Copies a broadcast input's period and `more` elements of the next, so no read wraps; nothing without memory. */
static void make_copies(const plan *p, lm_operand *o, int64_t more) {
  const int64_t bytes = o->period * (int64_t)p->num, all = bytes + more * (int64_t)p->num;
  o->copies = lm_malloc((size_t)all);
  if (!o->copies) return;
  move_runs(p, o, (cursor){{0}}, (int)o->period, o->copies, false);
  repeat_block(o->copies + bytes, o->copies, bytes, 0, all - bytes);
}

/* Returns the address of n elements from number i on, at c, if they are contiguous; else NULL. */
static const char *run_at(const lm_tiles *t, const lm_operand *o, const cursor *c, int64_t i, int n) {
  if (o->linear) return o->data + i * (int64_t)o->bytes;
  return o->block - i % o->block < n ? NULL : element_at(t, o, c);
}

/* ---- rows, tiles and blocks */

/* Computes the last LM_LANES of a row's n elements, or all of fewer, to `to`. */
static void compute_last(const plan *p, char *to, const char *const *inputs, const bool *steps, int64_t n) {
  _Alignas(64) char copy[LM_POINTWISE_MAX_IN][LM_LANES * 8];
  const void *in[LM_POINTWISE_MAX_IN];
  for (int k = 0; k < p->t->nin; k++) {
    in[k] = inputs[k];
    if (!steps[k]) continue;
    if (n >= LM_LANES) {
      in[k] = inputs[k] + (n - LM_LANES) * (int64_t)p->num;
    } else {
      memcpy(copy[k], inputs[k], (size_t)n * p->num);
      lm_tile_pad(copy[k], (int)n, p->num);
      in[k] = copy[k];
    }
  }
  compute(p, to, in, LM_LANES);
}

/* Computes n elements that are contiguous in the result and in inputs that step; other inputs are one value's tiles. */
static void run_row(const plan *p, char *out, const char *const *inputs, const bool *steps, int64_t n,
                    int64_t max_chunk, char *tile) {
  const int nin = p->t->nin;
  const int64_t whole = n / LM_LANES * LM_LANES;
  for (int64_t done = 0, part; done < whole; done += part) {
    const void *in[LM_POINTWISE_MAX_IN]; /* no memcpy, whose wide loads would wait for the row's earlier stores */
    for (int k = 0; k < nin; k++) in[k] = inputs[k] + (steps[k] ? done * (int64_t)p->num : 0);
    part = whole - done < max_chunk ? whole - done : max_chunk;
    if (p->streams) {
      compute_past(p, out, tile, in, (int)part);
    } else {
      compute(p, out, in, (int)part);
    }
    out += part * (int64_t)p->num;
  }
  if (whole == n) return;
  _Alignas(64) char end[LM_LANES * 8];
  compute_last(p, end, inputs, steps, n);
  const size_t tail = (size_t)(n - whole) * p->num, last = (size_t)lm_min(n, LM_LANES) * p->num;
  memcpy(out, end + last - tail, tail);
}

/* Computes rows in the tensors themselves, with tiles only for tails and the values of broadcast columns. */
static void run_rows(const plan *p, int64_t begin, int64_t end) {
  const lm_tiles *t = p->t;
  const int last = t->ndim - 1;
  const int64_t width = t->size[last];
  LM_LARGE(buffers, b, 1);
  cursor c = seek_tile(t, begin);
  const char *in[LM_POINTWISE_MAX_IN] = {NULL}, *filled[LM_POINTWISE_MAX_IN] = {NULL};
  bool steps[LM_POINTWISE_MAX_IN];
  int64_t max_chunk = p->streams ? p->tile : 1 << 20;
  for (int k = 0; k < t->nin; k++) {
    steps[k] = t->in[k].stride[last] != 0;
    if (!steps[k]) max_chunk = lm_min(max_chunk, p->scalar[k] ? p->tile : COLUMN);
  }
  for (int64_t i = begin, n; i < end; i += n) {
    n = width - c.index[last] < end - i ? width - c.index[last] : end - i;
    for (int k = 0; k < t->nin; k++) {
      in[k] = p->scalar[k];
      if (in[k]) continue;
      const char *at = element_at(t, &t->in[k], &c);
      in[k] = steps[k] ? at : b->in[k];
      if (steps[k] || at == filled[k]) continue;
      p->loops->load[t->compute](b->in[k], at, 0, (int)lm_min(max_chunk, lm_round_up(width, LM_LANES)));
      filled[k] = at;
    }
    run_row(p, element_at(t, &t->out, &c), in, steps, n, max_chunk, b->out);
    advance_cursor(t, &c, n);
  }
}

static void run_tiles(const plan *p, int64_t begin, int64_t end) {
  const lm_tiles *t = p->t;
  LM_LARGE(buffers, b, 1);
  cursor c = seek_tile(t, begin);
  repeated_walk repeated[LM_POINTWISE_MAX_IN];
  for (int k = 0; k < t->nin; k++) {
    if (t->in[k].repeated) repeated_seek(t, &t->in[k], &c, &repeated[k]);
  }
  for (int64_t i = begin; i < end; i += p->tile, advance_cursor(t, &c, p->tile)) {
    int n = end - i < p->tile ? (int)(end - i) : p->tile;
    bool whole = n % LM_LANES == 0;
    const void *in[LM_POINTWISE_MAX_IN];
    bool here = t->out.linear && t->out.dtype == t->compute && (whole || !t->kernel) && !p->streams;
    char *out = here ? t->out.data + i * (int64_t)p->num : b->out;
    in[0] = out; /* a source has no operands */
    for (int k = 0; k < t->nin; k++) {
      const lm_operand *o = &t->in[k];
      char *tile = t->kernel ? b->in[k] : out;
      /* A kernel reads whole vectors. A conversion reads values in place, unless it also writes in place, or a source
       * makes the values. */
      const bool reads_there = o->dtype == t->compute && (t->kernel ? whole : !here && !t->source);
      const char *run;
      in[k] = tile;
      if (p->scalar[k]) {
        in[k] = p->scalar[k];
      } else if (o->copies) {
        in[k] = o->copies + i % o->period * (int64_t)p->num;
      } else if (o->repeated) {
        in[k] = next_repeated(p, o, &repeated[k], n, reads_there, tile);
      } else if (reads_there && (run = run_at(t, o, &c, i, n))) {
        in[k] = run;
      } else if (o->linear) {
        p->loops->load[o->dtype](tile, o->data + i * (int64_t)o->bytes, 1, n);
      } else {
        move_runs(p, o, c, n, tile, false);
      }
      if (t->kernel && in[k] == tile) lm_tile_pad(tile, n, p->num);
    }
    if (t->kernel && p->streams && t->out.dtype == t->compute) {
      compute_past(p, t->out.data + i * (int64_t)p->num, out, in, n);
      continue;
    }
    if (t->source) {
      t->source(t->context, i, n, out);
    } else if (t->kernel) {
      compute(p, out, in, n);
    } else if (in[0] != out && here) {
      memcpy(out, in[0], (size_t)n * p->num);
    } else {
      out = (char *)in[0];
    }
    if (here) continue;
    if (p->streams) {
      const char *tile = out;
      if (t->out.dtype != t->compute) {
        p->loops->store[t->out.dtype](b->transposed, 1, out, n);
        tile = b->transposed;
      }
      lm_nontemporal_copy(t->out.data + i * (int64_t)t->out.bytes, tile, (size_t)n * t->out.bytes);
    } else if (t->out.linear) {
      p->loops->store[t->out.dtype](t->out.data + i * (int64_t)t->out.bytes, 1, out, n);
    } else {
      move_runs(p, &t->out, c, n, out, true);
    }
  }
}

/* Prefetches `bytes` from `at` on: the next block's pieces are too short for the hardware to predict. */
static void prefetch_block(const char *at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

/* Loads a block of the last two dims into a tile [rows, cols]. */
static void load_block(const plan *p, const lm_operand *o, const char *at, int rows, int cols, buffers *b, char *tile) {
  int last = p->t->ndim - 1;
  int64_t down = o->stride[last - 1], across = o->stride[last];
  if (across > down && down > 0) {
    if (o->dtype == p->t->compute && down == 1) {
      p->loops->transpose(tile, at, across, rows, cols);
      return;
    }
    char *transposed = b->transposed;
    for (int j = 0; j < cols; j++, at += across * (int64_t)o->bytes, transposed += (size_t)rows * p->num) {
      p->loops->load[o->dtype](transposed, at, down, rows);
    }
    p->loops->transpose(tile, b->transposed, rows, rows, cols);
    return;
  }
  for (int i = 0; i < rows; i++, at += down * (int64_t)o->bytes, tile += (size_t)cols * p->num) {
    prefetch_block(at + p->block_rows * down * (int64_t)o->bytes, cols * (int64_t)o->bytes);
    p->loops->load[o->dtype](tile, at, across, cols);
  }
}

static void run_blocks(const plan *p, int64_t begin, int64_t end) {
  const lm_tiles *t = p->t;
  int last = t->ndim - 1;
  int64_t piles = lm_ceil_div(t->size[last - 1], p->block_rows * PILE),
          across = lm_ceil_div(t->size[last], p->block_cols);
  LM_LARGE(buffers, b, 1);
  for (int64_t block = begin; block < end; block++) {
    cursor c;
    int64_t *index = c.index, rest = block;
    index[last - 1] = rest % PILE * p->block_rows, rest /= PILE;
    index[last] = rest % across * p->block_cols, rest /= across;
    index[last - 1] += rest % piles * p->block_rows * PILE, rest /= piles;
    if (index[last - 1] >= t->size[last - 1]) continue;
    for (int d = last - 2; d >= 0; d--) index[d] = rest % t->size[d], rest /= t->size[d];
    int rows = (int)lm_min(t->size[last - 1] - index[last - 1], p->block_rows);
    int cols = (int)lm_min(t->size[last] - index[last], p->block_cols);
    const void *in[LM_POINTWISE_MAX_IN];
    for (int i = 0; i < t->nin; i++) {
      in[i] = p->scalar[i] ? p->scalar[i] : b->in[i];
      if (p->scalar[i]) continue;
      load_block(p, &t->in[i], element_at(t, &t->in[i], &c), rows, cols, b, b->in[i]);
      lm_tile_pad(b->in[i], rows * cols, p->num);
    }
    const char *out = in[0];
    char *to = element_at(t, &t->out, &c);
    if (t->kernel) {
      compute(p, b->out, in, rows * cols);
      out = b->out;
    }
    int64_t down = t->out.stride[last - 1] * (int64_t)t->out.bytes;
    if (t->out.stride[last] == 1 && t->out.stride[last - 1] == cols) cols *= rows, rows = 1;
    for (int i = 0; i < rows; i++, out += (size_t)cols * p->num, to += down) {
      if (p->streams) {
        lm_nontemporal_copy(to, out, (size_t)cols * p->num);
        continue;
      }
      prefetch_block(to + p->block_rows * down, cols * (int64_t)t->out.bytes);
      p->loops->store[t->out.dtype](to, t->out.stride[last], out, cols);
    }
  }
}

/* Fills a dense result with one value, by the loop that fills a tile. */
static void fill_tiles(const plan *p, int64_t begin, int64_t end) {
  enum { RUN = 1 << 20 };
  const lm_tiles *t = p->t;
  for (int64_t i = begin; i < end; i += RUN) {
    int n = end - i < RUN ? (int)(end - i) : RUN;
    p->loops->load[t->compute](t->out.data + i * (int64_t)p->num, t->in[0].data, 0, n);
  }
}

static void run_share(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  if (p->blocked) {
    run_blocks(p, first, last);
    if (p->streams) lm_nontemporal_fence();
    return;
  }
  int64_t begin = first * p->tile, end = last * p->tile < p->numel ? last * p->tile : p->numel;
  if (begin >= end) return;
  if (p->fills) {
    fill_tiles(p, begin, end);
  } else if (p->direct) {
    run_rows(p, begin, end);
  } else {
    run_tiles(p, begin, end);
  }
  if (p->streams) lm_nontemporal_fence();
}

void lm_tiles_run(lm_tiles *t) {
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] == 0) return;
  }
  plan p;
  make_plan(&p, t);
  LM_LARGE(char[LM_TILE_BYTES], scalar, t->nin);
  const lm_dtype type = t->halves ? LM_F32 : t->compute; /* type of scalars */
  const int tile = LM_TILE_BYTES / (int)lm_dtype_size(type), needed = p.tile < tile ? p.tile : tile;
  const int fill = p.numel < needed ? (int)lm_round_up(p.numel, LM_LANES) : needed;
  for (int i = 0; i < t->nin; i++) {
    p.scalar[i] = NULL;
    if (!t->in[i].scalar) continue;
    lm_pointwise_loops_of(type)->load[t->in[i].dtype](scalar[i], t->in[i].data, 0, fill);
    p.scalar[i] = scalar[i];
  }
  for (int i = 0; i < t->nin && !p.blocked && !p.direct; i++) {
    if (t->in[i].period) make_copies(&p, &t->in[i], lm_round_up(lm_min(p.numel, p.tile), LM_LANES));
  }
  lm_parallel(p.tiles, (double)p.numel, 0, run_share, &p);
  for (int i = 0; i < t->nin; i++) lm_free(t->in[i].copies);
}
