/* 3 x 3 convolutions by Winograd's F(4 x 4, 3 x 3): who transforms and multiplies what, and where
 * the transformed data lies. The arithmetic is isa/winograd.c's.
 *
 * Transformed images are 36 planes [tiles][channels], transformed weights 36 planes [channels in][channels
 * out] in panels of 64 columns. Both are many times larger than what they came from, so the point of
 * every schedule here is to use them while they are in a cache: either threads take blocks of tiles
 * and run through all weights for each, or, where tiles are few, all tiles are transformed once and
 * threads take panels of weights. */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/winograd.h"
#include "device/alloc.h"

enum {
  /* Planes are a few cache lines longer than their content: 36 streams at a power-of-two distance
   * would all fall into the same sets of the cache. */
  SKEW_A = 48,
  SKEW_B = 80,
  /* Transformed images up to here stay in a last-level cache, beside a neighbour's: with 24 MiB two processes of one
   * thread each ran 8 % slower on 32 MiB, and one alone no faster. */
  CACHE_BYTES = 12 << 20,
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int panel_width(int64_t columns, int64_t at) { return (int)min64(columns - at, LM_WINO_PANEL); }
static int64_t panels(int64_t columns) { return (columns + LM_WINO_PANEL - 1) / LM_WINO_PANEL; }

/* Tiles are laid over the output of a convolution, `out`; `in` is what they read. */
typedef struct tiling {
  lm_wino_images in, out;
  int64_t tiles;
} tiling;

static tiling tiling_of(const lm_conv_shape *s, bool turned) {
  int64_t oh = turned ? s->h : s->oh, ow = turned ? s->w : s->ow;
  lm_wino_images x = {s->h, s->w, s->c, 0, 0, 0, 0}, y = {s->oh, s->ow, s->k, 0, 0, 0, 0};
  tiling t = {.in = turned ? y : x, .out = turned ? x : y};
  t.in.th = t.out.th = (oh + 3) / 4;
  t.in.tw = t.out.tw = (ow + 3) / 4;
  t.in.top = turned ? 2 - s->padding[0] : s->padding[0];
  t.in.left = turned ? 2 - s->padding[1] : s->padding[1];
  t.tiles = s->n * t.in.th * t.in.tw;
  return t;
}

bool lm_wino_takes(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  return LM_ISA_PICK(lm_wino_loops)->usable && job->dtype == LM_F32 && s->groups == 1 && s->kh == 3 && s->kw == 3 &&
         s->stride[0] == 1 && s->stride[1] == 1 && s->dilation[0] == 1 && s->dilation[1] == 1 && s->padding[0] <= 2 &&
         s->padding[1] <= 2 && s->c % LM_WINO_LANES == 0 && s->k % LM_WINO_LANES == 0 && s->c > 0 && s->n > 0;
}

bool lm_wino_pays(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  const int64_t tiles = s->n * ((s->oh + 3) / 4) * ((s->ow + 3) / 4);
  /* Measured on Zen 5: 1.3 times faster from four tiles of 16 channels on, 2 to 3.4 times from 64 channels
   * on. Below some microseconds of work the smaller rounding error is worth more. */
  return tiles >= 4 && tiles * s->c * s->k >= 1 << 17;
}

static int threads_for(const tiling *t) {
  return lm_cpu_share(2.0 * LM_WINO_POINTS * (double)t->tiles * (double)t->in.c * (double)t->out.c / 150);
}

typedef struct product {
  tiling t;
  const float *x, *w, *bias;
  float *y;
  bool turned; /* the gradient of the input */
  int threads;
  const float *zeros; /* in.c of them */
} product;

static void weights(const product *job, int64_t column, int width, int64_t row, float *u, int64_t stride) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  if (job->turned)
    loops->weight_turned(job->w, job->t.out.c, column, width, row, u, stride);
  else
    loops->weight(job->w, job->t.in.c, column, width, row, u, stride);
}

/* Many tiles: a thread takes a block of them through all three steps.
 * scratch: weights, then for each thread a block's tiles in and out and a spare row. */
