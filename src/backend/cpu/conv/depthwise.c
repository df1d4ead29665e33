/* Depthwise convolutions of float32: as many groups as channels in and out. Lines of results are computed side by side,
 * of pixels whose taps are all inside the image; pixels at its edges one at a time. With a stride, the gradient of x is
 * in grids of pixels of one remainder each, which only some taps reach, as in direct.c. Sums of the weights' gradient
 * are in parts of lines, the same for any number of threads. */
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/depthwise.h"
#include "device/alloc.h"

bool lm_depthwise_takes(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  return job->dtype == LM_F32 && s->groups > 1 && s->groups == s->c && s->c == s->k;
}

typedef struct tap {
  int64_t y, x, index; /* of the pixel that is read, from the place's own on; of the weight */
} tap;

typedef struct plan {
  const lm_conv_job *job;
  const lm_conv_shape *s;
  const float *from;
  float *to;
  int64_t from_h, from_w, to_h, to_w;
  int64_t first[2], step[2], from_step[2], h, w; /* of the grid, in `to` and in `from` */
  int64_t taps;                                  /* of the grid */
  const tap *tap;
  int64_t parts;
  float *weights; /* [parts, kh kw, c]: transposed; sums of gradients */
} plan;

enum { PARTS = 32 };

/* Place j of a line of places, and the `pixels` beside it, by those of n taps that are inside the image. */
static void compute_pixels(const plan *p, int64_t line, int64_t j, int64_t pixels, float *weights) {
  const lm_conv_shape *s = p->s;
  const int64_t i = line % p->h, n = line / p->h, y0 = i * p->from_step[0], x0 = j * p->from_step[1];
  const int64_t all = s->kh * s->kw;
  int64_t *offset = lm_scratch(), taps = 0;
  const float **weight = (const float **)(offset + all);
  for (const tap *t = p->tap; t < p->tap + p->taps; t++) {
    const int64_t y = y0 + t->y, x = x0 + t->x;
    if (y < 0 || y >= p->from_h || x < 0 || x >= p->from_w) continue;
    offset[taps] = (t->y * p->from_w + t->x) * s->c;
    weight[taps++] = weights + t->index * s->c;
  }
  const int64_t to_y = p->first[0] + i * p->step[0], to_x = p->first[1] + j * p->step[1];
  const lm_depthwise_pixels job = {.channels = s->c,
                                   .pixels = pixels,
                                   .taps = taps,
                                   .offset = offset,
                                   .weight = weight,
                                   .from = p->from + ((n * p->from_h + y0) * p->from_w + x0) * s->c,
                                   .from_step = p->from_step[1] * s->c,
                                   .to = p->to + ((n * p->to_h + to_y) * p->to_w + to_x) * s->c,
                                   .to_step = p->step[1] * s->c,
                                   .bias = p->job->bias};
  const struct lm_depthwise_loops *loops = LM_ISA_PICK(lm_depthwise_loops);
  (p->job->pass == LM_CONV_WEIGHT ? loops->weight : loops->forward)(&job);
}

/* Places from `begin` to `end` have all columns of taps inside the image. */
static void compute_line(const plan *p, int64_t line, float *weights) {
  int64_t begin = 0, end = p->w;
  for (const tap *t = p->tap; t < p->tap + p->taps; t++) {
    if (t->x < 0) begin = lm_max(begin, lm_ceil_div(-t->x, p->from_step[1]));
    end = lm_min(end, lm_ceil_div(lm_max(0, p->from_w - t->x), p->from_step[1]));
  }
  begin = lm_min(begin, p->w), end = lm_max(begin, end);
  for (int64_t j = 0; j < begin; j++) compute_pixels(p, line, j, 1, weights);
  if (end > begin) compute_pixels(p, line, begin, end - begin, weights);
  for (int64_t j = end; j < p->w; j++) compute_pixels(p, line, j, 1, weights);
}

static void compute_lines(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  for (int64_t line = first; line < last; line++) compute_line(p, line, p->weights);
}

static void compute_parts(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t lines = p->s->n * p->h, weights = p->s->kh * p->s->kw * p->s->c;
  for (int64_t part = first; part < last; part++) {
    float *sums = p->weights + part * weights;
    memset(sums, 0, (size_t)weights * sizeof(float));
    for (int64_t line = lm_part_begin(lines, part, p->parts); line < lm_part_begin(lines, part + 1, p->parts); line++)
      compute_line(p, line, sums);
  }
}

