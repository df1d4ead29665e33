/* Computes convolutions of float32 and float64 as products of gathered rows (isa/gathered.h), without copies of images,
 * for any stride, padding and dilation. A row is the pixels under the kernel at one position: a run for each line of
 * taps, or for each tap if taps are not adjacent in memory:
 *
 *   forward   y [n oh ow, k] = taps of x [n oh ow, kh kw c] times w [kh kw c, k], plus bias
 *   input     x [n h w, c] = taps of y [n h w, kh kw k] times w [kh kw k, c]
 *   weight    w [kh kw c, k] = taps of x, transposed, times y [n oh ow, k]
 *
 * With a stride, the pixels of x in the second are in grids of one remainder each, which only some taps reach. Taps
 * beyond an image are zeros, copied with those inside, or are left out if that holds for a tile of rows. The shape
 * alone decides the terms of each sum and their order. */
#include <string.h>

#include "backend/cpu/conv/grid.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gathered.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/memory.h"

enum {
  BLOCK_ROWS = 192, /* gathered rows; they and their results stay in the L2 cache */
  CHUNK_RUNS = 64,
  PANEL_BYTES = 12 << 10,  /* bytes of y's gradient, beside which runs of x are in the L1 cache */
  IMAGES_BYTES = 256 << 10 /* bytes of small images that are read side by side, and stay in the L2 cache */
};

typedef struct plan {
  const lm_conv_job *job;
  const struct lm_gathered_loops *loops;
  const struct lm_panel_loops *panels;
  int64_t size; /* bytes of an element */
  lm_conv_images from, to;
  lm_conv_grid grid;
  int64_t whole[2][2];         /* lines and columns of the grid, from .. to, whose taps are all in the image */
  int64_t first_tap;           /* index among the taps of all grids, which orders the rows of panels */
  int64_t together;            /* images whose positions are computed side by side, with the same taps inside */
  int64_t depth;               /* elements of a tap */
  int64_t columns, panel_step; /* columns of a group; elements from one panel to the next */
  int64_t chunk;               /* rows of a panel that are multiplied at a time */
  int64_t blocks, cuts;        /* blocks of rows; parts of the columns */
  int64_t parts;               /* parts of the rows, with separate sums of weights */
  char *weights;               /* packed weights, or sums of their gradient */
  const char *zeros;
  const int64_t *position; /* index of each tap among those of all grids; -1: no grid reaches it */
} plan;

static int64_t output_rows(const plan *p) { return p->job->shape.n * p->grid.h * p->grid.w; }
static int64_t weight_panels(const plan *p) { return lm_ceil_div(p->columns, p->loops->width); }
static int64_t group_step(const plan *p) { return weight_panels(p) * p->panel_step; }
static int64_t filter_taps(const lm_conv_grid *g) { return g->rows.count * g->columns.count; }
static double direct_conv_ns(const lm_conv_shape *s, int64_t size) {
  return (double)(s->n * s->oh * s->ow) * (double)(s->k * (s->c / s->groups) * s->kh * s->kw) * (double)size / 160;
}

/* A gathered row: a position of the grid in image n; images first .. last - 1 are side by side. */
typedef struct position {
  int64_t n, i, j, first, last;
} position;

/* Returns the position of a row. Images that are side by side vary fastest, then positions in an image. */
static position position_of(const plan *p, int64_t row) {
  const lm_conv_grid *g = &p->grid;
  const int64_t block = p->together * g->h * g->w, first = row / block * p->together;
  const int64_t last = lm_min(first + p->together, p->job->shape.n), at = row % block / (last - first);
  return (position){first + row % block % (last - first), at / g->w, at % g->w, first, last};
}

static inline void next_position(const plan *p, position *at) {
  if (++at->n < at->last) return;
  at->n = at->first;
  if (++at->j < p->grid.w) return;
  at->j = 0;
  if (++at->i < p->grid.h) return;
  at->i = 0;
  at->n = at->first = at->last;
  at->last = lm_min(at->first + p->together, p->job->shape.n);
}

