/* Computes depthwise convolutions of float32, with as many groups as channels in and out, and those whose groups have
 * 2, 4, … channels in and out, up to a register's; a tap of these is a tap for each channel of the group. Threads share
 * lines, or blocks of channels where an image has few lines. For the weights' gradient, pixels of a line whose taps are
 * all inside the image are read side by side, pixels at its edges one at a time; it is summed in parts of lines, the
 * same for any number of threads. Planes [n, c, h, w] are packed into panels, pixels of some channels, for a band of
 * lines and a block of channels at a time. */
#include <string.h>

#include "backend/cpu/conv/grid.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/depthwise.h"
#include "backend/cpu/isa/matmul/panels.h"
#include "backend/cpu/memory.h"

bool lm_depthwise_takes(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t group = s->c / s->groups;
  return job->dtype == LM_F32 && s->groups > 1 && s->c == s->k && group > 0 && (group & (group - 1)) == 0 &&
         group <= lm_min(8, LM_ISA_PICK(lm_depthwise_loops)->width);
}

typedef struct plan {
  const lm_conv_job *job;
  const lm_conv_shape *s;
  lm_conv_images from, to;
  lm_conv_grid grid;
  int64_t group, taps;      /* channels of a group; kh group kw */
  int64_t parts, cuts;      /* cuts: blocks of channels that are computed side by side */
  float *weights;           /* [parts, kh, group, kw, c]: transposed weights; sums of gradients */
  int64_t band, rows_bytes; /* for planes: lines of a band; bytes of the lines that it reads */
} plan;

/* CACHED: bytes of images that the L2 cache holds, which are not prefetched. */
enum { CACHED = 512 << 10 };
enum { PARTS = 64, PART_PIXELS = 64, BLOCK = 64 /* channels */, CUT = 32 /* least channels */, BAND_BYTES = 256 << 10 };

/* Some channels of an image that is read; `pixel`: elements from one pixel to the next. */
typedef struct view {
  const float *from; /* pixel (0, 0), though it may not be in memory */
  int64_t pixel, c0, channels;
} view;

static int64_t lists_bytes(const plan *p) {
  return lm_round_up(p->s->kh * p->group * (int64_t)(sizeof(int64_t) + sizeof(float *)), 64);
}

/* Returns the taps of a position `at` that are inside an image of `size`; they are consecutive. */
static lm_taps taps_inside(lm_taps t, int64_t at, int64_t size) {
  int64_t first = 0, last = t.count;
  while (first < last && at + t.first + first * t.step < 0) first++;
  while (last > first && at + t.first + (last - 1) * t.step >= size) last--;
  return (lm_taps){t.first + first * t.step, t.step, last - first, t.index + first * t.index_step, t.index_step};
}

/* Computes `pixels` positions of a line from j on. The weights' gradient takes those of j's taps that are inside the
 * image, for all positions. */
