/* Convolutions of float32 and float64 as products of gathered rows (isa/gathered.h): no copy of images, whatever the
 * stride, padding and dilation. A row is the pixels under the kernel at one position, a run for each tap:
 *
 *   forward   y [n oh ow, k] = taps of x [n oh ow, kh kw c] times w [kh kw c, k], plus bias
 *   input     x [n h w, c] = taps of y [n h w, kh kw k] times w [kh kw k, c]
 *   weight    w [kh kw c, k] = taps of x, transposed, times y [n oh ow, k]
 *
 * With a stride, the pixels of x in the second are in grids of one remainder each, which only some taps reach.
 * Taps beyond an image read zeros. What an element is summed up from, and in which order, depends on the shape alone.
 */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/gathered.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "device/alloc.h"

enum {
  BLOCK_ROWS = 192,   /* of gathered rows: they, and results of theirs, stay in the second cache */
  CHUNK_BYTES = 2048, /* of each row, so that a panel stays in the first */
  CHUNK_RUNS = 64,
  PANEL_BYTES = 12 << 10, /* of the gradient of y, beside which runs of x are in the first cache */
  ALIGN = 64
};

typedef struct images {
  char *data; /* [n, h, w, c] */
  int64_t h, w, c;
} images;

typedef struct offset {
  int64_t y, x;
} offset;

/* Positions that look at the same taps; (i, j) of an image is its pixel first + step * (i, j). */
typedef struct grid {
  int64_t h, w;
  offset first, step, from_step; /* of the images that are read, whose pixels are from_step * (i, j) + tap */
  int64_t first_run, runs;
} grid;

typedef struct plan {
  const lm_conv_job *job;
  const struct lm_gathered_loops *loops;
  const struct lm_panel_loops *panels;
  int64_t size; /* bytes of an element */
  images from, to;
  grid grid;
  const offset *run;               /* where runs begin, grid by grid */
  int64_t all_runs, depth;         /* of all grids; elements of a run */
  int64_t columns, panel_step;     /* of a group; from one panel to the next, and of one group */
  int64_t chunk_runs, chunk_depth; /* a chunk is several runs, or a part of one */
  int64_t blocks, cuts;            /* of rows, and into how many parts columns are cut */
  int64_t parts;                   /* of rows, with sums of weights of their own */
  char *weights;                   /* packed, or sums */
  const void *zeros;
  const int64_t *position; /* of each tap among those of all grids; -1: none of them reaches it */
} plan;

static int64_t rows_of(const plan *p) { return p->job->shape.n * p->grid.h * p->grid.w; }
static int64_t panels_of(const plan *p) { return lm_ceil_div(p->columns, p->loops->width); }
static int64_t group_step(const plan *p) { return panels_of(p) * p->panel_step; }
static double work_of(const lm_conv_shape *s, int64_t size) {
  return (double)(s->n * s->oh * s->ow) * (double)(s->k * (s->c / s->groups) * s->kh * s->kw) * (double)size / 160;
}

/* Addresses of runs first_run to first_run + count of rows first to last, from element `skip` of each on: in tiles. */
static void place_runs(const plan *p, int64_t first, int64_t last, int64_t first_run, int64_t count, int64_t skip,
                       int64_t tile, const void **table) {
  const grid *g = &p->grid;
  const int64_t pixel = p->from.c * p->size;
  for (int64_t row = first; row < last;) {
    const int64_t i = row / g->w % g->h, j = row % g->w, n = row / g->w / g->h, at = row - first;
    const int64_t take = lm_min(g->w - j, last - row);
    for (int64_t run = 0; run < count; run++) {
      const offset tap = p->run[g->first_run + first_run + run];
      const int64_t y = i * g->from_step.y + tap.y;
      const bool inside = y >= 0 && y < p->from.h;
      const char *line = p->from.data + (n * p->from.h + (inside ? y : 0)) * p->from.w * pixel + skip * p->size;
      const void **to = table + (at / tile * count + run) * tile + at % tile;
      int64_t x = j * g->from_step.x + tap.x, left = tile - at % tile;
      for (int64_t t = 0; t < take; t++, x += g->from_step.x) {
        *to++ = inside && x >= 0 && x < p->from.w ? line + x * pixel : p->zeros;
        if (--left > 0) continue;
        left = tile;
        to += (count - 1) * tile;
      }
    }
    row += take;
  }
  const int64_t rows = last - first, end = rows / tile * tile * count;
  for (int64_t i = rows % tile; i > 0 && i < tile; i++)
    for (int64_t run = 0; run < count; run++) table[end + run * tile + i] = p->zeros;
}