/* Channels first to last of w [c, kh kw] from the sums of parts. */
static void finish_weights(void *ctx, int64_t first, int64_t last) {
  const plan *p = ctx;
  const int64_t taps = p->s->kh * p->s->kw, c = p->s->c;
  for (int64_t t = 0; t < taps; t++)
    for (int64_t i = first; i < last; i++) {
      float sum = 0;
      for (int64_t part = 0; part < p->parts; part++) sum += p->weights[(part * taps + t) * c + i];
      ((float *)p->job->w)[i * taps + t] = sum;
    }
}

/* Taps of the grid whose first pixel of x is (y, x): all, but in the gradient of x. */
static void take_taps(plan *p, tap *taps, int64_t y, int64_t x) {
  const lm_conv_shape *s = p->s;
  p->taps = 0;
  for (int64_t i = 0; i < s->kh; i++)
    for (int64_t j = 0; j < s->kw; j++) {
      tap t = {i * s->dilation[0] - s->padding[0], j * s->dilation[1] - s->padding[1], i * s->kw + j};
      if (p->job->pass == LM_CONV_INPUT) {
        t.y = y - t.y, t.x = x - t.x;
        if (t.y % s->stride[0] || t.x % s->stride[1]) continue;
        t.y /= s->stride[0], t.x /= s->stride[1];
      }
      taps[p->taps++] = t;
    }
}

static lm_status compute(plan *p, tap *taps) {
  const lm_conv_shape *s = p->s;
  const int64_t all = s->kh * s->kw;
  const size_t lists = (size_t)all * (sizeof(int64_t) + sizeof(float *));
  /* It is memory that takes time. */
  const double pixels = (double)(s->n * s->c) * (double)(s->h * s->w + s->oh * s->ow * all) / 8;
  if (p->job->pass == LM_CONV_WEIGHT) {
    take_taps(p, taps, 0, 0);
    NEED(lm_parallel(p->parts, pixels, lists, compute_parts, p));
    lm_parallel(s->c, (double)(p->parts * all * s->c), 0, finish_weights, p);
    return LM_OK;
  }
  for (int64_t i = 0; i < s->c; i++)
    for (int64_t t = 0; t < all; t++) p->weights[t * s->c + i] = ((const float *)p->job->w)[i * all + t];
  if (p->job->pass == LM_CONV_FORWARD) {
    take_taps(p, taps, 0, 0);
    return lm_parallel(s->n * p->h, pixels, lists, compute_lines, p);
  }
  const int64_t rows = lm_min(s->stride[0], s->h), columns = lm_min(s->stride[1], s->w);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      p->first[0] = i, p->first[1] = j;
      p->h = lm_ceil_div(s->h - i, s->stride[0]), p->w = lm_ceil_div(s->w - j, s->stride[1]);
      take_taps(p, taps, i, j);
      NEED(lm_parallel(s->n * p->h, pixels / (double)(rows * columns), lists, compute_lines, p));
    }
  return LM_OK;
}

lm_status lm_depthwise_conv(const lm_conv_job *job) {
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  const bool input = job->pass == LM_CONV_INPUT;
  plan p = {.job = job,
            .s = s,
            .from = input ? job->y : job->x,
            .to = input ? job->x : job->y,
            .from_h = input ? s->oh : s->h,
            .from_w = input ? s->ow : s->w,
            .to_h = input ? s->h : s->oh,
            .to_w = input ? s->w : s->ow,
            .step = {1, 1},
            .from_step = {s->stride[0], s->stride[1]},
            .h = s->oh,
            .w = s->ow,
            .parts = 1};
  if (input) p.step[0] = s->stride[0], p.step[1] = s->stride[1], p.from_step[0] = p.from_step[1] = 1;
  if (job->pass == LM_CONV_WEIGHT) p.parts = lm_max(1, lm_min(PARTS, s->n * s->oh));
  const int64_t taps = s->kh * s->kw;
  const size_t weights = (size_t)lm_round_up(p.parts * taps * s->c * (int64_t)sizeof(float), 64);
  const size_t bytes = weights + (size_t)taps * sizeof(tap);
  void *scratch = NULL;
  TRY(lm_device_alloc(job->device, bytes, &scratch));
  p.weights = scratch;
  tap *list = (tap *)((char *)scratch + weights);
  p.tap = list;
  status = compute(&p, list);
done:
  if (scratch) lm_device_free(job->device, scratch, bytes);
  return status;
}