static void compute_pixels(const plan *p, const view *v, int64_t line, int64_t j, int64_t pixels, float *weights) {
  const lm_conv_shape *s = p->s;
  const int64_t i = line % p->grid.h, n = line / p->grid.h, y = i * p->grid.from_step[0], x = j * p->grid.from_step[1];
  const lm_taps rows = taps_inside(p->grid.rows, y, p->from.h), all = p->grid.columns;
  const lm_taps columns = p->job->pass == LM_CONV_WEIGHT ? taps_inside(all, x, p->from.w) : all;
  const int64_t group = p->group, count = rows.count * group;
  int64_t *offset = lm_scratch();
  float **weight = (float **)(offset + s->kh * group);
  for (int64_t i = 0; i < count; i++) {
    const int64_t r = i / group, row = (rows.index + r * rows.index_step) * group + i % group;
    offset[i] = ((y + rows.first + r * rows.step) * p->from.w + x + columns.first) * v->pixel;
    weight[i] = weights + (row * s->kw + columns.index) * s->c + v->c0;
  }
  const bool cached = (p->from.h * p->from.w + p->to.h * p->to.w) * s->c <= CACHED / (int64_t)sizeof(float);
  const int64_t to_y = p->grid.first[0] + i * p->grid.step[0], to_x = p->grid.first[1] + j * p->grid.step[1];
  const lm_depthwise_pixels job = {.channels = v->channels,
                                   .pixels = pixels,
                                   .rows = count,
                                   .group = group,
                                   .taps = columns.count,
                                   .left = x + columns.first,
                                   .width = p->from.w,
                                   .tap_columns = columns.step,
                                   .offset = offset,
                                   .weight = weight,
                                   .tap_step = columns.step * v->pixel,
                                   .weight_step = columns.index_step * s->c,
                                   .from = v->from,
                                   .from_step = p->grid.from_step[1] * v->pixel,
                                   .to = (float *)p->to.data + ((n * p->to.h + to_y) * p->to.w + to_x) * s->c + v->c0,
                                   .to_step = p->grid.step[1] * s->c,
                                   .bias = p->job->bias ? (const float *)p->job->bias + v->c0 : NULL,
                                   .next = count > 0 ? offset[count - 1] + p->from.w * v->pixel : 0,
                                   .next_lines = p->job->x_planar || cached ? 0 : p->grid.from_step[0],
                                   .next_step = p->from.w * v->pixel,
                                   .stride = p->grid.from_step[1],
                                   .next_pixel = v->pixel,
                                   .next_to = cached ? 0 : p->grid.step[0] * p->to.w * s->c};
  const struct lm_depthwise_loops *loops = LM_ISA_PICK(lm_depthwise_loops);
  (p->job->pass == LM_CONV_WEIGHT ? loops->weight : loops->forward)(&job);
}

/* Computes a line. Positions from `begin` to `end` have all columns of taps inside the image. */
static void compute_line(const plan *p, const view *v, int64_t line, float *weights) {
  if (p->job->pass != LM_CONV_WEIGHT) {
    compute_pixels(p, v, line, 0, p->grid.w, weights);
    return;
  }
  const lm_taps *t = &p->grid.columns;
  const int64_t left = -t->first, right = p->from.w - t->first - (t->count - 1) * t->step, step = p->grid.from_step[1];
  const int64_t begin = lm_min(p->grid.w, left > 0 ? lm_ceil_div(left, step) : 0);
  const int64_t end = lm_max(begin, lm_min(p->grid.w, right > 0 ? lm_ceil_div(right, step) : 0));
  for (int64_t j = 0; j < begin; j++) compute_pixels(p, v, line, j, 1, weights);
  if (end > begin) compute_pixels(p, v, line, begin, end - begin, weights);
  for (int64_t j = end; j < p->grid.w; j++) compute_pixels(p, v, line, j, 1, weights);
}

/* Computes lines from `line` to `end` of one image of planes. */
static void compute_planes(const plan *p, int64_t line, int64_t end, float *weights) {
  const struct lm_panel_loops *loops = LM_ISA_PICK(lm_panel_loops_F32);
  const lm_conv_shape *s = p->s;
  const lm_taps *t = &p->grid.rows;
  const int64_t n = line / p->grid.h, step = p->grid.from_step[0], plane = p->from.h * p->from.w, width = loops->width;
  const int64_t top = line % p->grid.h * step + t->first;
  const int64_t bottom = (end - 1) % p->grid.h * step + t->first + (t->count - 1) * t->step + 1;
  const int64_t from = lm_min(lm_max(top, 0), p->from.h), to = lm_max(from, lm_min(bottom, p->from.h));
  const int64_t pixels = (to - from) * p->from.w;
  float *panels = (float *)((char *)lm_scratch() + lists_bytes(p));
  for (int64_t block = 0; block < s->c; block += BLOCK) {
    const int64_t channels = lm_min(BLOCK, s->c - block);
    loops->pack(panels, (const float *)p->from.data + (n * s->c + block) * plane + from * p->from.w, 1, plane, pixels,
                channels);
    for (int64_t c = 0; c < channels; c += width) {
      const view v = {panels + c * pixels - from * p->from.w * width, width, block + c, lm_min(width, channels - c)};
      for (int64_t i = line; i < end; i++) compute_line(p, &v, i, weights);
    }
  }
}