/* Where the results of rows first to last go, from element `skip` of each on. */
static void place_results(const plan *p, int64_t first, int64_t last, int64_t skip, void **to) {
  const grid *g = &p->grid;
  const int64_t step = g->step.x * p->to.c * p->size;
  for (int64_t row = first; row < last;) {
    const int64_t i = row / g->w % g->h, j = row % g->w, n = row / g->w / g->h;
    const int64_t y = g->first.y + i * g->step.y, x = g->first.x + j * g->step.x;
    char *at = p->to.data + (((n * p->to.h + y) * p->to.w + x) * p->to.c + skip) * p->size;
    for (const int64_t end = lm_min(last, row + g->w - j); row < end; row++, at += step) *to++ = at;
  }
}

/* What the n rows from `row` on read, about: nothing where a stride skips lines. */
static const char *source_of(const plan *p, int64_t row, int64_t n, int64_t *bytes) {
  const int64_t rows = rows_of(p), all = p->job->shape.n * p->from.h * p->from.w;
  const int64_t pixel = p->from.c * p->size, last = lm_min(row + n, rows);
  const double pixels = (double)all / (double)rows;
  const bool skips = p->job->pass != LM_CONV_INPUT && p->job->shape.kh < p->job->shape.stride[0];
  *bytes = skips ? 0 : (int64_t)((double)(last - row) * pixels) * pixel;
  return p->from.data + (int64_t)((double)row * pixels) * pixel;
}

static size_t table_bytes(const plan *p) {
  return (size_t)lm_round_up((BLOCK_ROWS * p->chunk_runs + BLOCK_ROWS) * (int64_t)sizeof(void *), ALIGN);
}

/* One group's rows first to last by panels first_panel to last_panel. */
static void compute_rows(const plan *p, int64_t group, int64_t first, int64_t last, int64_t first_panel,
                         int64_t last_panel) {
  const lm_conv_job *job = p->job;
  const grid *g = &p->grid;
  const int64_t width = p->loops->width, column = first_panel * width, channel = group * p->columns + column;
  const int64_t group_channel = group * (p->from.c / job->shape.groups);
  const void **table = lm_scratch();
  void **to = (void **)(table + BLOCK_ROWS * p->chunk_runs);
  place_results(p, first, last, channel, to);
  int64_t run = 0, skip = 0, bytes;
  const int64_t steps = lm_ceil_div(last - first, p->loops->tile) * (last_panel - first_panel);
  const char *next = source_of(p, last, last - first, &bytes);
  bytes = g->runs * p->depth > 0 ? bytes / (g->runs * p->depth * steps) : 0;
  do {
    const int64_t count = lm_min(p->chunk_runs, g->runs - run), depth = lm_min(p->chunk_depth, p->depth - skip);
    const int64_t row = (g->first_run + run) * p->depth + skip;
    place_runs(p, first, last, run, count, group_channel + skip, p->loops->tile, table);
    p->loops->product(&(lm_gathered){
        .rows = last - first,
        .count = count,
        .depth = depth,
        .runs = table,
        .panels = p->weights + (group * group_step(p) + first_panel * p->panel_step + row * width) * p->size,
        .panel_step = p->panel_step,
        .columns = lm_min(p->columns, last_panel * width) - column,
        .to = to,
        .bias = job->bias ? (const char *)job->bias + channel * p->size : NULL,
        .add = run + skip > 0,
        .next = next,
        .next_step = bytes});
    next += bytes * count * depth * steps;
    skip += depth;
    if (skip >= p->depth) skip = 0, run += count;
  } while (run < g->runs);
}