/* A row's taps: the address of the first one, which may be outside the image, and the range that is inside. */
typedef struct window {
  uintptr_t at;
  int64_t top, bottom, left, right; /* range of taps inside: first, and one after the last */
  bool whole;                       /* true if all taps are inside */
} window;

/* Returns how many of t's taps, of which the first is at `at`, are before `size`. */
static int64_t taps_before(lm_taps t, int64_t at, int64_t size) {
  return at >= size ? 0 : lm_min(t.count, (t.step == 1 ? size - 1 - at : (size - 1 - at) / t.step) + 1);
}

static inline window window_of(const plan *p, const position *at, int64_t channel) {
  const lm_conv_grid *g = &p->grid;
  const lm_conv_images *x = &p->from;
  const int64_t y0 = at->i * g->from_step[0] + g->rows.first, x0 = at->j * g->from_step[1] + g->columns.first;
  const int64_t pixel = (at->n * x->h + y0) * x->w + x0;
  window w = {(uintptr_t)x->data + (uintptr_t)((pixel * x->c + channel) * p->size),
              0,
              g->rows.count,
              0,
              g->columns.count,
              true};
  if (at->i >= p->whole[0][0] && at->i < p->whole[0][1] && at->j >= p->whole[1][0] && at->j < p->whole[1][1]) return w;
  w.top = taps_before(g->rows, y0, 0), w.bottom = taps_before(g->rows, y0, x->h);
  w.left = taps_before(g->columns, x0, 0), w.right = taps_before(g->columns, x0, x->w);
  w.whole = false;
  return w;
}

/* Returns true if the taps of a line are adjacent in memory. */
static bool are_neighbors(const plan *p) { return p->grid.columns.step == 1 && p->depth == p->from.c; }

/* Returns the elements from a row's first tap to tap x of line y, less those of the taps before it in the line. */
static inline int64_t offset_of(const plan *p, int64_t y, int64_t x) {
  const lm_conv_grid *g = &p->grid;
  return (y * g->rows.step * p->from.w + x * g->columns.step) * p->from.c - x * p->depth;
}

/* Returns elements begin .. end - 1 of a row's taps of line y, or, if taps are not adjacent, of its tap x: in place,
 * or, if some are outside the image, copied to *copies with zeros. */
static inline const void *elements_of(const plan *p, const window *w, int64_t y, int64_t x, int64_t begin, int64_t end,
                                      char **copies) {
  const int64_t depth = p->depth, at = offset_of(p, y, x);
  if (w->whole) return (const void *)(w->at + (uintptr_t)((at + begin) * p->size));
  const int64_t first = lm_max(begin, w->left * depth), last = lm_min(end, w->right * depth);
  if (y < w->top || y >= w->bottom || first >= last) return p->zeros;
  const void *from = (const void *)(w->at + (uintptr_t)((at + first) * p->size));
  if (first == begin && last == end) return from;
  char *copy = *copies;
  *copies += (end - begin) * p->size;
  memset(copy, 0, (size_t)((end - begin) * p->size));
  return memcpy(copy + (first - begin) * p->size, from, (size_t)((last - first) * p->size)), copy;
}

/* The runs of a tile in the chunk, rows low .. high - 1 of panels, in the order of these rows. */
typedef struct run_list {
  const plan *p;
  const window *window; /* windows of the tile's rows */
  int64_t tile, low, high;
  bool whole; /* true if all rows' taps are inside */
  lm_gathered_run *end;
  char *copies;
} run_list;

