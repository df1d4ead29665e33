/* Computes 3 x 3 convolutions by Winograd's F(4 x 4, 3 x 3): divides the work among threads, and stores transformed
 * data. The arithmetic is in isa/winograd.c.
 *
 * Transformed images are 36 planes [tiles][channels], transformed weights 36 planes [channels in][channels out] in
 * panels of columns. Both are many times larger than their sources, so every schedule here uses them while they are in
 * a cache. The way pieces are cut changes no result's order of sums. */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/winograd.h"
#include "backend/cpu/memory.h"

enum {
  /* Planes are a few cache lines longer than their content: 36 streams at a power-of-two distance
   * would all fall into the same sets of the cache. */
  SKEW_A = 48,
  SKEW_B = 80,
  /* Transformed images of up to this size stay in a last-level cache that another process shares: with 24 MiB two
   * processes of one thread each ran 8 % slower on 32 MiB, and one alone no faster. */
  CACHE_BYTES = 12 << 20,
  BLOCK = 24,        /* tiles; times from 12 to 48 differ by 4 % */
  SHARE = 8,         /* least tiles of a thread's share */
  WEIGHT_BLOCK = 48, /* tiles, for the weights' gradient */
};

static int64_t panel_columns(void) { return LM_ISA_PICK(lm_wino_loops)->panel; }

/* Tiles cover the output of a convolution, `out`, and read `in`. */
typedef struct tiling {
  lm_wino_images in, out;
  int64_t tiles;
} tiling;

static tiling tiling_of(const lm_conv_shape *s, bool rotated) {
  int64_t oh = rotated ? s->h : s->oh, ow = rotated ? s->w : s->ow;
  lm_wino_images x = {s->h, s->w, s->c, 0, 0, 0, 0}, y = {s->oh, s->ow, s->k, 0, 0, 0, 0};
  tiling t = {.in = rotated ? y : x, .out = rotated ? x : y};
  t.in.th = t.out.th = (oh + 3) / 4;
  t.in.tw = t.out.tw = (ow + 3) / 4;
  t.in.top = rotated ? 2 - s->padding[0] : s->padding[0];
  t.in.left = rotated ? 2 - s->padding[1] : s->padding[1];
  t.tiles = s->n * t.in.th * t.in.tw;
  return t;
}

bool lm_wino_is_supported(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  return job->dtype == LM_F32 && s->groups == 1 && s->kh == 3 && s->kw == 3 && s->stride[0] == 1 && s->stride[1] == 1 &&
         s->dilation[0] == 1 && s->dilation[1] == 1 && s->padding[0] <= 2 && s->padding[1] <= 2 &&
         s->c % LM_WINO_CHANNELS == 0 && s->k % LM_WINO_CHANNELS == 0 && s->c > 0 && s->n > 0;
}

bool lm_wino_is_faster(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t tiles = s->n * ((s->oh + 3) / 4) * ((s->ow + 3) / 4);
  /* Measured on Zen 5 with each level of instructions: 1.1 to 2.5 times as fast as direct convolution with four tiles
   * or 16 channels, 2 to 4.5 times with many of both. Below some microseconds of work the smaller rounding error is
   * worth more. */
  return tiles >= 4 && tiles * s->c * s->k >= 1 << 17;
}

/* Estimates one thread's nanoseconds. */
static double winograd_ns(const tiling *t) {
  return 2.0 * LM_WINO_POINTS * (double)t->tiles * (double)t->in.c * (double)t->out.c / 150;
}

typedef struct product {
  tiling t;
  const float *x, *w, *bias;
  float *y;
  bool rotated; /* true for the gradient of the input */
  int threads;
  const float *zeros; /* in.c zeros, read in place of pixels outside the image */
  float *u;           /* many tiles: all transformed weights */
  float *v, *m;       /* few tiles: all transformed tiles, in and out */
} product;