static int64_t block_tiles(const product *job) {
  int64_t share = (job->t.tiles + job->threads - 1) / job->threads;
  return min64((share + 5) / 6 * 6, job->t.in.c >= 128 ? 36 : 24);
}

static int64_t by_tiles_floats(const product *job) {
  int64_t c = job->t.in.c, k = job->t.out.c, block = block_tiles(job);
  return LM_WINO_POINTS * (c * k + SKEW_B) + job->threads * (LM_WINO_POINTS * (block * (c + k) + SKEW_A + SKEW_B) + k);
}

static void by_tiles(const product *job, float *scratch) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, block = block_tiles(job);
  const int64_t u_stride = c * k + SKEW_B, v_stride = block * c + SKEW_A, m_stride = block * k + SKEW_B;
  const int64_t own = LM_WINO_POINTS * (v_stride + m_stride) + k, rows = c / LM_WINO_LANES;
  float *u = scratch, *buffers = u + LM_WINO_POINTS * u_stride;
#pragma omp parallel num_threads(job->threads)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < panels(k) * rows; i++) {
      int64_t column = i / rows * LM_WINO_PANEL;
      weights(job, column, panel_width(k, column), i % rows * LM_WINO_LANES, u + column * c, u_stride);
    }
#pragma omp for schedule(static)
    for (int part = 0; part < job->threads; part++) {
      float *v = buffers + part * own, *m = v + LM_WINO_POINTS * v_stride, *spare = m + LM_WINO_POINTS * m_stride;
      int64_t blocks = (t->tiles + block - 1) / block;
      for (int64_t b = blocks * part / job->threads; b < blocks * (part + 1) / job->threads; b++) {
        int64_t first = b * block, last = min64(first + block, t->tiles);
        loops->input(&t->in, job->x, first, last, v, v_stride, job->zeros);
        for (int i = 0; i < LM_WINO_POINTS; i++)
          for (int64_t column = 0; column < k; column += LM_WINO_PANEL)
            loops->multiply(last - first, panel_width(k, column), c, v + i * v_stride, c, u + i * u_stride + column * c,
                            m + i * m_stride + column, k);
        loops->output(&t->out, m, m_stride, first, last, job->bias, job->y, spare);
      }
    }
  }
}

/* Few tiles: all are transformed first, then a thread makes and uses one panel of weights at a time.
 * scratch: tiles in, tiles out, then for each thread a panel and a spare row. */
static bool has_few_tiles(const product *job) {
  const tiling *t = &job->t;
  return panels(t->out.c) >= job->threads &&
         LM_WINO_POINTS * t->tiles * (t->in.c + t->out.c) * (int64_t)sizeof(float) <= CACHE_BYTES;
}

static int64_t by_panels_floats(const product *job) {
  int64_t c = job->t.in.c, k = job->t.out.c;
  return LM_WINO_POINTS * (job->t.tiles * (c + k) + SKEW_A + SKEW_B) +
         job->threads * (LM_WINO_POINTS * (c * LM_WINO_PANEL + SKEW_B) + k);
}

static void by_panels(const product *job, float *scratch) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, parts = job->threads;
  const int64_t v_stride = t->tiles * c + SKEW_A, m_stride = t->tiles * k + SKEW_B;
  const int64_t u_stride = c * LM_WINO_PANEL + SKEW_B, own = LM_WINO_POINTS * u_stride + k;
  float *v = scratch, *m = v + LM_WINO_POINTS * v_stride, *buffers = m + LM_WINO_POINTS * m_stride;
#pragma omp parallel num_threads(job->threads)
  {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
      int64_t first = t->tiles * part / parts, last = t->tiles * (part + 1) / parts;
      loops->input(&t->in, job->x, first, last, v + first * c, v_stride, job->zeros);
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
      float *u = buffers + part * own;
      for (int64_t p = panels(k) * part / parts; p < panels(k) * (part + 1) / parts; p++) {
        int64_t column = p * LM_WINO_PANEL;
        int width = panel_width(k, column);
        for (int64_t row = 0; row < c; row += LM_WINO_LANES) weights(job, column, width, row, u, u_stride);
        for (int i = 0; i < LM_WINO_POINTS; i++)
          loops->multiply(t->tiles, width, c, v + i * v_stride, c, u + i * u_stride, m + i * m_stride + column, k);
      }
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
      int64_t first = t->tiles * part / parts, last = t->tiles * (part + 1) / parts;
      float *spare = buffers + part * own + LM_WINO_POINTS * u_stride;
      loops->output(&t->out, m + first * k, m_stride, first, last, job->bias, job->y, spare);
    }
  }
}