static void add_run(run_list *l, int64_t y, int64_t x, int64_t begin, int64_t end) {
  const plan *p = l->p;
  const int64_t line = y * p->grid.columns.count * p->depth;
  const int64_t first = lm_max(begin, l->low - line), last = lm_min(end, l->high - line);
  if (first >= last) return;
  lm_gathered_run *run = l->end++;
  run->panel_row = line + first - l->low;
  run->depth = last - first;
  if (l->whole) {
    const uintptr_t at = (uintptr_t)((offset_of(p, y, x) + first) * p->size);
    for (int64_t r = 0; r < l->tile; r++) run->at[r] = (const void *)(l->window[r].at + at);
    return;
  }
  for (int64_t r = 0; r < l->tile; r++) run->at[r] = elements_of(p, &l->window[r], y, x, first, last, &l->copies);
}

/* Adds a tile's runs. Taps outside are left out if all rows have the same columns of taps inside; lines that are
 * outside for all rows always are. */
static void add_tile(run_list *l) {
  const plan *p = l->p;
  window all = l->window[0];
  bool alike = true;
  for (int64_t r = 1; r < l->tile && !l->whole; r++) {
    const window *w = &l->window[r];
    alike = alike && w->left == all.left && w->right == all.right;
    all.top = lm_min(all.top, w->top), all.bottom = lm_max(all.bottom, w->bottom);
  }
  const int64_t left = alike ? all.left : 0, right = alike ? all.right : p->grid.columns.count;
  for (int64_t y = all.top; y < all.bottom; y++) {
    if (are_neighbors(p))
      add_run(l, y, 0, left * p->depth, right * p->depth);
    else
      for (int64_t x = left; x < right; x++) add_run(l, y, x, x * p->depth, (x + 1) * p->depth);
  }
}

/* Sets the runs of rows first .. last - 1 in the chunk from `low` on, and each tile's number of runs. */
static void place_runs(const plan *p, int64_t first, int64_t last, int64_t low, int64_t channel, lm_gathered_run *runs,
                       int64_t *count, char *copies) {
  const int64_t tile = p->loops->tile;
  window w[LM_GATHERED_ROWS];
  position at = position_of(p, first);
  run_list l = {p, w, tile, low, low + p->chunk, true, runs, copies};
  for (int64_t row = first; row < last; row += tile) {
    const lm_gathered_run *begin = l.end;
    l.whole = true;
    for (int64_t r = 0; r < tile; r++) {
      w[r] = w[0];
      if (row + r >= last) continue;
      w[r] = window_of(p, &at, channel);
      l.whole &= w[r].whole;
      next_position(p, &at);
    }
    add_tile(&l);
    *count++ = l.end - begin;
  }
}

/* Sets the addresses of the results of rows first .. last - 1, from element `skip` of each on. */
static void place_results(const plan *p, int64_t first, int64_t last, int64_t skip, void **to) {
  const lm_conv_grid *g = &p->grid;
  position at = position_of(p, first);
  for (int64_t row = first; row < last; row++) {
    const int64_t y = g->first[0] + at.i * g->step[0], x = g->first[1] + at.j * g->step[1];
    *to++ = p->to.data + (((at.n * p->to.h + y) * p->to.w + x) * p->to.c + skip) * p->size;
    next_position(p, &at);
  }
}

/* Returns roughly the memory that the n rows from `row` on read, and its bytes: 0 if a stride skips lines. */
static const char *source_of(const plan *p, int64_t row, int64_t n, int64_t *bytes) {
  const int64_t rows = output_rows(p), all = p->job->shape.n * p->from.h * p->from.w;
  const int64_t pixel = p->from.c * p->size, last = lm_min(row + n, rows);
  const double pixels = (double)all / (double)rows;
  const bool skips = p->job->pass != LM_CONV_INPUT && p->job->shape.kh < p->job->shape.stride[0];
  *bytes = skips ? 0 : (int64_t)((double)(last - row) * pixels) * pixel;
  return p->from.data + (int64_t)((double)row * pixels) * pixel;
}