/* Transforms 16 rows of a panel of weights, whose first column is `column`. */
static void transform_weight_rows(const product *job, int64_t column, int64_t row, float *u, int64_t stride) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  int width = (int)lm_min(job->t.out.c - column, loops->panel);
  if (job->rotated)
    loops->weight_rotated(job->w, job->t.out.c, column, width, row, u, stride);
  else
    loops->weight(job->w, job->t.in.c, column, width, row, u, stride);
}

/* Returns the tiles of a block, for many tiles: a thread takes a block through all three steps. Threads share the
 * weights; each has a block's tiles in and out and a spare row. */
static int64_t block_tiles(const product *job) {
  int64_t piece = lm_ceil_div(job->t.tiles, lm_cpu_pieces(job->threads));
  return lm_min(lm_round_up(piece, 6), BLOCK);
}

static void transform_weights(void *ctx, int64_t first, int64_t last) {
  const product *job = ctx;
  const int64_t c = job->t.in.c, panel = panel_columns(), rows = c / LM_WINO_CHANNELS;
  for (int64_t i = first; i < last; i++)
    transform_weight_rows(job, i / rows * panel, i % rows * LM_WINO_CHANNELS, job->u + i / rows * panel * c,
                          c * job->t.out.c + SKEW_B);
}

static void compute_blocks(void *ctx, int64_t from, int64_t to) {
  const product *job = ctx;
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, block = block_tiles(job);
  const int64_t u_stride = c * k + SKEW_B, v_stride = block * c + SKEW_A, m_stride = block * k + SKEW_B;
  float *v = lm_scratch(), *m = v + LM_WINO_POINTS * v_stride, *spare = m + LM_WINO_POINTS * m_stride;
  for (int64_t first = from * block; first < to * block && first < t->tiles; first += block) {
    int64_t last = lm_min(first + block, t->tiles);
    loops->input(&t->in, job->x, c, first, last, v, v_stride, job->zeros);
    for (int i = 0; i < LM_WINO_POINTS; i++)
      loops->multiply(last - first, k, c, v + i * v_stride, c, job->u + i * u_stride, m + i * m_stride, k);
    loops->output(&t->out, m, m_stride, first, last, job->bias, job->y, spare);
  }
}

static int64_t by_tiles_floats(const product *job) { return LM_WINO_POINTS * (job->t.in.c * job->t.out.c + SKEW_B); }

static lm_status multiply_by_tiles(product *job, float *scratch) {
  const int64_t c = job->t.in.c, k = job->t.out.c, block = block_tiles(job);
  const int64_t own = LM_WINO_POINTS * (block * (c + k) + SKEW_A + SKEW_B) + k;
  const double work = winograd_ns(&job->t);
  job->u = scratch;
  lm_parallel(lm_ceil_div(k, panel_columns()) * (c / LM_WINO_CHANNELS), work, 0, transform_weights, job);
  return lm_parallel(lm_ceil_div(job->t.tiles, block), work, (size_t)own * sizeof(float), compute_blocks, job);
}

/* Returns true for few tiles: all, or a thread's share, are transformed first, then a thread computes and uses one
 * panel of weights at a time. Threads share the tiles in and out; each has a panel and a spare row. */
static bool has_few_tiles(const product *job) {
  const tiling *t = &job->t;
  return lm_ceil_div(t->out.c, panel_columns()) >= job->threads &&
         LM_WINO_POINTS * t->tiles * (t->in.c + t->out.c) * (int64_t)sizeof(float) <= CACHE_BYTES;
}

static int64_t by_panels_floats(const product *job) {
  return LM_WINO_POINTS * (job->t.tiles * (job->t.in.c + job->t.out.c) + SKEW_A + SKEW_B);
}

static void transform_tiles(void *ctx, int64_t first, int64_t last) {
  const product *job = ctx;
  const tiling *t = &job->t;
  LM_ISA_PICK(lm_wino_loops)
      ->input(&t->in, job->x, t->in.c, first, last, job->v + first * t->in.c, t->tiles * t->in.c + SKEW_A, job->zeros);
}