static lm_status convolve(const lm_conv_job *conv) {
  lm_status status;
  bool turned = conv->pass == LM_CONV_INPUT;
  product job = {.t = tiling_of(&conv->shape, turned),
                 .x = turned ? conv->y : conv->x,
                 .w = conv->w,
                 .bias = conv->bias,
                 .y = turned ? conv->x : conv->y,
                 .turned = turned};
  job.threads = threads_for(&job.t);
  bool few = has_few_tiles(&job);
  int64_t zeros = job.t.in.c, floats = zeros + (few ? by_panels_floats(&job) : by_tiles_floats(&job));
  size_t bytes = (size_t)floats * sizeof(float);
  void *scratch = NULL;
  TRY(lm_device_alloc(conv->device, bytes, &scratch));
  memset(scratch, 0, (size_t)zeros * sizeof(float));
  job.zeros = scratch;
  (few ? by_panels : by_tiles)(&job, (float *)scratch + zeros);
done:
  if (scratch) lm_device_free(conv->device, scratch, bytes);
  return status;
}

typedef struct weight_product {
  tiling t;
  const float *x, *g;
  float *dw;
  int threads;
  const float *zeros; /* max(c, k) of them */
} weight_product;

/* Small weights: a thread takes blocks of tiles and adds up weights of its own.
 * scratch: for each thread weights, a block's tiles of x and of the gradient. */
enum { WEIGHT_BLOCK = 48, SMALL_WEIGHTS = 128 * 128 };

static int64_t weight_by_tiles_floats(const weight_product *job) {
  int64_t c = job->t.in.c, k = job->t.out.c;
  return job->threads * LM_WINO_POINTS * (c * k + SKEW_B + WEIGHT_BLOCK * (c + k) + SKEW_A + SKEW_B);
}

static void weight_by_tiles(const weight_product *job, float *scratch) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, u_stride = c * k + SKEW_B, own = LM_WINO_POINTS * u_stride;
  const int64_t v_stride = WEIGHT_BLOCK * c + SKEW_A, z_stride = WEIGHT_BLOCK * k + SKEW_B, rows = c / LM_WINO_LANES;
  float *buffers = scratch + job->threads * own;
#pragma omp parallel num_threads(job->threads)
  {
#pragma omp for schedule(static)
    for (int part = 0; part < job->threads; part++) {
      float *u = scratch + part * own, *v = buffers + part * LM_WINO_POINTS * (v_stride + z_stride);
      float *z = v + LM_WINO_POINTS * v_stride;
      int64_t begin = t->tiles * part / job->threads, end = t->tiles * (part + 1) / job->threads;
      for (int64_t first = begin; first < end; first += WEIGHT_BLOCK) {
        int64_t last = min64(first + WEIGHT_BLOCK, end);
        loops->input(&t->in, job->x, first, last, v, v_stride, job->zeros);
        loops->grad(&t->out, job->g, first, last, z, z_stride, job->zeros);
        for (int i = 0; i < LM_WINO_POINTS; i++)
          for (int64_t column = 0; column < k; column += LM_WINO_PANEL)
            loops->multiply_turned(c, panel_width(k, column), last - first, v + i * v_stride, c,
                                   z + i * z_stride + column, k, u + i * u_stride + column * c, first > begin);
      }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < panels(k) * rows; i++) {
      int64_t column = i / rows * LM_WINO_PANEL;
      loops->weight_grad(scratch + column * c, u_stride, job->threads, own, c, i % rows * LM_WINO_LANES, column,
                         panel_width(k, column), job->dw);
    }
  }
}

/* Large weights: all tiles are transformed, a chunk of CACHE_BYTES at a time, and a thread makes one
 * panel of weights at a time. With one chunk a thread turns each panel back at once and needs room for
 * one; with more, all panels are kept and added to.
 * scratch: tiles of x, tiles of the gradient, panels. */