/* Returns the most runs of a tile in a chunk: its taps, and one more if it begins within a tap. */
static int64_t most_runs(const plan *p) { return lm_min(CHUNK_RUNS + 1, p->job->shape.kh * p->job->shape.kw); }
static int64_t tiles_of(const plan *p, int64_t rows) { return lm_ceil_div(rows, p->loops->tile); }
/* Return bytes of scratch for a block of rows: its copies; these, runs, their counts and results' addresses. */
static size_t copies_bytes(const plan *p) { return (size_t)(BLOCK_ROWS + p->loops->tile) * LM_GATHERED_BYTES; }
static size_t table_bytes(const plan *p) {
  const int64_t tiles = tiles_of(p, BLOCK_ROWS);
  return copies_bytes(p) + (size_t)(tiles * most_runs(p)) * sizeof(lm_gathered_run) + (size_t)tiles * sizeof(int64_t) +
         BLOCK_ROWS * sizeof(void *);
}

/* Returns true if runs are at least a vector long. */
static bool is_long(const plan *p, int64_t run) { return run >= p->loops->width / 2; }

/* Computes one group's rows first .. last - 1 by panels first_panel .. last_panel - 1. */
static void compute_rows(const plan *p, int64_t group, int64_t first, int64_t last, int64_t first_panel,
                         int64_t last_panel) {
  const lm_conv_job *job = p->job;
  const lm_conv_grid *g = &p->grid;
  const int64_t width = p->loops->width, column = first_panel * width, channel = group * p->columns + column;
  const int64_t tiles = tiles_of(p, last - first), rows = filter_taps(g) * p->depth;
  char *copies = lm_scratch();
  lm_gathered_run *runs = (lm_gathered_run *)(copies + copies_bytes(p));
  int64_t *count = (int64_t *)(runs + tiles * most_runs(p)), bytes;
  void **to = (void **)(count + tiles);
  place_results(p, first, last, channel, to);
  const int64_t steps = tiles * (last_panel - first_panel);
  const char *next = source_of(p, last, last - first, &bytes);
  bytes = rows > 0 ? bytes / (rows * steps) : 0;
  int64_t low = 0;
  do {
    place_runs(p, first, last, low, group * (p->from.c / job->shape.groups), runs, count, copies);
    p->loops->product(&(lm_gathered){.rows = last - first,
                                     .runs = runs,
                                     .count = count,
                                     .panels = p->weights + (group * group_step(p) + first_panel * p->panel_step +
                                                             (p->first_tap * p->depth + low) * width) *
                                                                p->size,
                                     .panel_step = p->panel_step,
                                     .columns = lm_min(p->columns, last_panel * width) - column,
                                     .to = to,
                                     .bias = job->bias ? (const char *)job->bias + channel * p->size : NULL,
                                     .add = low > 0,
                                     .next = next,
                                     .next_step = bytes,
                                     .along = is_long(p, p->depth) ? lm_min(p->chunk, rows - low) : 0});
    next += bytes * p->chunk * steps;
    low += p->chunk;
  } while (low < rows);
  if (!job->finishes) return;
  const int64_t columns = lm_min(p->columns, last_panel * width) - column, k = job->shape.k;
  for (int64_t r = 0; r < last - first; r++) {
    const int64_t at = ((char *)to[r] - p->to.data) / p->size;
    lm_epilogue_run(&job->end, at / k, 1, at % k, columns);
  }
}

static void compute_blocks(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t units = p->blocks * p->cuts, rows = output_rows(p), panels = weight_panels(p), tile = p->loops->tile;
  const int64_t tiles = lm_ceil_div(rows, tile);
  for (int64_t i = first; i < last; i++) {
    const int64_t group = i / units, block = i % units / p->cuts, cut = i % p->cuts;
    compute_rows(p, group, lm_part_begin(tiles, block, p->blocks) * tile,
                 lm_min(rows, lm_part_begin(tiles, block + 1, p->blocks) * tile), lm_part_begin(panels, cut, p->cuts),
                 lm_part_begin(panels, cut + 1, p->cuts));
  }
}