/* Multiplies tiles first .. last - 1 by the panels of columns from `column` to `end`. */
static void multiply_tiles(const product *job, int64_t column, int64_t end, int64_t first, int64_t last) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, panel = loops->panel, u_stride = c * panel + SKEW_B;
  float *u = lm_scratch();
  for (; column < end && column < k; column += panel) {
    for (int64_t row = 0; row < c; row += LM_WINO_CHANNELS) transform_weight_rows(job, column, row, u, u_stride);
    for (int i = 0; i < LM_WINO_POINTS; i++)
      loops->multiply(last - first, lm_min(k - column, panel), c, job->v + i * (t->tiles * c + SKEW_A) + first * c, c,
                      u + i * u_stride, job->m + i * (t->tiles * k + SKEW_B) + first * k + column, k);
  }
}

static void compute_panels(void *ctx, int64_t first, int64_t last) {
  const product *job = ctx;
  multiply_tiles(job, first * panel_columns(), last * panel_columns(), 0, job->t.tiles);
}

static void transform_back(void *ctx, int64_t first, int64_t last) {
  const product *job = ctx;
  const tiling *t = &job->t;
  LM_ISA_PICK(lm_wino_loops)
      ->output(&t->out, job->m + first * t->out.c, t->tiles * t->out.c + SKEW_B, first, last, job->bias, job->y,
               lm_scratch());
}

/* Takes a thread's share of the tiles through all three steps. */
static void compute_shares(void *ctx, int64_t from, int64_t to) {
  const product *job = ctx;
  for (int64_t share = from; share < to; share++) {
    const int64_t first = lm_part_begin(job->t.tiles, share, job->threads);
    const int64_t last = lm_part_begin(job->t.tiles, share + 1, job->threads);
    transform_tiles(ctx, first, last);
    multiply_tiles(job, 0, job->t.out.c, first, last);
    transform_back(ctx, first, last);
  }
}

static lm_status multiply_by_panels(product *job, float *scratch) {
  const int64_t c = job->t.in.c, k = job->t.out.c, tiles = job->t.tiles, panel = panel_columns();
  const double work = winograd_ns(&job->t);
  const size_t own = (size_t)(LM_WINO_POINTS * (c * panel + SKEW_B)) * sizeof(float);
  job->v = scratch;
  job->m = job->v + LM_WINO_POINTS * (tiles * c + SKEW_A);
  /* With enough tiles a thread transforms weights again sooner than it reads what others have transformed. */
  if (job->threads > 1 && tiles >= SHARE * job->threads)
    return lm_parallel(job->threads, work, lm_max(own, (size_t)k * sizeof(float)), compute_shares, job);
  lm_parallel(tiles, work, 0, transform_tiles, job);
  NEED(lm_parallel(lm_ceil_div(k, panel), work, own, compute_panels, job));
  return lm_parallel(tiles, work, (size_t)k * sizeof(float), transform_back, job);
}

static lm_status convolve(const lm_conv_job *conv) {
  const bool rotated = conv->pass == LM_CONV_INPUT;
  product job = {.t = tiling_of(&conv->shape, rotated),
                 .x = rotated ? conv->y : conv->x,
                 .w = conv->w,
                 .bias = conv->bias,
                 .y = rotated ? conv->x : conv->y,
                 .rotated = rotated};
  job.threads = lm_threads_for(winograd_ns(&job.t));
  const bool few = has_few_tiles(&job);
  LM_WORKSPACE(float, zeros, job.t.in.c);
  LM_WORKSPACE(float, scratch, few ? by_panels_floats(&job) : by_tiles_floats(&job));
  memset(zeros, 0, (size_t)job.t.in.c * sizeof(float));
  job.zeros = zeros;
  return (few ? multiply_by_panels : multiply_by_tiles)(&job, scratch);
}