static int64_t chunk_tiles(const weight_product *job) {
  int64_t per_tile = LM_WINO_POINTS * (job->t.in.c + job->t.out.c) * (int64_t)sizeof(float);
  int64_t most = CACHE_BYTES / per_tile;
  return min64(job->t.tiles, most < 16 ? 16 : most);
}

static int64_t weight_by_panels_floats(const weight_product *job) {
  int64_t c = job->t.in.c, k = job->t.out.c, chunk = chunk_tiles(job);
  int64_t kept = chunk < job->t.tiles ? panels(k) : min64(panels(k), job->threads);
  return LM_WINO_POINTS * (chunk * (c + k) + SKEW_A + SKEW_B + kept * (c * LM_WINO_PANEL + SKEW_B));
}

static void weight_by_panels(const weight_product *job, float *scratch) {
  const struct lm_wino_loops *loops = LM_ISA_PICK(lm_wino_loops);
  const tiling *t = &job->t;
  const int64_t c = t->in.c, k = t->out.c, chunk = chunk_tiles(job);
  const int64_t parts = job->threads, owners = min64(parts, panels(k));
  const int64_t v_stride = chunk * c + SKEW_A, z_stride = chunk * k + SKEW_B, u_stride = c * LM_WINO_PANEL + SKEW_B;
  float *v = scratch, *z = v + LM_WINO_POINTS * v_stride, *u = z + LM_WINO_POINTS * z_stride;
#pragma omp parallel num_threads(job->threads)
  for (int64_t begin = 0; begin < t->tiles; begin += chunk) {
    const int64_t tiles = min64(chunk, t->tiles - begin);
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
      int64_t first = tiles * part / parts, last = tiles * (part + 1) / parts;
      loops->input(&t->in, job->x, begin + first, begin + last, v + first * c, v_stride, job->zeros);
      loops->grad(&t->out, job->g, begin + first, begin + last, z + first * k, z_stride, job->zeros);
    }
#pragma omp for schedule(static)
    for (int64_t owner = 0; owner < owners; owner++)
      for (int64_t p = panels(k) * owner / owners; p < panels(k) * (owner + 1) / owners; p++) {
        int64_t column = p * LM_WINO_PANEL;
        int width = panel_width(k, column);
        float *panel = u + (chunk < t->tiles ? p : owner) * LM_WINO_POINTS * u_stride;
        for (int i = 0; i < LM_WINO_POINTS; i++)
          loops->multiply_turned(c, width, tiles, v + i * v_stride, c, z + i * z_stride + column, k,
                                 panel + i * u_stride, begin > 0);
        if (begin + tiles < t->tiles) continue;
        for (int64_t row = 0; row < c; row += LM_WINO_LANES)
          loops->weight_grad(panel, u_stride, 1, 0, c, row, column, width, job->dw);
      }
  }
}

static lm_status convolve_weight(const lm_conv_job *conv) {
  lm_status status;
  weight_product job = {.t = tiling_of(&conv->shape, false), .x = conv->x, .g = conv->y, .dw = conv->w};
  job.threads = (int)min64(threads_for(&job.t), job.t.tiles);
  int64_t c = job.t.in.c, k = job.t.out.c, zeros = c > k ? c : k;
  bool small = c * k <= SMALL_WEIGHTS;
  int64_t floats = zeros + (small ? weight_by_tiles_floats(&job) : weight_by_panels_floats(&job));
  size_t bytes = (size_t)floats * sizeof(float);
  void *scratch = NULL;
  TRY(lm_device_alloc(conv->device, bytes, &scratch));
  memset(scratch, 0, (size_t)zeros * sizeof(float));
  job.zeros = scratch;
  (small ? weight_by_tiles : weight_by_panels)(&job, (float *)scratch + zeros);
done:
  if (scratch) lm_device_free(conv->device, scratch, bytes);
  return status;
}

lm_status lm_wino_conv(const lm_conv_job *job) {
  return job->pass == LM_CONV_WEIGHT ? convolve_weight(job) : convolve(job);
}