static void compute_blocks(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t units = p->blocks * p->cuts, rows = rows_of(p), panels = panels_of(p);
  for (int64_t i = first; i < last; i++) {
    const int64_t group = i / units, block = i % units / p->cuts, cut = i % p->cuts;
    compute_rows(p, group, lm_part_begin(rows, block, p->blocks), lm_part_begin(rows, block + 1, p->blocks),
                 lm_part_begin(panels, cut, p->cuts), lm_part_begin(panels, cut + 1, p->cuts));
  }
}

/* The results of a grid. */
static lm_status compute_grid(plan *p, double work) {
  const int64_t rows = rows_of(p), pieces = lm_cpu_pieces(lm_threads_for(work)), tile = p->loops->tile;
  if (rows == 0) return LM_OK;
  const int64_t most = lm_min(BLOCK_ROWS, lm_max(lm_round_up(lm_ceil_div(rows, pieces), tile), 4 * tile));
  p->blocks = lm_ceil_div(rows, most / tile * tile);
  p->cuts = lm_min(panels_of(p), lm_ceil_div(pieces, p->blocks));
  return lm_parallel(p->blocks * p->cuts * p->job->shape.groups, work, table_bytes(p), compute_blocks, p);
}

/* ---- weights to panels, whose rows are in the order of runs, and of channels within each */

enum { PACKED_ROWS = 256 };

/* The rows of all taps of `n` channels are in `rows`, channel by channel. */
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
    const int64_t panels = panels_of(p), group = i / panels, column = i % panels * width;
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

static void sum_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t width = p->loops->width, rows = rows_of(p), panels = panels_of(p), units = p->parts * p->cuts;
  const void **table = lm_scratch();
  char *y = (char *)table + table_bytes(p);
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
      const int64_t tiles = lm_ceil_div(p->depth, p->loops->tile) * lm_ceil_div(columns, width);
      const int64_t steps = lm_max(1, tiles * p->all_runs * n), y_bytes = row + n < rows ? n * s->k * p->size : 0;
      for (int64_t run = 0; run < p->all_runs; run += p->chunk_runs) {
        const int64_t count = lm_min(p->chunk_runs, p->all_runs - run);
        place_runs(p, row, row + n, run, count, group * (s->c / s->groups), n, table);
        p->loops->transposed(&(lm_gathered_transposed){.rows = n,
                                                       .count = count,
                                                       .depth = p->depth,
                                                       .runs = table,
                                                       .panels = y,
                                                       .columns = columns,
                                                       .sums = sums + run * p->depth * width * p->size,
                                                       .panel_step = p->panel_step,
                                                       .add = block > 0,
                                                       .next = next,
                                                       .next_y = next_y,
                                                       .next_step = bytes / steps,
                                                       .next_y_step = y_bytes / steps});
        next += bytes / steps * tiles * count * n;
        next_y += y_bytes / steps * tiles * count * n;
      }
    }
  }
}

/* Sums of all parts, in the first one's place; then weights as they are stored, of `width` channels at a time, by way
 * of squares of these by a panel's columns. */
static void add_parts(const plan *p, int64_t at, int64_t n) {
  for (int64_t part = 1; part < p->parts; part++) {
    const int64_t from = at + part * sums_of(p);
    if (p->size == (int64_t)sizeof(double))
      for (int64_t i = 0; i < n; i++) ((double *)p->weights)[at + i] += ((const double *)p->weights)[from + i];
    else
      for (int64_t i = 0; i < n; i++) ((float *)p->weights)[at + i] += ((const float *)p->weights)[from + i];
  }
}