/* Computes the results of p's grid. */
static lm_status compute_grid(plan *p, double work) {
  const int64_t rows = output_rows(p), pieces = lm_cpu_pieces(lm_threads_for(work)), tile = p->loops->tile;
  if (rows == 0) return LM_OK;
  const int64_t tiles = lm_ceil_div(rows, tile), most = BLOCK_ROWS / tile;
  p->blocks = lm_ceil_div(tiles, lm_min(most, lm_max(lm_ceil_div(tiles, pieces), 4)));
  p->cuts = lm_min(weight_panels(p), lm_ceil_div(pieces, p->blocks));
  return lm_parallel(p->blocks * p->cuts * p->job->shape.groups, work, table_bytes(p), compute_blocks, p);
}

/* ---- weights to panels, whose rows are in the order of runs, and of channels within each */

enum { PACKED_ROWS = 256 };

/* Moves `rows`, all taps of `n` channels, channel by channel, to the order of panels. */
static void sort_rows(const plan *p, const char *rows, int64_t channel, int64_t n, int64_t channels, char *to) {
  const int64_t taps = p->job->shape.kh * p->job->shape.kw, row = p->loops->width * p->size;
  for (int64_t i = 0; i < n; i++)
    for (int64_t t = 0; t < taps; t++, rows += row)
      if (p->position[t] >= 0) memcpy(to + (p->position[t] * channels + channel + i) * row, rows, (size_t)row);
}

static void pack_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, k = s->k / s->groups, width = p->loops->width;
  const bool input = p->job->pass == LM_CONV_INPUT;
  const int64_t channels = input ? k : c, most = lm_max(1, PACKED_ROWS / taps);
  char *rows = lm_scratch();
  for (int64_t i = first; i < last; i++) {
    const int64_t panels = weight_panels(p), group = i / panels, column = i % panels * width;
    const int64_t n = lm_min(width, p->columns - column);
    const char *w = (const char *)p->job->w + (group * k * c + (input ? column : column * c)) * taps * p->size;
    char *to = p->weights + i * p->panel_step * p->size;
    if (taps == 1) {
      p->panels->pack(to, w, input ? c : 1, input ? 1 : c, channels, n);
      continue;
    }
    for (int64_t channel = 0; channel < channels; channel += most) {
      const int64_t count = lm_min(most, channels - channel);
      if (!input)
        p->panels->pack(rows, w + channel * taps * p->size, 1, c * taps, count * taps, n);
      else
        for (int64_t r = 0; r < count; r++)
          p->panels->pack(rows + r * taps * width * p->size, w + (channel + r) * c * taps * p->size, 1, taps, taps, n);
      sort_rows(p, rows, channel, count, channels, to);
    }
  }
}

/* ---- gradients of weights */

static int64_t sums_of(const plan *p) { return p->job->shape.groups * group_step(p); }

/* Returns true if the runs of a gathered row are lines of taps, which are short; else they are taps. */
static bool has_lines(const plan *p) {
  return are_neighbors(p) && p->grid.columns.count * p->depth * p->size <= LM_GATHERED_BYTES;
}
static int64_t contiguous_runs(const plan *p) { return has_lines(p) ? p->grid.rows.count : filter_taps(&p->grid); }
static int64_t run_depth(const plan *p) { return has_lines(p) ? p->grid.columns.count * p->depth : p->depth; }

/* Sets table[run][row] to addresses: runs first_run .. first_run + count - 1 of the n rows from `row` on. */
static void place_transposed(const plan *p, int64_t row, int64_t n, int64_t first_run, int64_t count, int64_t channel,
                             const void **table, char *copies) {
  const int64_t per_line = has_lines(p) ? 1 : p->grid.columns.count, depth = run_depth(p);
  LM_LARGE(window, w, BLOCK_ROWS);
  position at = position_of(p, row);
  for (int64_t r = 0; r < n; r++, next_position(p, &at)) w[r] = window_of(p, &at, channel);
  for (int64_t run = first_run; run < first_run + count; run++) {
    const int64_t y = run / per_line, x = run % per_line, begin = x * depth;
    for (int64_t r = 0; r < n; r++) *table++ = elements_of(p, &w[r], y, x, begin, begin + depth, &copies);
  }
}