static void finish_lines(const plan *p, int64_t line, int64_t end, int64_t c0, int64_t c1) {
  if (p->job->finishes) lm_epilogue_run(&p->job->end, line * p->s->ow, (end - line) * p->s->ow, c0, c1 - c0);
}

/* Computes lines first .. last - 1, channels c0 .. c1 - 1, which are all channels for planes. */
static void compute_lines(const plan *p, int64_t first, int64_t last, int64_t c0, int64_t c1, float *weights) {
  const int64_t image = p->from.h * p->from.w * p->s->c;
  for (int64_t line = first; line < last;) {
    if (p->job->x_planar) {
      const int64_t end = lm_min(last, lm_min(line + p->band, (line / p->grid.h + 1) * p->grid.h));
      compute_planes(p, line, end, weights);
      finish_lines(p, line, end, c0, c1);
      line = end;
    } else {
      const float *from = (const float *)p->from.data + line / p->grid.h * image + c0;
      compute_line(p, &(view){from, p->s->c, c0, c1 - c0}, line, weights);
      finish_lines(p, line, line + 1, c0, c1);
      line++;
    }
  }
}

/* Returns the first channel of a cut. Each has whole vectors, except the last one. */
static int64_t cut_begin(const plan *p, int64_t cut) {
  return cut == p->cuts ? p->s->c : lm_part_begin(p->s->c / CUT, cut, p->cuts) * CUT;
}

static void compute_bands(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t lines = p->s->n * p->grid.h, bands = lm_ceil_div(lines, p->band);
  while (first < last) {
    const int64_t cut = first / bands, end = lm_min(last, (cut + 1) * bands), band = first - cut * bands;
    compute_lines(p, band * p->band, lm_min((end - cut * bands) * p->band, lines), cut_begin(p, cut),
                  cut_begin(p, cut + 1), p->weights);
    first = end;
  }
}

static void compute_parts(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t lines = p->s->n * p->grid.h, weights = p->taps * p->s->c;
  for (int64_t part = first; part < last; part++) {
    float *sums = p->weights + part * weights;
    memset(sums, 0, (size_t)weights * sizeof(float));
    compute_lines(p, lm_part_begin(lines, part, p->parts), lm_part_begin(lines, part + 1, p->parts), 0, p->s->c, sums);
  }
}

/* Returns where w [c, group, kh, kw] has the weight of tap t of p->weights and channel i of the results. */
static float *weight_at(const plan *p, int64_t t, int64_t i) {
  const lm_conv_shape *s = p->s;
  const int64_t row = t / s->kw, other = i ^ row % p->group;
  const int64_t k = p->job->pass == LM_CONV_INPUT ? other : i,
                c = (p->job->pass == LM_CONV_INPUT ? i : other) % p->group;
  return (float *)p->job->w + ((k * p->group + c) * s->kh + row / p->group) * s->kw + t % s->kw;
}

/* Sums the parts of channels first .. last - 1 of w's gradient. */
static void finish_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  for (int64_t t = 0; t < p->taps; t++)
    for (int64_t i = first; i < last; i++) {
      float sum = 0;
      for (int64_t part = 0; part < p->parts; part++) sum += p->weights[(part * p->taps + t) * p->s->c + i];
      *weight_at(p, t, i) = sum;
    }
}

/* Estimates one thread's nanoseconds: pixels are read, and taps multiplied. */
static double depthwise_ns(const plan *p) {
  const lm_conv_shape *s = p->s;
  return (double)(s->n * s->c) * ((double)(s->h * s->w) / 16 + (double)(s->oh * s->ow * p->taps) / 32);
}

/* Transposes w of groups of several channels. */
static void transpose_grouped_weights(const plan *p) {
  for (int64_t t = 0; t < p->taps; t++)
    for (int64_t i = 0; i < p->s->c; i++) p->weights[t * p->s->c + i] = *weight_at(p, t, i);
}