static void finish_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const lm_conv_shape *s = &p->job->shape;
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, width = p->loops->width, square = width * width;
  const int64_t cuts = lm_ceil_div(c, width), size = p->size;
  char *squares = lm_scratch();
  for (int64_t i = first; i < last; i++) {
    const int64_t channel = i % cuts * width, n = lm_min(width, c - channel), group_panel = i / cuts;
    const int64_t column = group_panel % panels_of(p) * width, columns = lm_min(width, p->columns - column);
    for (int64_t t = 0; t < taps; t++) {
      const int64_t at = group_panel * p->panel_step + (t * c + channel) * width;
      add_parts(p, at, n * width);
      p->panels->pack(squares + t * square * size, p->weights + at * size, 1, width, columns, n);
    }
    for (int64_t k = 0; k < columns; k++) {
      const int64_t row = group_panel / panels_of(p) * p->columns + column + k;
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

/* Parts decide how sums are rounded, and must not depend on the number of threads; columns may. */
static lm_status compute_weights(plan *p, double work) {
  const lm_conv_shape *s = &p->job->shape;
  if (rows_of(p) == 0) {
    memset(p->job->w, 0, (size_t)(s->k * (s->c / s->groups) * s->kh * s->kw * p->size));
    return LM_OK;
  }
  const int64_t pieces = lm_cpu_pieces(lm_threads_for(work));
  p->cuts = lm_min(panels_of(p), lm_ceil_div(pieces, p->parts * s->groups));
  const int64_t y = BLOCK_ROWS * lm_round_up(p->columns, p->loops->width) * p->size;
  NEED(lm_parallel(s->groups * p->parts * p->cuts, work, table_bytes(p) + (size_t)y, sum_weights, p));
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, square = taps * p->loops->width * p->loops->width * p->size;
  return lm_parallel(s->groups * panels_of(p) * lm_ceil_div(c, p->loops->width), (double)(s->k * c * taps * p->parts),
                     (size_t)square, finish_weights, p);
}

/* ---- plans */

/* Taps in the order of grids; of the one grid of the other passes, in their own. */
static int64_t take_taps(const plan *p, offset at, grid *g, int64_t run, offset *runs, int64_t *position) {
  const lm_conv_shape *s = &p->job->shape;
  const bool input = p->job->pass == LM_CONV_INPUT;
  g->first_run = run;
  for (int64_t i = 0; i < s->kh; i++)
    for (int64_t j = 0; j < s->kw; j++) {
      offset tap = {i * s->dilation[0] - s->padding[0], j * s->dilation[1] - s->padding[1]};
      if (!input) position[i * s->kw + j] = i * s->kw + j;
      if (input) {
        const offset y = {at.y - tap.y, at.x - tap.x};
        if (y.y % s->stride[0] || y.x % s->stride[1]) continue;
        position[i * s->kw + j] = run;
        tap = (offset){y.y / s->stride[0], y.x / s->stride[1]};
      }
      runs[run++] = tap;
    }
  g->runs = run - g->first_run;
  return run;
}

static lm_status run_grids(plan *p, offset *runs, int64_t *position) {
  const lm_conv_shape *s = &p->job->shape;
  const bool input = p->job->pass == LM_CONV_INPUT;
  const offset steps = {input ? lm_min(s->stride[0], s->h) : 1, input ? lm_min(s->stride[1], s->w) : 1};
  const double work = work_of(s, p->size);
  int64_t run = 0;
  for (int64_t i = 0; i < steps.y; i++)
    for (int64_t j = 0; j < steps.x; j++) run = take_taps(p, (offset){i, j}, &p->grid, run, runs, position);
  const int64_t pack = lm_max(PACKED_ROWS, s->kh * s->kw) * p->loops->width * p->size;
  if (p->job->pass != LM_CONV_WEIGHT)
    NEED(lm_parallel(s->groups * panels_of(p), (double)(s->kh * s->kw * s->k * (s->c / s->groups)), (size_t)pack,
                     pack_weights, p));
  run = 0;
  for (int64_t i = 0; i < steps.y; i++)
    for (int64_t j = 0; j < steps.x; j++) {
      grid *g = &p->grid;
      *g = (grid){.h = s->oh, .w = s->ow, .step = {1, 1}, .from_step = {s->stride[0], s->stride[1]}};
      if (input)
        *g = (grid){.h = lm_ceil_div(s->h - i, s->stride[0]),
                    .w = lm_ceil_div(s->w - j, s->stride[1]),
                    .first = {i, j},
                    .step = {s->stride[0], s->stride[1]},
                    .from_step = {1, 1}};
      run = take_taps(p, (offset){i, j}, g, run, runs, position);
      if (p->job->pass == LM_CONV_WEIGHT) return compute_weights(p, work);
      NEED(compute_grid(p, work * (double)g->runs / (double)p->all_runs));
    }
  return LM_OK;
}

lm_status lm_direct_conv(const lm_conv_job *job) {
  enum { PARTS = 16, PART_ROWS = 1024, SUMS_BYTES = 8 << 20 };
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  const bool f64 = job->dtype == LM_F64, input = job->pass == LM_CONV_INPUT;
  const int64_t taps = s->kh * s->kw, c = s->c / s->groups, k = s->k / s->groups;
  plan p = {.job = job,
            .loops = f64 ? LM_ISA_PICK(lm_gathered_F64) : LM_ISA_PICK(lm_gathered_F32),
            .panels = f64 ? LM_ISA_PICK(lm_panels_F64) : LM_ISA_PICK(lm_panels_F32),
            .size = (int64_t)lm_dtype_size(job->dtype),
            .from = {job->x, s->h, s->w, s->c},
            .to = {job->y, s->oh, s->ow, s->k},
            .parts = 1};
  if (input) p.from = (images){job->y, s->oh, s->ow, s->k}, p.to = (images){job->x, s->h, s->w, s->c};
  const int64_t most = CHUNK_BYTES / p.size;
  p.all_runs = taps;
  p.depth = input ? k : c;
  p.columns = input ? c : k;
  p.panel_step = p.all_runs * p.depth * p.loops->width;
  const int64_t weights = sums_of(&p) * p.size;
  p.chunk_depth = lm_ceil_div(p.depth, lm_max(1, lm_ceil_div(p.depth, most)));
  p.chunk_runs = lm_max(1, lm_min(CHUNK_RUNS, p.depth > 0 ? most / p.depth : 1));
  if (job->pass == LM_CONV_WEIGHT) {
    const int64_t rows = s->n * s->oh * s->ow;
    p.parts = lm_max(1, lm_min(lm_min(PARTS, rows / PART_ROWS), SUMS_BYTES / lm_max(1, weights)));
  }
  const int64_t zeros = lm_round_up(p.depth * p.size, ALIGN);
  const size_t bytes =
      (size_t)(zeros + lm_round_up(p.parts * weights, ALIGN)) + (size_t)taps * (sizeof(offset) + sizeof(int64_t)) + 1;
  void *scratch = NULL;
  TRY(lm_device_alloc(job->device, bytes, &scratch));
  memset(scratch, 0, (size_t)zeros);
  p.zeros = scratch;
  p.weights = (char *)scratch + zeros;
  offset *runs = (offset *)(p.weights + lm_round_up(p.parts * weights, ALIGN));
  p.run = runs;
  int64_t *position = (int64_t *)(runs + taps);
  memset(position, -1, (size_t)taps * sizeof *position);
  p.position = position;
  status = run_grids(&p, runs, position);
done:
  if (scratch) lm_device_free(job->device, scratch, bytes);
  return status;
}