static void sum_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t width = p->loops->width, rows = output_rows(p), panels = weight_panels(p), units = p->parts * p->cuts;
  const int64_t all_runs = contiguous_runs(p), depth = run_depth(p);
  const int64_t most = lm_max(1, lm_min(CHUNK_RUNS, LM_GATHERED_BYTES / lm_max(1, depth * p->size)));
  char *copies = lm_scratch();
  const void **table = (const void **)(copies + copies_bytes(p));
  char *y = (char *)(table + CHUNK_RUNS * BLOCK_ROWS);
  for (int64_t i = first; i < last; i++) {
    const int64_t group = i / units, part = i % units / p->cuts, cut = i % p->cuts;
    const int64_t begin = lm_part_begin(rows, part, p->parts), end = lm_part_begin(rows, part + 1, p->parts);
    const int64_t panel = lm_part_begin(panels, cut, p->cuts), column = panel * width;
    const int64_t columns = lm_min(p->columns, lm_part_begin(panels, cut + 1, p->cuts) * width) - column;
    char *sums = p->weights + (part * sums_of(p) + group * group_step(p) + panel * p->panel_step) * p->size;
    const int64_t blocks = lm_ceil_div(end - begin, lm_min(BLOCK_ROWS, PANEL_BYTES / (width * p->size)));
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = begin + lm_part_begin(end - begin, block, blocks);
      const int64_t n = begin + lm_part_begin(end - begin, block + 1, blocks) - row;
      const char *from = (const char *)p->to.data + (row * s->k + group * p->columns + column) * p->size;
      p->panels->pack(y, from, s->k, 1, n, columns);
      int64_t bytes;
      const char *next = source_of(p, row + n, n, &bytes), *next_y = from + n * s->k * p->size;
      const int64_t tiles = lm_ceil_div(depth, p->loops->tile) * lm_ceil_div(columns, width);
      const int64_t steps = lm_max(1, tiles * all_runs * n), y_bytes = row + n < rows ? n * s->k * p->size : 0;
      for (int64_t run = 0; run < all_runs; run += most) {
        const int64_t count = lm_min(most, all_runs - run);
        place_transposed(p, row, n, run, count, group * (s->c / s->groups), table, copies);
        p->loops->transposed(&(lm_gathered_transposed){.rows = n,
                                                       .count = count,
                                                       .depth = depth,
                                                       .runs = table,
                                                       .panels = y,
                                                       .columns = columns,
                                                       .sums = sums + run * depth * width * p->size,
                                                       .panel_step = p->panel_step,
                                                       .add = block > 0,
                                                       .next = next,
                                                       .next_y = next_y,
                                                       .next_step = bytes / steps,
                                                       .next_y_step = y_bytes / steps,
                                                       .along = is_long(p, depth)});
        next += bytes / steps * tiles * count * n;
        next_y += y_bytes / steps * tiles * count * n;
      }
    }
  }
}

/* Adds the sums of all parts to the first one's, and stores the weights in their own order, a square of `width`
 * channels by a panel's columns at a time. */