/* Transposes w of groups of one channel by way of a panel behind the weights. */
static void transpose_weights(const plan *p) {
  const struct lm_panel_loops *loops = LM_ISA_PICK(lm_panel_loops_F32);
  const int64_t taps = p->taps, c = p->s->c;
  float *panel = p->weights + taps * c;
  for (int64_t i = 0; i < c; i += loops->width) {
    const int64_t n = lm_min(loops->width, c - i);
    loops->pack(panel, (const float *)p->job->w + i * taps, 1, taps, taps, n);
    for (int64_t t = 0; t < taps; t++)
      memcpy(p->weights + t * c + i, panel + t * loops->width, (size_t)n * sizeof(float));
  }
}

static lm_status compute(plan *p, lm_prepack *weights) {
  const lm_conv_shape *s = p->s;
  const size_t scratch = (size_t)(lists_bytes(p) + p->rows_bytes);
  const double pixels = depthwise_ns(p);
  int64_t grids[2];
  p->grid = lm_conv_grid_of(p->job, 0, 0);
  if (p->job->pass == LM_CONV_WEIGHT) {
    NEED(lm_parallel(p->parts, pixels, scratch, compute_parts, p));
    return lm_parallel(s->c, (double)(p->parts * p->taps * s->c), 0, finish_weights, p);
  }
  if (!weights->is_ready) (p->group > 1 ? transpose_grouped_weights : transpose_weights)(p);
  lm_prepack_put(weights);
  lm_conv_grids(p->job, grids);
  for (int64_t i = 0; i < grids[0]; i++)
    for (int64_t j = 0; j < grids[1]; j++) {
      p->grid = lm_conv_grid_of(p->job, i, j);
      const double work_ns = pixels / (double)(grids[0] * grids[1]);
      const int64_t bands = lm_ceil_div(s->n * p->grid.h, p->band), pieces = lm_cpu_pieces(lm_threads_for(work_ns));
      p->cuts = 1;
      if (!p->job->x_planar) p->cuts = lm_max(1, lm_min(s->c / CUT, lm_ceil_div(pieces, lm_max(1, bands))));
      NEED(lm_parallel(bands * p->cuts, work_ns, scratch, compute_bands, p));
    }
  return LM_OK;
}

lm_status lm_depthwise_conv(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  plan p = {.job = job, .s = s, .from = lm_conv_source(job), .to = lm_conv_target(job), .parts = 1, .band = 1};
  p.group = s->c / s->groups, p.taps = s->kh * p.group * s->kw;
  if (job->x_planar) { /* bands have as many lines as the L2 cache holds */
    const int64_t span = (s->kh - 1) * s->dilation[0] + 1,
                  row = s->w * lm_round_up(BLOCK, LM_ISA_PICK(lm_panel_loops_F32)->width) * (int64_t)sizeof(float);
    p.band = lm_max(1, lm_min(s->oh, (BAND_BYTES / lm_max(1, row) - span) / s->stride[0] + 1));
    if (job->pass == LM_CONV_FORWARD) {
      const int64_t pieces = lm_cpu_pieces(lm_threads_for(depthwise_ns(&p)));
      p.band = lm_max(1, lm_min(p.band, s->n * s->oh / pieces));
    }
    p.rows_bytes = lm_min(s->h, (p.band - 1) * s->stride[0] + span) * row;
  }
  if (job->pass == LM_CONV_WEIGHT)
    p.parts = lm_max(1, lm_min(lm_min(PARTS, s->n * s->oh), s->n * s->oh * s->ow / PART_PIXELS));
  const int64_t floats = p.taps * (p.parts * s->c + LM_ISA_PICK(lm_panel_loops_F32)->width);
  const int64_t form = p.group > 1 && job->pass == LM_CONV_INPUT ? -p.group : p.group;
  const lm_prepack_key key = {job->w, {LM_PREPACK_DEPTHWISE, s->c, s->kh, s->kw, form}};
  LM_PREPACK weights = {0};
  NEED(lm_prepack_take(job->pass == LM_CONV_WEIGHT ? NULL : job->weight, &key, (size_t)floats * sizeof(float),
                       &weights));
  p.weights = (float *)weights.data;
  return compute(&p, &weights);
}