/* Computes the weights' gradient. A thread takes a block of channels in by channels out. It transforms those channels
 * of some tiles at a time, and adds their products to sums that stay in its cache. Other blocks transform the same
 * channels again, which costs less than to read sums of all channels every few tiles. Each thread has a block's tiles
 * of x and of the gradient, and its sums if there is one part; else each piece has sums. */
typedef struct weight_product {
  tiling t;
  const float *x, *g;
  float *dw;
  int64_t parts; /* parts of tiles, with separate sums: of few weights, blocks alone are too few pieces */
  int64_t block_c, block_k;
  int threads;
  const float *zeros; /* max(block_c, block_k) zeros, read in place of pixels outside the image */
  float *sums;        /* sums of each piece, if there are several parts */
} weight_product;

enum {
  /* FEW_PARTS: summing 4 parts of 256 tiles costs less than blocks so narrow that there are as many pieces. More parts
   * are for many threads; they cost a few percent from 1024 tiles each on. */
  FEW_PARTS = 4,
  FEW_TILES = 256,
  MANY_TILES = 1024,
  MAX_PARTS = 16, /* parts for 64 x 64 channels */
  WIDE = 128,     /* channels of a block, halved if there are too few pieces */
  NARROW = 32,
};

static int64_t weight_blocks(const weight_product *job) {
  return lm_ceil_div(job->t.in.c, job->block_c) * lm_ceil_div(job->t.out.c, job->block_k);
}

/* Returns the number of parts. They must not depend on the number of threads, since they decide how sums are rounded;
 * blocks may. */
static int64_t weight_parts(const tiling *t) {
  const int64_t units = lm_ceil_div(t->in.c, 64) * lm_ceil_div(t->out.c, 64);
  int64_t parts = 1;
  while (2 * parts * units <= MAX_PARTS && t->tiles >= 2 * parts * (parts < FEW_PARTS ? FEW_TILES : MANY_TILES))
    parts *= 2;
  return parts;
}

static void plan_weight(weight_product *job) {
  job->threads = lm_threads_for(winograd_ns(&job->t));
  job->parts = weight_parts(&job->t);
  job->block_c = lm_min(job->t.in.c, WIDE);
  job->block_k = lm_min(job->t.out.c, WIDE);
  /* Work of milliseconds: two pieces for each thread, to share when another program slows some of them. */
  const int64_t wanted = job->threads * (job->threads > 1 && winograd_ns(&job->t) / job->threads > 2e6 ? 2 : 1);
  while (job->parts * weight_blocks(job) < wanted && lm_max(job->block_c, job->block_k) > NARROW) {
    int64_t *wider = job->block_c >= job->block_k ? &job->block_c : &job->block_k;
    *wider = lm_round_up(*wider / 2, LM_WINO_CHANNELS);
  }
}

/* Return numbers of floats: of a piece's sums, of the memory of all threads, and of each thread's. */
static int64_t sum_floats(const weight_product *job) { return LM_WINO_POINTS * (job->block_c * job->block_k + SKEW_B); }
static int64_t weight_floats(const weight_product *job) {
  return job->parts > 1 ? job->parts * weight_blocks(job) * sum_floats(job) : 0;
}
static int64_t own_weight_floats(const weight_product *job) {
  int64_t tiles = WEIGHT_BLOCK * (job->block_c + job->block_k) + SKEW_A + SKEW_B;
  return LM_WINO_POINTS * tiles + (job->parts > 1 ? 0 : sum_floats(job));
}

typedef struct weight_block {
  int64_t c0, k0, c, k; /* first channels; numbers of channels */
} weight_block;

static weight_block weight_block_of(const weight_product *job, int64_t i) {
  int64_t rows = lm_ceil_div(job->t.in.c, job->block_c), c0 = i % rows * job->block_c, k0 = i / rows * job->block_k;
  return (weight_block){c0, k0, lm_min(job->block_c, job->t.in.c - c0), lm_min(job->block_k, job->t.out.c - k0)};
}