static void finish_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, width = p->loops->width, square = width * width;
  const int64_t cuts = lm_ceil_div(c, width), size = p->size;
  char *squares = lm_scratch();
  for (int64_t i = first; i < last; i++) {
    const int64_t channel = i % cuts * width, n = lm_min(width, c - channel), group_panel = i / cuts;
    const int64_t column = group_panel % weight_panels(p) * width, columns = lm_min(width, p->columns - column);
    for (int64_t t = 0; t < taps; t++) {
      const int64_t at = group_panel * p->panel_step + (t * c + channel) * width;
      for (int64_t part = 1; part < p->parts; part++)
        p->loops->add(p->weights + at * size, p->weights + (at + part * sums_of(p)) * size, n * width);
      p->panels->pack(squares + t * square * size, p->weights + at * size, 1, width, columns, n);
    }
    for (int64_t k = 0; k < columns; k++) {
      const int64_t row = group_panel / weight_panels(p) * p->columns + column + k;
      char *to = (char *)p->job->w + (row * c + channel) * taps * size;
      const char *from = squares + k * width * size;
      if (taps == 1)
        memcpy(to, from, (size_t)(n * size));
      else if (size == (int64_t)sizeof(double))
        for (int64_t j = 0; j < n * taps; j++) ((double *)to)[j] = ((const double *)from)[j % taps * square + j / taps];
      else
        for (int64_t j = 0; j < n; j++)
          for (int64_t t = 0; t < taps; t++) ((float *)to)[j * taps + t] = ((const float *)from)[t * square + j];
    }
  }
}

/* Computes the weights' gradient. Parts decide how sums are rounded, and must not depend on the number of threads;
 * columns may. */
static lm_status compute_weights(plan *p, double work) {
  const lm_conv_shape *s = &p->job->shape;
  if (output_rows(p) == 0) {
    memset(p->job->w, 0, (size_t)(s->k * (s->c / s->groups) * s->kh * s->kw * p->size));
    return LM_OK;
  }
  const int64_t pieces = lm_cpu_pieces(lm_threads_for(work));
  p->cuts = lm_min(weight_panels(p), lm_ceil_div(pieces, p->parts * s->groups));
  const int64_t y = BLOCK_ROWS * lm_round_up(p->columns, p->loops->width) * p->size;
  const size_t table = copies_bytes(p) + CHUNK_RUNS * BLOCK_ROWS * sizeof(void *);
  NEED(lm_parallel(s->groups * p->parts * p->cuts, work, table + (size_t)y, sum_weights, p));
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, square = taps * p->loops->width * p->loops->width * p->size;
  return lm_parallel(s->groups * weight_panels(p) * lm_ceil_div(c, p->loops->width),
                     (double)(s->k * c * taps * p->parts), (size_t)square, finish_weights, p);
}

/* ---- plans */

/* Sets the range of n positions whose taps are all among `size` pixels. */
static void set_whole(int64_t whole[2], lm_taps t, int64_t step, int64_t size, int64_t n) {
  const int64_t last = size - 1 - t.first - (t.count - 1) * t.step; /* last pixel of the first tap */
  whole[0] = t.first < 0 ? lm_ceil_div(-t.first, step) : 0;
  whole[1] = last < 0 ? 0 : lm_min(n, last / step + 1);
}

static void set_grid(plan *p, int64_t i, int64_t j) {
  const lm_conv_grid g = p->grid = lm_conv_grid_of(p->job, i, j);
  set_whole(p->whole[0], g.rows, g.from_step[0], p->from.h, g.h);
  set_whole(p->whole[1], g.columns, g.from_step[1], p->from.w, g.w);
}

/* Returns the number of small images that are computed side by side, so that tiles have the same taps inside. */
static int64_t images_together(const plan *p) {
  const lm_conv_shape *s = &p->job->shape;
  const bool inside = p->job->pass != LM_CONV_INPUT && s->padding[0] == 0 && s->padding[1] == 0;
  const int64_t tile = p->loops->tile, image = p->from.h * p->from.w * p->from.c * p->size;
  return inside ? 1 : lm_max(1, lm_min(s->n, IMAGES_BYTES / lm_max(1, image)) / tile * tile);
}

/* Numbers the taps in the order of grids, and packs the weights. */
static lm_status pack_taps(plan *p, const int64_t grids[2], int64_t *position) {
  const lm_conv_shape *s = &p->job->shape;
  int64_t tap = 0;
  memset(position, -1, (size_t)(s->kh * s->kw) * sizeof *position);
  for (int64_t i = 0; i < grids[0]; i++)
    for (int64_t j = 0; j < grids[1]; j++) {
      const lm_conv_grid g = lm_conv_grid_of(p->job, i, j);
      for (int64_t y = 0; y < g.rows.count; y++)
        for (int64_t x = 0; x < g.columns.count; x++)
          position[(g.rows.index + y * g.rows.index_step) * s->kw + g.columns.index + x * g.columns.index_step] = tap++;
    }
  const int64_t pack = lm_max(PACKED_ROWS, s->kh * s->kw) * p->loops->width * p->size;
  return lm_parallel(s->groups * weight_panels(p), (double)(s->kh * s->kw * s->k * (s->c / s->groups)), (size_t)pack,
                     pack_weights, p);
}

lm_status lm_direct_conv(const lm_conv_job *job) {
  enum { PARTS = 64, PART_ROWS = 1024, SUMS_BYTES = 8 << 20 };
  const lm_conv_shape *s = &job->shape;
  const bool input = job->pass == LM_CONV_INPUT;
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, k = s->k / s->groups;
  plan p = {.job = job,
            .loops = lm_gathered_loops_of(job->dtype),
            .panels = lm_panel_loops_of(job->dtype),
            .size = (int64_t)lm_dtype_size(job->dtype),
            .from = lm_conv_source(job),
            .to = lm_conv_target(job),
            .together = 1,
            .parts = 1};
  const int64_t most = LM_GATHERED_BYTES / p.size;
  const double work = direct_conv_ns(s, p.size);
  p.depth = input ? k : c;
  p.columns = input ? c : k;
  p.panel_step = taps * p.depth * p.loops->width;
  /* A chunk is several taps, or a part of one. */
  const int64_t chunk_taps = lm_max(1, lm_min(CHUNK_RUNS, p.depth > 0 ? most / p.depth : 1));
  p.chunk = p.depth > most ? lm_ceil_div(p.depth, lm_ceil_div(p.depth, most))
                           : lm_max(1, lm_ceil_div(taps, lm_ceil_div(taps, chunk_taps)) * p.depth);
  if (job->pass == LM_CONV_WEIGHT)
    p.parts = lm_max(
        1, lm_min(lm_min(PARTS, s->n * s->oh * s->ow / PART_ROWS), SUMS_BYTES / lm_max(1, sums_of(&p) * p.size)));
  else
    p.together = images_together(&p);
  const int64_t zeros_bytes = lm_max(p.depth * p.size, LM_GATHERED_BYTES);
  LM_WORKSPACE(char, zeros, zeros_bytes);
  const lm_prepack_key key = {
      job->w,
      {LM_PREPACK_DIRECT, job->dtype, job->pass, s->c, s->k, s->kh, s->kw, s->groups, lm_min(s->h, s->stride[0]),
       lm_min(s->w, s->stride[1]), s->padding[0], s->padding[1], s->dilation[0], s->dilation[1]}};
  LM_PREPACK weights = {0};
  NEED(lm_prepack_take(job->pass == LM_CONV_WEIGHT ? NULL : job->weight, &key, (size_t)(p.parts * sums_of(&p) * p.size),
                       &weights));
  LM_WORKSPACE(int64_t, position, taps);
  memset(zeros, 0, (size_t)zeros_bytes);
  p.zeros = zeros, p.weights = weights.data, p.position = position;
  if (job->pass == LM_CONV_WEIGHT) {
    set_grid(&p, 0, 0);
    return compute_weights(&p, work);
  }
  int64_t grids[2];
  lm_conv_grids(job, grids);
  if (!weights.is_ready) NEED(pack_taps(&p, grids, position));
  lm_prepack_put(&weights);
  for (int64_t i = 0; i < grids[0]; i++)
    for (int64_t j = 0; j < grids[1]; j++) {
      set_grid(&p, i, j);
      NEED(compute_grid(&p, work * (double)filter_taps(&p.grid) / (double)taps));
      p.first_tap += filter_taps(&p.grid);
    }
  return LM_OK;
}