/* Writes a block's weights, for 16 channels in from its `row` on, from `parts` buffers of sums. */
static void weight_rows_grad(const weight_product *job, const weight_block *b, int64_t row, const float *u,
                             int64_t u_stride, int64_t parts) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  for (int64_t column = 0; column < b->k; column += loops->panel) {
    int width = (int)lm_min(b->k - column, loops->panel);
    loops->weight_grad(u + column * b->c + row * width, u_stride, parts, LM_WINO_POINTS * u_stride, job->t.in.c,
                       b->c0 + row, b->k0 + column, width, job->dw);
  }
}

static void weight_pieces(void *ctx, int64_t from, int64_t to) {
  const weight_product *job = ctx;
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t v_stride = WEIGHT_BLOCK * job->block_c + SKEW_A, z_stride = WEIGHT_BLOCK * job->block_k + SKEW_B;
  const int64_t u_stride = job->block_c * job->block_k + SKEW_B, parts = job->parts;
  float *v = lm_scratch(), *z = v + LM_WINO_POINTS * v_stride, *own_sums = z + LM_WINO_POINTS * z_stride;
  for (int64_t i = from; i < to; i++) {
    const weight_block b = weight_block_of(job, i / parts);
    int64_t begin = t->tiles * (i % parts) / parts, end = t->tiles * (i % parts + 1) / parts;
    float *u = parts > 1 ? job->sums + i * sum_floats(job) : own_sums;
    for (int64_t first = begin; first < end; first += WEIGHT_BLOCK) {
      int64_t last = lm_min(first + WEIGHT_BLOCK, end);
      loops->input(&t->in, job->x + b.c0, b.c, first, last, v, v_stride, job->zeros);
      loops->grad(&t->out, job->g + b.k0, b.k, first, last, z, z_stride, job->zeros);
      for (int p = 0; p < LM_WINO_POINTS; p++)
        loops->multiply_transposed(b.c, b.k, last - first, v + p * v_stride, z + p * z_stride, u + p * u_stride,
                                   first > begin);
    }
    for (int64_t row = 0; parts == 1 && row < b.c; row += LM_WINO_CHANNELS)
      weight_rows_grad(job, &b, row, u, u_stride, 1);
  }
}

static void weight_rows(void *ctx, int64_t first, int64_t last) {
  const weight_product *job = ctx;
  const int64_t rows = lm_ceil_div(job->block_c, LM_WINO_CHANNELS), u_stride = job->block_c * job->block_k + SKEW_B;
  for (int64_t i = first; i < last; i++) {
    const weight_block b = weight_block_of(job, i / rows);
    int64_t row = i % rows * LM_WINO_CHANNELS;
    if (row < b.c)
      weight_rows_grad(job, &b, row, job->sums + i / rows * job->parts * sum_floats(job), u_stride, job->parts);
  }
}

static lm_status convolve_weight(const lm_conv_job *conv) {
  weight_product job = {.t = tiling_of(&conv->shape, false), .x = conv->x, .g = conv->y, .dw = conv->w};
  plan_weight(&job);
  const int64_t few = lm_max(job.block_c, job.block_k), blocks = weight_blocks(&job);
  const double work = winograd_ns(&job.t);
  LM_WORKSPACE(float, zeros, few);
  LM_WORKSPACE(float, sums, weight_floats(&job));
  memset(zeros, 0, (size_t)few * sizeof(float));
  job.zeros = zeros, job.sums = sums;
  NEED(lm_parallel(blocks * job.parts, work, (size_t)own_weight_floats(&job) * sizeof(float), weight_pieces, &job));
  if (job.parts == 1) return LM_OK;
  return lm_parallel(blocks * lm_ceil_div(job.block_c, LM_WINO_CHANNELS), work, 0, weight_rows, &job);
}

lm_status lm_wino_conv(const lm_conv_job *job) {
  return job->pass == LM_CONV_WEIGHT ? convolve_weight(job) : convolve(job);
}
